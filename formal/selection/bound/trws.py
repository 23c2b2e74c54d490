"""This module raises a lower bound by passing messages along the edges, known as sequential tree-reweighted message
passing (TRW-S, with uniform and other weights), over factored tables and in integers.

State: one message per edge end, m_e,u over table rows and m_e,v over table columns, in units of 1/Q.  With

    theta_v(a) = c_v(a) + sum_{e at v} m_e,v(index of a)          bracket_e(r, c) = T_e[r, c] - m_e,u(r) - m_e,v(c)

any messages give the bound   constant + sum_v min theta_v + sum_e min bracket_e.   A sweep visits the vertices in a
                              fixed
order; vertex u gives the share gamma_u of theta_u - min theta_u to each edge ahead, in whole units,

    m_e,u(r) -= delta(r),   delta(r) = min_{a in class r} gamma_u (theta_u(a) - min theta_u)
    m_e,v(c)  = min_r ( T_e[r, c] - m_e,u(r) )

after which min bracket_e = 0.  With a edges ahead and b behind, gamma is 1/a ("all": fastest at first, exact at once on
a tree whose leaves come first), 1/max(a, b) ("share": the classical weight, best in the long run) or 1/(a + b) ("keep":
leaves vertices their own excess, which lets more labels be fixed).  The bound never falls, whatever the mixture.

Integers, not floats: minima of int64 are as fast as those of double (8 lanes), tables are read where they are, and the
messages are a certificate as they stand.  Only the excess over the minimum travels, so numbers stay of local size.

Source: Kolmogorov, "Convergent tree-reweighted message passing", TPAMI 2006; the same, "A new look at reweighted
message passing", TPAMI 2015.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from copy import copy
from typing import Literal

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints
from ....proofs.selection.certificates import Dual
from ..model.clock import Clock
from ..model.factored import INFINITE, Network, saturate
from ..model.minplus import columns_min, rows_min
from ..options.bound import BOUND, BoundOptions
from .dual import gather

Style = Literal["all", "share", "keep"]


class Grouping:
    """Minimum over the labels that share a table index, as one sorted `reduceat`."""

    def __init__(self, index: Ints, size: int) -> None:
        self.order = np.argsort(index, kind="stable")
        ordered = index[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        self.ids = ordered[self.starts]
        self.size = size

    def lowest(self, values: Ints) -> Ints:
        """Shape (size,); FORBIDDEN where no label is."""
        low: Ints = np.minimum.reduceat(values[self.order], self.starts)
        if self.ids.size == self.size:
            return low
        out = np.full(self.size, FORBIDDEN, dtype=np.int64)
        out[self.ids] = low
        return out


def message_limit(network: Network) -> int:
    """Messages of at most this magnitude cannot make an int64 sum wrap on this network."""
    most = max((len(a) for a in network.around), default=0)
    return (1 << 57) // (most + 4)


class Sweeper:
    """Messages on one network.  `to_u[e]`, `to_v[e]`: shape (rows,), (columns,) of the kept table of arc e.

    `extra[v]`: what the multipliers of resource rows add to the costs of v's labels.
    """

    def __init__(self, network: Network, order: list[int], threads: int = 1, options: BoundOptions = BOUND) -> None:
        self.network = network
        self.options = options
        self.threads = threads
        self.limit = message_limit(network)
        self.extra: list[Ints | None] = [None] * len(network.unary)
        zeros: dict[int, Ints] = {}
        self.to_u: list[Ints] = [_zero(network.tables[a.table].shape[0], zeros) for a in network.arcs]
        self.to_v: list[Ints] = [_zero(network.tables[a.table].shape[1], zeros) for a in network.arcs]
        self._groups: dict[tuple[int, int], Grouping] = {}
        self.follow(order)

    def follow(self, order: list[int]) -> None:
        """Sweep in this order from now on: any messages go with any order."""
        self.order = order
        rank = [0] * len(order)
        for i, v in enumerate(order):
            rank[v] = i
        self.ahead: list[list[int]] = [[] for _ in order]
        self.behind: list[list[int]] = [[] for _ in order]
        for e, arc in enumerate(self.network.arcs):
            first, second = (arc.u, arc.v) if rank[arc.u] < rank[arc.v] else (arc.v, arc.u)
            self.ahead[first].append(e)
            self.behind[second].append(e)

    def within(self, chosen: AbstractSet[int]) -> Sweeper:
        """The same messages, swept at `chosen` and along the edges between them alone: a sweep returns their part
        of the bound, the rest stays.
        """
        part = copy(self)  # message lists are shared: what a part sends, the whole has
        inside = [a.u in chosen and a.v in chosen for a in self.network.arcs]
        part.order = [v for v in self.order if v in chosen]
        part.ahead = [[e for e in edges if inside[e]] for edges in self.ahead]
        part.behind = [[e for e in edges if inside[e]] for edges in self.behind]
        return part

    def costs(self, v: int) -> Ints:
        """A fresh array with the costs of the labels of `v`, multipliers included."""
        extra = self.extra[v]
        return self.network.unary[v].copy() if extra is None else saturate(self.network.unary[v] + extra)

    def theta(self, v: int) -> Ints:
        """Reparametrised cost of the labels of `v`; FORBIDDEN where not allowed."""
        out = self.costs(v)
        for e in self.network.around[v]:
            arc = self.network.arcs[e]
            message, index = (self.to_u[e], arc.rows) if arc.u == v else (self.to_v[e], arc.cols)
            out += message if index is None else message[index]
        return saturate(out)

    def _class_minimum(self, e: int, v: int, values: Ints) -> Ints:
        arc = self.network.arcs[e]
        index, size = (arc.rows, self.to_u[e].size) if arc.u == v else (arc.cols, self.to_v[e].size)
        if index is None:
            return values
        key = (id(index), size)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Grouping(index, size)
        return group.lowest(values)

    def sweep(self, forward: bool, clock: Clock, style: Style = "share") -> int | None:
        """One pass; the bound without the constant (FORBIDDEN: some vertex has no allowed label), or None when the time
        ran out in the middle (the messages stay valid)."""
        order = self.order if forward else self.order[::-1]
        total = 0
        for v in order:
            if clock.over():
                return None
            theta = self.theta(v)
            low = int(theta.min())
            if low >= INFINITE:
                return FORBIDDEN
            total += low
            out, back = (self.ahead[v], self.behind[v]) if forward else (self.behind[v], self.ahead[v])
            if not out:
                continue
            parts = (
                len(out) if style == "all" else max(len(out), len(back)) if style == "share" else len(out) + len(back)
            )
            dead = theta >= INFINITE
            theta -= low
            whole, rest = np.divmod(theta, parts) if parts > 1 else (theta, None)
            for k, e in enumerate(out):
                share = whole if rest is None else whole + (rest > k)  # remainders go to the first edges, one unit each
                if dead.any():
                    share = np.where(dead, FORBIDDEN, share)
                self._send(e, v, share)
        return total

    def _send(self, e: int, v: int, share: Ints) -> None:
        arc = self.network.arcs[e]
        table = self.network.tables[arc.table]
        delta = self._class_minimum(e, v, share)
        old = self.to_u[e] if arc.u == v else self.to_v[e]
        idle = delta >= INFINITE
        if idle.any():
            given = np.where(idle, old, old - np.where(idle, 0, delta))
            np.clip(given, -self.limit, self.limit, out=given)
            h = np.where(idle, FORBIDDEN, -given)
        else:
            given = np.clip(old - delta, -self.limit, self.limit)
            h = -given
        answer = columns_min(table, h, self.threads) if arc.u == v else rows_min(table, h, self.threads)
        answer = np.clip(answer, -self.limit, self.limit)
        if arc.u == v:
            self.to_u[e], self.to_v[e] = given, answer
        else:
            self.to_v[e], self.to_u[e] = given, answer


def _zero(size: int, known: dict[int, Ints]) -> Ints:
    return known.setdefault(size, np.zeros(size, dtype=np.int64))


def load(sweeper: Sweeper, warm: Dual) -> None:
    """Start `sweeper` from the messages of a record (of any denominator)."""
    to_u, to_v = gather(sweeper.network, warm)
    q = sweeper.network.base.denominator
    sweeper.to_u = [m if q == warm.denominator else m * q // warm.denominator for m in to_u]
    sweeper.to_v = [m if q == warm.denominator else m * q // warm.denominator for m in to_v]

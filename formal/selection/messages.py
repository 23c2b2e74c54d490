"""Lower bound by message passing: sequential tree-reweighted sweeps over factored tables, in floats, as a guide.

State: one message per edge end, m_e,u over table rows and m_e,v over table columns.  With

    theta_v(a) = c_v(a) + sum_{e at v} m_e,v(index of a)          bracket_e(r, c) = T_e[r, c] - m_e,u(r) - m_e,v(c)

any messages give the bound   constant + sum_v min theta_v + sum_e min bracket_e.   A sweep visits the vertices in a fixed
order; vertex u gives the share gamma_u of theta_u - min theta_u to each edge ahead,

    m_e,u(r) -= delta(r),   delta(r) = gamma_u min_{a in class r} (theta_u(a) - min theta_u)
    m_e,v(c)  = min_r ( T_e[r, c] - m_e,u(r) )

after which min bracket_e = 0.  With a edges ahead and b behind, gamma is 1/a ("all": fastest at first, exact at once on a tree whose
leaves come first), 1/max(a, b) ("share": the classical weight, best in the long run) or 1/(a + b) ("keep": leaves vertices their own
excess, which lets more labels be fixed).  The bound never falls, whatever the mixture.  Only the excess over the minimum travels, so numbers stay of local size and single precision
is good enough for large tables: certificates take rounded messages and are evaluated again in integers (`bounds`).

Source: Kolmogorov, "Convergent tree-reweighted message passing", TPAMI 2006; the same, "A new look at reweighted message
passing", TPAMI 2015.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ...models.problems import Ints
from .clock import Clock
from .kernels import columns_min, rows_min
from .network import INFINITE, Network

Style = Literal["all", "share", "keep"]

Floats = NDArray[np.float64]

DOUBLE_CELLS: Final = 1 << 24
"""Up to this many stored entries the sweeps run in double precision."""


class Grouping:
    """Minimum over the labels that share a table index, as one sorted `reduceat`."""

    def __init__(self, index: Ints, size: int) -> None:
        self.order = np.argsort(index, kind="stable")
        ordered = index[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        self.ids = ordered[self.starts]
        self.size = size

    def lowest(self, values: Floats) -> Floats:
        """Shape (size,); infinity where no label is."""
        low = np.minimum.reduceat(values[self.order], self.starts)
        if self.ids.size == self.size:
            return low
        out = np.full(self.size, np.inf)
        out[self.ids] = low
        return out


class Sweeper:
    """Float messages on one network.  `to_u[e]`, `to_v[e]`: shape (rows,), (columns,) of the kept table of arc e."""

    def __init__(self, network: Network, order: list[int], threads: int = 1) -> None:
        self.network = network
        self.order = order
        self.threads = threads
        self.double = network.distinct_cells() <= DOUBLE_CELLS
        doubles = [_floats(t) for t in network.tables] if self.double else []
        self.tables: list[Floats] | list[NDArray[np.float32]] = doubles if self.double else [_singles(t) for t in network.tables]
        self.unary: list[Floats] = [_floats(c) for c in network.unary]
        self.extra: list[Floats | None] = [None] * len(self.unary)
        self.rank = [0] * len(order)
        for i, v in enumerate(order):
            self.rank[v] = i
        self.to_u: list[Floats] = [np.zeros(network.tables[a.table].shape[0]) for a in network.arcs]
        self.to_v: list[Floats] = [np.zeros(network.tables[a.table].shape[1]) for a in network.arcs]
        self.ahead: list[list[int]] = [[] for _ in order]
        self.behind: list[list[int]] = [[] for _ in order]
        for e, arc in enumerate(network.arcs):
            first, second = (arc.u, arc.v) if self.rank[arc.u] < self.rank[arc.v] else (arc.v, arc.u)
            self.ahead[first].append(e)
            self.behind[second].append(e)
        self._groups: dict[tuple[int, int], Grouping] = {}

    def theta(self, v: int) -> Floats:
        """Reparametrised cost of the labels of `v`."""
        extra = self.extra[v]
        out = self.unary[v].copy() if extra is None else self.unary[v] + extra
        for e in self.network.around[v]:
            arc = self.network.arcs[e]
            message, index = (self.to_u[e], arc.rows) if arc.u == v else (self.to_v[e], arc.cols)
            out += message if index is None else message[index]
        return out

    def _class_minimum(self, e: int, v: int, values: Floats) -> Floats:
        arc = self.network.arcs[e]
        index, size = (arc.rows, self.to_u[e].size) if arc.u == v else (arc.cols, self.to_v[e].size)
        if index is None:
            return values
        key = (id(index), size)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Grouping(index, size)
        return group.lowest(values)

    def sweep(self, forward: bool, clock: Clock, style: Style = "share") -> float | None:
        """One pass; the float bound without the constant, or None when the time ran out in the middle (state stays valid)."""
        order = self.order if forward else self.order[::-1]
        total = 0.0
        for v in order:
            if clock.over():
                return None
            theta = self.theta(v)
            low = float(theta.min())
            if low == np.inf:
                return np.inf
            total += low
            out, back = (self.ahead[v], self.behind[v]) if forward else (self.behind[v], self.ahead[v])
            if not out:
                continue
            parts = len(out) if style == "all" else max(len(out), len(back)) if style == "share" else len(out) + len(back)
            theta -= low
            given = np.zeros_like(theta)
            for k, e in enumerate(out):
                if not self.double:
                    self._send(e, v, theta / parts)
                    continue
                # whole units, remainders spread over the edges: nothing is lost when messages become a certificate
                upto = np.floor(theta * ((k + 1) / parts))
                self._send(e, v, np.where(np.isinf(upto), upto, upto - given))
                given = np.where(np.isinf(upto), 0.0, upto)
        return total

    def _send(self, e: int, v: int, share: Floats) -> None:
        arc = self.network.arcs[e]
        table = self.tables[arc.table]
        delta = self._class_minimum(e, v, share)
        old = self.to_u[e] if arc.u == v else self.to_v[e]
        new = np.where(np.isinf(delta), old, old - np.where(np.isinf(delta), 0.0, delta))
        h: Floats | NDArray[np.float32] = np.where(np.isinf(delta) | np.isinf(new), np.inf, -new)
        if not self.double:
            h = h.astype(np.float32)
        if arc.u == v:
            self.to_u[e] = new
            self.to_v[e] = columns_min(table, h, self.threads).astype(np.float64)
        else:
            self.to_v[e] = new
            self.to_u[e] = rows_min(table, h, self.threads).astype(np.float64)


def _floats(a: Ints) -> Floats:
    out = a.astype(np.float64)
    if a.size and int(a.max()) >= INFINITE:
        out[a >= INFINITE] = np.inf
    return out


def _singles(a: Ints) -> NDArray[np.float32]:
    out = a.astype(np.float32)
    if a.size and int(a.max()) >= INFINITE:
        out[a >= INFINITE] = np.inf
    return out

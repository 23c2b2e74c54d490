"""Solutions from messages: sequential decoding, then local search with table look-ups.

`decode` fixes the vertices in the reverse of a sweep's order: the next vertex takes the first label that minimises

    c_v(a) + sum_{decided neighbours w} T_e(a, x_w) + sum_{undecided neighbours} m_e,v(a)

`descend` moves one vertex at a time to its best label while that lowers the cost, and then whole pairs of adjacent
vertices that are small enough.  Both are deterministic: vertices in order, first label among equals.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints
from .clock import Clock
from .messages import Sweeper
from .network import INFINITE, Network, saturate

Choice = list[int]
"""Positions in the domains of a network, one per vertex."""

CONFLICT: Final = FORBIDDEN >> 7
"""Counts for a forbidden pair while decoding: finite, so that the label with fewest of them wins when none is free
of them.
"""

PAIR_CELLS: Final = 1 << 14
"""Pairs of vertices with at most this many joint labels are moved together."""


def line(network: Network, e: int, v: int, other: int) -> Ints:
    """Pair costs of arc `e` for every label of `v` when the other end has label position `other`; shape (|D_v|,)."""
    arc = network.arcs[e]
    table = network.tables[arc.table]
    if arc.u == v:
        column: Ints = table[:, other if arc.cols is None else int(arc.cols[other])]
        return column if arc.rows is None else column[arc.rows]
    row: Ints = table[other if arc.rows is None else int(arc.rows[other])]
    return row if arc.cols is None else row[arc.cols]


def decode(sweeper: Sweeper, after_forward: bool) -> Choice:
    """Labels read off the messages of the last sweep (`after_forward`: it went forward)."""
    network = sweeper.network
    choice = [0] * len(network.domains)
    decided = [False] * len(network.domains)
    for v in reversed(sweeper.order) if after_forward else sweeper.order:
        total = sweeper.costs(v)
        for e in network.around[v]:
            arc = network.arcs[e]
            w = arc.v if arc.u == v else arc.u
            if decided[w]:
                costs = line(network, e, v, choice[w])
                total += np.where(costs >= INFINITE, CONFLICT, costs)
            else:
                message, index = (sweeper.to_u[e], arc.rows) if arc.u == v else (sweeper.to_v[e], arc.cols)
                total += message if index is None else message[index]
        choice[v] = int(np.argmin(total))
        decided[v] = True
    return choice


def local_costs(network: Network, choice: Choice, v: int, skip: int = -1) -> Ints:
    """Cost of every label of `v` given its neighbours (all but arc `skip`), FORBIDDEN-saturated; counts conflicts
    as 2**60.
    """
    total = network.unary[v].copy()
    for e in network.around[v]:
        if e != skip:
            arc = network.arcs[e]
            w = arc.v if arc.u == v else arc.u
            total = np.minimum(total + line(network, e, v, choice[w]), FORBIDDEN)
    return saturate(total)


def descend(network: Network, choice: Choice, clock: Clock, rounds: int = 20) -> Choice:
    """Local minimum with respect to moves of one vertex and of small adjacent pairs."""
    x = list(choice)
    n = len(x)
    dirty = [True] * n
    for _ in range(rounds):
        moved = False
        for v in range(n):
            if not dirty[v] or network.domains[v].size == 1:
                continue
            if clock.over():
                return x
            dirty[v] = False
            costs = local_costs(network, x, v)
            best = int(np.argmin(costs))
            if costs[best] < costs[x[v]]:
                x[v] = best
                moved = True
                for e in network.around[v]:
                    arc = network.arcs[e]
                    dirty[arc.v if arc.u == v else arc.u] = True
        if not moved and not _pairs(network, x, dirty, clock):
            break
    return x


def _pairs(network: Network, x: Choice, dirty: list[bool], clock: Clock) -> bool:
    moved = False
    for e, arc in enumerate(network.arcs):
        u, v = arc.u, arc.v
        ku, kv = network.domains[u].size, network.domains[v].size
        if ku == 1 or kv == 1 or ku * kv > PAIR_CELLS:
            continue
        if clock.over():
            return moved
        table = network.tables[arc.table]
        if arc.rows is not None:
            table = table[arc.rows]
        if arc.cols is not None:
            table = table[:, arc.cols]
        joint = table.copy()
        for f in network.around[u]:
            other = network.arcs[f]
            if f != e and {other.u, other.v} == {u, v}:  # parallel edge: part of the joint cost
                t = network.tables[other.table]
                t = t if other.rows is None else t[other.rows]
                t = t if other.cols is None else t[:, other.cols]
                joint = np.minimum(joint + (t if other.u == u else t.T), FORBIDDEN)
        cost_u = _without(network, x, u, v)
        cost_v = _without(network, x, v, u)
        joint = saturate(np.minimum(np.minimum(joint + cost_u[:, None], FORBIDDEN) + cost_v[None, :], FORBIDDEN))
        best = int(np.argmin(joint))
        a, b = divmod(best, kv)
        if joint[a, b] < joint[x[u], x[v]]:
            x[u], x[v] = a, b
            moved = True
            for w in (u, v):
                dirty[w] = True
                for f in network.around[w]:
                    other = network.arcs[f]
                    dirty[other.v if other.u == w else other.u] = True
    return moved


def _without(network: Network, x: Choice, v: int, other: int) -> Ints:
    total = network.unary[v].copy()
    for e in network.around[v]:
        arc = network.arcs[e]
        w = arc.v if arc.u == v else arc.u
        if w != other:
            total = np.minimum(total + line(network, e, v, x[w]), FORBIDDEN)
    return saturate(total)

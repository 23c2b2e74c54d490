"""This module improves a solution by moves of single vertices and of small adjacent pairs, known as local descent.

`descend` moves one vertex at a time to its best label while that lowers the cost, and then whole pairs of adjacent
vertices that are small enough.  It is deterministic: vertices in order, first label among equals.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN
from ..model.clock import Clock
from ..model.factored import Network, saturate
from ..model.local_costs import Choice, local_costs
from ..options.primal import PRIMAL, PrimalOptions


def descend(network: Network, choice: Choice, clock: Clock, options: PrimalOptions = PRIMAL) -> Choice:
    """Local minimum with respect to moves of one vertex and of small adjacent pairs."""
    x = list(choice)
    n = len(x)
    dirty = [True] * n
    for _ in range(options.descent_rounds):
        moved = False
        for v in range(n):
            if not dirty[v] or network.domains[v].size == 1:
                continue
            if clock.over():
                return x
            costs = local_costs(network, x, v)
            best = int(np.argmin(costs))
            if costs[best] < costs[x[v]]:
                x[v] = best
                moved = True
                _spoil(network, v, dirty)
            dirty[v] = False
        if not moved and not _pairs(network, x, dirty, clock, options.pair_cells):
            break
    return x


def _spoil(network: Network, v: int, dirty: list[bool]) -> None:
    """The neighbours of `v` are to be looked at again."""
    for e in network.around[v]:
        dirty[network.arcs[e].u] = dirty[network.arcs[e].v] = True


def _pairs(network: Network, x: Choice, dirty: list[bool], clock: Clock, most: int) -> bool:
    moved = False
    for arc in network.arcs:
        u, v = arc.u, arc.v
        ku, kv = network.domains[u].size, network.domains[v].size
        if ku == 1 or kv == 1 or ku * kv > most:
            continue
        if clock.over():
            return moved
        joint = np.zeros((ku, kv), dtype=np.int64)
        for f in network.around[u]:
            other = network.arcs[f]
            if {other.u, other.v} == {u, v}:  # parallel edges too
                t = network.tables[other.table]
                t = t if other.rows is None else t[other.rows]
                t = t if other.cols is None else t[:, other.cols]
                joint = np.minimum(joint + (t if other.u == u else t.T), FORBIDDEN)
        joint = np.minimum(joint + local_costs(network, x, u, v)[:, None], FORBIDDEN)
        joint = saturate(np.minimum(joint + local_costs(network, x, v, u), FORBIDDEN))
        a, b = divmod(int(np.argmin(joint)), kv)
        if joint[a, b] < joint[x[u], x[v]]:
            x[u], x[v] = a, b
            moved = True
            _spoil(network, u, dirty)
            _spoil(network, v, dirty)
    return moved

"""This module improves a solution by moves of single vertices and of small adjacent pairs, known as local descent.

`descend` moves one vertex at a time to its best label while that lowers the cost, and then whole pairs of adjacent
vertices that are small enough.  It is deterministic: vertices in order, first label among equals.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints
from ..model.clock import Clock
from ..model.factored import Network, saturate
from ..model.local_costs import Choice, line, local_costs
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
            dirty[v] = False
            costs = local_costs(network, x, v)
            best = int(np.argmin(costs))
            if costs[best] < costs[x[v]]:
                x[v] = best
                moved = True
                for e in network.around[v]:
                    arc = network.arcs[e]
                    dirty[arc.v if arc.u == v else arc.u] = True
        if not moved and not _pairs(network, x, dirty, clock, options.pair_cells):
            break
    return x


def _pairs(network: Network, x: Choice, dirty: list[bool], clock: Clock, most: int) -> bool:
    moved = False
    for e, arc in enumerate(network.arcs):
        u, v = arc.u, arc.v
        ku, kv = network.domains[u].size, network.domains[v].size
        if ku == 1 or kv == 1 or ku * kv > most:
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

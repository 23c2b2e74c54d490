"""The costs of the labels of one vertex when its neighbours are fixed: what local search and
branching look up.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints
from .factored import Network, saturate

Choice = list[int]
"""Positions in the domains of a network, one per vertex."""


def line(network: Network, e: int, v: int, other: int) -> Ints:
    """Pair costs of arc `e` for every label of `v` when the other end has label position `other`; shape (|D_v|,)."""
    arc = network.arcs[e]
    table = network.tables[arc.table]
    if arc.u == v:
        column: Ints = table[:, other if arc.cols is None else int(arc.cols[other])]
        return column if arc.rows is None else column[arc.rows]
    row: Ints = table[other if arc.rows is None else int(arc.rows[other])]
    return row if arc.cols is None else row[arc.cols]


def local_costs(network: Network, choice: Choice, v: int, without: int = -1) -> Ints:
    """Cost of every label of `v` given its neighbours (all but vertex `without`), FORBIDDEN-saturated; counts conflicts
    as 2**60.
    """
    total = network.unary[v].copy()
    for e in network.around[v]:
        arc = network.arcs[e]
        w = arc.v if arc.u == v else arc.u
        if w != without:
            total = np.minimum(total + line(network, e, v, choice[w]), FORBIDDEN)
    return saturate(total)

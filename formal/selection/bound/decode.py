"""Reads a solution off messages, known as sequential decoding.

Vertices are fixed in the order of sweeps, the last of which went backward: the next vertex takes the first label that
minimises

    c_v(a) + sum_{decided neighbours w} T_e(a, x_w) + sum_{undecided neighbours} m_e,v(a)
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN
from ..model.factored import INFINITE
from ..model.local_costs import Choice, line
from .trws import Sweeper

CONFLICT: Final = FORBIDDEN >> 7
"""Counts for a forbidden pair while decoding: finite, so that the label with fewest of them wins when none is free
of them.
"""


def decode(sweeper: Sweeper) -> Choice:
    """Labels read off the messages of the last sweep, which went backward."""
    network = sweeper.network
    choice = [0] * len(network.domains)
    decided = [False] * len(network.domains)
    for v in sweeper.order:
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

"""Looks for a solution by single moves, the best of those that do not go back at once, known as tabu search.

    local(v, a)    cost of vertex v at a beside what its neighbours have:  c_v(a) + sum_w T_vw(a, x_w)
    move           the (v, a) of least  local(v, a) - local(v, x_v),  up too; the label that v leaves is not taken again
                   for a while, unless the whole becomes cheaper than anything before
    table entries  forbidden ones cost more than all others together, so that there are few of them and then none

Nothing compiled is needed for it: where its solution meets the bound that needs no messages, a problem is solved before
the loops of a search are loaded.
Source: Galinier, Hertz, "A survey of local search methods for graph coloring", 2006.
"""

from __future__ import annotations

from random import Random
from typing import Final

import numpy as np

from ....models.problem.selection_problem import Ints
from ..model.clock import Clock
from ..model.factored import INFINITE, Network
from ..model.local_costs import Choice
from ..options.primal import PRIMAL, PrimalOptions

MOVE: Final = 40
"""Steps of work of a neighbour in a move."""


def walk(network: Network, start: Choice, enough: int, clock: Clock, options: PrimalOptions = PRIMAL) -> Choice:
    """The best choices met from `start` on; it ends at a cost of `enough`, the constant left out."""
    state = _Walk(network, start)
    best, least, since, step = list(start), state.total, 0, 0
    until = np.zeros(state.local.size, dtype=np.int64)
    rng = Random(0)
    while least > enough and since < options.walk_idle and not clock.over():
        step, since = step + 1, since + 1
        gain = state.local - state.local[state.slots][state.owner]
        gain[state.slots] = INFINITE
        gain[(until > step) & (gain >= least - state.total)] = INFINITE
        turn = rng.randrange(gain.size)  # ties are broken from another place each time
        slot = (int(np.argmin(np.roll(gain, -turn))) + turn) % gain.size
        if gain[slot] >= INFINITE:
            continue
        until[state.slots[state.owner[slot]]] = step + options.walk_tabu + rng.randrange(options.walk_tabu)
        clock.charge(MOVE * (1 + state.move(slot, int(gain[slot]))))
        if state.total < least:
            best, least, since = state.choice(), state.total, 0
    return best


class _Walk:
    """Labels end to end: `owner` of each, those taken at `slots`, `local` costs, and the `total` cost."""

    def __init__(self, network: Network, start: Choice) -> None:
        sizes = [d.size for d in network.domains]
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        most = sum(int(np.abs(np.where(a < INFINITE, a, 0)).max(initial=0)) for a in network.unary)
        largest = [int(np.abs(np.where(t < INFINITE, t, 0)).max(initial=0)) for t in network.tables]
        most += sum(largest[arc.table] for arc in network.arcs)
        cap = min(2 * most + 1, INFINITE >> 12)
        self.near: list[list[tuple[int, Ints]]] = [[] for _ in sizes]
        capped = [np.minimum(t, cap) for t in network.tables]
        self.slots = self.first[:-1] + np.array(start, dtype=np.int64)
        self.local = np.concatenate([np.minimum(c, cap) for c in network.unary])
        self.total = int(self.local[self.slots].sum())
        for arc in network.arcs:
            table = capped[arc.table]
            table = table if arc.rows is None else table[arc.rows]
            table = table if arc.cols is None else table[:, arc.cols]
            self.near[arc.u].append((arc.v, table))
            self.near[arc.v].append((arc.u, np.ascontiguousarray(table.T)))
            self.total += int(table[start[arc.u], start[arc.v]])
        for v, around in enumerate(self.near):
            for w, table in around:
                self.local[self.first[w] : self.first[w + 1]] += table[start[v]]

    def choice(self) -> Choice:
        """What is taken."""
        found: Choice = (self.slots - self.first[:-1]).tolist()
        return found

    def move(self, slot: int, gain: int) -> int:
        """Take a label; how many neighbours its vertex has."""
        v = int(self.owner[slot])
        here = int(self.first[v])
        new, old = slot - here, int(self.slots[v]) - here
        for w, table in self.near[v]:
            self.local[self.first[w] : self.first[w + 1]] += table[new] - table[old]
        self.slots[v] = slot
        self.total += gain
        return len(self.near[v])

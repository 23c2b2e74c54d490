"""Sweeps the messages of a network with extrapolation between sweeps, known as accelerated (Nesterov)
TRW-S: what plain sweeps pass on from block to block in thousands of turns, it passes on in hundreds.

A sweep lets excess diffuse: over b blocks in a row the bound needs some b^2 turns before the ends have heard of each
other.  Between sweeps the messages are therefore pushed on along the way they came,

    m  <-  sweep( m + (k - 1) / (k + 2) (m - m') ),     m' the messages one turn ago, k the turn since the last restart,

and k starts again when the bound has not risen for a while.  Any messages bound, so nothing has to be proved about the
push.

Large networks are swept in coarse units first, with tables in int32, and their parts at the same time
(`bound/separator.py`).  An entry above what a solution costs counts as much as that: no solution is lost by it, and
everything is rounded down, so what is reported stays a bound.  When the bound comes so near to what is asked for that
rounding may decide, the sweeps go on in the units of the network.

Measured (BERT-Large with Adam, batch 64, 4x8, limit 4 GiB, at 1.1 times the prices of a ring, a third of the labels;
ms): 300 turns from 99.25 reach 99.64 without momentum and 101.09 with it; 600 turns 102.87, where the relaxation ends.
Six blocks, 139 million entries: 0.049 s a turn in coarse units and two parts, 0.096 s in one or in units of the
network, 0.196 s in neither (2 cores of a Xeon, 2.8 GHz), for the same bounds after as many turns.
Source: Y. Nesterov, "A method for solving the convex programming problem with convergence rate O(1/k^2)", 1983;
restarts as in B. O'Donoghue and E. Candes, "Adaptive restart for accelerated gradient schemes", 2015.  Sweeps are no
gradient steps: that it helps is measured, not proved.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints
from ..model.clock import Clock
from ..model.dense import alternating, graph_of, sides
from ..model.factored import INFINITE
from ..model.local_costs import line
from .decode import decode
from .separator import Separation, separate
from .trws import Sweeper

Sides = NDArray[np.int64] | NDArray[np.int32]
"""Messages of all sides of all edges."""


class AcceleratedSweeper:
    """The messages of a sweeper as one array in motion, its network as flat arrays (`bound/sweep_kernels.py`).

    `bound`: the best one met, without the network's constant; None before the first turn.  `unit`: of tables and
    messages, in those of the network.
    """

    def __init__(self, sweeper: Sweeper) -> None:
        network = sweeper.network
        self.sweeper, self.options = sweeper, sweeper.options
        self.graph, self.used = graph_of(network)
        self.maps = _maps([(a.rows, a.cols) for a in network.arcs])
        self.message = self.graph.message
        large = network.pair_cells() >= self.options.coarse_cells
        self.parts = _dissected(sweeper) if large else Separation((tuple(sweeper.order),), ())
        self.lists = [np.array(part, dtype=np.int64) for part in (*self.parts.parts, self.parts.separator)]
        self.rank = np.empty(len(sweeper.order), dtype=np.int64)
        self.rank[self.parts.order] = np.arange(len(sweeper.order))
        self.entries = 2 * network.pair_cells()
        self._measure(_coarse_unit(sweeper) if large else None, alternating(sweeper.to_u, sweeper.to_v))

    def _measure(self, coarse: int | None, messages: Ints) -> None:
        """Tables, prices and messages (those of the network) in coarse units; None: in those of the network."""
        tables = [self.sweeper.network.tables[t].reshape(-1) for t in self.used]
        self.coarse, self.unit = coarse is not None, coarse or 1
        self.limit = self.options.coarse_largest if self.coarse else self.sweeper.limit
        self.now: Sides = (
            np.clip(messages // self.unit, -self.options.coarse_largest, self.options.coarse_largest).astype(np.int32)
            if self.coarse
            else messages
        )
        cells = (
            [np.minimum(t // self.unit, self.options.coarse_largest).astype(np.int32) for t in tables]
            if self.coarse
            else tables
        )
        self.cells = np.concatenate([np.zeros(0, dtype=self.now.dtype), *cells])
        self.last, self.since = self.now.copy(), 1
        self.reprice()

    def reprice(self) -> None:
        """Take the prices of the sweeper anew; the best bound so far was one at other prices."""
        costs = [self.sweeper.costs(v) for v in range(len(self.sweeper.network.unary))]
        weight = np.concatenate(costs)
        self.weight = weight if self.unit == 1 else np.where(weight >= INFINITE, weight, weight // self.unit)
        self.bound: int | None = None
        self.best, self.idle = self.now, 0

    def sweep(self, turns: int, clock: Clock, enough: int | None = None) -> int | None:
        """Up to `turns` double sweeps, fewer when the time is over or the bound reaches `enough`; the best bound so
        far.

        None if some vertex has no allowed label.
        """
        from . import sweep_kernels as kernels  # compiled loops: what never gets here starts without them

        for _ in range(turns):
            if clock.over():
                break
            clock.read(self.entries)
            if self.coarse and self.bound is not None:
                self._refine(self.bound, enough)
            kernels.push(self.now, self.last, min(self.options.push, (self.since - 1) / (self.since + 2)), self.limit)
            self._turn(kernels.sweep, True)
            found = self._turn(kernels.sweep, False)
            if found >= INFINITE:
                return None
            self.since, self.idle = self.since + 1, self.idle + 1
            found *= self.unit
            if self.bound is None or found > self.bound:
                self.best, self.bound, self.idle = self.now.copy(), found, 0
            if self.idle >= self.options.patience:
                self.now, self.last, self.since, self.idle = self.best.copy(), self.best.copy(), 1, 0
            if enough is not None and self.bound >= enough:
                break
        return self.bound

    def _refine(self, bound: int, enough: int | None) -> None:
        """Other units where `bound` says so: rounding may decide, or the largest entry is not near
        `coarse_bounds` bounds."""
        largest = self.options.coarse_bounds * max(1, bound)
        if enough is not None and bound + self.unit * (self.rank.size + self.message.size) >= enough:
            self._measure(None, self.best.astype(np.int64) * self.unit)
        elif (
            self.since % self.options.coarse_look == 0
            and not largest
            < 2 * self.options.coarse_largest * self.unit
            < 4 * largest + 2 * self.options.coarse_largest
        ):
            self._measure(largest // self.options.coarse_largest + 1, self.best.astype(np.int64) * self.unit)

    def _turn(self, sweep: Callable[..., int], forward: bool) -> int:
        """One pass over everything: parts at the same time, what separates them after or before them."""
        *parts, separator = self.lists

        def over(part: Ints) -> int:
            return int(
                sweep(
                    (part, self.rank, forward),
                    self.graph,
                    self.maps,
                    self.weight,
                    self.cells,
                    self.now,
                    self.limit,
                    None,
                )
            )

        before = 0 if forward else over(separator)
        threads = min(self.sweeper.threads, len(parts))
        inner = sum(executor(threads).map(over, parts) if threads > 1 else map(over, parts))
        return before + inner + (over(separator) if forward else 0)

    def store(self) -> None:
        """The best messages back into the sweeper, which goes on in the same order."""
        best = self.best.astype(np.int64) * self.unit
        self.sweeper.to_u, self.sweeper.to_v = sides(self.graph, best)
        self.sweeper.order = self.parts.order


@lru_cache(maxsize=4)
def executor(threads: int) -> ThreadPoolExecutor:
    """The threads of this process, one pool per number."""
    return ThreadPoolExecutor(threads)


def _dissected(sweeper: Sweeper) -> Separation:
    network = sweeper.network
    around: list[list[int]] = [[] for _ in network.domains]
    work = [0] * len(network.domains)
    for a in network.arcs:
        around[a.u].append(a.v)
        around[a.v].append(a.u)
        for v in (a.u, a.v):
            work[v] += network.tables[a.table].size
    return separate(around, work, sweeper.order, sweeper.options)


def _coarse_unit(sweeper: Sweeper) -> int | None:
    """What a decoded solution costs, without what it is not allowed, divided by `coarse_largest`: a start.
    None when costs are negative.
    """
    network = sweeper.network
    costs = [sweeper.costs(v) for v in range(len(network.domains))]
    if any(int(c.min()) < 0 for c in costs) or any(
        int(network.tables[t].min()) < 0 for t in {a.table for a in network.arcs}
    ):
        return None
    x = decode(sweeper)
    spent = [int(c[i]) for c, i in zip(costs, x, strict=True)] + [
        int(line(network, e, a.u, x[a.v])[x[a.u]]) for e, a in enumerate(network.arcs)
    ]
    return sum(cost for cost in spent if cost < INFINITE) // sweeper.options.coarse_largest + 1


def _maps(pairs: list[tuple[Ints | None, Ints | None]]) -> tuple[Ints, Ints]:
    """Where the index map of every side begins in one array of all distinct maps (-1: no map), and that array."""
    known: dict[int, int] = {}
    parts: list[Ints] = [np.zeros(0, dtype=np.int64)]
    used = 0
    index: list[int] = []
    for pair in pairs:
        for one in pair:
            if one is not None and id(one) not in known:
                known[id(one)] = used
                parts.append(one)
                used += one.size
            index.append(-1 if one is None else known[id(one)])
    return np.array(index, dtype=np.int64), np.concatenate(parts)

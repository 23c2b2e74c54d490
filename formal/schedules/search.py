"""Searches for a shortest schedule: list scheduling both ways, then refutations that branch.

A list schedule takes tasks by the length of what follows them; its mirror image, scheduled from the end by the ends of
the first, gives new priorities for the next (forward-backward improvement, Tormos and Lova 2001), with random changes
from a fixed seed.  It stops at the lower bound.  Where a gap is left, makespans from the bound upward are refuted or
reached by branching, with more nodes each round, in turn with windows of the best schedule and more list schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.schedules.certificate import Bound
from ..selection.model.clock import Clock
from .bounds import MOST_ROWS, Frame, frame
from .closing import Closing
from .kernels import list_schedule
from .shop import Shop
from .windows import improve_windows

FIRST_ROUNDS = 20
"""Rounds of list scheduling before a gap is looked at from below."""


@dataclass(frozen=True, eq=False)
class Found:
    """`starts`: shape (tasks,); it ends at `makespan`, and `bound` shows that none ends before `lower_bound`."""

    starts: Ints
    makespan: int
    lower_bound: int
    bound: Bound


def search(shop: Shop, clock: Clock, seed: int = 0, first: Ints | None = None) -> Found:
    """The best schedule and bound until `clock` is over; `first` is a schedule that is known already.

    >>> from ...models.schedules.pipeline import Pipeline
    >>> from .shop import shop
    >>> found = search(shop(Pipeline(((1, 1, 1),) * 4, 8, 0, 4)), Clock(10.0))
    >>> found.makespan, found.lower_bound
    (27, 27)
    """
    start = frame(shop)
    both_ways = BothWays(start, seed)
    starts = both_ways.best if first is None else first
    makespan = _end(shop, starts)
    lower, bound = start.value, start.bound
    starts, makespan = both_ways.improve(starts, makespan, lower, clock, FIRST_ROUNDS)
    closing = Closing(start)
    if makespan > lower:
        value, argument = closing.improve_bound(makespan, clock.share(0.5))
        if value > lower:
            lower, bound = value, argument
    rows = np.zeros((MOST_ROWS, 5), dtype=np.int64)
    nodes, each = 16, 0.0
    while makespan > lower and not clock.over():
        begun = clock.seconds()
        nodes = max(1, int(min(float(nodes), 0.4 * clock.remaining_s() / each))) if each else nodes
        result = closing.refute_makespan(lower, nodes, rows, clock)
        spent = clock.seconds() - begun
        each = max(each, spent / nodes)
        if result.refutation is not None:
            lower, bound = lower + 1, result.refutation
            continue
        if result.starts is not None:
            starts, makespan = result.starts, _end(shop, result.starts)
            continue
        nodes *= 2
        part = clock.at_most(max(0.5, 2 * spent))
        starts, makespan = improve_windows(shop, starts, makespan, lower, part, both_ways.random)
        starts, makespan = both_ways.improve(starts, makespan, lower, clock.at_most(max(0.2, spent / 2)))
        if (
            2.5 * spent > clock.remaining_s() or each > clock.remaining_s()
        ):  # the next round of branching would not end in time
            starts, makespan = improve_windows(shop, starts, makespan, lower, clock, both_ways.random)
    return Found(pushed_left(shop, starts), makespan, lower, bound)


def pushed_left(shop: Shop, starts: Ints) -> Ints:
    """Every task as early as its predecessors and the order on its streams allow; no end comes later."""
    rank = np.argsort(shop.forward.order)
    ready, free = [0] * len(starts), [0] * shop.streams
    found = np.zeros_like(starts)
    links = shop.forward
    for t in np.lexsort((rank, starts + shop.times, starts)).tolist():  # tasks of no time first
        streams = shop.taken[shop.taken_at[t] : shop.taken_at[t + 1]].tolist()
        found[t] = begin = max([ready[t], *(free[s] for s in streams)])
        end = begin + int(shop.times[t])
        for s in streams:
            free[s] = end
        for k in range(links.at[t], links.at[t + 1]):
            u = links.to[k]
            ready[u] = max(ready[u], end + int(links.lag[k]))
    return found


def _end(shop: Shop, starts: Ints) -> int:
    return int((starts + shop.times).max())


class BothWays:
    """List schedules forward and backward in turn."""

    def __init__(self, found: Frame, seed: int) -> None:
        self.found, self.random = found, np.random.default_rng(seed)
        self.unit = float(found.shop.times.mean())
        self.priority = found.tail.astype(np.float64)
        self.best = self.once(0, self.priority, 0.0)
        self.rounds = 0

    def once(self, way: int, priority: np.ndarray[tuple[int, ...], np.dtype[np.float64]], patience: float) -> Ints:
        """One list schedule: from the beginning (way 0) or, in reversed time, from the end."""
        found: Ints = list_schedule(self.found.shop, way, priority, patience)
        return found

    def improve(self, starts: Ints, makespan: int, lower: int, clock: Clock, rounds: int = 1 << 60) -> tuple[Ints, int]:
        """Improve a schedule until it meets `lower`, or no time or rounds are left."""
        rounds += self.rounds
        times, n = self.found.shop.times, len(self.found.shop.times)
        random = self.random
        while makespan > lower and not clock.over() and self.rounds < rounds:
            priority = self.priority
            if self.rounds:  # the first round is undisturbed
                priority = priority + random.random(n) * random.choice([0.0, 0.1, 1.0, 5.0, 20.0]) * self.unit
            self.rounds += 1
            stale, nearest = 0, 1 << 62
            while stale < 6 and makespan > lower and not clock.over():
                clock.charge(2 * n)
                ends = []
                for way in (0, 1):
                    found = self.once(way, priority, float(random.choice([0.0, 0.0, 0.3, 0.7, 1.0])))
                    end = int((found + times).max())
                    ends.append(end)
                    if end < makespan:
                        makespan, starts = end, found if way == 0 else end - found - times
                    noise = random.random(n) * random.choice([0.0, 0.0, 1.0]) * self.unit
                    priority = (found + times) + noise
                stale, nearest = (0, min(ends)) if min(ends) < nearest else (stale + 1, nearest)
        return starts, makespan

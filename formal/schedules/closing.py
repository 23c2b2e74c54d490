"""Refutes at the root of a refutation: what must run before or after a task, and edge finding, in turn
until nothing changes.

Rows AFTER_ALL and BEFORE_ALL raise heads and tails by the loads of other streams, which one stream's edge finding does
not see; what it finds then raises loads again.  In a pipeline whose memory binds, micro-batch i + K waits for the
weights of micro-batch i on all stages at once: alone the two see a third of that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.schedules.certificate import AFTER_ALL, BEFORE_ALL, PATH, Bound, Refutation
from ..selection.model.clock import Clock
from .bounds import MOST_ROWS, BranchOutcome, Frame, branch_on
from .levels import before_bits, raise_heads
from .refute import CLOSED, Known, propagate

MOST_TASKS = 6000
"""Above it the table of what comes before what takes too long; then edge finding alone."""

TURNS, ROUNDS = 40, 4
"""Times that both are applied, and rounds of edge finding in each."""

ROOT = 100
"""Steps of work per task of a root."""

FINEST = 64
"""The gap that is searched for a bound is cut into so many parts."""


@dataclass(frozen=True, eq=False)
class Root:
    """Heads and tails under a makespan, with the rows that raised them; `closed`: they contradict it."""

    makespan: int
    head: Ints
    tail: Ints
    rows: Ints
    closed: bool


class Closing:
    """Roots of the refutations of one shop."""

    def __init__(self, found: Frame) -> None:
        shop = found.shop
        self.found, self.large = found, len(shop.times) > MOST_TASKS
        self._last: Root | None = None
        if not self.large:
            self.ahead = before_bits(shop.forward)
            self.behind = before_bits(shop.backward)

    def root(self, makespan: int) -> Root:
        """Heads and tails for schedules no longer than `makespan`."""
        if self._last is None or self._last.makespan != makespan:
            self._last = self._root(makespan)
        return self._last

    def _root(self, makespan: int) -> Root:
        found, shop = self.found, self.found.shop
        head, tail, n = found.head.copy(), found.tail.copy(), len(shop.times)
        rows = np.zeros((MOST_ROWS if not self.large else 0, 5), dtype=np.int64)
        none = np.zeros((0, 2), dtype=np.int64)
        used = 0
        for _ in range(0 if self.large else TURNS):
            before = head.copy(), tail.copy()
            for links, bits, word in (
                (shop.forward, self.ahead, AFTER_ALL),
                (shop.backward, self.behind, BEFORE_ALL),
            ):
                if used + n + 2 > len(rows):
                    return Root(makespan, head, tail, rows[:used], False)
                values, other = (head, tail) if word == AFTER_ALL else (tail, head)
                room = rows[used:]
                values, more = raise_heads(shop, links, bits, room, word, values, other, makespan)
                head, tail = (values, other) if word == AFTER_ALL else (other, values)
                used += more
                over = np.flatnonzero(head + shop.times + tail > makespan)
                if len(over):
                    first = over[np.argsort(_ranks(links.order)[over])[0]]
                    rows[used] = PATH, first, 0, 0, 0
                    return Root(makespan, head, tail, rows[: used + 1].copy(), True)
            state, used = propagate(shop, Known(head, tail, none), makespan, rows, used, ROUNDS)
            if state == CLOSED:
                return Root(makespan, head, tail, rows[:used].copy(), True)
            if (head == before[0]).all() and (tail == before[1]).all():
                break
        return Root(makespan, head, tail, rows[:used].copy(), False)

    def refute_makespan(self, makespan: int, nodes: int, rows: Ints, clock: Clock) -> BranchOutcome:
        """What becomes of one makespan: the root first, then at most `nodes` nodes of branching."""
        clock.charge(ROOT * len(self.found.shop.times))
        root = self.root(makespan)
        if root.closed:
            return BranchOutcome(Refutation(makespan, root.rows), None)
        if nodes < 1:
            return BranchOutcome(None, None)
        result = branch_on(replace(self.found, head=root.head, tail=root.tail), makespan, nodes, rows, clock)
        if result.refutation is None:
            return result
        return BranchOutcome(Refutation(makespan, np.concatenate([root.rows, result.refutation.rows])), None)

    def improve_bound(self, upper: int, clock: Clock) -> tuple[int, Bound]:
        """The best bound that roots alone give below `upper`, by halving."""
        low, high, bound = self.found.value, upper, self.found.bound
        rows = np.zeros((MOST_ROWS, 5), dtype=np.int64)
        step = least = max(1, (upper - low) // FINEST)
        while low < high and not clock.over():
            middle = min(low + step - 1, high - 1)
            result = self.refute_makespan(middle, int(self.large), rows, clock)
            if result.refutation is None:
                high = middle
                step = max(1, (high - low) // 2)
                if step < least:
                    break
            else:
                low, bound = middle + 1, result.refutation
                step = min(2 * step, max(1, (high - low + 1) // 2))
        return low, bound


def _ranks(order: Ints) -> Ints:
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks

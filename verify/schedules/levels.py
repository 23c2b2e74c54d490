"""This module replays the rows AFTER_ALL and BEFORE_ALL that a refutation begins with, replayed in time that grows with
what they read.

A raise reaches all tasks behind it, and there are rows for most tasks: to carry each on at once takes rows * links.
But a row of task t reads only heads of tasks before t.  So what a raise brings waits, and is carried on in the order of
the precedences as far as t when a row of t is reached, and to the end after the last row.  No value that is read
differs.  (Splits make links of their own, against that order; no row before these comes behind one.)
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.container.effort import OBJECT, PART
from ...proofs.schedules.certificate import AFTER_ALL, BEFORE_ALL
from ..budget import Budget
from .network import Network


@dataclass
class State:
    """Heads and tails of all tasks and the links that keep them: `follow[t]` lists (task, lag) after t, `lead[t]`
    before it; `rank`: an order in which every task is behind those before it, as the precedences have it.
    """

    head: list[int]
    tail: list[int]
    rank: list[int]
    follow: list[list[tuple[int, int]]]
    lead: list[list[tuple[int, int]]]


def leading(net: Network, found: State, makespan: int, rows: Ints, budget: Budget) -> int:
    """How many rows at the beginning are of these words and name a task and a stream; `found` is raised by them."""
    n, streams = len(net.times), len(net.streams)
    longest = max((len(s) for s in net.streams), default=0)
    sides: dict[int, Side] = {}
    count = 0
    for word, a, b, c, _ in rows.tolist():
        if word not in (AFTER_ALL, BEFORE_ALL) or not (0 <= a < n and 0 <= b < streams):
            break
        budget.charge(PART + OBJECT * (longest + 16), f"row {count}")
        if word not in sides:
            budget.hold(2 * n * (n + 7) // 64, f"row {count}")
            sides[word] = Side.of(net, found, word == AFTER_ALL, makespan, budget)
        sides[word].row(a, b, c)
        count += 1
    for side in sides.values():
        side.carry(n)
    return count


@dataclass(eq=False)
class Side:
    """Heads with the links forward (or tails with those backward).  `rank`: an order in which links go up; `reached`:
    bits of the tasks that lead to each, shape (tasks, tasks / 8); `array`: `values` once more, for numpy; `waiting`:
    (rank, task) of those whose raise has not been carried on.
    """

    net: Network
    values: list[int]
    links: list[list[tuple[int, int]]]
    rank: list[int]
    reached: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    array: Ints
    waiting: list[tuple[int, int]]
    times: list[int]
    most: int
    budget: Budget

    @staticmethod
    def of(net: Network, found: State, heads: bool, makespan: int, budget: Budget) -> Side:
        """One of the two sides of a state without splits."""
        n = len(net.times)
        values, links = (found.head, found.follow) if heads else (found.tail, found.lead)
        rank = found.rank if heads else [n - 1 - r for r in found.rank]
        reached = np.zeros((n, (n + 7) // 8), dtype=np.uint8)
        for t in np.argsort(np.array(rank, dtype=np.int64)).tolist():
            budget.charge((OBJECT + n // 8) * (1 + len(links[t])), "tasks before another")
            own = reached[t].copy()
            own[t >> 3] |= 1 << (t & 7)
            for u, _ in links[t]:
                reached[u] |= own
        array = np.array(values, dtype=np.int64)
        return Side(net, values, links, rank, reached, array, [], net.times.tolist(), makespan + 1, budget)

    def row(self, task: int, stream: int, least: int) -> None:
        """Raise `task` to the least end of those tasks of the stream that lead to it and have `least` or more."""
        self.carry(self.rank[task])
        tasks = self.net.streams[stream]
        before = self.reached[task, tasks >> 3] >> (tasks & 7).astype(np.uint8) & 1
        taken = tasks[(before == 1) & (self.array[tasks] >= least)]
        if not len(taken):
            return
        values, times = self.array[taken], self.net.times[taken]
        order = np.argsort(-values, kind="stable")
        value = min(int((values[order] + np.cumsum(times[order])).max()), self.most)
        if value > self.values[task]:
            self.raised(task, value)

    def raised(self, task: int, value: int) -> None:
        """`task` has a larger value, which waits to be carried on."""
        self.values[task] = value
        self.array[task] = value
        heappush(self.waiting, (self.rank[task], task))

    def carry(self, until: int) -> None:
        """Carry raises on from all tasks before rank `until`."""
        last = -1
        while self.waiting and self.waiting[0][0] < until:
            _, t = heappop(self.waiting)
            if t == last:
                continue
            last = t
            self.budget.charge(OBJECT * (2 + len(self.links[t])), "a raise")
            for u, lag in self.links[t]:
                v = min(self.values[t] + self.times[t] + lag, self.most)
                if v > self.values[u]:
                    self.raised(u, v)

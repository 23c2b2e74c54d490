"""Replays runs of rows AFTER_ALL and BEFORE_ALL, in time that grows with what they read.

A raise reaches all tasks behind it, and there are rows for most tasks: to carry each on at once takes rows * links.
But a row of task t reads only heads of tasks before t.  So what a raise brings waits, and is carried on in the order of
the links as far as t when a row of t is reached, and to the end after the last row of the run.  No value that is read
differs.  What leads to what is found once for all runs under the same links.
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

Bits = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Circle(Exception):
    """Links run in a circle, so that there is no order in which they go up."""


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


class Levels:
    """Runs of rows of one refutation."""

    def __init__(self, net: Network, makespan: int, budget: Budget) -> None:
        self.net, self.makespan, self.budget = net, makespan, budget
        self.longest = max((len(s) for s in net.streams), default=0)
        self.links: tuple[tuple[int, int], ...] = ()
        self.known: dict[bool, tuple[list[int], Bits]] = {}

    def replay_rows(self, found: State, rows: Ints, made: list[tuple[int, int]], first: int) -> int:
        """How many of `rows`, the first of which has number `first`, are of these words and name a task and a stream;
        `found` is raised by them.  `made`: links beside the precedences.  `Circle` if these make one.
        """
        n, streams = len(self.net.times), len(self.net.streams)
        sides: dict[bool, Side] = {}
        count = 0
        for word, a, b, c, _ in rows:
            if word not in (AFTER_ALL, BEFORE_ALL) or not (0 <= a < n and 0 <= b < streams):
                break
            self.budget.charge(PART + OBJECT * (self.longest + 16), f"row {first + count}")
            heads = bool(word == AFTER_ALL)
            if heads not in sides:
                sides[heads] = self._side(found, heads, made, f"row {first + count}")
            sides[heads].row(int(a), int(b), int(c))
            count += 1
        for side in sides.values():
            side.carry(n)
        return count

    def _side(self, found: State, heads: bool, made: list[tuple[int, int]], place: str) -> Side:
        n, budget = len(self.net.times), self.budget
        values, links = (found.head, found.follow) if heads else (found.tail, found.lead)
        if self.links != tuple(made):
            self.links, self.known = tuple(made), {}
        if heads not in self.known:
            budget.hold(2 * n * (n + 7) // 64, place)
            rank = ranks(links, found.lead if heads else found.follow, budget)
            self.known[heads] = rank, leading(links, rank, budget)
        budget.charge(n, place)
        array = np.array(values, dtype=np.int64)
        return Side(self.net, values, links, *self.known[heads], array, [], self.makespan + 1, budget)


def ranks(follow: list[list[tuple[int, int]]], lead: list[list[tuple[int, int]]], budget: Budget) -> list[int]:
    """An order in which links go up; `Circle` if there is none."""
    missing = [len(x) for x in lead]
    order = [t for t, count in enumerate(missing) if not count]
    for t in order:  # grows while it is walked
        budget.charge(OBJECT * (1 + len(follow[t])), "an order of the tasks")
        for u, _ in follow[t]:
            missing[u] -= 1
            if not missing[u]:
                order.append(u)
    if len(order) < len(follow):
        raise Circle
    rank = [0] * len(order)
    for k, t in enumerate(order):
        rank[t] = k
    return rank


def leading(links: list[list[tuple[int, int]]], rank: list[int], budget: Budget) -> Bits:
    """Bits of the tasks that lead to each, shape (tasks, tasks / 8)."""
    n = len(rank)
    bits = np.zeros((n, (n + 7) // 8), dtype=np.uint8)
    for t in np.argsort(np.array(rank, dtype=np.int64)).tolist():
        budget.charge((OBJECT + n // 8) * (1 + len(links[t])), "tasks before another")
        own = bits[t].copy()
        own[t >> 3] |= 1 << (t & 7)
        for u, _ in links[t]:
            bits[u] |= own
    return bits


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
    reached: Bits
    array: Ints
    waiting: list[tuple[int, int]]
    most: int
    budget: Budget

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
            self.raise_value(task, value)

    def raise_value(self, task: int, value: int) -> None:
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
                v = min(self.values[t] + int(self.net.times[t]) + lag, self.most)
                if v > self.values[u]:
                    self.raise_value(u, v)

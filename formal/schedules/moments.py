"""Bounds what can have started at a moment within the memory of a device, as `verify/schedules/moments.py`
replays it: a maximum closure, solved by a maximum flow (Picard 1976).

Tasks and the ends of holdings are nodes; a task needs those before it, the end of a holding needs its last tasks.  With
a price of memory a task is worth its time less the memory that it takes, the end of a holding the memory that it frees.
The flow from what gains to what costs is the dual that the certificate keeps; the best price is found by halving, for
what is taken at a price holds more than the limit below it and less above.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ...proofs.schedules.certificate import FLOW, PRICE
from ..compiling import njit
from .shop import Links, Shop

HALVINGS, NEARBY = 16, 6
"""Prices that are tried, at first and near the last one."""

TIME_PRICE = 1 << 20
"""Of a unit of time, so that the price of memory is a whole number."""


@dataclass(frozen=True, eq=False)
class Argument:
    """Rows PRICE and FLOW, shape (rows, 5), and the most that they allow (below 0: there is no such moment).
    `taken`: tasks that have started by then where most have, shape (tasks,).
    """

    rows: Ints
    most: int
    taken: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Moments:
    """Moments of a problem with links, on one device with a limit."""

    def __init__(self, problem: ScheduleProblem, shop: Shop, device: int) -> None:
        limit = problem.limits[device]
        assert limit is not None
        self.limit, self.device, self.times, n = limit, device, shop.times, len(shop.times)
        self.base = sum(h.amount for h in problem.holdings if h.device == device and h.first is None)
        self.own = np.zeros(n, dtype=np.int64)
        self.number: list[int] = []  # holdings of the device that end
        frees: list[int] = []
        ends: list[tuple[int, int]] = []
        for k, h in enumerate(problem.holdings):
            if h.device != device:
                continue
            if h.first is not None:
                self.own[h.first] += h.amount
            if h.last:
                ends += [(len(frees), t) for t in h.last]
                self.number.append(k)
                frees.append(h.amount)
        self.frees = np.array(frees, dtype=np.int64)
        self.ends = np.array(ends, dtype=np.int64).reshape(-1, 2)
        self.before = arcs(shop.forward)
        self.lead: list[list[int]] = [[] for _ in range(n)]
        self.follow: list[list[int]] = [[] for _ in range(n)]
        for a, b in self.before.tolist():
            self.follow[a].append(b)
            self.lead[b].append(a)
        self.known: dict[tuple[int, bool], set[int]] = {}
        self.last = 0  # the price that was best, near which the next one is looked for

    def link(self, a: int, b: int) -> None:
        """Task a is before task b from now on."""
        self.before = np.concatenate([self.before, np.array([[a, b]], dtype=np.int64)])
        self.follow[a].append(b)
        self.lead[b].append(a)
        self.known = {}

    def unlink(self) -> None:
        """The last link is taken back."""
        a, b = self.before[-1].tolist()
        self.before = self.before[:-1]
        self.follow[a].pop()
        self.lead[b].pop()
        self.known = {}

    def ancestors(self, tasks: list[int], ahead: bool) -> set[int]:
        """All tasks that lead to these (or that these lead to), without the tasks themselves unless in a circle."""
        return set().union(*(self._reached(t, ahead) for t in tasks))

    def _reached(self, task: int, ahead: bool) -> set[int]:
        if (task, ahead) not in self.known:
            links = self.lead if ahead else self.follow
            seen: set[int] = set()
            todo = [task]
            while todo:
                fresh = [u for u in links[todo.pop()] if u not in seen]
                seen.update(fresh)
                todo += fresh
            self.known[task, ahead] = seen
        return self.known[task, ahead]

    def together(self, a: int, b: int) -> Argument:
        """About moments at which a and b run."""
        known = self.ancestors([a, b], True) | {a, b}
        return self._argument(1, 0, known, self.ancestors([a, b], False), {a, b}, None)

    def waits(self, a: int, b: int) -> Argument:
        """About moments at which b runs and a has not ended."""
        known = self.ancestors([b], True) | {b}
        return self._argument(1, 0, known, self.ancestors([a, b], False), {a, b}, None)

    def work(self, task: int, counted: Ints) -> tuple[Argument, int]:
        """About the start of `task`, and the most work of `counted` (without `task`) that has begun before."""
        known, barred = self.ancestors([task], True) | {task}, self.ancestors([task], False)
        low, high = 0, TIME_PRICE * max(1, int(self.times[counted].sum())) // max(1, self.limit >> 4)
        high = min(high, (1 << 60) // max(1, self.base + int(self.own.sum())))
        if self.last:
            low, high = self.last // 2, min(high, 2 * self.last)
        best: Argument | None = None
        for _ in range(NEARBY if self.last else HALVINGS):
            price = (low + high) // 2
            tried = self._argument(price, TIME_PRICE, known, barred, {task}, counted[counted != task])
            if best is None or tried.most < best.most:
                best, self.last = tried, price
            if self._held(tried.taken, known, {task}) > self.limit:
                low = price + 1
            else:
                high = price
            if low >= high:
                break
        assert best is not None
        return best, best.most // TIME_PRICE

    def _held(self, taken: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], known: set[int], unended: set[int]) -> int:
        """Memory of a moment with these tasks started, those that are known and all others ended."""
        over = taken.copy()
        over[list(known)] = True
        begun = int(self.own[over].sum())
        over[list(unended)] = False
        freed = np.ones(len(self.frees), dtype=np.bool_)
        np.logical_and.at(freed, self.ends[:, 0], over[self.ends[:, 1]])
        return self.base + begun - int(self.frees[freed].sum())

    def _argument(
        self, price: int, time_price: int, known: set[int], barred: set[int], unended: set[int], counted: Ints | None
    ) -> Argument:
        n, count = len(self.times), len(self.frees)
        worth = np.zeros(n + count, dtype=np.int64)
        worth[:n] = -price * self.own
        if counted is not None:
            worth[counted] += time_price * self.times[counted]
        worth[n:] = price * self.frees
        free = np.ones(n + count, dtype=np.bool_)
        free[list(known | barred)] = False
        out = np.zeros(n, dtype=np.bool_)
        out[list(barred | unended)] = True
        free[n + self.ends[out[self.ends[:, 1]], 0]] = False  # its end is later
        need = np.concatenate([self.before[:, ::-1], self.ends + np.array([n, 0])])  # a node and what it needs
        need = need[free[need[:, 0]] & free[need[:, 1]]]
        flows, taken = closure(worth, free, need[:, 0].copy(), need[:, 1].copy())
        used = np.flatnonzero(flows)
        left = worth.copy()
        np.subtract.at(left, need[used, 0], flows[used])
        np.add.at(left, need[used, 1], flows[used])
        sure = list(known)
        most = price * (self.limit - self.base) + int(worth[sure].sum()) + int(np.maximum(left[free], 0).sum())
        rows = np.zeros((1 + len(used), 5), dtype=np.int64)
        rows[0] = PRICE, self.device, price, time_price, 0
        rows[1:, 0] = FLOW
        numbers = np.concatenate([np.arange(n), n + np.array(self.number, dtype=np.int64)])
        rows[1:, 1], rows[1:, 2], rows[1:, 3] = numbers[need[used, 0]], need[used, 1], flows[used]
        return Argument(rows, most, taken[:n])


def arcs(links: Links) -> Ints:
    """(before, after) of all links, shape (links, 2)."""
    source = np.repeat(np.arange(len(links.at) - 1, dtype=np.int64), np.diff(links.at))
    return np.stack([source, links.to], axis=1)


def closure(worth: Ints, free: np.ndarray, node: Ints, needs: Ints) -> tuple[Ints, np.ndarray]:
    """Flows along (node, what it needs), shape (arcs,), and the nodes of a closed set worth most among `free` ones.

    >>> flows, taken = closure(np.array([5, -3, 2, -9]), np.ones(4, dtype=np.bool_), np.array([0, 2]), np.array([1, 3]))
    >>> flows.tolist(), taken.tolist()
    ([3, 2], [True, True, False, False])
    """
    count, m = len(worth), len(node)
    gains, costs = np.flatnonzero(free & (worth > 0)), np.flatnonzero(free & (worth < 0))
    tail = np.concatenate([node, np.full(len(gains), count), costs]).astype(np.int64)
    head = np.concatenate([needs, gains, np.full(len(costs), count + 1)]).astype(np.int64)
    room = np.concatenate([np.full(m, 1 << 62), worth[gains], -worth[costs]]).astype(np.int64)
    ends = np.stack([tail, head], axis=1).reshape(-1)  # arc 2k goes along, 2k + 1 back
    at = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=count + 2))]).astype(np.int64)
    out = np.argsort(ends, kind="stable")
    rest = np.zeros(2 * len(tail), dtype=np.int64)
    rest[::2] = room
    level = max_flow(at, out, np.stack([head, tail], axis=1).reshape(-1), rest, count, count + 1)
    return rest[1 : 2 * m : 2], level[:count] >= 0


@njit(cache=True)
def max_flow(at: Ints, out: Ints, to: Ints, rest: Ints, source: int, sink: int) -> Ints:
    """Dinic's algorithm: `rest` becomes what is left of each arc; the levels of what the source still reaches."""
    n = len(at) - 1
    level, turn, queue, path = (
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
    )
    while True:
        level[:] = -1
        level[source] = 0
        queue[0], first, last = source, 0, 1
        while first < last:
            v = queue[first]
            first += 1
            for k in range(at[v], at[v + 1]):
                a = out[k]
                if rest[a] > 0 and level[to[a]] < 0:
                    level[to[a]] = level[v] + 1
                    queue[last] = to[a]
                    last += 1
        if level[sink] < 0:
            return level
        turn[:] = at[:-1]
        depth, v = 0, source
        while True:
            if v == sink:
                amount = np.int64(1) << 62
                for k in range(depth):
                    amount = min(amount, rest[path[k]])
                back = 0
                for k in range(depth - 1, -1, -1):
                    rest[path[k]] -= amount
                    rest[path[k] ^ 1] += amount
                    if rest[path[k]] == 0:
                        back = k
                depth = back
                v = to[path[back] ^ 1]
                continue
            advanced = False
            while turn[v] < at[v + 1]:
                a = out[turn[v]]
                if rest[a] > 0 and level[to[a]] == level[v] + 1:
                    path[depth] = a
                    depth += 1
                    v = to[a]
                    advanced = True
                    break
                turn[v] += 1
            if not advanced:
                if depth == 0:
                    break
                depth -= 1
                v = to[path[depth] ^ 1]
                turn[v] += 1

"""Bounds what can have started at a moment within the memory of a device: linear duals in integers.

A moment m of a schedule is described by x(t) = 1 if task t has started by m, else 0, and by d(k) = 1 if all tasks at
whose ends holding k may end have ended by m (0 for a holding that stays).  Then

    x(t) <= x(u)        u before t by a link: t started only when u had ended
    d(k) <= x(u)        u one of the last tasks of k
    memory   =  sum over the device's holdings k of  amount(k) (x(first(k)) - d(k))  <=  what is held at m  <=  limit

(first(k) = none counts as 1; where d(k) = 1 and x(first(k)) = 0 the left side is even smaller).  With a price p >= 0 of
memory and weights w(t) >= 0, and flows f >= 0 along  x(t) <= x(u)  and  d(k) <= x(u),  every such x and d has

    sum w x  <=  sum w x + p (limit - memory) + sum f (x(u) - x(t) or d(k))
             <=  p limit + the largest value of what is left, variable by variable

which is what `most` returns.  Variables that are known count with their value: tasks that have started, tasks that have
not, holdings with a last task that has not ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...proofs.container.effort import OBJECT
from ..budget import Budget
from .levels import State
from .network import Memory


class BadMoment(Exception):
    """An argument about a moment that does not hold; the message says why."""


@dataclass(eq=False)
class Moments:
    """Arguments about moments, one after the other.  `ends`: (holding, one of its last tasks); `flows`: (from, to,
    amount) of the argument that is open, from a task, or from number `tasks` + k for holding k.
    """

    memory: Memory
    times: list[int]
    ends: set[tuple[int, int]] = field(default_factory=set)
    device: int = -1
    limit: int = 0
    price: int = 0
    time_price: int = 0
    flows: list[tuple[int, int, int]] = field(default_factory=list)

    def open(self, device: int, price: int, time_price: int, budget: Budget) -> None:
        """Begin an argument about a device that has a limit."""
        limit = self.memory.limits[device] if 0 <= device < len(self.memory.limits) else None
        if limit is None:
            raise BadMoment(f"there is no limit on device {device}")
        if price < 0 or time_price < 0:
            raise BadMoment("a price is 0 or more")
        if not self.ends:
            budget.charge(OBJECT * len(self.memory.last), "the ends of holdings")
            self.ends = set(zip(self.memory.holder.tolist(), self.memory.last.tolist(), strict=True))
        self.device, self.limit, self.flows = device, limit, []
        self.price, self.time_price = price, time_price

    def flow(self, source: int, target: int, amount: int, found: State, budget: Budget) -> None:
        """Another flow of the open argument."""
        n = len(self.times)
        if self.device < 0:
            raise BadMoment("no price was named")
        if amount < 0:
            raise BadMoment("a flow is 0 or more")
        if 0 <= source < n:
            budget.charge(OBJECT * len(found.lead[source]), "a flow")
            leads = any(u == target for u, _ in found.lead[source])
        else:
            leads = (source - n, target) in self.ends
        if not leads:
            raise BadMoment(f"no flow leads from {source} to {target}")
        self.flows.append((source, target, amount))

    def waits(self, found: State, a: int, b: int, budget: Budget) -> None:
        """`BadMoment` unless memory does not let task b start before task a has ended."""
        self._tasks((a, b), (b,))
        started = descendants(found.lead, [b], budget) | {b}
        barred = descendants(found.follow, [a, b], budget)
        if self._most(started, barred, {a, b}, {}, budget) >= 0:
            raise BadMoment(f"task {b} may start before task {a} has ended")

    def apart(self, found: State, a: int, b: int, budget: Budget) -> None:
        """`BadMoment` unless memory does not let tasks a and b run at the same moment."""
        self._tasks((a, b), (a, b))
        started = descendants(found.lead, [a, b], budget) | {a, b}
        barred = descendants(found.follow, [a, b], budget)
        if self._most(started, barred, {a, b}, {}, budget) >= 0:
            raise BadMoment(f"tasks {a} and {b} may run at the same moment")

    def work(self, found: State, task: int, stream: list[int], least: int, budget: Budget) -> int:
        """Head of `task`, the time that is left of the stream's tasks with tail >= `least` when it starts, and that
        tail; 0 if nothing is left.
        """
        left = self._left(found, task, [t for t in stream if found.tail[t] >= least], budget)
        return found.head[task] + left + least if left > 0 else 0

    def before(self, found: State, task: int, target: int, stream: list[int], budget: Budget) -> int:
        """Head of `task`, and the time that is left, when it starts, of the stream's tasks that lead to `target`; 0 if
        nothing is left.
        """
        self._tasks((target,), ())
        ahead = descendants(found.lead, [target], budget)
        left = self._left(found, task, [t for t in stream if t in ahead], budget)
        return found.head[task] + left if left > 0 else 0

    def _left(self, found: State, task: int, counted: list[int], budget: Budget) -> int:
        self._tasks((task,), (task,))
        if not self.time_price:
            raise BadMoment("time has no price")
        started = descendants(found.lead, [task], budget) | {task}
        barred = descendants(found.follow, [task], budget)
        weights = {t: self.time_price * self.times[t] for t in counted if t != task}
        most = self._most(started, barred, {task}, weights, budget)
        return sum(self.times[t] for t in counted) - most // self.time_price

    def _tasks(self, named: tuple[int, ...], lasting: tuple[int, ...]) -> None:
        if self.device < 0:
            raise BadMoment("no price was named")
        for t in named:
            if not 0 <= t < len(self.times):
                raise BadMoment(f"there is no task {t}")
        for t in lasting:
            if not self.times[t]:
                raise BadMoment(f"task {t} takes no time, so no moment lies within it")

    def _most(
        self,
        started: Collection[int],
        barred: Collection[int],
        unended: Collection[int],
        weights: Mapping[int, int],
        budget: Budget,
    ) -> int:
        """No sum of the weights of started tasks is larger; below 0: there is no such moment.  The argument ends."""
        m, n, count = self.memory, len(self.times), len(self.memory.device)
        budget.charge(OBJECT * (2 * n + 3 * count + 2 * len(m.last) + len(self.flows)), "a moment")
        value = [0] * (n + count)
        for t, w in weights.items():
            value[t] = w
        total = self.price * self.limit
        may_end = [False] * count
        for k, (d, amount, first) in enumerate(
            zip(m.device.tolist(), m.amount.tolist(), m.first.tolist(), strict=True)
        ):
            if d != self.device:
                continue
            value[n + k] = self.price * amount
            if first < 0:
                total -= self.price * amount
            else:
                value[first] -= self.price * amount
        for k, t in self.ends:
            may_end[k] = True
        for k, t in self.ends:
            if t in barred or t in unended:
                may_end[k] = False
        for source, target, amount in self.flows:
            value[source] -= amount
            value[target] += amount
        self.device = -1
        for t in range(n):
            if t in started:
                total += value[t]
            elif t not in barred:
                total += max(0, value[t])
        return total + sum(max(0, value[n + k]) for k in range(count) if may_end[k])


def descendants(links: list[list[tuple[int, int]]], tasks: list[int], budget: Budget) -> set[int]:
    """All tasks that links lead to from these."""
    seen: set[int] = set()
    todo = list(tasks)
    while todo:
        t = todo.pop()
        budget.charge(OBJECT * (1 + len(links[t])), "tasks before another")
        for u, _ in links[t]:
            if u not in seen:
                seen.add(u)
                todo.append(u)
    return seen

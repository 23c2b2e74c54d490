"""List scheduling under memory limits: a task starts only if all that is left can still be finished.

Started tasks end, then the rest runs one after another in one fixed order of the precedences: if that stays within the
limits the state is safe (the banker's algorithm, Dijkstra 1965).  A task that would leave the safe states waits for the
next end.  When nothing runs, the first task of the fixed order may always start, so that no schedule gets stuck.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ..compiling import njit
from ..selection.model.clock import Clock
from .shop import Shop

Floats = NDArray[np.float64]
UNLIMITED = 1 << 62
TRIES = 1000
"""Tasks of a stream that are tried at one moment, best first."""


@dataclass(frozen=True, eq=False)
class Store:
    """Holdings in rows: those that task t takes, `take[take_at[t]:take_at[t+1]]`, those of whose last tasks it is one
    (`drop`), and how many last tasks each has; `held`: what devices hold from the beginning.
    """

    take_at: Ints
    take: Ints
    drop_at: Ints
    drop: Ints
    readers: Ints
    device: Ints
    amount: Ints
    limits: Ints
    held: Ints


def store(problem: ScheduleProblem) -> Store:
    """Arrays of a problem's memory."""
    n, holdings = len(problem.tasks), problem.holdings
    take: list[list[int]] = [[] for _ in range(n)]
    drop: list[list[int]] = [[] for _ in range(n)]
    held = np.zeros(len(problem.limits), dtype=np.int64)
    for k, h in enumerate(holdings):
        if h.first is None:
            held[h.device] += h.amount
        else:
            take[h.first].append(k)
        for t in h.last:
            drop[t].append(k)

    def flat(lists: list[list[int]]) -> tuple[Ints, Ints]:
        sizes = np.array([0, *(len(x) for x in lists)], dtype=np.int64)
        return np.cumsum(sizes), np.array([x for part in lists for x in part], dtype=np.int64)

    return Store(
        *flat(take),
        *flat(drop),
        np.array([len(h.last) for h in holdings], dtype=np.int64),
        np.array([h.device for h in holdings], dtype=np.int64),
        np.array([h.amount for h in holdings], dtype=np.int64),
        np.array([UNLIMITED if x is None else x for x in problem.limits], dtype=np.int64),
        held,
    )


def list_schedule(shop: Shop, kept: Store, priority: Floats, order: Ints, delay: int = UNLIMITED) -> Ints | None:
    """Starts within the limits, shape (tasks,), or None if even `order`, one task after another, exceeds them.  No task
    starts that would delay one of higher priority, which will be ready soon, by more than `delay`.
    """
    f = shop.forward
    starts, fine = _scheduled(
        shop.times,
        shop.taken_at,
        shop.taken,
        shop.streams,
        f.at,
        f.to,
        f.lag,
        np.diff(shop.backward.at),
        priority,
        order,
        kept.take_at,
        kept.take,
        kept.drop_at,
        kept.drop,
        kept.readers,
        kept.device,
        kept.amount,
        kept.limits,
        kept.held,
        delay,
    )
    return starts if fine else None


def shorten(shop: Shop, problem: ScheduleProblem, starts: Ints, priority: Floats, lower: int, clock: Clock) -> Ints:
    """A schedule at least as short as `starts`, which keeps the limits: list schedules with random changes of the
    priorities, for which the order of `starts` is the way out.
    """
    kept, random = store(problem), np.random.default_rng(0)
    best, makespan = starts, int((starts + shop.times).max())
    noise = 0.0
    while makespan > lower and not clock.over():
        clock.charge(len(starts))
        order = np.lexsort((np.argsort(shop.forward.order), best + shop.times, best))
        found = list_schedule(shop, kept, priority + noise * random.random(len(starts)), order)
        if found is not None and (reached := int((found + shop.times).max())) < makespan:
            best, makespan = found, reached
        noise = float(random.choice([1e-3, 1e-2, 0.03, 0.1, 0.3])) * float(priority.max())
    return best


@njit(cache=True)
def _run(
    t: int,
    take_at: Ints,
    take: Ints,
    drop_at: Ints,
    drop: Ints,
    readers: Ints,
    device: Ints,
    amount: Ints,
    held: Ints,
    limits: Ints,
    begin: bool,
    end: bool,
) -> bool:
    """Take or drop what task t takes or drops; whether the limits hold."""
    fine = True
    if begin:
        for k in range(take_at[t], take_at[t + 1]):
            h = take[k]
            held[device[h]] += amount[h]
            fine = fine and held[device[h]] <= limits[device[h]]
    if end:
        for k in range(drop_at[t], drop_at[t + 1]):
            h = drop[k]
            readers[h] -= 1
            if readers[h] == 0:
                held[device[h]] -= amount[h]
    return fine


@njit(cache=True)
def _safe(
    t: int,
    state: Ints,
    running: Ints,
    count: int,
    order: Ints,
    first: int,
    take_at: Ints,
    take: Ints,
    drop_at: Ints,
    drop: Ints,
    readers: Ints,
    device: Ints,
    amount: Ints,
    held: Ints,
    limits: Ints,
) -> bool:
    """Whether all can be finished after task t has started (-1: as it is)."""
    readers, held = readers.copy(), held.copy()
    if t >= 0 and not _run(t, take_at, take, drop_at, drop, readers, device, amount, held, limits, True, False):
        return False
    for k in range(count):
        _run(running[k], take_at, take, drop_at, drop, readers, device, amount, held, limits, False, True)
    if t >= 0:
        _run(t, take_at, take, drop_at, drop, readers, device, amount, held, limits, False, True)
    for k in range(first, len(order)):
        u = order[k]
        if (
            state[u] == 0
            and u != t
            and not _run(u, take_at, take, drop_at, drop, readers, device, amount, held, limits, True, True)
        ):
            return False
    return True


@njit(cache=True)
def _delays(
    t: int,
    end: int,
    priority: np.ndarray,
    soon: Ints,
    ready: Ints,
    coming: int,
    taken_at: Ints,
    taken: Ints,
) -> bool:
    """Whether task t keeps a stream until after `end` from a task of higher priority that is ready before."""
    for k in range(coming):
        u = soon[k]
        if ready[k] >= end or priority[u] <= priority[t]:
            continue
        for x in range(taken_at[t], taken_at[t + 1]):
            for y in range(taken_at[u], taken_at[u + 1]):
                if taken[x] == taken[y]:
                    return True
    return False


@njit(cache=True)
def _scheduled(
    times: Ints,
    taken_at: Ints,
    taken: Ints,
    streams: int,
    at: Ints,
    to: Ints,
    lag: Ints,
    missing: Ints,
    priority: np.ndarray,
    order: Ints,
    take_at: Ints,
    take: Ints,
    drop_at: Ints,
    drop: Ints,
    readers: Ints,
    device: Ints,
    amount: Ints,
    limits: Ints,
    held: Ints,
    delay: int,
) -> tuple[Ints, bool]:
    n = len(times)
    missing, readers, held = missing.copy(), readers.copy(), held.copy()
    start, ready, state = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    free = np.zeros(streams, np.int64)
    open_, running = np.empty(n, np.int64), np.empty(n, np.int64)
    opened, count, first, left = 0, 0, 0, n
    for t in range(n):
        if missing[t] == 0:
            open_[opened] = t
            opened += 1
    if not _safe(-1, state, running, 0, order, 0, take_at, take, drop_at, drop, readers, device, amount, held, limits):
        return start, False
    now = np.int64(0)
    refused = np.full(n, np.int64(-1))
    soon = np.empty(n, np.int64)  # tasks that wait for one running task only, and when they will be ready
    at_last = np.empty(n, np.int64)
    while left:
        k = 0
        while k < count:  # ends of this moment
            t = running[k]
            if start[t] + times[t] <= now:
                _run(t, take_at, take, drop_at, drop, readers, device, amount, held, limits, False, True)
                count -= 1
                running[k] = running[count]
                for x in range(at[t], at[t + 1]):
                    u = to[x]
                    ready[u] = max(ready[u], now + lag[x])
                    missing[u] -= 1
                    if missing[u] == 0:
                        open_[opened] = u
                        opened += 1
            else:
                k += 1
        started = True
        ended = False
        while started and not ended:
            started = False
            coming = 0
            for k in range(count if delay < UNLIMITED else 0):
                t = running[k]
                for x in range(at[t], at[t + 1]):
                    if missing[to[x]] == 1 and coming < n:
                        soon[coming], at_last[coming] = to[x], start[t] + times[t] + lag[x]
                        coming += 1
            for _ in range(TRIES):
                chosen, best = -1, -1e300
                for k in range(opened):
                    t = open_[k]
                    if ready[t] > now or refused[t] == now or priority[t] <= best:
                        continue
                    fits = True
                    for x in range(taken_at[t], taken_at[t + 1]):
                        fits = fits and free[taken[x]] <= now
                    if fits and not _delays(
                        t, now + times[t] - delay, priority, soon, at_last, coming, taken_at, taken
                    ):
                        chosen, best = k, priority[t]
                if chosen < 0:
                    break
                t = open_[chosen]
                if _safe(
                    t,
                    state,
                    running,
                    count,
                    order,
                    first,
                    take_at,
                    take,
                    drop_at,
                    drop,
                    readers,
                    device,
                    amount,
                    held,
                    limits,
                ):
                    _run(t, take_at, take, drop_at, drop, readers, device, amount, held, limits, True, False)
                    opened -= 1
                    open_[chosen] = open_[opened]
                    state[t], start[t] = 1, now
                    left -= 1
                    running[count] = t
                    count += 1
                    for x in range(taken_at[t], taken_at[t + 1]):
                        free[taken[x]] = now + times[t]
                    while first < n and state[order[first]]:
                        first += 1
                    started = True
                    ended = times[t] == 0
                    break
                refused[t] = now
        if ended:
            refused[:] = -1
            continue
        later = np.int64(1) << 62
        for k in range(count):
            later = min(later, start[running[k]] + times[running[k]])
        for k in range(opened):
            if ready[open_[k]] > now:
                later = min(later, ready[open_[k]])
        if later == np.int64(1) << 62:
            if left:  # refused at a moment when nothing runs: the first of the order is safe, so try all of them
                t = order[first]
                if refused[t] != now and missing[t] == 0:
                    continue
                return start, left == 0
            break
        now = later
    return start, True

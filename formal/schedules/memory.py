"""List scheduling under memory limits: a task starts only if all that is left can still be finished.

Started tasks end, then the rest runs one after another in one fixed order of the precedences: if that stays within the
limits the state is safe (the banker's algorithm, Dijkstra 1965).  A task that would leave the safe states waits for the
next end.  When nothing runs, the first task of the fixed order may always start, so that no schedule gets stuck.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Store(NamedTuple):
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
    starts, fine = _schedule(shop, kept, priority, order, delay)
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


class State(NamedTuple):
    """A list schedule at one moment.  Of tasks: `start`, `begun`, how many before it are `missing`, and until when the
    ended ones keep it (`ready`).  Of streams: until when they are taken (`free`).  Of holdings: how many last tasks
    are left (`readers`); of devices: what is `held`.  `open_[:sizes[OPEN]]` have none missing,
    `running[:sizes[RUNNING]]` run; the first `sizes[FIRST]` of the fixed order have begun.
    """

    start: Ints
    begun: Ints
    missing: Ints
    ready: Ints
    free: Ints
    readers: Ints
    held: Ints
    open_: Ints
    running: Ints
    sizes: Ints


OPEN, RUNNING, FIRST = 0, 1, 2


class Coming(NamedTuple):
    """Tasks that wait for one running task only, and when they will be ready."""

    task: Ints
    ready: Ints


@njit(cache=True)
def _begin(shop: Shop, store: Store) -> State:
    """Nothing has started."""
    n = len(shop.times)
    begin = State(
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.diff(shop.backward.at),
        np.zeros(n, np.int64),
        np.zeros(len(shop.tasks_at) - 1, np.int64),
        store.readers.copy(),
        store.held.copy(),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.zeros(3, np.int64),
    )
    for t in range(n):
        if begin.missing[t] == 0:
            _open(begin, t)
    return begin


@njit(cache=True)
def _open(now: State, task: int) -> None:
    now.open_[now.sizes[OPEN]] = task
    now.sizes[OPEN] += 1


@njit(cache=True)
def _take(store: Store, task: int, held: Ints) -> bool:
    """Take what a task takes; whether the limits hold."""
    fine = True
    for k in range(store.take_at[task], store.take_at[task + 1]):
        h = store.take[k]
        d = store.device[h]
        held[d] += store.amount[h]
        fine = fine and held[d] <= store.limits[d]
    return fine


@njit(cache=True)
def _drop(store: Store, task: int, readers: Ints, held: Ints) -> None:
    """Drop what nobody needs behind a task."""
    for k in range(store.drop_at[task], store.drop_at[task + 1]):
        h = store.drop[k]
        readers[h] -= 1
        if readers[h] == 0:
            held[store.device[h]] -= store.amount[h]


@njit(cache=True)
def _is_safe(store: Store, now: State, order: Ints, task: int) -> bool:
    """Whether all can be finished after `task` has started (-1: as it is)."""
    readers, held = now.readers.copy(), now.held.copy()
    if task >= 0 and not _take(store, task, held):
        return False
    for k in range(now.sizes[RUNNING]):
        _drop(store, now.running[k], readers, held)
    if task >= 0:
        _drop(store, task, readers, held)
    for k in range(now.sizes[FIRST], len(order)):
        u = order[k]
        if now.begun[u] == 0 and u != task:
            if not _take(store, u, held):
                return False
            _drop(store, u, readers, held)
    return True


@njit(cache=True)
def _delays(shop: Shop, task: int, end: int, priority: Floats, coming: Coming) -> bool:
    """Whether a task keeps a stream until after `end` from one of higher priority that is ready before."""
    for k in range(len(coming.task)):
        u = coming.task[k]
        if coming.ready[k] >= end or priority[u] <= priority[task]:
            continue
        for x in range(shop.taken_at[task], shop.taken_at[task + 1]):
            for y in range(shop.taken_at[u], shop.taken_at[u + 1]):
                if shop.taken[x] == shop.taken[y]:
                    return True
    return False


@njit(cache=True)
def _end_tasks(shop: Shop, store: Store, now: State, moment: int) -> None:
    """End what ends by this moment, and open what waited for it."""
    links, k = shop.forward, 0
    while k < now.sizes[RUNNING]:
        t = now.running[k]
        if now.start[t] + shop.times[t] > moment:
            k += 1
            continue
        _drop(store, t, now.readers, now.held)
        now.sizes[RUNNING] -= 1
        now.running[k] = now.running[now.sizes[RUNNING]]
        for x in range(links.at[t], links.at[t + 1]):
            u = links.to[x]
            now.ready[u] = max(now.ready[u], moment + links.lag[x])
            now.missing[u] -= 1
            if now.missing[u] == 0:
                _open(now, u)


@njit(cache=True)
def _find_coming(shop: Shop, now: State, room: Coming) -> Coming:
    """What will be ready when a running task ends, in `room`."""
    links, count = shop.forward, 0
    for k in range(now.sizes[RUNNING]):
        t = now.running[k]
        for x in range(links.at[t], links.at[t + 1]):
            if now.missing[links.to[x]] == 1 and count < len(room.task):
                room.task[count], room.ready[count] = links.to[x], now.start[t] + shop.times[t] + links.lag[x]
                count += 1
    return Coming(room.task[:count], room.ready[:count])


@njit(cache=True)
def _choose(shop: Shop, now: State, moment: int, refused: Ints, priority: Floats, coming: Coming, delay: int) -> int:
    """Where the open task of highest priority is that can start and delays none that is coming by more than `delay`;
    -1: there is none.
    """
    chosen, best = -1, -1e300
    for k in range(now.sizes[OPEN]):
        t = now.open_[k]
        if now.ready[t] > moment or refused[t] == moment or priority[t] <= best:
            continue
        fits = True
        for x in range(shop.taken_at[t], shop.taken_at[t + 1]):
            fits = fits and now.free[shop.taken[x]] <= moment
        if fits and not _delays(shop, t, moment + shop.times[t] - delay, priority, coming):
            chosen, best = k, priority[t]
    return chosen


@njit(cache=True)
def _start(shop: Shop, store: Store, now: State, moment: int, order: Ints, chosen: int) -> None:
    """Start the open task at position `chosen`."""
    t = now.open_[chosen]
    _take(store, t, now.held)
    now.sizes[OPEN] -= 1
    now.open_[chosen] = now.open_[now.sizes[OPEN]]
    now.begun[t], now.start[t] = 1, moment
    now.running[now.sizes[RUNNING]] = t
    now.sizes[RUNNING] += 1
    for x in range(shop.taken_at[t], shop.taken_at[t + 1]):
        now.free[shop.taken[x]] = moment + shop.times[t]
    while now.sizes[FIRST] < len(order) and now.begun[order[now.sizes[FIRST]]]:
        now.sizes[FIRST] += 1


@njit(cache=True)
def _next_moment(shop: Shop, now: State, moment: int) -> int:
    """When the next task ends, or is ready; `UNLIMITED`: never."""
    later = UNLIMITED
    for k in range(now.sizes[RUNNING]):
        t = now.running[k]
        later = min(later, now.start[t] + shop.times[t])
    for k in range(now.sizes[OPEN]):
        ready = now.ready[now.open_[k]]
        if ready > moment:
            later = min(later, ready)
    return later


@njit(cache=True)
def _schedule(shop: Shop, store: Store, priority: Floats, order: Ints, delay: int) -> tuple[Ints, bool]:
    """Starts, and whether the limits can be kept."""
    n, now, moment = len(shop.times), _begin(shop, store), np.int64(0)
    if not _is_safe(store, now, order, -1):
        return now.start, False
    refused = np.full(n, np.int64(-1))
    room = Coming(np.empty(n, np.int64), np.empty(n, np.int64))
    while now.sizes[FIRST] < n:
        _end_tasks(shop, store, now, moment)
        started, ended = True, False
        while started and not ended:
            started = False
            coming = _find_coming(shop, now, room) if delay < UNLIMITED else Coming(room.task[:0], room.ready[:0])
            for _ in range(TRIES):
                chosen = _choose(shop, now, moment, refused, priority, coming, delay)
                if chosen < 0:
                    break
                t = now.open_[chosen]
                if _is_safe(store, now, order, t):
                    _start(shop, store, now, moment, order, chosen)
                    started, ended = True, shop.times[t] == 0
                    break
                refused[t] = moment
        if ended:
            refused[:] = -1
            continue
        later = _next_moment(shop, now, moment)
        if later == UNLIMITED and now.sizes[FIRST] < n:
            # refused at a moment when nothing runs: the first of the order is safe, so try all of them
            t = order[now.sizes[FIRST]]
            if refused[t] != moment and now.missing[t] == 0:
                continue
            return now.start, False
        moment = later
    return now.start, True

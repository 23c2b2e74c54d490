"""Compiled loops: longest paths, the best load of a stream, list scheduling.

Times are int64, so that all of it is exact; priorities are floats, for they only choose.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...models.problem.selection_problem import Ints
from ..compiling import njit
from .shop import Shop

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@njit(cache=True)
def heads(order: Ints, times: Ints, at: Ints, to: Ints, lag: Ints) -> Ints:
    """Longest path to the start of every task, shape (tasks,); with reversed links and order: tails."""
    found = np.zeros(len(times), np.int64)
    for t in order:
        for k in range(at[t], at[t + 1]):
            found[to[k]] = max(found[to[k]], found[t] + times[t] + lag[k])
    return found


@njit(cache=True)
def best_load(times: Ints, head: Ints, tail: Ints, tasks_at: Ints, tasks: Ints) -> tuple[int, int, int, int]:
    """(bound, stream, least head, least tail) of the tasks of one stream whose load bounds best."""
    best, where, first, last = 0, 0, 0, 0
    for s in range(len(tasks_at) - 1):
        here = tasks[tasks_at[s] : tasks_at[s + 1]]
        here = here[np.argsort(-head[here], kind="mergesort")]
        for q in np.unique(tail[here]):
            load = 0
            for t in here:
                if tail[t] >= q:
                    load += times[t]
                    if head[t] + load + q > best:
                        best, where, first, last = head[t] + load + q, s, head[t], q
    return best, where, first, last


@njit(cache=True)
def _set_streams(taken_at: Ints, taken: Ints, task: int, values: Flags | Ints, value: int) -> None:
    """Set the entries of the streams that a task takes."""
    for x in range(taken_at[task], taken_at[task + 1]):
        values[taken[x]] = value


@njit(cache=True)
def list_schedule(shop: Shop, way: int, priority: Floats, patience: float) -> Ints:
    """Starts, shape (tasks,): again and again the task that would end first, or one of higher priority that shares a
    stream with it and could start before that end (patience 1), before its start (patience 0), or between.  `way` 0:
    from the beginning; 1: in reversed time, from the end.
    """
    times, taken_at, taken = shop.times, shop.taken_at, shop.taken
    n, streams = len(times), len(shop.tasks_at) - 1
    links, before = (shop.forward, shop.backward) if way == 0 else (shop.backward, shop.forward)
    at, to, lag = links.at, links.to, links.lag
    missing = np.diff(before.at)
    ready, start, free = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(streams, np.int64)
    mark, open_ = np.zeros(streams, np.bool_), np.empty(n, np.int64)
    begin = np.flatnonzero(missing == 0)
    count = len(begin)
    open_[:count] = begin
    for _ in range(n):
        end, first, chosen = np.int64(1) << 62, np.int64(1) << 62, -1
        for k in range(count):
            t = open_[k]
            e = ready[t]
            for x in range(taken_at[t], taken_at[t + 1]):
                e = max(e, free[taken[x]])
            if e + times[t] < end or (e + times[t] == end and e < first):
                end, first, chosen = e + times[t], e, k
        lead = open_[chosen]
        _set_streams(taken_at, taken, lead, mark, True)
        soonest = first
        for sweep in range(2):  # the soonest start on these streams, then the best that may be waited for
            limit = soonest + patience * (end - soonest)
            best = priority[lead] if first <= limit else -1e300
            for k in range(count):
                t = open_[k]
                shared = False
                for x in range(taken_at[t], taken_at[t + 1]):
                    shared = shared or mark[taken[x]]
                if not shared:
                    continue
                e = ready[t]
                for x in range(taken_at[t], taken_at[t + 1]):
                    e = max(e, free[taken[x]])
                if sweep == 0:
                    soonest = min(soonest, e)
                elif e <= limit and (e < end or e == soonest) and priority[t] > best:
                    best, chosen = priority[t], k
        _set_streams(taken_at, taken, lead, mark, False)
        t = open_[chosen]
        count -= 1
        open_[chosen] = open_[count]
        for x in range(taken_at[t], taken_at[t + 1]):
            ready[t] = max(ready[t], free[taken[x]])
        start[t], end = ready[t], ready[t] + times[t]
        _set_streams(taken_at, taken, t, free, end)
        for k in range(at[t], at[t + 1]):
            u = to[k]
            ready[u] = max(ready[u], end + lag[k])
            missing[u] -= 1
            if missing[u] == 0:
                open_[count] = u
                count += 1
    return start

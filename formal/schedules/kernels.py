"""Compiled loops: longest paths, the best load of a stream, list scheduling.

Times are int64, so that all of it is exact; priorities are floats, for they only choose.
"""

from __future__ import annotations

import numpy as np

from ...models.problem.selection_problem import Ints
from ..compiling import njit


@njit(cache=True)
def topological(at: Ints, to: Ints, missing: Ints) -> Ints:
    """Tasks behind those before them, first come first; `missing`: how many lead to each.  Shorter if there is a
    circle.
    """
    n = len(at) - 1
    order = np.empty(n, np.int64)
    missing = missing.copy()
    first, last = 0, 0
    for t in range(n):
        if missing[t] == 0:
            order[last] = t
            last += 1
    while first < last:
        t = order[first]
        first += 1
        for k in range(at[t], at[t + 1]):
            u = to[k]
            missing[u] -= 1
            if missing[u] == 0:
                order[last] = u
                last += 1
    return order[:last]


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
def list_schedule(
    times: Ints,
    taken_at: Ints,
    taken: Ints,
    streams: int,
    at: Ints,
    to: Ints,
    lag: Ints,
    missing: Ints,
    priority: np.ndarray,
    patience: float,
) -> Ints:
    """Starts, shape (tasks,): again and again the task that would end first, or one of higher priority that shares a
    stream with it and could start before that end (patience 1), before its start (patience 0), or between.
    """
    n = len(times)
    missing = missing.copy()
    ready = np.zeros(n, np.int64)
    free = np.zeros(streams, np.int64)
    start = np.zeros(n, np.int64)
    mark = np.zeros(streams, np.bool_)
    open_ = np.empty(n, np.int64)
    count = 0
    for t in range(n):
        if missing[t] == 0:
            open_[count] = t
            count += 1
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
        for x in range(taken_at[lead], taken_at[lead + 1]):
            mark[taken[x]] = True
        soonest = first
        for sweep in range(2):  # the soonest start on these streams, then the best that may be waited for
            limit = soonest + patience * (end - soonest)
            best = priority[lead] if first <= limit else -1e300
            for k in range(count):
                t = open_[k]
                e = ready[t]
                shared = False
                for x in range(taken_at[t], taken_at[t + 1]):
                    e = max(e, free[taken[x]])
                    shared = shared or mark[taken[x]]
                if not shared:
                    continue
                if sweep == 0:
                    soonest = min(soonest, e)
                elif e <= limit and (e < end or e == soonest) and priority[t] > best:
                    best, chosen = priority[t], k
        for x in range(taken_at[lead], taken_at[lead + 1]):
            mark[taken[x]] = False
        t = open_[chosen]
        count -= 1
        open_[chosen] = open_[count]
        e = ready[t]
        for x in range(taken_at[t], taken_at[t + 1]):
            e = max(e, free[taken[x]])
        start[t] = e
        for x in range(taken_at[t], taken_at[t + 1]):
            free[taken[x]] = e + times[t]
        for k in range(at[t], at[t + 1]):
            u = to[k]
            ready[u] = max(ready[u], e + times[t] + lag[k])
            missing[u] -= 1
            if missing[u] == 0:
                open_[count] = u
                count += 1
    return start

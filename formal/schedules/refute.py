"""Finds refutations of a makespan by edge finding and branching, as the rows of
`proofs.schedules.certificate`.

One pass over a stream, for every tail threshold q with the tasks sorted by falling heads, keeps for the set of tasks
with head >= r and tail >= q its time P and its earliest end.  A task t outside is last behind the set

    with head(t) >= r   if  r + P + time(t) + q > T      (the best r comes from a running maximum)
    with head(t) <  r   if  head(t) + P + time(t) + q > T   for the largest such set

Heads and tails change places for the mirror image.  Pairs that have one order left are put in it, so that where no pair
is open any more the heads are a schedule no longer than T.  Rows are found under the state before the pass; the
checker's heads and tails are at least as high by then, so that every condition holds there too.
"""

from __future__ import annotations

import numpy as np

from ...models.problem.selection_problem import Ints
from ..compiling import njit

OPEN, CLOSED, FULL = 0, 1, 2
RAISE_HEAD, RAISE_TAIL, SPLIT, LOAD, PATH, ORDER = 0, 1, 2, 3, 4, 5


@njit(cache=True)
def _raise(
    values: Ints,
    times: Ints,
    at: Ints,
    to: Ints,
    lag: Ints,
    extra: Ints,
    extras: int,
    side: int,
    task: int,
    value: int,
    most: int,
    stack: Ints,
) -> None:
    """Raise a head (side 0) or tail (side 1) and all behind it, at most to `most`."""
    value = min(value, most)
    if value <= values[task]:
        return
    values[task] = value
    room = len(stack)
    stack[0], first, count = task, 0, 1  # a ring: first come, first served looks at most tasks once
    queued = np.zeros(len(values), np.bool_)
    queued[task] = True
    while count:
        t = stack[first]
        first = first + 1 if first + 1 < room else 0
        count -= 1
        queued[t] = False
        v = values[t] + times[t]
        for k in range(at[t], at[t + 1]):
            w = min(v + lag[k], most)
            if w > values[to[k]]:
                values[to[k]] = w
                if not queued[to[k]]:
                    queued[to[k]] = True
                    stack[(first + count) % room] = to[k]
                    count += 1
        for k in range(extras):
            if extra[k, side] == t:
                u = extra[k, 1 - side]
                w = min(v, most)
                if w > values[u]:
                    values[u] = w
                    if not queued[u]:
                        queued[u] = True
                        stack[(first + count) % room] = u
                        count += 1


@njit(cache=True)
def _edges(
    s: int, here: Ints, times: Ints, head: Ints, tail: Ints, makespan: int, word: int, found: Ints, room: int
) -> int:
    """Rows (word, task, stream, r, q, value) that raise heads of one stream; -1 if a load contradicts the makespan."""
    n = len(here)
    count = 0
    by = here[np.argsort(-head[here], kind="mergesort")]
    value = np.zeros(n, np.int64)
    why_r, why_q = np.zeros(n, np.int64), np.zeros(n, np.int64)
    sums, ends = np.zeros(n, np.int64), np.zeros(n, np.int64)
    most, most_at = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for q in np.unique(tail[here]):
        load, end = 0, 0
        for k in range(n):
            t = by[k]
            if tail[t] >= q:
                load += times[t]
                end = max(end, head[t] + load)
            sums[k], ends[k] = load, end
            if load and head[t] + load + q > makespan and tail[t] >= q:
                found[0, 0], found[0, 1], found[0, 2], found[0, 3] = LOAD, s, head[t], q
                return -1
        for k in range(n - 1, -1, -1):  # from the smallest heads up: the best r that is at most the head of k
            most[k], most_at[k] = (0, -1) if k == n - 1 else (most[k + 1], most_at[k + 1])
            if tail[by[k]] >= q and head[by[k]] + sums[k] >= most[k]:
                most[k], most_at[k] = head[by[k]] + sums[k], k
        for k in range(n):
            t = by[k]
            if tail[t] < q and most_at[k] >= 0 and most[k] + times[t] + q > makespan and ends[most_at[k]] > value[k]:
                value[k], why_r[k], why_q[k] = ends[most_at[k]], head[by[most_at[k]]], q
            j = k - 1
            while j >= 0 and head[by[j]] == head[t]:
                j -= 1
            if j >= 0 and sums[j] and head[t] + sums[j] + times[t] + q > makespan and ends[j] > value[k]:
                value[k], why_r[k], why_q[k] = ends[j], head[by[j]], q
    for k in range(n):
        t = by[k]
        if value[k] > head[t] and count < room:
            found[count, 0], found[count, 1], found[count, 2] = word, t, s
            found[count, 3], found[count, 4] = why_r[k], why_q[k]
            found[count, 5] = value[k]
            count += 1
    return count


@njit(cache=True)
def propagate(
    times: Ints,
    tasks_at: Ints,
    tasks: Ints,
    at: Ints,
    to: Ints,
    lag: Ints,
    back_at: Ints,
    back_to: Ints,
    back_lag: Ints,
    head: Ints,
    tail: Ints,
    extra: Ints,
    extras: int,
    makespan: int,
    rows: Ints,
    used: int,
    rounds: int,
) -> tuple[int, int]:
    """Raise heads and tails until nothing changes or a contradiction; (state, rows used)."""
    streams = len(tasks_at) - 1
    found = np.zeros((len(times) + 1, 6), np.int64)
    stack = np.zeros(len(times) + 1, np.int64)
    dirty = True
    while dirty and rounds > 0:
        dirty = False
        rounds -= 1
        if used + 3 >= len(rows):
            return FULL, used
        for t in range(len(times)):
            if head[t] + times[t] + tail[t] > makespan:
                rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = PATH, t, 0, 0, 0
                return CLOSED, used + 1
        for s in range(streams):
            here = tasks[tasks_at[s] : tasks_at[s + 1]]
            if len(here) < 2:
                continue
            for side in range(2):
                if side == 0:
                    count = _edges(s, here, times, head, tail, makespan, RAISE_HEAD, found, len(times))
                else:
                    count = _edges(s, here, times, tail, head, makespan, RAISE_TAIL, found, len(times))
                if used + max(count, 1) + 2 >= len(rows):
                    return FULL, used
                if count < 0:
                    r, q = (found[0, 2], found[0, 3]) if side == 0 else (found[0, 3], found[0, 2])
                    rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = LOAD, s, r, q, 0
                    return CLOSED, used + 1
                for k in range(count):
                    t = found[k, 1]
                    dirty = True
                    rows[used, 0], rows[used, 1], rows[used, 2] = found[k, 0], t, s
                    if side == 0:
                        rows[used, 3], rows[used, 4] = found[k, 3], found[k, 4]
                        _raise(head, times, at, to, lag, extra, extras, 0, t, found[k, 5], makespan + 1, stack)
                    else:
                        rows[used, 3], rows[used, 4] = found[k, 4], found[k, 3]
                        _raise(
                            tail,
                            times,
                            back_at,
                            back_to,
                            back_lag,
                            extra,
                            extras,
                            1,
                            t,
                            found[k, 5],
                            makespan + 1,
                            stack,
                        )
                    used += 1
                    if head[t] + times[t] + tail[t] > makespan:
                        rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = PATH, t, 0, 0, 0
                        return CLOSED, used + 1
            for x in here:
                for y in here:  # x cannot come before y
                    if x == y or head[x] + times[x] + times[y] + tail[y] <= makespan:
                        continue
                    if head[x] >= head[y] + times[y] and tail[y] >= tail[x] + times[x]:
                        continue
                    if used + 3 >= len(rows):
                        return FULL, used
                    dirty = True
                    rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = ORDER, y, x, 0, 0
                    used += 1
                    _raise(head, times, at, to, lag, extra, extras, 0, x, head[y] + times[y], makespan + 1, stack)
                    _raise(
                        tail,
                        times,
                        back_at,
                        back_to,
                        back_lag,
                        extra,
                        extras,
                        1,
                        y,
                        tail[x] + times[x],
                        makespan + 1,
                        stack,
                    )
    return OPEN, used


@njit(cache=True)
def tightest_pair(times: Ints, tasks_at: Ints, tasks: Ints, head: Ints, tail: Ints, makespan: int) -> tuple[int, int]:
    """Two tasks of a stream whose order is open, with the least room; the likelier order first.  (-1, -1): none."""
    best, first, second = np.int64(1) << 62, -1, -1
    for s in range(len(tasks_at) - 1):
        for x in range(tasks_at[s], tasks_at[s + 1]):
            a = tasks[x]
            for y in range(x + 1, tasks_at[s + 1]):
                b = tasks[y]
                ab = makespan - head[a] - times[a] - times[b] - tail[b]
                ba = makespan - head[b] - times[b] - times[a] - tail[a]
                if ab < 0 or ba < 0 or head[b] >= head[a] + times[a] or head[a] >= head[b] + times[b]:
                    continue
                room = min(ab, ba) * 4 + max(ab, ba)
                if room < best:
                    best = room
                    first, second = (a, b) if ab >= ba else (b, a)
    return first, second


@njit(cache=True)
def branch(
    times: Ints,
    tasks_at: Ints,
    tasks: Ints,
    at: Ints,
    to: Ints,
    lag: Ints,
    back_at: Ints,
    back_to: Ints,
    back_lag: Ints,
    head0: Ints,
    tail0: Ints,
    makespan: int,
    rows: Ints,
    nodes: int,
    deepest: int,
    starts: Ints,
) -> tuple[int, int, int]:
    """Depth-first search for a schedule no longer than `makespan`: (CLOSED, rows, nodes) if there is none, (OPEN, 0,
    nodes) with `starts` if one was found, (FULL, 0, nodes) if nodes, depth or rows ran out; nodes: how many were
    looked at.
    """
    seen = 0
    n = len(times)
    head, tail = head0.copy(), tail0.copy()
    heads = np.zeros((deepest + 1, n), np.int64)
    tails = np.zeros((deepest + 1, n), np.int64)
    extra = np.zeros((deepest + 1, 2), np.int64)
    second = np.zeros(deepest + 1, np.bool_)
    stack = np.zeros(n + 1, np.int64)
    depth, used = 0, 0
    while True:
        if seen >= nodes:
            return FULL, 0, seen
        seen += 1
        state, used = propagate(
            times,
            tasks_at,
            tasks,
            at,
            to,
            lag,
            back_at,
            back_to,
            back_lag,
            head,
            tail,
            extra,
            depth,
            makespan,
            rows,
            used,
            1 << 30,
        )
        if state == FULL:
            return FULL, 0, seen
        if state == OPEN:
            a, b = tightest_pair(times, tasks_at, tasks, head, tail, makespan)
            if a < 0:
                starts[:] = head
                return OPEN, 0, seen
            if depth >= deepest or used + 4 >= len(rows):
                return FULL, 0, seen
            rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = SPLIT, a, b, 0, 0
            used += 1
            heads[depth], tails[depth] = head, tail
            second[depth] = False
        else:
            while depth and second[depth - 1]:
                depth -= 1
            if depth == 0:
                return CLOSED, used, seen
            depth -= 1
            head[:], tail[:] = heads[depth], tails[depth]
            second[depth] = True
            b, a = extra[depth, 0], extra[depth, 1]
        extra[depth, 0], extra[depth, 1] = a, b
        depth += 1
        _raise(head, times, at, to, lag, extra, depth, 0, b, head[a] + times[a], makespan + 1, stack)
        _raise(tail, times, back_at, back_to, back_lag, extra, depth, 1, a, tail[b] + times[b], makespan + 1, stack)

"""Finds refutations of a makespan by edge finding and branching, as the rows of `proofs.schedules.certificate`.

One pass over a stream, for every tail threshold q with the tasks sorted by falling heads, keeps for the set of tasks
with head >= r and tail >= q its time P and its earliest end.  A task t outside is last behind the set

    with head(t) >= r   if  r + P + time(t) + q > T      (the best r comes from a running maximum)
    with head(t) <  r   if  head(t) + P + time(t) + q > T   for the largest such set

Heads and tails change places for the mirror image.  Pairs that have one order left are put in it, so that where no pair
is open any more the heads are a schedule no longer than T.  Rows are found under the state before the pass; the
checker's heads and tails are at least as high by then, so that every condition holds there too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...models.problem.selection_problem import Ints
from ..compiling import njit
from .shop import Shop

OPEN, CLOSED, FULL = 0, 1, 2
RAISE_HEAD, RAISE_TAIL, SPLIT, LOAD, PATH, ORDER = 0, 1, 2, 3, 4, 5
HEAD, TAIL = 0, 1


class Known(NamedTuple):
    """What is known of a schedule no longer than the makespan: `head`, `tail`: least time up to the start of every task
    and behind its end; `order`: pairs that were put in order, rows (before, after).
    """

    head: Ints
    tail: Ints
    order: Ints


class Scratch(NamedTuple):
    """Room for one propagation: rows `found` on a stream, and a `ring` of tasks."""

    found: Ints
    ring: Ints


@njit(cache=True)
def _write(rows: Ints, used: int, word: int, a: int, b: int, c: int, d: int) -> int:
    """One more row of the argument; how many there are then."""
    rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = word, a, b, c, d
    return used + 1


@njit(cache=True)
def _raise(shop: Shop, known: Known, side: int, task: int, value: int, most: int, ring: Ints) -> None:
    """Raise a head (side 0) or tail (side 1) and all behind it, at most to `most`."""
    values = known.head if side == HEAD else known.tail
    value = min(value, most)
    if value <= values[task]:
        return
    links = shop.forward if side == HEAD else shop.backward
    values[task] = value
    room = len(ring)
    ring[0], first, count = task, 0, 1  # first come, first served looks at most tasks once
    queued = np.zeros(len(values), np.bool_)
    queued[task] = True
    while count:
        t = ring[first]
        first = first + 1 if first + 1 < room else 0
        count -= 1
        queued[t] = False
        v = values[t] + shop.times[t]
        for k in range(links.at[t], links.at[t + 1]):
            u = links.to[k]
            w = min(v + links.lag[k], most)
            if w > values[u]:
                values[u] = w
                if not queued[u]:
                    queued[u] = True
                    ring[(first + count) % room] = u
                    count += 1
        for k in range(len(known.order)):
            if known.order[k, side] == t:
                u = known.order[k, 1 - side]
                w = min(v, most)
                if w > values[u]:
                    values[u] = w
                    if not queued[u]:
                        queued[u] = True
                        ring[(first + count) % room] = u
                        count += 1


@njit(cache=True)
def _edges(s: int, here: Ints, times: Ints, head: Ints, tail: Ints, makespan: int, word: int, found: Ints) -> int:
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
        if value[k] > head[t]:
            found[count, 0], found[count, 1], found[count, 2] = word, t, s
            found[count, 3], found[count, 4] = why_r[k], why_q[k]
            found[count, 5] = value[k]
            count += 1
    return count


@njit(cache=True)
def _find_edges(
    shop: Shop, known: Known, stream: int, side: int, makespan: int, rows: Ints, used: int, scratch: Scratch
) -> tuple[int, int]:
    """Raise what edge finding on one stream raises, heads or tails; (state, rows used)."""
    times, head, tail, found = shop.times, known.head, known.tail, scratch.found
    here = shop.tasks[shop.tasks_at[stream] : shop.tasks_at[stream + 1]]
    if side == HEAD:
        count = _edges(stream, here, times, head, tail, makespan, RAISE_HEAD, found)
    else:
        count = _edges(stream, here, times, tail, head, makespan, RAISE_TAIL, found)
    if used + max(count, 1) + 2 >= len(rows):
        return FULL, used
    if count < 0:
        r, q = (found[0, 2], found[0, 3]) if side == HEAD else (found[0, 3], found[0, 2])
        return CLOSED, _write(rows, used, LOAD, stream, r, q, 0)
    for k in range(count):
        t = found[k, 1]
        r, q = (found[k, 3], found[k, 4]) if side == HEAD else (found[k, 4], found[k, 3])
        used = _write(rows, used, found[k, 0], t, stream, r, q)
        _raise(shop, known, side, t, found[k, 5], makespan + 1, scratch.ring)
        if head[t] + times[t] + tail[t] > makespan:
            return CLOSED, _write(rows, used, PATH, t, 0, 0, 0)
    return OPEN, used


@njit(cache=True)
def _order_pairs(
    shop: Shop, known: Known, stream: int, makespan: int, rows: Ints, used: int, ring: Ints
) -> tuple[int, int]:
    """Put pairs of one stream that have one order left in it; (state, rows used)."""
    times, head, tail = shop.times, known.head, known.tail
    here = shop.tasks[shop.tasks_at[stream] : shop.tasks_at[stream + 1]]
    for x in here:
        for y in here:  # x cannot come before y
            if x == y or head[x] + times[x] + times[y] + tail[y] <= makespan:
                continue
            if head[x] >= head[y] + times[y] and tail[y] >= tail[x] + times[x]:
                continue
            if used + 3 >= len(rows):
                return FULL, used
            used = _write(rows, used, ORDER, y, x, 0, 0)
            _raise(shop, known, HEAD, x, head[y] + times[y], makespan + 1, ring)
            _raise(shop, known, TAIL, y, tail[x] + times[x], makespan + 1, ring)
    return OPEN, used


@njit(cache=True)
def propagate(shop: Shop, known: Known, makespan: int, rows: Ints, used: int, rounds: int) -> tuple[int, int]:
    """Raise heads and tails until nothing changes or a contradiction, in place; (state, rows used)."""
    times = shop.times
    scratch = Scratch(np.zeros((len(times) + 1, 6), np.int64), np.zeros(len(times) + 1, np.int64))
    before = -1
    while used > before and rounds > 0:
        before = used
        rounds -= 1
        if used + 3 >= len(rows):
            return FULL, used
        for t in range(len(times)):
            if known.head[t] + times[t] + known.tail[t] > makespan:
                return CLOSED, _write(rows, used, PATH, t, 0, 0, 0)
        for s in range(len(shop.tasks_at) - 1):
            if shop.tasks_at[s + 1] - shop.tasks_at[s] < 2:
                continue
            for side in range(2):
                state, used = _find_edges(shop, known, s, side, makespan, rows, used, scratch)
                if state != OPEN:
                    return state, used
            state, used = _order_pairs(shop, known, s, makespan, rows, used, scratch.ring)
            if state != OPEN:
                return state, used
    return OPEN, used


@njit(cache=True)
def tightest_pair(shop: Shop, known: Known, makespan: int) -> tuple[int, int]:
    """Two tasks of a stream whose order is open, with the least room; the likelier order first.  (-1, -1): none."""
    times, head, tail = shop.times, known.head, known.tail
    best, first, second = np.int64(1) << 62, -1, -1
    for s in range(len(shop.tasks_at) - 1):
        for x in range(shop.tasks_at[s], shop.tasks_at[s + 1]):
            a = shop.tasks[x]
            for y in range(x + 1, shop.tasks_at[s + 1]):
                b = shop.tasks[y]
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
    shop: Shop, root: Known, makespan: int, rows: Ints, nodes: int, deepest: int, starts: Ints
) -> tuple[int, int, int]:
    """Depth-first search for a schedule no longer than `makespan`: (CLOSED, rows, nodes) if there is none, (OPEN, 0,
    nodes) with `starts` if one was found, (FULL, 0, nodes) if nodes, depth or rows ran out; nodes: how many were
    looked at.
    """
    seen = 0
    n, times = len(shop.times), shop.times
    head, tail = root.head.copy(), root.tail.copy()
    heads = np.zeros((deepest + 1, n), np.int64)
    tails = np.zeros((deepest + 1, n), np.int64)
    order = np.zeros((deepest + 1, 2), np.int64)
    second = np.zeros(deepest + 1, np.bool_)
    ring = np.zeros(n + 1, np.int64)
    depth, used = 0, 0
    while True:
        if seen >= nodes:
            return FULL, 0, seen
        seen += 1
        known = Known(head, tail, order[:depth])
        state, used = propagate(shop, known, makespan, rows, used, 1 << 30)
        if state == FULL:
            return FULL, 0, seen
        if state == OPEN:
            a, b = tightest_pair(shop, known, makespan)
            if a < 0:
                starts[:] = head
                return OPEN, 0, seen
            if depth >= deepest or used + 4 >= len(rows):
                return FULL, 0, seen
            used = _write(rows, used, SPLIT, a, b, 0, 0)
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
            b, a = order[depth, 0], order[depth, 1]
        order[depth, 0], order[depth, 1] = a, b
        depth += 1
        known = Known(head, tail, order[:depth])
        _raise(shop, known, HEAD, b, head[a] + times[a], makespan + 1, ring)
        _raise(shop, known, TAIL, a, tail[b] + times[b], makespan + 1, ring)

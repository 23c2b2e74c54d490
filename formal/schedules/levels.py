"""Finds heads and tails raised by what must run before or after a task, whatever the makespan.

The tasks of a stream that come before t by precedence run one after another, so t starts no earlier than their least
end,  max over r of  r + times of those with head >= r;  tails are the mirror image.  Walked in topological order this
adds up over the parts of a program that collectives separate, where a longest path sees one branch of each part only.
"""

from __future__ import annotations

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.schedules.certificate import AFTER_ALL, BEFORE_ALL, LOAD, PATH, Refutation
from ..compiling import njit
from .bounds import Frame
from .kernels import best_load
from .shop import Links, Shop

MOST_TASKS = 20_000
"""Above it the table of what comes before what is too large: one bit per pair."""


NEVER = np.int64(1) << 62


@njit(cache=True)
def before_bits(links: Links) -> np.ndarray:
    """Bit u of row t: u leads to t; shape (tasks, words of 64)."""
    n = len(links.order)
    bits = np.zeros((n, (n + 63) // 64), np.uint64)
    for t in links.order:
        for k in range(links.at[t], links.at[t + 1]):
            u = links.to[k]
            for w in range(bits.shape[1]):
                bits[u, w] |= bits[t, w]
            bits[u, t // 64] |= np.uint64(1) << np.uint64(t % 64)
    return bits


@njit(cache=True)
def raise_heads(
    shop: Shop, links: Links, bits: np.ndarray, rows: Ints, word: int, known: Ints, behind: Ints, makespan: int
) -> tuple[Ints, int]:
    """Heads along `links`, shape (tasks,), from those that are known, and the number of rows that tell how they came
    about; `bits`: what comes before what.  It ends at the first task that `behind` (the tails) says cannot end by
    `makespan`.
    """
    times, tasks_at, tasks = shop.times, shop.tasks_at, shop.tasks
    n = len(times)
    head = known.copy()
    used = 0
    streams = len(tasks_at) - 1
    # tasks of each stream in order of their final heads; a task enters when it is reached
    ranked = np.zeros(len(tasks), np.int64)
    filled = np.zeros(streams, np.int64)
    stream_of = np.full(n, -1, np.int64)
    for s in range(streams):
        for k in range(tasks_at[s], tasks_at[s + 1]):
            stream_of[tasks[k]] = s
    for t in links.order:
        for s in range(streams):
            base, load, best, threshold = tasks_at[s], 0, np.int64(0), np.int64(0)
            for k in range(base + filled[s] - 1, base - 1, -1):  # falling heads
                u = ranked[k]
                if bits[t, u // 64] >> np.uint64(u % 64) & np.uint64(1):
                    load += times[u]
                    if head[u] + load > best:
                        best, threshold = head[u] + load, head[u]
            if best > head[t] and used < len(rows):
                head[t] = best
                rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3], rows[used, 4] = word, t, s, threshold, 0
                used += 1
        for k in range(links.at[t], links.at[t + 1]):
            u = links.to[k]
            head[u] = max(head[u], head[t] + times[t] + links.lag[k])
        if head[t] + times[t] + behind[t] > makespan:
            break
        s = stream_of[t]
        if s >= 0:
            k = tasks_at[s] + filled[s]
            while k > tasks_at[s] and head[ranked[k - 1]] > head[t]:
                ranked[k] = ranked[k - 1]
                k -= 1
            ranked[k] = t
            filled[s] += 1
    return head, used


def raise_levels(found: Frame) -> Frame:
    """The frame with raised heads and tails, if that bounds better; its bound is a refutation then."""
    shop = found.shop
    n = len(shop.times)
    if n > MOST_TASKS:
        return found
    f, b = shop.forward, shop.backward
    ahead, behind = np.zeros((4 * n, 5), dtype=np.int64), np.zeros((4 * n, 5), dtype=np.int64)
    start = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), NEVER
    head, up = raise_heads(shop, f, before_bits(f), ahead, AFTER_ALL, *start)
    tail, down = raise_heads(shop, b, before_bits(b), behind, BEFORE_ALL, *start)
    load, stream, r, q = best_load(shop.times, head, tail, shop.tasks_at, shop.tasks)
    path = head + shop.times + tail
    value = max(int(load), int(path.max()))
    if value <= found.value:
        return found
    last = [LOAD, stream, r, q, 0] if load >= path.max() else [PATH, int(path.argmax()), 0, 0, 0]
    rows = np.concatenate([ahead[:up], behind[:down], np.array([last], dtype=np.int64)])
    return Frame(shop, head, tail, value, Refutation(value - 1, rows))

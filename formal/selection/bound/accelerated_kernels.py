"""This module holds the loops of accelerated TRW-S (`bound/accelerated.py`), compiled with numba: a sweep over a part
of a network, and the extrapolation between sweeps.  Integers throughout, as in `bound/trws.py`: tables and messages
in int32 or int64 (units are the caller's), sums over the edges of a vertex in int64.

    order                      vertices of the part, by rank             rank[v]       place of v among all vertices
    label[v] : label[v + 1]    labels of vertex v in `weight`            near, edge    edges of every vertex, as one
                               list
    at[e]                      first entry of the table of e in `cells`  side 2e: the rows of e (at u[e]), side 2e + 1:
                               its columns (at v[e])
    message[s] : message[s+1]  messages of side s in `messages`          index[s]      first entry in `maps` of the rows
    of its labels, -1: one row per label
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAR = 1 << 60
"""A sum at or above half of this contains a forbidden label."""


@njit(cache=True, nogil=True)
def sweep(order, rank, label, weight, near, edge, u, v, at, cells, message, index, maps, limit, messages, forward):  # type: ignore[no-untyped-def]
    """One pass of `messages.Sweeper.sweep` in the style "share" over `order`, remainders kept; the sum of its
    vertex minima.  A table entry plus two messages has to fit its type.
    """
    n = order.shape[0]
    kind = cells.dtype.type  # without it numba adds int32 as int64, half as many lanes
    top, least = kind(limit), kind(-limit)
    far = kind(FAR if limit > 1 << 29 else 1 << 30)
    widest, longest = 1, 1
    for i in order:
        widest = max(widest, label[i + 1] - label[i])
    for s in range(message.shape[0] - 1):
        longest = max(longest, message[s + 1] - message[s])
    theta, share = np.empty(widest, dtype=np.int64), np.empty(widest, dtype=np.int64)
    delta, h = np.empty(longest, dtype=np.int64), np.empty(longest, dtype=cells.dtype)
    total = 0
    for step in range(n):
        i = order[step if forward else n - 1 - step]
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            theta[a] = weight[here + a]
        ahead, behind = 0, 0
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            other, side = (v[e], 2 * e) if u[e] == i else (u[e], 2 * e + 1)
            if (rank[other] > rank[i]) == forward:
                ahead += 1
            else:
                behind += 1
            start, to = message[side], index[side]
            if to < 0:
                for a in range(k):
                    theta[a] += messages[start + a]
            else:
                for a in range(k):
                    theta[a] += messages[start + maps[to + a]]
        low = theta[0]
        for a in range(1, k):
            low = min(low, theta[a])
        if low >= FAR >> 1:
            return FAR
        total += low
        if ahead == 0:
            continue
        parts = max(ahead, behind)
        for a in range(k):
            share[a] = FAR if theta[a] >= FAR >> 1 else (theta[a] - low) // parts
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine_is_u = u[e] == i
            other = v[e] if mine_is_u else u[e]
            if (rank[other] > rank[i]) != forward:
                continue
            side = 2 * e if mine_is_u else 2 * e + 1
            start, size, to = message[side], message[side + 1] - message[side], index[side]
            for r in range(size):
                delta[r] = FAR
            if to < 0:
                for a in range(k):
                    delta[a] = share[a]
            else:
                for a in range(k):
                    r = maps[to + a]
                    delta[r] = min(delta[r], share[a])
            for r in range(size):
                if delta[r] < FAR >> 1:
                    given = min(max(messages[start + r] - delta[r], -limit), limit)
                    messages[start + r] = given
                    h[r] = -given
                else:
                    h[r] = far
            across = side ^ 1
            out = messages[message[across] : message[across + 1]]
            m = out.shape[0]
            if mine_is_u:
                for b in range(m):
                    out[b] = top
                for r in range(size):
                    x = h[r]
                    if x < far:
                        row = cells[at[e] + r * m : at[e] + (r + 1) * m]
                        for b in range(m):
                            out[b] = min(out[b], kind(row[b] + x))
                for b in range(m):
                    out[b] = max(out[b], least)
            else:
                for b in range(m):
                    row = cells[at[e] + b * size : at[e] + (b + 1) * size]
                    best = kind(row[0] + h[0])
                    for r in range(1, size):
                        best = min(best, kind(row[r] + h[r]))
                    out[b] = min(max(best, least), top)
    return total


@njit(cache=True, nogil=True)
def push(messages, last, factor, limit):  # type: ignore[no-untyped-def]
    """messages += factor (messages - last), within the limit; last becomes what they were; in place."""
    for k in range(messages.shape[0]):
        now = messages[k]
        messages[k] = min(max(now + np.int64(factor * (now - last[k])), -limit), limit)
        last[k] = now

"""Loops of `momentum`, compiled with numba: a sweep over a whole network, and the step between sweeps.  Integers throughout, as in `messages`.

    label[v] : label[v + 1]    labels of vertex v in `weight`            near, edge    edges of every vertex, as one list
    at[e]                      first entry of the table of e in `cells`  side 2e: the rows of e (at u[e]), side 2e + 1: its columns (at v[e])
    message[s] : message[s+1]  messages of side s in `messages`          index[s]      first entry in `maps` of the rows of its labels, -1: one row per label
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAR = 1 << 60
"""A sum at or above half of this contains a forbidden entry."""


@njit(cache=True, nogil=True)
def sweep(label, weight, near, edge, u, v, at, cells, message, index, maps, limit, messages, forward):  # type: ignore[no-untyped-def]
    """One pass of `messages.Sweeper.sweep` in the style "share", remainders kept; the sum of the vertex minima."""
    n = label.shape[0] - 1
    widest, longest = 1, 1
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    for s in range(message.shape[0] - 1):
        longest = max(longest, message[s + 1] - message[s])
    theta, share, h = np.empty(widest, dtype=np.int64), np.empty(widest, dtype=np.int64), np.empty(longest, dtype=np.int64)
    total = 0
    for step in range(n):
        i = step if forward else n - 1 - step
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            theta[a] = weight[here + a]
        ahead, behind = 0, 0
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            other, side = (v[e], 2 * e) if u[e] == i else (u[e], 2 * e + 1)
            if (other > i) == forward:
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
            if (other > i) != forward:
                continue
            side = 2 * e if mine_is_u else 2 * e + 1
            start, size, to = message[side], message[side + 1] - message[side], index[side]
            for r in range(size):
                h[r] = FAR
            if to < 0:
                for a in range(k):
                    h[a] = share[a]
            else:
                for a in range(k):
                    r = maps[to + a]
                    h[r] = min(h[r], share[a])
            for r in range(size):
                if h[r] < FAR >> 1:
                    given = min(max(messages[start + r] - h[r], -limit), limit)
                    messages[start + r] = given
                    h[r] = -given
                else:
                    h[r] = FAR
            across = side ^ 1
            out = messages[message[across] : message[across + 1]]
            m = out.shape[0]
            if mine_is_u:
                for b in range(m):
                    out[b] = limit
                for r in range(size):
                    x = h[r]
                    if x < FAR >> 1:
                        row = cells[at[e] + r * m : at[e] + (r + 1) * m]
                        for b in range(m):
                            out[b] = min(out[b], row[b] + x)
                for b in range(m):
                    out[b] = max(out[b], -limit)
            else:
                for b in range(m):
                    row = cells[at[e] + b * size : at[e] + (b + 1) * size]
                    best = row[0] + h[0]
                    for r in range(1, size):
                        best = min(best, row[r] + h[r])
                    out[b] = min(max(best, -limit), limit)
    return total


@njit(cache=True, nogil=True)
def push(messages, last, factor, limit):  # type: ignore[no-untyped-def]
    """messages += factor (messages - last), within the limit; last becomes what they were; in place."""
    for k in range(messages.shape[0]):
        now = messages[k]
        messages[k] = min(max(now + np.int64(factor * (now - last[k])), -limit), limit)
        last[k] = now

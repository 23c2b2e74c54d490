"""The compiled sweep of TRW-S: one loop for floats and integers, plain and soft minima, tables with
and without index maps.

    theta_i(a)   =  weight_i(a) + messages to i                  low  =  min theta_i, summed: the bound of the vertices
    h(r)         =  share(a) - message to i at r                 share(a)  =  (theta_i(a) - low) / max(ahead, behind),
                                                                 the least over the labels a of row r
    message out  =  min over r of  table(r, b) + h(r)            over every edge ahead; the message to i becomes -h

floats     `limit` is None.  With `soft` = (t, far, shares) minima are soft, -t ln sum exp(-x / t), terms beyond `far`
           left out, and `shares` become those of every vertex: p_i(a) ~ exp(-share(a) / t)
integers   messages and tables of int32 or int64 (units are the caller's), sums over the edges of a vertex in int64;
           messages stay within `limit`, a row whose labels are all forbidden keeps its message, remainders stay
maps       (index, entries): the rows of the labels of side s are entries[index[s]], ..; -1, or None: a row per label

A graph is a `model.dense.Graph`.  `maps`, `limit` and `soft` are None or not when a call is compiled, so that what a
caller does not use costs nothing; so do rows of floats, the first of which needs no start (a fifth of a sweep).
"""

from __future__ import annotations

import numpy as np

from ...compiling import njit
from ..model.minplus_loops import columns, rows

FAR = 1 << 60
"""A sum at or above half of this contains a forbidden label; an excess at or above it is never within a gap."""

HIGH = 1e300
"""Above every sum of floats."""


@njit(cache=True, nogil=True, inline="always")
def thetas(i, g, maps, weight, messages, theta, rank, forward):  # type: ignore[no-untyped-def]
    """theta of the labels of vertex i, written to `theta`; how many of its edges are ahead, where ranks are given."""
    here, k, ahead = g.label[i], g.label[i + 1] - g.label[i], 0
    for a in range(k):
        theta[a] = weight[here + a]
    for j in range(g.near[i], g.near[i + 1]):
        e = g.edge[j]
        other, side = (g.v[e], 2 * e) if g.u[e] == i else (g.u[e], 2 * e + 1)
        if rank is not None and (rank[other] > rank[i]) == forward:
            ahead += 1
        at = g.message[side]
        if maps is None or maps[0][side] < 0:
            for a in range(k):
                theta[a] += messages[at + a]
        else:
            for a in range(k):
                theta[a] += messages[at + maps[1][maps[0][side] + a]]
    return ahead


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")
def _least(theta, k):  # type: ignore[no-untyped-def]
    """The least theta of a vertex of `k` labels."""
    low = theta[0]
    for a in range(1, k):
        low = min(low, theta[a])
    return low


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")
def _divide(theta, k, low, parts, limit):  # type: ignore[no-untyped-def]
    """theta becomes what every edge gets of it."""
    if limit is None:
        gamma = 1.0 / parts
        for a in range(k):
            theta[a] = (theta[a] - low) * gamma
    else:
        for a in range(k):
            theta[a] = FAR if theta[a] >= FAR >> 1 else (theta[a] - low) // parts


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")
def _soft(cells, at, steps, h, size, out, soft, total):  # type: ignore[no-untyped-def]
    """The soft minimum over r of cells[at + r * across + b * along] + h[r]; `steps`: across, along."""
    across, along = steps
    temperature, far = soft[0], soft[1]
    m, inverse = out.shape[0], 1.0 / temperature
    for b in range(m):
        out[b], total[b] = HIGH, 0.0
    for r in range(size):
        for b in range(m):
            out[b] = min(out[b], cells[at + r * across + b * along] + h[r])
    for r in range(size):
        for b in range(m):
            d = cells[at + r * across + b * along] + h[r] - out[b]
            if d < far:
                total[b] += np.exp(-d * inverse)
    for b in range(m):
        out[b] -= temperature * np.log(total[b])


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _share(theta, temperature, shares):  # type: ignore[no-untyped-def]
    """The shares p(a) of a vertex."""
    whole = 0.0
    for a in range(shares.shape[0]):
        shares[a] = np.exp(-theta[a] / temperature)
        whole += shares[a]
    for a in range(shares.shape[0]):
        shares[a] /= whole


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _give_rows(theta, side, maps, messages, delta, h, limit, far):  # type: ignore[no-untyped-def]
    """Of integers: the messages of a side become -h, within the limit; h is `far` where all labels are forbidden."""
    for r in range(messages.shape[0]):
        delta[r] = FAR
    for a in range(theta.shape[0]):
        r = a if maps is None or maps[0][side] < 0 else maps[1][maps[0][side] + a]
        delta[r] = min(delta[r], theta[a])
    for r in range(messages.shape[0]):
        h[r] = far
        if delta[r] < FAR >> 1:
            given = min(max(messages[r] - delta[r], -limit), limit)
            messages[r] = given
            h[r] = -given


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def sweep(walk, g, maps, weight, cells, messages, limit, soft):  # type: ignore[no-untyped-def]
    """One pass, `walk` = (part, rank, forward): over the vertices `part`, ascending in `rank`, or the other way;
    `messages` change in place.  The sum of vertex minima, FAR where a vertex has no allowed label.  A table entry plus
    two messages has to fit its type.
    """
    part, rank, forward = walk
    label, near, edge, u, v, at, message = g
    kind = cells.dtype.type
    widest, longest = 1, 1
    for i in part:
        widest = max(widest, label[i + 1] - label[i])
    for s in range(message.shape[0] - 1):
        longest = max(longest, message[s + 1] - message[s])
    theta, delta = np.empty(widest, weight.dtype), np.empty(longest, weight.dtype)
    h, sums = np.empty(longest, cells.dtype), np.empty(longest)
    top = far = kind(0)
    if limit is not None:
        top, far = kind(limit), kind(FAR if limit > 1 << 29 else 1 << 30)
    total = weight.dtype.type(0)
    for step in range(part.shape[0]):
        i = part[step if forward else part.shape[0] - 1 - step]
        here, k = label[i], label[i + 1] - label[i]
        ahead = thetas(i, g, maps, weight, messages, theta, rank, forward)
        low = _least(theta, k)
        if limit is not None and low >= FAR >> 1:
            return FAR
        total += low
        if soft is None and ahead == 0:
            continue
        parts = max(1, ahead, near[i + 1] - near[i] - ahead)
        _divide(theta, k, low, parts, limit)
        if soft is not None:
            _share(theta, soft[0], soft[2][here : here + k])
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine_is_u = u[e] == i
            other = v[e] if mine_is_u else u[e]
            if (rank[other] > rank[i]) != forward:
                continue
            side = 2 * e if mine_is_u else 2 * e + 1
            start, size = message[side], message[side + 1] - message[side]
            if limit is None:
                for a in range(k):
                    h[a] = theta[a] - messages[start + a]
                    messages[start + a] = -h[a]
            else:
                _give_rows(theta[:k], side, maps, messages[start : start + size], delta, h, limit, far)
            out = messages[message[side ^ 1] : message[(side ^ 1) + 1]]
            if soft is not None:
                _soft(cells, at[e], (out.shape[0], 1) if mine_is_u else (1, size), h, size, out, soft, sums)
            elif not mine_is_u:
                rows(cells, at[e], h, size, out)
            elif limit is None:
                columns(cells, at[e], h, size, out, None, None)
            else:
                columns(cells, at[e], h, size, out, top, far)
            if limit is not None:
                for b in range(out.shape[0]):
                    out[b] = min(max(out[b], kind(-limit)), top)
    return total


@njit(cache=True, nogil=True)
def push(messages, last, factor, limit):  # type: ignore[no-untyped-def]
    """messages += factor (messages - last), within the limit; last becomes what they were; in place."""
    for k in range(messages.shape[0]):
        now = messages[k]
        messages[k] = min(max(now + np.int64(factor * (now - last[k])), -limit), limit)
        last[k] = now

"""This module holds the loops over a dense problem, compiled with numba: TRW-S sweeps, exact score, usage.  Arguments
are the arrays of `DenseProblem`.

Sweeps work on floats and only guide; `score` works on int64 under the ranges that `quantise` tests, and
carries the proof.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAR = 1 << 60
"""An excess at or above this is never within a gap."""


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def sweep(order, rank, label, weight, near, edge, u, v, table, cells, message, messages, forward):  # type: ignore[no-untyped-def]
    """One sequential reweighted pass; `messages` changes in place.  Sum of the vertex minima: the bound without
    rows and constant.
    """
    n = label.shape[0] - 1
    widest = 0
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    theta, h = np.empty(widest), np.empty(widest)
    total = 0.0
    for step in range(n):
        i = order[step] if forward else order[n - 1 - step]
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
            at = message[side]
            for a in range(k):
                theta[a] += messages[at + a]
        low = theta[0]
        for a in range(1, k):
            low = min(low, theta[a])
        total += low
        if ahead == 0:
            continue
        gamma = 1.0 / max(ahead, behind)
        for a in range(k):
            theta[a] = (theta[a] - low) * gamma
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            other = v[e] if u[e] == i else u[e]
            if (rank[other] > rank[i]) != forward:
                continue
            t = table[e]
            if u[e] == i:
                mine, out = message[2 * e], messages[message[2 * e + 1] : message[2 * e + 2]]
                m = out.shape[0]
                for a in range(k):
                    h[a] = theta[a] - messages[mine + a]
                    messages[mine + a] = -h[a]
                row = cells[t : t + m]
                x = h[0]
                for b in range(m):
                    out[b] = row[b] + x
                for a in range(1, k):
                    row = cells[t + a * m : t + (a + 1) * m]
                    x = h[a]
                    for b in range(m):
                        out[b] = min(out[b], row[b] + x)
            else:
                mine, out = message[2 * e + 1], messages[message[2 * e] : message[2 * e + 1]]
                m = out.shape[0]
                for a in range(k):
                    h[a] = theta[a] - messages[mine + a]
                    messages[mine + a] = -h[a]
                for b in range(m):
                    row = cells[t + b * k : t + (b + 1) * k]
                    best = row[0] + h[0]
                    for a in range(1, k):
                        best = min(best, row[a] + h[a])
                    out[b] = best
    return total


@njit(cache=True, nogil=True)
def thetas(label, weight, near, edge, u, message, messages, theta):  # type: ignore[no-untyped-def]
    """theta of every label, written to `theta`."""
    for i in range(label.shape[0] - 1):
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            theta[here + a] = weight[here + a]
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            at = message[2 * e] if u[e] == i else message[2 * e + 1]
            for a in range(k):
                theta[here + a] += messages[at + a]


@njit(cache=True, nogil=True)
def weigh(label, cost, part, first, last, at, amount, prefix, weight):  # type: ignore[no-untyped-def]
    """weight = cost + sum over spans of (prefix[last] - prefix[first]) * amount."""
    for i in range(label.shape[0] - 1):
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            weight[here + a] = cost[here + a]
        for p in range(part[i], part[i + 1]):
            n = prefix[last[p]] - prefix[first[p]]
            if n != 0:
                for a in range(k):
                    weight[here + a] += n * amount[at[p] + a]


@njit(cache=True, nogil=True)
def usage(x, part, first, last, at, amount, use):  # type: ignore[no-untyped-def]
    """Usage per row of positions `x`, written to `use`."""
    use[:] = 0
    rows = use.shape[0]
    for i in range(x.shape[0]):
        for p in range(part[i], part[i + 1]):
            q = amount[at[p] + x[i]]
            if q != 0 and first[p] < last[p]:
                use[first[p]] += q
                if last[p] < rows:
                    use[last[p]] -= q
    total = 0
    for r in range(rows):
        total += use[r]
        use[r] = total


@njit(cache=True, nogil=True)
def score(label, weight, near, edge, u, v, table, cells, message, messages, low, least, excess):  # type: ignore[no-untyped-def]
    """Exact minima in int64: `low` per vertex, `least` per edge, `excess` per label (see `bound/dual.py`).  `cells` and
    `weight` are scaled.
    """
    n = label.shape[0] - 1
    widest = 1
    for i in range(n):
        here, end = label[i], label[i + 1]
        widest = max(widest, end - here)
        for a in range(end - here):
            excess[here + a] = weight[here + a]
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            at = message[2 * e] if u[e] == i else message[2 * e + 1]
            for a in range(end - here):
                excess[here + a] += messages[at + a]
        best = excess[here]
        for a in range(here + 1, end):
            best = min(best, excess[a])
        low[i] = best
        for a in range(here, end):
            excess[a] -= best
    of_v = np.empty(widest, np.int64)
    of_u = np.empty(widest, np.int64)
    for e in range(u.shape[0]):
        ku, kv = label[u[e] + 1] - label[u[e]], label[v[e] + 1] - label[v[e]]
        mu, mv, t = message[2 * e], message[2 * e + 1], table[e]
        for b in range(kv):
            of_v[b] = FAR * 4
        for a in range(ku):
            row = cells[t + a * kv : t + (a + 1) * kv]
            x = messages[mu + a]
            best = FAR * 4
            for b in range(kv):
                y = row[b] - messages[mv + b] - x
                best = min(best, y)
                of_v[b] = min(of_v[b], y)
            of_u[a] = best
        best = of_u[0]
        for a in range(1, ku):
            best = min(best, of_u[a])
        least[e] = best
        at = label[u[e]]
        for a in range(ku):
            excess[at + a] = min(excess[at + a] + min(of_u[a] - best, FAR), FAR * 2)
        at = label[v[e]]
        for b in range(kv):
            excess[at + b] = min(excess[at + b] + min(of_v[b] - best, FAR), FAR * 2)


@njit(cache=True, nogil=True)
def decode(order, rank, label, weight, near, edge, u, v, table, cells, message, messages, forward, x):  # type: ignore[no-untyped-def]
    """Positions read off the messages of the last sweep, which went `forward` or not: vertices in reverse order,
    first least label.
    """
    n = label.shape[0] - 1
    widest = 0
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    total = np.empty(widest)
    for step in range(n):
        i = order[n - 1 - step] if forward else order[step]
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            total[a] = weight[here + a]
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine = u[e] == i
            other = v[e] if mine else u[e]
            if (rank[other] > rank[i]) == forward:  # decided
                t = table[e]
                if mine:
                    m = label[other + 1] - label[other]
                    for a in range(k):
                        total[a] += cells[t + a * m + x[other]]
                else:
                    for a in range(k):
                        total[a] += cells[t + x[other] * k + a]
            else:
                at = message[2 * e] if mine else message[2 * e + 1]
                for a in range(k):
                    total[a] += messages[at + a]
        best = 0
        for a in range(1, k):
            if total[a] < total[best]:
                best = a
        x[i] = best

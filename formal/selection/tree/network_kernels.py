"""Loops over the labels that are left at a node of a cost function network, compiled with numba: soft arc consistency
by messages, exact score, decoding, local search.

    theta_i(a)  =  weight_i(a) + messages to i at a                      low_i  =  min theta_i
    sweep          one vertex after another, every one gives (theta_i - low_i) / parts to each edge ahead, and the edge
                   hands on what is sure, an equivalence-preserving transformation:  m_j(b) = min_a T(a, b) - m_i(a)
    bound          constant + sum low_i + sum_e min [T_e(a, b) - m_u(a) - m_v(b)]
    excess(a)      what the bound rises by when i takes a:
                   theta_i(a) - low_i + sum_e (least bracket of row a - least bracket of e)

All in int64, in units of the messages.  FAR stands for forbidden: sums at or above FAR / 2 hold it, since costs and
messages are within LIMIT in size and a vertex has less than FAR / (4 LIMIT) edges.  Labels left of vertex i are
lab[label[i]] .. lab[label[i] + cnt[i] - 1], positions in its domain.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...compiling import njit

FAR: Final = 1 << 60
LIMIT: Final = 1 << 48


@njit(cache=True, nogil=True)
def sweep(g, forward, weight, cells, messages, cnt, lab):  # type: ignore[no-untyped-def]
    """One pass over the vertices; `messages` change in place.  The sum of vertex minima."""
    label, near, edge, u, v, at, message = g
    n = label.shape[0] - 1
    widest = 1
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    theta, given = np.empty(widest, np.int64), np.empty(widest, np.int64)
    total = 0
    for step in range(n):
        i = step if forward else n - 1 - step
        here, k = label[i], cnt[i]
        ahead = 0
        for x in range(k):
            theta[x] = weight[here + lab[here + x]]
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine_is_u = u[e] == i
            other = v[e] if mine_is_u else u[e]
            ahead += (other > i) == forward
            start = message[2 * e if mine_is_u else 2 * e + 1]
            for x in range(k):
                theta[x] += messages[start + lab[here + x]]
        low = theta[0]
        for x in range(1, k):
            low = min(low, theta[x])
        total += low
        if ahead == 0:
            continue
        parts = max(ahead, near[i + 1] - near[i] - ahead)
        for x in range(k):
            theta[x] = (theta[x] - low) // parts
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine_is_u = u[e] == i
            other = v[e] if mine_is_u else u[e]
            if (other > i) != forward:
                continue
            mine, its = (message[2 * e], message[2 * e + 1]) if mine_is_u else (message[2 * e + 1], message[2 * e])
            width = label[v[e] + 1] - label[v[e]]
            for x in range(k):
                a = lab[here + x]
                given[x] = min(max(messages[mine + a] - theta[x], -LIMIT), LIMIT)
                messages[mine + a] = given[x]
            there, m = label[other], cnt[other]
            for y in range(m):
                b = lab[there + y]
                least = FAR
                if mine_is_u:
                    for x in range(k):
                        least = min(least, cells[at[e] + lab[here + x] * width + b] - given[x])
                else:
                    row = at[e] + b * width
                    for x in range(k):
                        least = min(least, cells[row + lab[here + x]] - given[x])
                if least < FAR >> 1:
                    messages[its + b] = min(max(least, -LIMIT), LIMIT)
    return total


@njit(cache=True, nogil=True)
def score(g, weight, cells, messages, cnt, lab, excess):  # type: ignore[no-untyped-def]
    """The bound without the constant, FAR where nothing is allowed; `excess` of the labels left, in place."""
    label, _, _, u, v, at, message = g
    n = label.shape[0] - 1
    bound = 0
    for i in range(n):
        for x in range(cnt[i]):
            a = label[i] + lab[label[i] + x]
            excess[a] = weight[a]
    for e in range(u.shape[0]):
        for s in range(2):
            i = u[e] if s == 0 else v[e]
            for x in range(cnt[i]):
                a = lab[label[i] + x]
                excess[label[i] + a] += messages[message[2 * e + s] + a]
    for i in range(n):
        low = FAR
        for x in range(cnt[i]):
            low = min(low, excess[label[i] + lab[label[i] + x]])
        if low >= FAR >> 1:
            return FAR
        bound += low
        for x in range(cnt[i]):
            excess[label[i] + lab[label[i] + x]] -= low
    widest = 1
    for i in range(n):
        widest = max(widest, cnt[i])
    rows, columns = np.empty(widest, np.int64), np.empty(widest, np.int64)
    for e in range(u.shape[0]):
        i, j = u[e], v[e]
        width = label[j + 1] - label[j]
        for y in range(cnt[j]):
            columns[y] = FAR
        low = FAR
        for x in range(cnt[i]):
            a = lab[label[i] + x]
            row, least = at[e] + a * width, FAR
            for y in range(cnt[j]):
                b = lab[label[j] + y]
                value = cells[row + b] - messages[message[2 * e] + a] - messages[message[2 * e + 1] + b]
                least = min(least, value)
                columns[y] = min(columns[y], value)
            rows[x] = least
            low = min(low, least)
        if low >= FAR >> 1:
            return FAR
        bound += low
        for x in range(cnt[i]):
            a = label[i] + lab[label[i] + x]
            excess[a] = FAR if rows[x] >= FAR >> 1 else min(FAR, excess[a] + rows[x] - low)
        for y in range(cnt[j]):
            b = label[j] + lab[label[j] + y]
            excess[b] = FAR if columns[y] >= FAR >> 1 else min(FAR, excess[b] + columns[y] - low)
    return bound


@njit(cache=True, nogil=True)
def settle(g, weight, cells, messages, cnt, lab, excess, until):  # type: ignore[no-untyped-def]
    """Double sweeps `until` = (target, most, share): the bound reaches `target`, or one gains less than one part in
    `share` of what is missing (of what was gained, without a target), or `most` are done.  The bound, with `excess`;
    `messages` are those of the best bound.
    """
    target, most, share = until
    best = score(g, weight, cells, messages, cnt, lab, excess)
    if best >= target:
        return best
    first = best
    kept = messages.copy()
    for _ in range(most):
        sweep(g, True, weight, cells, messages, cnt, lab)
        sweep(g, False, weight, cells, messages, cnt, lab)
        bound = score(g, weight, cells, messages, cnt, lab, excess)
        gain = bound - best
        if gain > 0:
            best = bound
            kept[:] = messages
        missing = target - bound if target < FAR >> 2 else best - first
        if bound >= target or gain <= 0 or gain < missing // share:
            break
    if best > score(g, weight, cells, messages, cnt, lab, excess):
        messages[:] = kept
        best = score(g, weight, cells, messages, cnt, lab, excess)
    return best


@njit(cache=True, nogil=True)
def drop(label, cnt, lab, excess, slack):  # type: ignore[no-untyped-def]
    """Labels of an excess above `slack` leave; how many did, -1 when a vertex has none left."""
    gone = 0
    for i in range(label.shape[0] - 1):
        here, k = label[i], 0
        for x in range(cnt[i]):
            a = lab[here + x]
            if excess[here + a] <= slack and excess[here + a] < FAR >> 1:
                lab[here + k] = a
                k += 1
        gone += cnt[i] - k
        cnt[i] = k
        if k == 0:
            return -1
    return gone


@njit(cache=True, nogil=True)
def cost_of(g, weight, cells, x):  # type: ignore[no-untyped-def]
    """Cost of the labels `x` without the constant; at least FAR / 2 where one is forbidden."""
    label, _, _, u, v, at, _ = g
    total = 0
    for i in range(label.shape[0] - 1):
        total += min(weight[label[i] + x[i]], LIMIT)
    for e in range(u.shape[0]):
        value = cells[at[e] + x[u[e]] * (label[v[e] + 1] - label[v[e]]) + x[v[e]]]
        if value >= FAR >> 1:
            return FAR
        total += value
    return total


@njit(cache=True, nogil=True)
def _lines(g, i, weight, cells, cnt, lab, x, line):  # type: ignore[no-untyped-def]
    """Cost of every label left of i beside the labels `x` of its neighbours, forbidden ones LIMIT each."""
    label, near, edge, u, v, at, _ = g
    here = label[i]
    for k in range(cnt[i]):
        line[k] = min(weight[here + lab[here + k]], LIMIT)
    for j in range(near[i], near[i + 1]):
        e = edge[j]
        width = label[v[e] + 1] - label[v[e]]
        if u[e] == i:
            for k in range(cnt[i]):
                line[k] += min(cells[at[e] + lab[here + k] * width + x[v[e]]], LIMIT)
        else:
            row = at[e] + x[u[e]] * width
            for k in range(cnt[i]):
                line[k] += min(cells[row + lab[here + k]], LIMIT)


@njit(cache=True, nogil=True)
def improve(g, weight, cells, cnt, lab, x, rounds, seed):  # type: ignore[no-untyped-def]
    """Descent by one vertex at a time, then `rounds` of it from the best `x` with a few vertices moved; in place."""
    label = g[0]
    n = label.shape[0] - 1
    widest = 1
    for i in range(n):
        widest = max(widest, cnt[i])
    line = np.empty(widest, np.int64)
    best = x.copy()
    cost = FAR << 1
    state = np.uint64(seed * 2 + 1)
    for turn in range(rounds + 1):
        if turn:
            for _ in range(2 + turn % 3):
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                i = int(state % np.uint64(n))
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                x[i] = lab[label[i] + int(state % np.uint64(cnt[i]))]
        moved = True
        while moved:
            moved = False
            for i in range(n):
                if cnt[i] < 2:
                    continue
                _lines(g, i, weight, cells, cnt, lab, x, line)
                now = FAR
                to = -1
                for k in range(cnt[i]):
                    if lab[label[i] + k] == x[i]:
                        now = line[k]
                    if to < 0 or line[k] < line[to]:
                        to = k
                if line[to] < now:
                    x[i] = lab[label[i] + to]
                    moved = True
        found = cost_of(g, weight, cells, x)
        if found <= cost:
            cost = found
            best[:] = x
        else:
            x[:] = best
    x[:] = best
    return cost


@njit(cache=True, nogil=True)
def decode(g, weight, cells, messages, cnt, lab, x):  # type: ignore[no-untyped-def]
    """Labels chosen one vertex after another: costs to those chosen, messages from the others; in place."""
    label, near, edge, u, v, at, message = g
    for i in range(label.shape[0] - 1):
        here = label[i]
        best, to = FAR << 1, -1
        for k in range(cnt[i]):
            a = lab[here + k]
            value = weight[here + a]
            for j in range(near[i], near[i + 1]):
                e = edge[j]
                width = label[v[e] + 1] - label[v[e]]
                other = v[e] if u[e] == i else u[e]
                if other < i:
                    row, column = (a, x[other]) if u[e] == i else (x[other], a)
                    value += min(cells[at[e] + row * width + column], LIMIT)
                else:
                    value += messages[message[2 * e if u[e] == i else 2 * e + 1] + a]
            if value < best:
                best, to = value, a
        x[i] = to


@njit(cache=True, nogil=True)
def write_messages(g, messages, cnt, lab, out):  # type: ignore[no-untyped-def]
    """Messages of the labels that are left, written to `out`."""
    label, _, _, u, v, _, message = g
    for e in range(u.shape[0]):
        for s in range(2):
            i = u[e] if s == 0 else v[e]
            for x in range(cnt[i]):
                k = message[2 * e + s] + lab[label[i] + x]
                out[k] = messages[k]

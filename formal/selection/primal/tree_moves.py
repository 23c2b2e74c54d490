"""Moves whole trees of vertices of a dense problem at once, under the resource rows, known as very large
neighbourhood search by dynamic programming.

A move takes a random induced tree of the graph, holds everything else, and minimises over all its labels together
(dynamic programming)

    cost + s * sum_t n_t use_t       (n: prices of the rows, from the dual; s: how much memory counts at the moment)

with labels left out that do not fit beside the others.  The result is taken when it fits the rows and is not worse by
that measure.  s goes up and down: with s high memory is saved,
with s low it is spent where it pays most; the cheapest solution met is kept.  `slack` = room - use per row stays >= 0;
the room of a row that is over the limit is what is used.  Deterministic: random numbers come from a 64-bit congruential
state that is passed in and out.
"""

from __future__ import annotations

import numpy as np

from ...compiling import njit

HUGE = 1e30


@njit(cache=True, nogil=True, inline="always")
def _next(state):  # type: ignore[no-untyped-def]
    """xorshift64*: state is a uint64 array of one entry; a float in [0, 1)."""
    z = state[0]
    z ^= z >> np.uint64(12)
    z ^= z << np.uint64(25)
    z ^= z >> np.uint64(27)
    state[0] = z
    return float((z * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True, inline="always")
def _leave(i, a, sign, spans, slack):  # type: ignore[no-untyped-def]
    """Adds `sign` times what label position `a` of vertex i uses to `slack`; below zero if some row has too little."""
    part, first, last, at, amount = spans
    least = 0
    for p in range(part[i], part[i + 1]):
        q = sign * amount[at[p] + a]
        if q != 0:
            for r in range(first[p], last[p]):
                slack[r] += q
                least = min(least, slack[r])
    return least


@njit(cache=True, nogil=True)
def moves(  # type: ignore[no-untyped-def]
    count,
    size,
    s,
    state,
    pool,
    g,
    cost,
    price,
    cells,
    spans,
    slack,
    x,
    value,
    best,
    best_value,
):
    """`count` moves of up to `size` vertices around vertices of `pool`; `x`, `slack` change in place, `best` keeps the
    cheapest positions.

    (cost of x, cost of best, moves taken); `value`, `best_value`: costs at the start.
    """
    label, near, edge, u, v, table, _ = g
    part, first, last, at, amount = spans
    n = label.shape[0] - 1
    widest = 1
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    place = np.full(n, -1, np.int64)  # position in the tree
    tree = np.empty(size, np.int64)
    up = np.empty(size, np.int64)  # edge to the parent
    cuts = np.empty(size + 1, np.int64)
    total = np.empty(size * widest)
    true = np.empty(size * widest)
    choice = np.empty(size * widest, np.int64)
    fresh = np.empty(size, np.int64)
    taken = 0
    for _ in range(count):
        root = pool[int(_next(state) * pool.shape[0])]
        tree[0], up[0], place[root] = root, -1, 0
        filled, at_i = 1, 0
        target = 1 + int(_next(state) * size)
        skip = _next(state) * 0.5
        while at_i < filled < target:
            i = tree[at_i]
            at_i += 1
            span = near[i + 1] - near[i]
            if span == 0:
                continue
            shift = int(_next(state) * span)
            for jj in range(span):
                e = edge[near[i] + (jj + shift) % span]
                w = v[e] if u[e] == i else u[e]
                if place[w] >= 0 or label[w + 1] - label[w] == 1 or _next(state) < skip:
                    continue
                inside = 0
                for j in range(near[w], near[w + 1]):
                    f = edge[j]
                    y = v[f] if u[f] == w else u[f]
                    if place[y] >= 0:
                        inside += 1
                if inside != 1:
                    continue
                tree[filled], up[filled], place[w] = w, e, filled
                filled += 1
                if filled == target:
                    break
        for k in range(filled):
            _leave(tree[k], x[tree[k]], 1, spans, slack)
        cuts[0] = 0
        for k in range(filled):
            i = tree[k]
            here, m = label[i], label[i + 1] - label[i]
            c = cuts[k]
            cuts[k + 1] = c + m
            for a in range(m):
                true[c + a] = cost[here + a]
            for j in range(near[i], near[i + 1]):
                e = edge[j]
                mine = u[e] == i
                w = v[e] if mine else u[e]
                if place[w] >= 0:
                    continue
                t = table[e]
                if mine:
                    wide = label[w + 1] - label[w]
                    for a in range(m):
                        true[c + a] += cells[t + a * wide + x[w]]
                else:
                    for a in range(m):
                        true[c + a] += cells[t + x[w] * m + a]
            for a in range(m):
                total[c + a] = true[c + a] + s * price[here + a]
            for p in range(part[i], part[i + 1]):
                most = 0
                for a in range(m):
                    most = max(most, amount[at[p] + a])
                if most == 0 or first[p] >= last[p]:
                    continue
                room = slack[first[p]]
                for r in range(first[p] + 1, last[p]):
                    room = min(room, slack[r])
                if most > room:
                    for a in range(m):
                        if amount[at[p] + a] > room:
                            total[c + a] = HUGE
        old, old_cost = 0.0, 0.0
        for k in range(filled):
            i = tree[k]
            old += true[cuts[k] + x[i]] + s * price[label[i] + x[i]]
            old_cost += true[cuts[k] + x[i]]
            if k > 0:
                e = up[k]
                y = cells[table[e] + x[u[e]] * (label[v[e] + 1] - label[v[e]]) + x[v[e]]]
                old += y
                old_cost += y
        for k in range(filled - 1, 0, -1):  # children after parents in `tree`
            i, e = tree[k], up[k]
            mine = u[e] == i
            parent = v[e] if mine else u[e]
            c, m = cuts[k], cuts[k + 1] - cuts[k]
            pk = place[parent]
            pc, pm = cuts[pk], cuts[pk + 1] - cuts[pk]
            t = table[e]
            for b in range(pm):
                low, arg = HUGE * 4, 0
                for a in range(m):
                    y = total[c + a] + (cells[t + a * pm + b] if mine else cells[t + b * m + a])
                    if y < low:
                        low, arg = y, a
                total[pc + b] += low
                choice[k * widest + b] = arg
        low, arg = total[0], 0
        for a in range(1, cuts[1]):
            if total[a] < low:
                low, arg = total[a], a
        fits = low < HUGE / 2
        changed = False
        new_cost = 0.0
        if fits:
            fresh[0] = arg
            for k in range(filled):
                i = tree[k]
                if k > 0:
                    e = up[k]
                    parent = v[e] if u[e] == i else u[e]
                    fresh[k] = choice[k * widest + fresh[place[parent]]]
                    left, right = (fresh[k], fresh[place[parent]]) if u[e] == i else (fresh[place[parent]], fresh[k])
                    new_cost += cells[table[e] + left * (label[v[e] + 1] - label[v[e]]) + right]
                new_cost += true[cuts[k] + fresh[k]]
                if fresh[k] != x[i]:
                    changed = True
            if not changed or low > old:
                fits = False
        done = 0
        while fits and done < filled:
            fits = _leave(tree[done], fresh[done], -1, spans, slack) >= 0
            done += 1
        if not fits:
            for k in range(done):
                _leave(tree[k], fresh[k], 1, spans, slack)
        if fits:
            taken += 1
            for k in range(filled):
                x[tree[k]] = fresh[k]
            value += new_cost - old_cost
            if value < best_value:
                best_value = value
                best[:] = x
        else:
            for k in range(filled):
                _leave(tree[k], x[tree[k]], -1, spans, slack)
        for k in range(filled):
            place[tree[k]] = -1
    return value, best_value, taken


@njit(cache=True, nogil=True)
def value_of(g, cost, cells, x):  # type: ignore[no-untyped-def]
    """Cost of positions `x` without the constant."""
    label, _, _, u, v, table, _ = g
    total = 0.0
    for i in range(x.shape[0]):
        total += cost[label[i] + x[i]]
    for e in range(u.shape[0]):
        total += cells[table[e] + x[u[e]] * (label[v[e] + 1] - label[v[e]]) + x[v[e]]]
    return total

"""Moves whole trees of vertices of a dense problem at once, under the resource rows, known as very large
neighbourhood search by dynamic programming.

A move takes a random induced tree of the graph, holds everything else, and minimises over all its labels together
(dynamic programming)

    cost + s * sum_t n_t use_t       (n: prices of the rows, from the dual; s: how much memory counts at the moment)

with labels left out that do not fit beside the others.  The result is taken when it fits the rows and is not worse by
that measure.  s goes up and down: with s high memory is saved, with s low it is spent where it pays most; the cheapest
solution met is kept.  `slack` = room - use per row stays >= 0; the room of a row that is over the limit is what is
used.  Deterministic: random numbers come from a 64-bit congruential state that is passed in and out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints
from ...compiling import njit
from ..model.dense import Floats, Graph, Spans

HUGE = 1e30


class Priced(NamedTuple):
    """What moves read of a dense problem: costs and prices of labels, entries of tables."""

    graph: Graph
    spans: Spans
    cost: Floats
    price: Floats
    cells: Floats


class Position(NamedTuple):
    """What moves change: label positions `x`, room that they leave (`slack`), the `best` positions so far, and the
    `state` of the random numbers.
    """

    x: Ints
    slack: Ints
    best: Ints
    state: NDArray[np.uint64]


class Tree(NamedTuple):
    """Vertices with the edges `up` to their parents, parents first; `place` of a vertex, -1 outside.  Labels of vertex
    k are cuts[k] .. cuts[k + 1] - 1.
    """

    vertex: Ints
    up: Ints
    place: Ints
    cuts: Ints


class Values(NamedTuple):
    """Of labels of a tree: cost beside the rest (`true`), measure with the best of all below (`total`), of child k the
    label `choice[k, b]` that is best under label b of its parent, and the new ones.
    """

    true: Floats
    total: Floats
    choice: Ints
    fresh: Ints


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


@njit(cache=True, nogil=True, forceinline=True)
def _grow(g, pool, size, state, tree):  # type: ignore[no-untyped-def]
    """A random induced tree of up to `size` vertices around one of `pool`; how many it has."""
    label, near, edge, u, v, _, _ = g
    vertex, up, place, _ = tree
    root = pool[int(_next(state) * pool.shape[0])]
    vertex[0], up[0], place[root] = root, -1, 0
    filled, at_i = 1, 0
    target = 1 + int(_next(state) * size)
    skip = _next(state) * 0.5
    while at_i < filled < target:
        i = vertex[at_i]
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
            vertex[filled], up[filled], place[w] = w, e, filled
            filled += 1
            if filled == target:
                break
    return filled


@njit(cache=True, nogil=True, forceinline=True)
def _price_labels(filled, p, s, x, slack, tree, values):  # type: ignore[no-untyped-def]
    """What the labels of the tree cost beside everything outside, with prices, and `HUGE` where there is no room."""
    (label, near, edge, u, v, table, _), (part, first, last, at, amount), cost, price, cells = p
    vertex, _, place, cuts = tree
    true, total = values.true, values.total
    for k in range(filled):
        i, c = vertex[k], cuts[k]
        here, m = label[i], label[i + 1] - label[i]
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
        for q in range(part[i], part[i + 1]):
            most = 0
            for a in range(m):
                most = max(most, amount[at[q] + a])
            if most == 0 or first[q] >= last[q]:
                continue
            room = slack[first[q]]
            for r in range(first[q] + 1, last[q]):
                room = min(room, slack[r])
            if most > room:
                for a in range(m):
                    if amount[at[q] + a] > room:
                        total[c + a] = HUGE


@njit(cache=True, nogil=True, forceinline=True)
def _value_now(filled, p, s, x, tree, true):  # type: ignore[no-untyped-def]
    """Of the positions as they are: the measure of the tree, and its cost."""
    (label, _, _, u, v, table, _), _, _, price, cells = p
    vertex, up, _, cuts = tree
    old, cost = 0.0, 0.0
    for k in range(filled):
        i = vertex[k]
        old += true[cuts[k] + x[i]] + s * price[label[i] + x[i]]
        cost += true[cuts[k] + x[i]]
        if k > 0:
            e = up[k]
            y = cells[table[e] + x[u[e]] * (label[v[e] + 1] - label[v[e]]) + x[v[e]]]
            old += y
            cost += y
    return old, cost


@njit(cache=True, nogil=True, forceinline=True)
def _minimise(filled, p, tree, values):  # type: ignore[no-untyped-def]
    """Add to the labels of parents the best of their children, up to the root: the least total, and its label there."""
    (_, _, _, u, v, table, _), cells = p.graph, p.cells
    vertex, up, place, cuts = tree
    total, choice = values.total, values.choice
    for k in range(filled - 1, 0, -1):  # children after parents in the tree
        i, e = vertex[k], up[k]
        mine = u[e] == i
        pk = place[v[e] if mine else u[e]]
        c, m = cuts[k], cuts[k + 1] - cuts[k]
        pc, pm = cuts[pk], cuts[pk + 1] - cuts[pk]
        t = table[e]
        for b in range(pm):
            low, arg = HUGE * 4, 0
            for a in range(m):
                y = total[c + a] + (cells[t + a * pm + b] if mine else cells[t + b * m + a])
                if y < low:
                    low, arg = y, a
            total[pc + b] += low
            choice[k, b] = arg
    low, arg = total[0], 0
    for a in range(1, cuts[1]):
        if total[a] < low:
            low, arg = total[a], a
    return low, arg


@njit(cache=True, nogil=True, forceinline=True)
def _read_labels(filled, p, x, tree, values, root):  # type: ignore[no-untyped-def]
    """The best labels, down from `root`, that of the root: their cost, and whether any is new."""
    (label, _, _, u, v, table, _), cells = p.graph, p.cells
    vertex, up, place, cuts = tree
    true, _, choice, fresh = values
    changed, cost = False, 0.0
    fresh[0] = root
    for k in range(filled):
        i = vertex[k]
        if k > 0:
            e = up[k]
            mine = u[e] == i
            above = fresh[place[v[e] if mine else u[e]]]
            fresh[k] = choice[k, above]
            left, right = (fresh[k], above) if mine else (above, fresh[k])
            cost += cells[table[e] + left * (label[v[e] + 1] - label[v[e]]) + right]
        cost += true[cuts[k] + fresh[k]]
        if fresh[k] != x[i]:
            changed = True
    return cost, changed


@njit(cache=True, nogil=True, forceinline=True)
def _settle(filled, fits, spans, slack, x, tree, fresh):  # type: ignore[no-untyped-def]
    """Take the new labels if they may and fit the rows together, else the old ones again; whether they were taken."""
    done = 0
    while fits and done < filled:
        fits = _leave(tree.vertex[done], fresh[done], -1, spans, slack) >= 0
        done += 1
    if not fits:
        for k in range(done):
            _leave(tree.vertex[k], fresh[k], 1, spans, slack)
    for k in range(filled):
        i = tree.vertex[k]
        if fits:
            x[i] = fresh[k]
        else:
            _leave(i, x[i], -1, spans, slack)
        tree.place[i] = -1
    return fits


@njit(cache=True, nogil=True)
def moves(count, size, s, pool, p, at, value, best_value):  # type: ignore[no-untyped-def]
    """`count` moves of up to `size` vertices around vertices of `pool`, on a `Priced` problem; the `Position` `at`
    changes in place, `at.best` keeps the cheapest positions.

    (cost of x, cost of best, moves taken); `value`, `best_value`: costs at the start.
    """
    g, x, slack = p.graph, at.x, at.slack
    n, widest = g.label.shape[0] - 1, 1
    for i in range(n):
        widest = max(widest, g.label[i + 1] - g.label[i])
    room, cells = np.empty(size, np.int64), size * widest
    tree = Tree(room, np.empty(size, np.int64), np.full(n, -1, np.int64), np.zeros(size + 1, np.int64))
    choice, fresh = np.empty((size, widest), np.int64), np.empty(size, np.int64)
    values = Values(np.empty(cells), np.empty(cells), choice, fresh)
    taken = 0
    for _ in range(count):
        filled = _grow(g, pool, size, at.state, tree)
        for k in range(filled):
            _leave(tree.vertex[k], x[tree.vertex[k]], 1, p.spans, slack)
        _price_labels(filled, p, s, x, slack, tree, values)
        old, old_cost = _value_now(filled, p, s, x, tree, values.true)
        low, label = _minimise(filled, p, tree, values)
        fits, cost = low < HUGE / 2, 0.0
        if fits:
            cost, changed = _read_labels(filled, p, x, tree, values, label)
            fits = changed and low <= old
        if _settle(filled, fits, p.spans, slack, x, tree, fresh):
            taken += 1
            value += cost - old_cost
            if value < best_value:
                best_value = value
                at.best[:] = x
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

"""Solves a network exactly, known as bucket elimination (variable elimination), and keeps the integer
messages as an `Elimination` record.

Eliminating v consumes every table that touches v and puts back, over the remaining scope S,

    m(s) = min_{a in D_v}  [ c_v(a) + sum of the consumed tables at (s, a) ]

so that the last scalars plus the constant are the optimum over the domains (resource rows ignored).  Tables stay
*factored*: every axis of a consumed table is reached through a map from labels to indices, labels with equal indices in
all consumed tables form a class, and the joint table is built over classes, never over labels.  A vertex with one table
left is one min-plus product and needs no joint table at all.

Order: least fill-in, then least joint size, then least vertex number (`elimination_order`).
Source: Dechter, "Bucket elimination", 1999.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints
from ....proofs.container.archive import MAX_AXES
from ....proofs.container.effort import ELIMINATED
from ....proofs.selection.certificates import Elimination
from ..model.clock import Clock
from ..model.factored import INFINITE, Network, saturate
from ..model.minplus import columns_min, rows_min
from ..options.elimination import ELIMINATION, EliminationOptions
from .sums import align_axes, least

WIDEST: Final = MAX_AXES
"""Neighbours that a vertex may have when it goes: axes of its message, which a file must hold.  Domains of one
choice make wide messages cheap.
"""


@dataclass(frozen=True)
class EliminationOrder:
    """An order and what it costs.  `work`: entries of all joint tables; `largest`: of the largest; `kept`: message
    entries; `width`: most neighbours a vertex has when it goes.  `complete` is False when the search stopped at
    `limit`."""

    order: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    work: int
    largest: int
    kept: int
    width: int
    complete: bool

    def within(self, joint: int, work: int, kept: int) -> bool:
        """True when it is complete and takes no more than that."""
        size = self.largest <= joint and self.work <= work and self.kept <= kept
        return self.complete and self.width <= WIDEST and size


def elimination_order(network: Network, limit: int = 1 << 62) -> EliminationOrder:
    """Least fill-in order of `network`; stops (`complete` False) as soon as one joint table exceeds `limit` entries."""
    n = len(network.domains)
    size = [d.size for d in network.domains]
    near: list[set[int]] = [set() for _ in range(n)]
    for arc in network.arcs:
        near[arc.u].add(arc.v)
        near[arc.v].add(arc.u)

    def joint(v: int) -> int:
        product = size[v]
        for w in near[v]:
            product *= size[w]
        return product

    def key(v: int) -> tuple[int, int, int]:
        here = near[v]
        joined = (
            sum(len(near[a] & here) for a in here) // 2
        )  # a vertex of a thousand neighbours is cheap where they have few
        return len(here) * (len(here) - 1) // 2 - joined, joint(v), v

    current = [key(v) for v in range(n)]
    heap = list(current)
    heapq.heapify(heap)
    done = [False] * n
    order: list[int] = []
    scopes: list[tuple[int, ...]] = []
    work = largest = kept = width = 0
    while heap:
        item = heapq.heappop(heap)
        v = item[2]
        if done[v] or item != current[v]:
            continue
        if item[1] > limit:
            return EliminationOrder(
                tuple(order), tuple(scopes), work, max(largest, item[1]), kept, max(width, len(near[v])), False
            )
        done[v] = True
        around = sorted(near[v])
        order.append(v)
        scopes.append(tuple(around))
        work += item[1]
        largest = max(largest, item[1])
        kept += item[1] // size[v]
        width = max(width, len(around))
        for a in around:
            near[a].discard(v)
        for a in sorted(_filled(near, around)):
            fresh = key(a)
            if fresh != current[a]:
                current[a] = fresh
                heapq.heappush(heap, fresh)
    return EliminationOrder(tuple(order), tuple(scopes), work, largest, kept, width, True)


def _filled(near: list[set[int]], around: list[int]) -> set[int]:
    """Join the neighbours of a vertex that is gone; who has another fill-in then: they, and who sees
    both ends of a new edge.
    """
    filled = [(a, b) for i, a in enumerate(around) for b in around[i + 1 :] if b not in near[a]]
    for a, b in filled:
        near[a].add(b)
        near[b].add(a)
    touched = set(around)
    for a, b in filled:
        touched |= near[a] & near[b]
    return touched


def recorded_order(network: Network, record: Elimination) -> EliminationOrder:
    """The order of `record` on `network`, whose domains are parts of those it was made for: no table is larger than it
    was then.

    A fresh order may be worse: fill-in is broken by sizes, and smaller domains can lead it astray.
    """
    size = [d.size for d in network.domains]
    joints = [size[v] * prod(size[w] for w in scope) for v, scope in zip(record.order, record.scopes, strict=True)]
    kept = sum(joint // size[v] for v, joint in zip(record.order, joints, strict=True))
    width = max((len(scope) for scope in record.scopes), default=0)
    return EliminationOrder(record.order, record.scopes, sum(joints), max(joints, default=0), kept, width, True)


@dataclass(frozen=True, eq=False)
class Outcome:
    """`value`: optimum over the domains (>= INFINITE: nothing allowed); `choice[v]`: position in D_v, None if
    nothing is.  `replay`: cells that checking the record takes (`proofs.container.effort`).
    """

    record: Elimination
    value: int
    choice: tuple[int, ...] | None
    replay: int


@dataclass(eq=False)
class _Factor:
    """A table over `scope`; axis k is reached from label positions through `maps[k]` (None: identity)."""

    scope: tuple[int, ...]
    array: Ints
    maps: tuple[Ints | None, ...]


def eliminate(
    network: Network, schedule: EliminationOrder, clock: Clock, options: EliminationOptions = ELIMINATION
) -> Outcome | None:
    """Run `schedule` on `network` (denominator 1).  None when the time is over before the end."""
    n = len(network.domains)
    pool: list[list[_Factor]] = [[] for _ in range(n)]  # pool[v]: live pair and larger tables that touch v
    for arc in network.arcs:
        factor = _ordered(arc.u, arc.v, network.tables[arc.table], arc.rows, arc.cols)
        pool[arc.u].append(factor)
        pool[arc.v].append(factor)
    single: list[Ints] = list(network.unary)
    singles = [1] * n  # what is merged in `single[v]`: the checker adds each
    stores = schedule.kept <= options.stored
    replay = 0 if stores else ELIMINATED * n + schedule.work
    gone: list[tuple[Ints, list[_Factor]]] = []
    messages: list[Ints] = []
    value, counted = network.base.constant, replay
    for v, scope in zip(schedule.order, schedule.scopes, strict=True):
        clock.read(replay - counted)
        counted = replay
        if clock.over():
            return None
        consumed = pool[v]
        gone.append((single[v], consumed))
        tables = len(consumed) + singles[v]
        for factor in consumed:
            for w in factor.scope:
                if w != v:
                    pool[w] = [f for f in pool[w] if f is not factor]
        if not scope:
            best = int(single[v].min())
            value += FORBIDDEN if best >= INFINITE else best
            messages.append(np.array(FORBIDDEN if best >= INFINITE else best, dtype=np.int64))
            replay += tables * single[v].size
            continue
        array, maps = _project(network, v, scope, single[v], consumed)
        labels = _labels(array, maps)
        replay += tables * (labels.size * single[v].size if stores else _cells(v, array, consumed, single[v].size))
        if stores:
            messages.append(labels)
        if len(scope) == 1:
            singles[scope[0]] += 1
            single[scope[0]] = saturate(single[scope[0]] + labels)
        else:
            fresh = _Factor(scope, array, maps)
            for w in scope:
                pool[w].append(fresh)
    record = Elimination(schedule.order, schedule.scopes, tuple(messages) if stores else ())
    if value >= INFINITE:
        return Outcome(record, FORBIDDEN, None, replay)
    return Outcome(record, value, _backward(n, schedule, gone), replay)


def _cells(v: int, message: Ints, consumed: list[_Factor], labels: int) -> int:
    """Entries of the joint table over classes of labels: those of the message times the classes of v, at most as many
    as the consumed tables have apart.
    """
    mine = prod(f.array.shape[f.scope.index(v)] for f in consumed)
    cells: int = message.size * min(labels, mine)
    return cells


def _ordered(u: int, v: int, table: Ints, rows: Ints | None, cols: Ints | None) -> _Factor:
    return _Factor((u, v), table, (rows, cols)) if u < v else _Factor((v, u), table.T, (cols, rows))


def _labels(array: Ints, maps: tuple[Ints | None, ...]) -> Ints:
    """The message over labels: one axis at a time, so that no index grid is built."""
    for axis, index in enumerate(maps):
        if index is not None:
            array = np.take(array, index, axis=axis)
    return np.ascontiguousarray(array)


def _classes(maps: list[Ints | None], dims: list[int], labels: int) -> tuple[Ints | None, list[Ints | None], int]:
    """Classes of labels that all `maps` treat alike: (label -> class, per map class -> index, number of classes)."""
    distinct: dict[int, tuple[Ints | None, int]] = {}
    for index, dim in zip(maps, dims, strict=True):
        distinct.setdefault(id(index) if index is not None else -1, (index, dim))
    if -1 in distinct:
        return None, list(maps), labels
    if len(distinct) == 1:
        index, dim = next(iter(distinct.values()))
        return index, [None] * len(maps), dim
    code: Ints | None = None
    for index, dim in distinct.values():
        assert index is not None
        if code is None:
            code = index
        else:
            _, code = np.unique(code * dim + index, return_inverse=True)
            code = code.astype(np.int64).reshape(-1)
    assert code is not None
    count = int(code.max()) + 1
    if count == labels:
        return None, list(maps), labels
    first = np.empty(count, dtype=np.int64)
    first[code[::-1]] = np.arange(labels - 1, -1, -1)
    return code, [index[first] if index is not None else first for index in maps], count


def _lowest(values: Ints, index: Ints | None, count: int) -> Ints:
    """Minimum of `values` over the labels of each class; FORBIDDEN for a class without labels."""
    if index is None:
        return values
    out = np.full(count, FORBIDDEN, dtype=np.int64)
    np.minimum.at(out, index, values)
    return out


def _project(
    network: Network, v: int, scope: tuple[int, ...], unary: Ints, consumed: list[_Factor]
) -> tuple[Ints, tuple[Ints | None, ...]]:
    """The message over classes of the scope's labels, and the maps label -> class."""
    if len(scope) == 1 and len(consumed) == 1:
        factor = consumed[0]
        mine = factor.scope.index(v)
        low = _lowest(unary, factor.maps[mine], factor.array.shape[mine])
        table = factor.array if factor.array.flags.c_contiguous else factor.array.T
        rows_are_mine = (mine == 0) == (table is factor.array)
        out = columns_min(table, low) if rows_are_mine else rows_min(table, low)
        return saturate(np.array(out, dtype=np.int64)), (factor.maps[1 - mine],)
    axes = (v, *scope)
    dims: list[int] = []
    maps_out: list[Ints | None] = []
    picks: list[dict[int, Ints | None]] = [{} for _ in consumed]
    for w in axes:
        users = [(i, f, f.scope.index(w)) for i, f in enumerate(consumed) if w in f.scope]
        label_map, per_factor, count = _classes(
            [f.maps[k] for _, f, k in users], [f.array.shape[k] for _, f, k in users], network.domains[w].size
        )
        for (i, _, _), index in zip(users, per_factor, strict=True):
            picks[i][w] = index
        dims.append(count)
        maps_out.append(label_map)
    parts: list[Ints] = []
    for i, factor in enumerate(consumed):
        array = factor.array
        for k, w in enumerate(factor.scope):
            pick = picks[i][w]
            if pick is not None:
                array = np.take(array, pick, axis=k)
        parts.append(align_axes(array, factor.scope, axes))
    parts.append(_lowest(unary, maps_out[0], dims[0]).reshape([-1] + [1] * len(scope)))
    holes = any(p.size and int(p.max()) >= INFINITE for p in parts)
    out = least(parts, tuple(dims), holes)
    return saturate(out.copy()) if holes else out, tuple(maps_out[1:])


def _backward(n: int, schedule: EliminationOrder, gone: list[tuple[Ints, list[_Factor]]]) -> tuple[int, ...]:
    """First cheapest label of every vertex, last eliminated first."""
    choice = [0] * n
    for v, (unary, consumed) in zip(reversed(schedule.order), reversed(gone), strict=True):
        total = unary
        for factor in consumed:
            where: list[int | slice] = []
            mine: Ints | None = None
            for w, index in zip(factor.scope, factor.maps, strict=True):
                if w == v:
                    where.append(slice(None))
                    mine = index
                else:
                    where.append(choice[w] if index is None else int(index[choice[w]]))
            line = factor.array[tuple(where)]
            total = saturate(total + (line if mine is None else line[mine]))
        choice[v] = int(np.argmin(total))
    return tuple(choice)

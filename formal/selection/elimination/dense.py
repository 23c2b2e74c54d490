"""Solves problems with plain tables exactly, known as bucket elimination: every edge reaches its table
directly and nothing is forbidden (PaSE tables are like that).

    m_v(s) = min_a [ c_v(a) + sum of the live tables that touch v at (s, a) ]              in order of least joint table
    -> buckets()
    x_v    = first a that is cheapest given the choices of v's scope                       last eliminated first
           -> survivors()
    D'_v   = { a : for some s of D', the sum at (s, a) exceeds m_v(s) by at most `slack` }        last eliminated first
           -> survivors()

The excesses of all vertices over their messages add up to F(x) - min F, so that D' holds every x within `slack` of the
minimum.  This serves problems with a fine part (`models.problem.selection_problem.Fine`): with N tables an optimum is
less than N above the coarse minimum, what survives is a handful of choices, and those are eliminated once more in
Python integers.  The checker does the same with the real slack.

Large joint tables are never built (`elimination/sums.py`).
Source: Dechter, "Bucket elimination", 1999.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Fine, Ints, SelectionProblem, forbids
from ....proofs.container.effort import ELIMINATED
from ....proofs.selection.certificates import Elimination, Point
from ..model.clock import Clock
from ..options.elimination import ELIMINATION, EliminationOptions
from .factored import WIDEST
from .replay import spare
from .sums import CHUNK, align_axes, least


@dataclass(frozen=True)
class Size:
    """What elimination may cost: entries of the largest joint table, of all of them, of all messages."""

    joint: int
    work: int
    kept: int


Factor = tuple[tuple[int, ...], Ints]
"""Scope (ascending) and the table over it."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """`gone[k]`: unary costs and the tables that step k consumed; `messages[k]`: over `scopes[k]`; `value`: their
    scalars added.
    """

    order: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    messages: tuple[Ints, ...]
    gone: tuple[tuple[Ints, tuple[Factor, ...]], ...]
    value: int
    kept: int


@dataclass(frozen=True, eq=False)
class PlainOutcome:
    """`bound`: what `record` proves with `cost`, that of `solution`, as upper bound."""

    record: Elimination
    bound: int
    cost: int
    solution: tuple[int, ...]


def plain(problem: SelectionProblem) -> bool:
    """True when `problem` has no resource rows, no index maps and no forbidden entries."""
    if problem.limit is not None and problem.usages:
        return False
    arrays = [*(v.cost for v in problem.vertices), *problem.tables]
    return (
        all(e.rows is None and e.cols is None for e in problem.edges)
        and all(a.size for a in arrays)
        and not forbids(arrays)
    )


def eliminate_dense(
    problem: SelectionProblem, size: Size, clock: Clock, options: EliminationOptions = ELIMINATION
) -> PlainOutcome | None:
    """Optimum and record of a `plain` problem; None when it is too large to eliminate or the time is over."""
    found = buckets(
        [v.cost for v in problem.vertices], [(e.u, e.v, problem.tables[e.table]) for e in problem.edges], size, clock
    )
    if found is None or replay(found, found.kept <= options.stored) > spare(problem, options):
        return None
    stored = found.messages if found.kept <= options.stored else ()
    record = Elimination(found.order, found.scopes, stored)
    minimum = problem.constant + found.value
    x = tuple(survivors(found, None)[1])
    if problem.fine is None:
        return PlainOutcome(record, minimum, minimum, x)
    bits, cost = problem.fine.bits, problem.cost_of(x)
    if cost == minimum << bits:  # the fine part of x is 0
        return PlainOutcome(record, cost, cost, x)
    left, cheapest = survivors(found, -(-cost >> bits) - 1 - minimum)
    best = _refined(problem, problem.fine, left, cheapest, clock, options)
    if best is None:
        return PlainOutcome(record, minimum << bits, cost, x)
    then = Point() if all(d is None for d in left) else Elimination(found.order, found.scopes, (), fine=True)
    cost = problem.cost_of(tuple(best))
    return PlainOutcome(replace(record, then=then), cost, cost, tuple(best))


def replay(found: Buckets, stored: bool) -> int:
    """Cells that checking the record takes (`proofs.container.effort`): every table of a step once per joint entry, and
    once more where the messages are left out.
    """
    cells = 0 if stored else ELIMINATED * len(found.order)
    merged = Counter(scope[0] for scope in found.scopes if len(scope) == 1)
    for v, message, (unary, factors) in zip(found.order, found.messages, found.gone, strict=True):
        tables = len(factors) + 1 + merged[v] + (not stored)
        cells += message.size * unary.size * tables
    return cells


def buckets(unary: list[Ints], pairs: list[tuple[int, int, Ints]], size: Size, clock: Clock) -> Buckets | None:
    """Eliminate all vertices; int64, or object arrays of Python integers.  None beyond `size` or when the time is
    over.
    """
    n = len(unary)
    dims = [c.size for c in unary]
    near: list[set[int]] = [set() for _ in range(n)]
    pool: list[dict[int, Factor]] = [{} for _ in range(n)]
    for k, (u, v, table) in enumerate(pairs):
        near[u].add(v)
        near[v].add(u)
        pool[u][k] = pool[v][k] = ((u, v), table) if u < v else ((v, u), table.T)
    fresh = len(pairs)
    single = list(unary)
    key = [dims[v] * prod([dims[w] for w in near[v]]) for v in range(n)]
    heap = [(joint, v) for v, joint in enumerate(key)]
    heapq.heapify(heap)
    done = bytearray(n)
    order, scopes, messages = list[int](), list[tuple[int, ...]](), list[Ints]()
    gone: list[tuple[Ints, tuple[Factor, ...]]] = []
    value = work = kept = 0
    while heap:
        joint, v = heapq.heappop(heap)
        if done[v] or joint != key[v]:
            continue
        work += joint
        kept += joint // dims[v]
        if joint > size.joint or work > size.work or kept > size.kept or len(near[v]) > WIDEST or clock.over():
            return None
        clock.read(joint)
        done[v] = 1
        scope, consumed = tuple(sorted(near[v])), pool[v]
        factors = tuple(consumed.values())
        message = _minimum(v, scope, single[v], factors, dims)
        order.append(v)
        scopes.append(scope)
        messages.append(message)
        gone.append((single[v], factors))
        if not scope:
            value += int(message[()])
        for w in scope:
            for k in consumed:
                pool[w].pop(k, None)
            around = near[w]
            around.update(scope)
            around.discard(v)
            around.discard(w)
            if len(scope) == 1:
                single[w] = single[w] + message
            else:
                pool[w][fresh] = (scope, message)
            new = dims[w]
            for t in around:
                new *= dims[t]
            if new != key[w]:
                key[w] = new
                heapq.heappush(heap, (new, w))
        fresh += 1
    return Buckets(tuple(order), tuple(scopes), tuple(messages), tuple(gone), value, kept)


def _minimum(v: int, scope: tuple[int, ...], unary: Ints, factors: tuple[Factor, ...], dims: list[int]) -> Ints:
    """min over v's choices of `unary` plus `factors`, over `scope`."""
    if not scope:
        return np.asarray(np.minimum.reduce(unary))
    if len(scope) == 1:
        first = scope[0] > v
        table = factors[0][1]
        for _, more in factors[1:]:
            table = table + more
        return np.asarray(
            np.minimum.reduce(table + unary[:, None], axis=0) if first else np.minimum.reduce(table + unary, axis=1)
        )
    if len(scope) == 2 and len(factors) == 2 and dims[v] * dims[scope[0]] * dims[scope[1]] <= CHUNK:
        (where, one), (other, two) = factors
        if where != other and len(where) == len(other) == 2:  # most vertices of deep networks
            one = one if where[0] == v else one.T
            two = two if other[0] == v else two.T
            if where[0] == scope[1] or where[1] == scope[1]:
                one, two = two, one
            return np.asarray(np.minimum.reduce((one + unary[:, None])[:, :, None] + two[:, None, :], axis=0))
    axes = (v, *sorted(scope, key=dims.__getitem__))  # long inner loops: the largest axis last
    parts = [align_axes(table, where, axes) for where, table in factors]
    parts[0] = parts[0] + unary.reshape((-1,) + (1,) * len(scope))
    out = least(parts, tuple([dims[w] for w in axes]))
    return np.asarray(out.transpose([axes.index(w) - 1 for w in scope]))


def survivors(found: Buckets, slack: int | None) -> tuple[list[Ints | None], list[int]]:
    """(D' as ascending positions, None where only the cheapest choice is left; the cheapest choices, first among
    equals).  No slack: only these.
    """
    n = len(found.order)
    x = [0] * n
    left: list[Ints | None] = [None] * n
    several = False
    for k in range(n - 1, -1, -1):
        v, scope, (unary, factors) = found.order[k], found.scopes[k], found.gone[k]
        line = unary
        for where, table in factors:
            line = line + table[tuple([slice(None) if w == v else x[w] for w in where])]
        a = x[v] = int(line.argmin())
        if several and slack is not None and any(left[w] is not None for w in scope):
            left[v] = _reached(v, scope, unary, factors, found.messages[k], left, x, slack)
        elif slack is not None:
            near = line <= line[a] + slack
            if np.count_nonzero(near) > 1:
                left[v] = np.flatnonzero(near)
        several = several or left[v] is not None
    return left, x


def _reached(
    v: int,
    scope: tuple[int, ...],
    line: Ints,
    factors: tuple[Factor, ...],
    message: Ints,
    left: list[Ints | None],
    x: list[int],
    slack: int,
) -> Ints | None:
    """Choices of v within `slack` of the message for some choices left of the scope; None if that is x[v] alone."""
    axes = (*scope, v)
    picks = [np.array([x[w]]) if (d := left[w]) is None else d for w in scope]
    shape = [d.size for d in picks]
    total = line.reshape([1] * len(scope) + [-1])
    for where, table in factors:
        index = [np.arange(line.size) if w == v else picks[scope.index(w)] for w in where]
        total = total + align_axes(table[np.ix_(*index)], where, axes)
    gap = total - message[np.ix_(*picks)].reshape([*shape, 1])
    near = np.flatnonzero((gap <= slack).any(axis=tuple(range(len(scope)))))
    return None if near.size == 1 and near[0] == x[v] else near


def _refined(
    problem: SelectionProblem,
    fine: Fine,
    left: list[Ints | None],
    x: list[int],
    clock: Clock,
    options: EliminationOptions,
) -> list[int] | None:
    """The best of what is left, with the fine part; None if that is too much."""
    open_ = [v for v, d in enumerate(left) if d is not None]
    if not open_:
        return x
    number = {v: i for i, v in enumerate(open_)}
    choices = {v: d for v, d in enumerate(left) if d is not None}

    parts = problem.fine_parts()

    def exact(coarse: Ints, low: NDArray[np.unsignedinteger]) -> Ints:
        return np.asarray(coarse.astype(object) * (1 << fine.bits) + low.astype(object))

    unary = [exact(problem.vertices[v].cost[d], parts[v][d]) for v, d in choices.items()]
    pairs: list[tuple[int, int, Ints]] = []
    for e in problem.edges:
        u_open, v_open = e.u in number, e.v in number
        if not (u_open or v_open):
            continue
        where = np.ix_(choices[e.u] if u_open else np.array([x[e.u]]), choices[e.v] if v_open else np.array([x[e.v]]))
        table = exact(problem.tables[e.table][where], parts[len(x) + e.table][where])
        if u_open and v_open:
            pairs.append((number[e.u], number[e.v], table))
        else:
            v = e.u if u_open else e.v
            unary[number[v]] = unary[number[v]] + table.reshape(-1)
    found = buckets(unary, pairs, Size(options.fine_work, options.fine_work, options.fine_work), clock)
    if found is None:
        return None
    _, best = survivors(found, None)
    out = list(x)
    for v, i in number.items():
        out[v] = int(choices[v][best[i]])
    return out

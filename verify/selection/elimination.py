"""Checks elimination records: one message per vertex, tested entry by entry.

    pool := tables of the problem on D;   for k in order:  take C = tables of the pool that touch v = order[k];
    test for every s in the scope of message m_k and every a in D_v:   m_k(s) <= sum_{T in C} T(s, a);   pool := pool -
    C + m_k

A record may leave its messages out: then m_k(s) := min_a sum_{T in C} T(s, a) is computed here, which is the largest
message that would pass the test.  Work and memory of that are bounded before anything is computed.

By the test the sum of the pool never rises at any x, so constant + the scalars left at the end bound the cost of every
x in D from below.  A scope must hold all other vertices of C (so that the test covers every x) and no eliminated vertex
(so that nothing but scalars is left).  Neither the order nor the exactness of the messages is trusted.

Infinity: with A = sum of the largest |allowed entry| of C plus that of m_k, forbidden entries become TOP = 2**60, or
more if A > 2**58, and sums are clipped at TOP after every addition.  Then A <= TOP / 4: a sum with a forbidden part
stays >= TOP - A > TOP / 2, and any other is <= A < TOP / 2.  If TOP is 2**60 no step leaves int64; otherwise the step
is done on arrays of Python integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np

from ...models.problem.rows import first_rows
from ...models.problem.selection_problem import FORBIDDEN, Ints
from ...proofs.container.effort import ELIMINATED, OBJECT
from ...proofs.selection.certificates import Elimination
from ..budget import Budget
from .ground import INFINITE, Bound, Domains, Ground, Refuted, size_of

MOST_AXES: Final = 64
"""Axes of an array in NumPy; a sum over a vertex and its scope has one for each."""

CELLS: Final = 1 << 17
"""Entries per block: memory is bounded by this, whatever the certificate asks for."""

SLOWER: Final = 3
"""Times `ELIMINATED` that an eliminated vertex takes more of the budget of a check: 0.17 ms were measured, not 0.04."""

CELL_COST: Final = 1
"""Cells that an entry of a joint table costs per table in it: it is gathered, clipped, added."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A pool table over `scope`, its axes in that order: entry (i, j, ..) is table[index_0[i], index_1[j], ..], or
    table[i, j, ..] itself where there are no indices."""

    scope: tuple[int, ...]
    table: Ints
    indices: tuple[Ints, ...]
    size: int
    holes: bool

    def block(self, axes: tuple[int, ...], part: tuple[slice, ...]) -> Ints:
        """Entries inside `part` of the product of `axes`, one array axis per element of `axes`, of length 1 where
        not in scope.
        """
        where = dict(zip(axes, part, strict=True))
        if self.indices:
            values = self.table[np.ix_(*(index[where[v]] for v, index in zip(self.scope, self.indices, strict=True)))]
        else:
            values = self.table[tuple(where[v] for v in self.scope)]
        order = sorted(range(len(self.scope)), key=lambda i: axes.index(self.scope[i]))
        shown = tuple(slice(None) if v in self.scope else None for v in axes)
        return np.asarray(values.transpose(order)[shown])


@dataclass(frozen=True, eq=False)
class Step:
    """Vertex `v` went, `consumed` became `message`, a table over `scope`."""

    v: int
    scope: tuple[int, ...]
    consumed: list[Factor]
    message: Factor


def elimination_bound(ground: Ground, record: Elimination, domains: Domains, place: str) -> tuple[Bound, list[Step]]:
    """(bound of the record on the coarse costs, its steps if `then` needs them); `Refuted` at the first step that
    is not as stated.
    """
    check_order(record, domains, place)
    if not record.messages:
        check_effort(ground, record, domains, place, 1)
    pool = dict(enumerate(_tables(ground, domains)))
    touching: list[set[int]] = [set() for _ in domains]
    for number, factor in pool.items():
        for v in factor.scope:
            touching[v].add(number)
    added = len(pool)
    gone: set[int] = set()
    steps: list[Step] = []
    bound: Bound = ground.problem.constant
    for k, (v, scope) in enumerate(zip(record.order, record.scopes, strict=True)):
        here = f"{place}, step {k} ({ground.name(v)})"
        numbers = sorted(touching[v])
        consumed = [pool.pop(number) for number in numbers]
        for number, factor in zip(numbers, consumed, strict=True):
            for w in factor.scope:
                touching[w].discard(number)
        gone.add(v)
        check_scope(scope, {w for factor in consumed for w in factor.scope}, v, gone, domains, here)
        if record.messages:
            message = record.messages[k]
            _check_message(message, (*scope, v), consumed, domains, ground.budget, here)
            factor = Factor(scope, message, tuple(ground.full[w][: domains[w].size] for w in scope), *size_of(message))
        else:
            factor = _exact_message((*scope, v), consumed, domains, ground.budget, here)
        if record.then is not None:
            steps.append(Step(v, scope, consumed, factor))
        if scope:
            pool[added] = factor
            for w in scope:
                touching[w].add(added)
            added += 1
        else:
            last = int(factor.table)
            bound = INFINITE if last >= FORBIDDEN else bound + last
    return bound, steps


def check_order(record: Elimination, domains: Domains, place: str) -> None:
    """Every vertex once; a scope for each, and a message for each or none at all."""
    n = len(domains)
    if len(record.order) != n or set(record.order) != set(range(n)):
        raise Refuted(place, f"order must name each of the {n} vertices once")
    if len(record.scopes) != n or len(record.messages) not in (0, n):
        raise Refuted(place, f"has {len(record.scopes)} scopes and {len(record.messages)} messages for {n} vertices")


def _tables(ground: Ground, domains: Domains) -> Iterator[Factor]:
    problem = ground.problem
    for v, vertex in enumerate(problem.vertices):
        yield Factor((v,), vertex.cost, (domains[v],), *ground.costs[v])
    for edge in problem.edges:
        rows = domains[edge.u] if edge.rows is None else edge.rows[domains[edge.u]]
        cols = domains[edge.v] if edge.cols is None else edge.cols[domains[edge.v]]
        yield Factor((edge.u, edge.v), problem.tables[edge.table], (rows, cols), *ground.tables[edge.table])


def check_effort(ground: Ground, record: Elimination, domains: Domains, place: str, cost: int) -> None:
    """Bounds what computing the messages of the record takes, before anything is computed; `cost`: cells per entry
    of a joint table.
    """
    kept = work = 0
    for v, scope in zip(record.order, record.scopes, strict=True):
        if any(type(w) is not int or not 0 <= w < len(domains) for w in scope):
            raise Refuted(place, f"scope {scope} names a vertex that is not there")
        cells = prod(domains[w].size for w in scope)
        kept += cells
        work += cells * domains[v].size
    ground.budget.hold(kept, place)
    ground.budget.charge(work * cost + ELIMINATED * len(record.order), place)
    ground.budget.charge_check(SLOWER * ELIMINATED * len(record.order), place)


def check_scope(
    scope: tuple[int, ...], reached: set[int], v: int, gone: set[int], domains: Domains, place: str
) -> None:
    """`scope` ascends, holds everything that the consumed tables reach but v, and nothing that is gone."""
    if any(type(w) is not int or not 0 <= w < len(domains) or w in gone for w in scope):
        raise Refuted(place, f"scope {scope} names a vertex that is not there or already eliminated")
    if any(a >= b for a, b in pairwise(scope)):
        raise Refuted(place, f"scope {scope} does not ascend")
    if len(scope) >= MOST_AXES:
        raise Refuted(place, f"scope of {len(scope)} vertices, more than the axes that a table has")
    missing = reached - {v} - set(scope)
    if missing:
        raise Refuted(place, f"scope {scope} leaves out {sorted(missing)} of the consumed tables")


def _check_message(
    message: Ints, axes: tuple[int, ...], consumed: list[Factor], domains: Domains, budget: Budget, place: str
) -> None:
    """message(s) <= sum of consumed(s, a) for all s, a; infinite only where that is infinite for every a."""
    shape = tuple(domains[w].size for w in axes[:-1])
    if message.dtype != np.int64 or message.shape != shape:
        raise Refuted(place, f"message has shape {message.shape}, its scope needs {shape} int64")
    top = top_of(sum(factor.size for factor in consumed) + size_of(message)[0])
    for part, low in _minima(axes, tuple(domains[w].size for w in axes), consumed, top, budget, place):
        stated = message[part]
        wrong = np.asarray(((stated > low) | (stated >= FORBIDDEN)) & (low < top // 2), dtype=bool)
        if wrong.any():
            at = tuple(int(i) + p.start for i, p in zip(np.argwhere(wrong)[0], part, strict=True))
            raise Refuted(place, f"message at {at} is {int(message[at])}, above the sum of the consumed tables")


def _exact_message(
    axes: tuple[int, ...], consumed: list[Factor], domains: Domains, budget: Budget, place: str
) -> Factor:
    """min over the last axis of the sum of consumed, FORBIDDEN where that is infinite.

    Choices of an axis that every consumed table treats alike form a class and are computed once; costs of the last
    axis' own choices are added up first and minimised over each class.
    """
    if top_of(sum(factor.size for factor in consumed)) != 1 << 60:
        raise Refuted(place, "leaves out a message whose entries do not fit 58 bits")
    v = axes[-1]
    wide = [factor for factor in consumed if factor.scope != (v,)]
    shape, members = [], {}
    for w in axes:
        shown = [factor.indices[factor.scope.index(w)] for factor in wide if w in factor.scope]
        shown = shown or [np.zeros(domains[w].size, dtype=np.int64)]
        first, members[w] = first_rows(np.stack(shown, axis=1))
        shape.append(first.size)
        wide = [
            Factor(
                f.scope,
                f.table,
                tuple(i[first] if u == w else i for u, i in zip(f.scope, f.indices, strict=True)),
                f.size,
                f.holes,
            )
            for f in wide
        ]
    own = np.zeros(domains[v].size, dtype=np.int64)
    for factor in consumed:
        if factor.scope == (v,):
            values = factor.table[factor.indices[0]]
            own = np.where(
                (values >= FORBIDDEN) | (own >= FORBIDDEN), FORBIDDEN, own + np.where(values >= FORBIDDEN, 0, values)
            )
    best = np.full(shape[-1], FORBIDDEN, dtype=np.int64)
    np.minimum.at(best, members[v], own)
    budget.hold(sum(prod(index.size for index in f.indices) for f in wide), place)
    wide = [Factor(f.scope, f.table[np.ix_(*f.indices)] if f.indices else f.table, (), f.size, f.holes) for f in wide]
    wide.append(Factor((v,), best, (), *size_of(best)))
    table = np.empty(shape[:-1], dtype=np.int64)
    for part, low in _minima(axes, tuple(shape), wide, 1 << 60, budget, place):
        table[part] = np.where(low >= 1 << 59, FORBIDDEN, low)
    return Factor(axes[:-1], table, tuple(members[w] for w in axes[:-1]), *size_of(table))


def top_of(reach: int) -> int:
    """TOP for sums of magnitude at most `reach` (module docstring)."""
    return 1 << 60 if reach <= 1 << 58 else 1 << (reach.bit_length() + 2)


def _minima(
    axes: tuple[int, ...], shape: tuple[int, ...], consumed: list[Factor], top: int, budget: Budget, place: str
) -> Iterator[tuple[tuple[slice, ...], Ints]]:
    """Block by block over the product `shape` of the axes: (part of the scope, minimum over the last axis of the
    sum of consumed, at least top / 2 where infinite).  A sum has the axes of its terms alone.
    """
    kind: type = np.int64 if top == 1 << 60 else object
    holes = any(factor.holes for factor in consumed)
    budget.charge(prod(shape) * len(consumed) * (CELL_COST if kind is np.int64 else CELL_COST * OBJECT), place)
    ordered = _narrow_first(consumed, dict(zip(axes, shape, strict=True)))
    for part in _blocks(shape):
        total: Ints = np.zeros((1,) * len(part), dtype=kind)
        for factor in ordered:
            values = factor.block(axes, part)
            if factor.holes:
                values = np.where(values >= FORBIDDEN, top, values.astype(kind))
            wide = tuple(map(max, total.shape, values.shape))  # numpy's own ends at 32 axes, arrays have up to 64
            total = np.add(total, values, out=total if wide == total.shape else None)
            if holes:
                np.minimum(total, top, out=total)
        yield part[:-1], np.broadcast_to(total, tuple(p.stop - p.start for p in part)).min(axis=-1)


def _narrow_first(consumed: list[Factor], sizes: dict[int, int]) -> list[Factor]:
    """In the order in which the axes of their sum become as few as can be, one factor after another."""
    left, ordered, reached = list(consumed), list[Factor](), set[int]()
    while left:
        best = min(left, key=lambda factor: prod(sizes[w] for w in reached.union(factor.scope)))
        left.remove(best)
        ordered.append(best)
        reached.update(best.scope)
    return ordered


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Boxes that tile the product, each of at most CELLS entries or one whole last axis: single indices, one range,
    whole axes.
    """
    whole, cells = len(shape) - 1, shape[-1]
    while whole > 0 and cells * shape[whole - 1] <= CELLS:
        whole -= 1
        cells *= shape[whole]
    rest = tuple(slice(0, n) for n in shape[whole:])
    if whole == 0:
        yield rest
        return
    step = max(1, CELLS // cells)
    for leading in np.ndindex(shape[: whole - 1]):
        for start in range(0, shape[whole - 1], step):
            yield (*(slice(i, i + 1) for i in leading), slice(start, min(start + step, shape[whole - 1])), *rest)

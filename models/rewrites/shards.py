"""Device and time coordinates of an operator's operands and result, generated from its index
expression.

Sharding rule: if iteration axis a has degree d, an operand indexed by bare a is sharded d there; an operand without a
carries COPY of total extent d for it (consumed); if a is an output axis the result is sharded d; if a is summed at the
top of the expression the result gets a PARTIAL-SUM coordinate of extent d.  Axes inside compound indices, under a
non-linear function or a maximum need degree 1.

Kind rule: an operator acts pointwise on partial sums and is accepted only if its expression is linear in the partial
operands together; the other operands then carry COPY for those coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .index_expressions import (
    Call,
    Digit,
    Expression,
    Most,
    Plus,
    Read,
    Times,
    Total,
    Where,
    linear_in,
    substitute,
    walk,
)
from .ops import Auxiliary, Meaning
from .polynomial import ONE, Poly, product
from .rule import Condition, Equal


class IllTyped(ValueError):
    """An operator that no instance of its operands types; `place` names it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass(frozen=True)
class Tree:
    """Where a concat joined an axis; usable only if every pair of `needs` is equal (positions that merged operands
    must share).
    """

    at: Poly
    first: Tree | None
    second: Tree | None
    needs: tuple[tuple[Poly, Poly], ...] = ()


@dataclass(frozen=True)
class TensorType:
    """Coordinates of a tensor are times, then sums, then data axes, all with extents; `copy` is the total COPY
    extent.
    """

    sizes: tuple[Poly, ...]
    degrees: tuple[Poly, ...]
    trees: tuple[Tree | None, ...]
    copy: Poly = ONE
    sums: tuple[Poly, ...] = ()
    times: tuple[tuple[int, Poly], ...] = ()


@dataclass(frozen=True)
class Lifted:
    """An operator's index expression over all coordinates: `coordinates` are the output's names, reads give all of
    the operand's.
    """

    coordinates: tuple[str, ...]
    body: Expression


Sharded = tuple[
    tuple[Poly, ...], Poly, tuple[Poly, ...], tuple[tuple[int, Poly], ...], tuple[Condition, ...], Expression
]
"""(degrees, copy, sums, times, conditions, body) of a result."""


def shards(place: str, m: Meaning, operands: tuple[TensorType, ...]) -> Sharded:
    """(degrees, copy, sums, times, conditions, body) of the result; names in `m` are already those of the operands'
    polynomials.
    """
    if m.auxiliary is not None:
        return _stated(place, m, m.auxiliary, operands)
    return _generated(place, m, operands)


def _stated(place: str, m: Meaning, a: Auxiliary, operands: tuple[TensorType, ...]) -> Sharded:
    x = operands[0]
    conditions: list[Condition] = []
    for y in operands[1:]:
        conditions.append(Equal(x.copy, y.copy))
        conditions += _same_lists(place, x, y)
    if len(x.times) < a.times_taken:
        raise IllTyped(place, "the operand has no time coordinate")
    sums, times = (*a.sums, *x.sums[a.sums_taken :]), (*a.times, *x.times[a.times_taken :])
    taken = min(a.sums_taken, len(x.sums))  # without partial sums a Reduce of degree 1 is the identity
    rest = tuple(Poly.of(f"q{k}") for k in range(len(a.sums), len(sums)))
    later = tuple(Poly.of(f"t{k}") for k in range(len(a.times), len(times)))

    def read(r: Read) -> Read:
        return Read(r.operand, (*r.time, *later, *r.device[:taken], *rest, *r.index))

    return (
        m.degrees if m.degrees is not None else x.degrees,
        a.copy * x.copy,
        sums,
        times,
        tuple(conditions),
        _reads(m.body, read),
    )


def _same_lists(place: str, x: TensorType, y: TensorType) -> list[Condition]:
    if len(x.sums) != len(y.sums):
        raise IllTyped(place, "operands have different partial-sum coordinates")
    if [a for a, _ in x.times] != [a for a, _ in y.times]:
        raise IllTyped(place, "operands have different time coordinates")
    return [
        *(Equal(a, b) for a, b in zip(x.sums, y.sums, strict=True)),
        *(Equal(a, b) for (_, a), (_, b) in zip(x.times, y.times, strict=True)),
    ]


def _generated(place: str, m: Meaning, operands: tuple[TensorType, ...]) -> Sharded:
    conditions: list[Condition] = []
    body, degrees = m.body, m.degrees
    pushed: list[Poly] = []
    needed = [ONE] * len(operands)
    if degrees is None:
        by_axis = _axis_degrees(m, operands, conditions)
        degrees = tuple(by_axis.get(f"i{k}", ONE) for k in range(len(m.sizes)))
        tops = _top_totals(m.body)
        for v, d in by_axis.items():
            if not v.startswith("i") and v not in tops and d != ONE:
                conditions.append(Equal(d, ONE))
        for k in range(len(operands)):
            bare = {p.key for e in walk(m.body) if isinstance(e, Read) and e.operand == k for p in e.index}
            needed[k] = product(d for v, d in by_axis.items() if Poly.of(v).key not in bare)
        for v in tops:
            d = by_axis.get(v, ONE)
            if d != ONE:
                body = _cut_total(place, body, v, d, f"q{len(pushed)}")
                pushed.append(d)
    partial = frozenset(k for k, x in enumerate(operands) if x.sums)
    lists: tuple[Poly, ...] = ()
    if partial:
        first = min(partial)
        lists = operands[first].sums
        if not linear_in(m.body, partial):
            raise IllTyped(place, "a partial sum is fed to an operator that is not linear in it")
        for k in sorted(partial):
            conditions += [Equal(a, b) for a, b in zip(lists, operands[k].sums, strict=False)]
            if len(operands[k].sums) != len(lists):
                raise IllTyped(place, "operands have different partial-sum coordinates")
    timed = [x.times for x in operands if x.times]
    for t in timed[1:]:
        if [a for a, _ in t] != [a for a, _ in timed[0]]:
            raise IllTyped(place, "operands have different time coordinates")
        conditions += [Equal(a, b) for (_, a), (_, b) in zip(timed[0], t, strict=True)]
    times = timed[0] if timed else ()
    copy = _copies(operands, needed, partial, product(lists), conditions)
    mine = tuple(Poly.of(f"q{len(pushed) + k}") for k in range(len(lists)))
    moments = tuple(Poly.of(f"t{k}") for k in range(len(times)))

    def read(r: Read) -> Read:
        x = operands[r.operand]
        return Read(r.operand, (*(moments if x.times else ()), *(mine if r.operand in partial else ()), *r.index))

    return degrees, copy, (*pushed, *lists), times, tuple(conditions), _reads(body, read)


def _copies(
    operands: tuple[TensorType, ...],
    needed: list[Poly],
    partial: frozenset[int],
    extent: Poly,
    conditions: list[Condition],
) -> Poly:
    """Extent of COPY left over, the same for all operands; conditions say that each has exactly what is needed."""
    total = [n if k in partial or not partial else n * extent for k, n in enumerate(needed)]
    left = next((q for x, n in zip(operands, total, strict=True) if (q := x.copy.exact_quotient(n)) is not None), ONE)
    conditions += [Equal(x.copy, n * left) for x, n in zip(operands, total, strict=True) if x.copy != n * left]
    return left


def _axis_degrees(m: Meaning, operands: tuple[TensorType, ...], conditions: list[Condition]) -> dict[str, Poly]:
    """Degree of every iteration axis that some operand is indexed by; adds what must be equal."""
    found: dict[str, Poly] = {}
    compound: set[str] = {n for e in walk(m.body) if isinstance(e, Digit) for n in e.numerator.names}
    reads = [e for e in walk(m.body) if isinstance(e, Read)]
    bare: list[tuple[str, Poly]] = []
    for r in reads:
        for a, p in enumerate(r.index):
            d = operands[r.operand].degrees[a]
            if len(p.terms) == 1 and len(p.names) == 1 and p == Poly.of(next(iter(p.names))):
                bare.append((next(iter(p.names)), d))
            else:
                compound |= p.names
                if d != ONE:
                    conditions.append(Equal(d, ONE))
    for name, d in bare:
        if name in compound:
            if d != ONE:
                conditions.append(Equal(d, ONE))
        elif name in found:
            if d != found[name]:
                conditions.append(Equal(d, found[name]))
        else:
            found[name] = d
    return found


def _top_totals(e: Expression) -> tuple[str, ...]:
    return (e.variable, *_top_totals(e.body)) if isinstance(e, Total) else ()


def _cut_total(place: str, e: Expression, variable: str, d: Poly, name: str) -> Expression:
    """The summand of one device: variable = name * (extent / d) + variable."""
    if not isinstance(e, Total):
        raise IllTyped(place, f"has no sum over {variable}")
    if e.variable != variable:
        return Total(e.variable, e.extent, _cut_total(place, e.body, variable, d, name))
    block = e.extent.exact_quotient(d)
    if block is None:
        raise IllTyped(place, f"degree {d} does not divide {e.extent}")
    return Total(variable, block, substitute(e.body, {variable: Poly.of(name) * block + variable}))


def _reads(e: Expression, change: Callable[[Read], Read]) -> Expression:
    match e:
        case Read():
            return change(e)
        case Call():
            return Call(e.function, e.index, tuple(_reads(a, change) for a in e.arguments))
        case Plus():
            return Plus(tuple(_reads(a, change) for a in e.terms))
        case Times():
            return Times(tuple(_reads(a, change) for a in e.factors))
        case Where():
            return Where(e.guards, _reads(e.body, change))
        case Total():
            return Total(e.variable, e.extent, _reads(e.body, change))
        case Most():
            return Most(e.ranges, e.guards, _reads(e.body, change))
        case Digit():
            return Digit(e.variable, e.numerator, e.modulus, _reads(e.body, change))
        case _:
            return e


def result_trees(m: Meaning, operands: tuple[TensorType, ...]) -> tuple[Tree | None, ...]:
    """Split trees of the result: an axis keeps what every operand axis indexed by exactly that output index agrees
    on.
    """
    out: list[Tree | None] = []
    reads = [e for e in walk(m.body) if isinstance(e, Read)]
    for k in range(len(m.sizes)):
        mine = Poly.of(f"i{k}")
        found: list[Tree | None] = []
        for r in reads:
            for a, p in enumerate(r.index):
                if p == mine:
                    found.append(operands[r.operand].trees[a])
                elif f"i{k}" in p.names:
                    found.append(None)
        tree = found[0] if found else None
        for other in found[1:]:
            tree = _agreed(tree, other)
        out.append(tree)
    return tuple(out)


def _agreed(x: Tree | None, y: Tree | None) -> Tree | None:
    if x is None or y is None:
        return None
    if x == y:
        return x
    return Tree(x.at, _agreed(x.first, y.first), _agreed(x.second, y.second), (*x.needs, *y.needs, (x.at, y.at)))

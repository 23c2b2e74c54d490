"""What operators that are neither products nor maps compute, in the language of `polynomials`.

    sum, average_pool   polynomials; where padding does not count, divided by the number of taps inside
    max, max_pool       the greatest of a functional, over the taps inside
    norms, softmax      a functional of the row, at a point of it; of a norm times gamma plus beta.  Gradients of them
                        are functionals of all their operands
    softmax, attention  where a rule asks for it (`defined`):  exp(s) / sum exp(s)  and  sum exp(s) v / sum exp(s);
                        attention in a band, or with capped scores, is a functional
    embedding           sum over rows of [id = row] table[row];  the sums of its transpose likewise

Everything else is refused by name: what reads positions, is combined in other ways, or is no function of real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Final

from ...models.program.attention import BOUNDS, ROLES, role
from ...models.program.graph import Graph
from ...models.program.index import Affine, Combine
from ...models.program.operators import NodeKind, Operator
from .numbers import exact
from .polynomials import OWN, Call, Hit, Polynomial, Position, Undecided, Whole

Read = Callable[[Operator, int, Mapping[str, Position]], Polynomial]
"""The value of an input of an operator where its axes are at positions; 0 outside of the tensor."""

NORMS: Final = frozenset({"layer_norm", "rms_norm"})
ROWS: Final = NORMS | {
    *("softmax", "log_softmax", "softmax_gradient", "log_softmax_gradient"),
    *("layer_norm_gradient", "rms_norm_gradient", "cumulative_sum"),
}
"""Normalise functions that are functionals of their rows."""

HITS: Final = frozenset({"embedding", "embedding_gradient", "scatter_add"})


def is_known(op: Operator) -> bool:
    """Whether this module says what an operator computes."""
    return op.kind in (NodeKind.NORMALISE, NodeKind.WINDOW, NodeKind.ATTENTION) or op.function in (*HITS, "max", "min")


def value(
    op: Operator, graph: Graph, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read, defined: bool
) -> Polynomial:
    """What an operator computes where the axes of its result are at positions.  Raises `Undecided`."""
    if op.function in HITS:
        return _rows(op, graph, at, fresh, read)
    if op.kind is NodeKind.ATTENTION or (op.function == "softmax" and defined):
        return _attention(op, at, fresh, read) if op.kind is NodeKind.ATTENTION else _softmax(op, at, fresh, read)
    if op.function == "average_pool":
        return _average(op, graph, at, fresh, read)
    if op.kind is NodeKind.NORMALISE and op.function in ROWS:
        return _row(op, at, fresh, read)
    if op.function in ("max", "min", "max_pool") and not op.attributes:
        return _extreme(op, graph, at, fresh, read)
    raise Undecided(f"operator {op.name!r} is a {op.function}, of which nothing is known here")


def _summed(
    op: Operator, fresh: Callable[[str], str], names: Sequence[str]
) -> tuple[dict[str, Position], tuple[tuple[str, int], ...]]:
    """New names for axes, and their extents."""
    bound = {n: fresh(n) for n in names}
    return {n: Position(((b, 1),)) for n, b in bound.items()}, tuple((b, op.axis(n).extent) for n, b in bound.items())


def _row(op: Operator, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read) -> Polynomial:
    inside, bound = _summed(op, lambda n: OWN + fresh(n), op.over)
    attributes = tuple((k, v) for k, v in op.attributes if k != "over")
    whole = len(op.inputs) if op.function not in NORMS else 1
    of = tuple(read(op, j, {**at, **inside}) for j in range(whole))
    point = tuple(at[n] for n in op.over)
    found = Polynomial.atom(Whole(op.function, attributes, bound, point, of))
    if op.function in NORMS:
        found = found * read(op, 1, at) if len(op.inputs) > 1 else found
        found = found + read(op, 2, at) if len(op.inputs) > 2 else found
    return found


def _conditions(op: Operator, graph: Graph, at: Mapping[str, Position]) -> tuple[tuple[Position, int], ...]:
    a = op.inputs[0]
    shape = graph.tensor(a.tensor).shape
    return tuple((position(i, at), n) for i, n in zip(a.index, shape, strict=True))


def _extreme(
    op: Operator, graph: Graph, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read
) -> Polynomial:
    inside, bound = _summed(op, lambda n: OWN + fresh(n), [a.name for a in op.reduction_axes])
    if any(a.combine is not (Combine.MIN if op.function == "min" else Combine.MAX) for a in op.reduction_axes):
        raise Undecided(f"operator {op.name!r} combines in another way than its name says")
    axes = {**at, **inside}
    seen = Polynomial.number(Fraction(1)).where(_conditions(op, graph, axes))
    name = "min" if op.function == "min" else "max"
    return Polynomial.atom(Whole(name, (), bound, (), (read(op, 0, axes), seen)))


def _average(
    op: Operator, graph: Graph, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read
) -> Polynomial:
    taps = [a.name for a in op.reduction_axes]
    if set(dict(op.attributes)) - {"count_include_pad"} or any(a.combine is not Combine.SUM for a in op.reduction_axes):
        raise Undecided(f"operator {op.name!r} has attributes that are not known here")
    inside, bound = _summed(op, fresh, taps)
    total = read(op, 0, {**at, **inside}).sum_over(bound)
    if op.attribute("count_include_pad", 0) != 0:
        return total.times(Fraction(1, prod(op.axis(n).extent for n in taps)))
    inside, bound = _summed(op, fresh, taps)
    count = Polynomial.number(Fraction(1)).where(_conditions(op, graph, {**at, **inside})).sum_over(bound)
    return total * Polynomial.atom(Call("reciprocal", (), (count,)))


def _softmax(op: Operator, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read) -> Polynomial:
    inside, bound = _summed(op, fresh, op.over)
    return _exp(read(op, 0, at)) * _one_over(_exp(read(op, 0, {**at, **inside})).sum_over(bound))


def _exp(p: Polynomial) -> Polynomial:
    return Polynomial.atom(Call("exp", (), (p,)))


def _one_over(p: Polynomial) -> Polynomial:
    return Polynomial.atom(Call("reciprocal", (), (p,)))


def _attention(op: Operator, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read) -> Polynomial:
    if op.function != "attention":
        raise Undecided(f"operator {op.name!r} is an attention of a form that is not known here")
    scale = exact(op.attribute("scale", 1), op)
    keys, features = role(op, "key"), role(op, "feature")
    if {a.name for a in op.reduction_axes} != {*keys, *features}:
        raise Undecided(f"operator {op.name!r} sums over more than keys and features")
    if any(k in dict(op.attributes) for k in (*BOUNDS, "softcap")):
        return _banded(op, at, fresh, read)

    def weight(key: Mapping[str, Position]) -> Polynomial:
        feature, bound = _summed(op, fresh, features)
        axes = {**at, **key, **feature}
        scores = (read(op, 0, axes) * read(op, 1, axes)).sum_over(bound).times(scale)
        return _exp(scores + read(op, 3, {**at, **key}) if len(op.inputs) > 3 else scores)

    one, bound = _summed(op, fresh, keys)
    values = (weight(one) * read(op, 2, {**at, **one})).sum_over(bound)
    other, bound = _summed(op, fresh, keys)
    return values * _one_over(weight(other).sum_over(bound))


def _banded(op: Operator, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read) -> Polynomial:
    """Attention in a band of keys, or with capped scores: a functional of its operands over queries, keys and features,
    of which nothing else is said than that equal ones of equal operands are equal.
    """
    named = {name: role(op, name) for name in ROLES}
    inside, bound = _summed(op, lambda n: OWN + fresh(n), [n for names in named.values() for n in names])
    of = tuple(read(op, j, {**at, **inside}) for j in range(len(op.inputs)))
    point = tuple(at[n] for name in ("query", "value_feature") for n in named[name])
    counts = tuple((name, len(names)) for name, names in named.items())
    attributes = tuple((k, v) for k, v in op.attributes if k not in ROLES and k != "gradient")  # of its gradient alone
    return Polynomial.atom(Whole(op.function, (*counts, *attributes), bound, point, of))


def _rows(
    op: Operator, graph: Graph, at: Mapping[str, Position], fresh: Callable[[str], str], read: Read
) -> Polynomial:
    ids = op.inputs[-1]
    shape = graph.tensor(ids.tensor).shape
    if any(i.single is None or op.axis(i.single).extent > n for i, n in zip(ids.index, shape, strict=True)):
        raise Undecided(f"operator {op.name!r} does not read its ids where they lie")
    if set(dict(op.attributes)) - {"rows"} or any(a.combine is not Combine.SUM for a in op.reduction_axes):
        raise Undecided(f"operator {op.name!r} has attributes that are not known here")
    inside, bound = _summed(op, fresh, [a.name for a in op.reduction_axes])
    axes = {**at, **inside}
    hit = Hit(ids.tensor, tuple(position(i, axes) for i in ids.index), axes[op.rows])
    return (Polynomial.atom(hit) * read(op, 0, axes)).sum_over(bound)


def position(index: Affine, axes: Mapping[str, Position]) -> Position:
    """An index with the axes of the operator replaced."""
    terms: dict[str, int] = {}
    offset = index.offset
    for a, c in index.terms:
        offset += c * axes[a].offset
        for b, d in axes[a].terms:
            terms[b] = terms.get(b, 0) + c * d
    return Position.of(terms, offset)

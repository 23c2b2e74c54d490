"""Writes what the form of a user's operator promises as rules to prove: one per property, for all sizes.

    NAME-adds-x       op(.., x + y, ..) = op(.., x, ..) + op(.., y, ..)           where the formula is linear in x
    NAME-scales-x     op(.., s x, ..) = s op(.., x, ..)                           likewise
    NAME-shards-a     op of operands side by side along a = op of each, side by side: a is read alone, and not summed
    NAME-sums-a       .. = the sum of op of each: a is read alone, and is summed
    NAME-transpose-x  op(.., transpose(x), ..) = the operator that reads x as it lies
    NAME-merge-a      op of operands whose axis a was two axes = the operator with these two axes, merged

Operators on the right sides of the last two are specified ones, too: their formulas are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...program.formula import Apply, Expression, Formula, Number, Read, formula_text, reads
from ...program.index import Affine, Combine
from ...rewrites.index_expressions import linear_in
from ...rewrites.ops import meaning
from ...rewrites.polynomial import Poly
from ...rewrites.rule import Condition, Equal, Node, Pattern, Substitution, node
from ...rewrites.specified_rows import SPECIFIED, Statement
from ...rewrites.terms import Apply as Applied
from ...rewrites.terms import Term, rule_of
from ..specified.specification import Specification, SpecificationError

NAMES: Final = "abcdefgh"
"""Pattern inputs."""


def statement_of(s: Specification) -> Statement:
    """An operator as rules have it.  Raises `SpecificationError` for functions of which rules know nothing."""
    operands = tuple((o.name, o.axes) for o in s.operands)
    made = Statement(s.short, s.text, operands, tuple((axis, text) for axis, text, _ in s.sizes), s.outside)
    try:
        meaning(node_of(made), tuple(len(o.axes) for o in s.operands))
    except ValueError as error:
        raise SpecificationError(s.name, str(error)) from None
    return made


def node_of(s: Statement) -> Node:
    """The operator of a rule on its first inputs."""
    return node(SPECIFIED, *(-1 - k for k in range(len(s.operands))), statement=s.text)


def is_reading(rule: Substitution) -> bool:
    """Whether a rule has an operator that is another reading of the user's, which no enumeration has."""
    return rule.name.split("-")[-2] in ("transpose", "merge")


def operator_rules(s: Specification) -> tuple[Substitution, ...]:
    """The rules that its form promises.  Raises `SpecificationError` where rules cannot say it."""
    statement = statement_of(s)
    return tuple(rule.check() for rule in _rules(statement, statement.read))


def _rules(s: Statement, f: Formula) -> Iterator[Substitution]:
    ranks = [len(axes) for _, axes in s.operands]
    body = meaning(node_of(s), tuple(ranks)).body
    for k, (name, axes) in enumerate(s.operands):
        if linear_in(body, frozenset({k})):
            x, y = k, len(ranks)
            both = _apply(s, {k: _on("add", x, y)})
            yield _rule(f"{s.name}-adds-{name}", [*ranks, ranks[k]], both, _on("add", _apply(s, {}), _apply(s, {k: y})))
            scaled = _apply(s, {k: _on("scale", x, y)})
            yield _rule(f"{s.name}-scales-{name}", [*ranks, 0], scaled, _on("scale", _apply(s, {}), y))
        if len(axes) > 1:
            perm = (1, 0, *range(2, len(axes)))
            turned = _apply(s, {k: Applied(("transpose", (("perm", perm),)), (k,))})
            yield _rule(f"{s.name}-transpose-{name}", ranks, turned, _apply(_turned(s, f, k, perm), {}))
    for axis in (*f.axes, *f.over):
        where = _alone(s, f, axis)
        if not where:
            continue
        more = {k: len(ranks) + n for n, k in enumerate(where)}
        every = [*ranks, *(ranks[k] for k in where)]
        joined = _apply(s, {k: _on("concat", k, more[k], axis=a) for k, a in where.items()})
        parts = _apply(s, {}), _apply(s, more)
        if axis in f.axes:
            beside = _on("concat", *parts, axis=f.axes.index(axis))
            yield _rule(f"{s.name}-shards-{axis}", every, joined, beside, _alike(where))
            merged = _apply(s, {k: _on("merge_axes", k, axis=a) for k, a in where.items()})
            split = _apply(_split(s, f, axis), {})
            wider = [r + (k in where) for k, r in enumerate(ranks)]
            yield _rule(f"{s.name}-merge-{axis}", wider, merged, _on("merge_axes", split, axis=f.axes.index(axis)))
        elif f.combine is Combine.SUM:
            yield _rule(f"{s.name}-sums-{axis}", every, joined, _on("add", *parts), _alike(where))


def _on(operator: str, *of: Term, **parameters: int) -> Term:
    return Applied((operator, tuple(sorted(parameters.items()))), of)


def _apply(s: Statement, operands: Mapping[int, Term]) -> Term:
    """The operator on its pattern inputs, some of them replaced."""
    label = (SPECIFIED, (("statement", s.text),))
    return Applied(label, tuple(operands.get(k, k) for k in range(len(s.operands))))


def _rule(
    name: str, ranks: Sequence[int], left: Term, right: Term, preconditions: tuple[Condition, ...] = ()
) -> Substitution:
    inputs = tuple(Pattern(NAMES[k], r) for k, r in enumerate(ranks))
    return replace(rule_of(name, inputs, (left,), (right,)), preconditions=preconditions)


def _alike(where: Mapping[int, int]) -> tuple[Condition, ...]:
    """Parts of an axis have one length in all operands."""
    first, *others = [Poly.of(f"{NAMES[k]}.{a}") for k, a in where.items()]
    return tuple(Equal(first, other) for other in others)


def _alone(s: Statement, f: Formula, axis: str) -> dict[int, int]:
    """Operands that have an axis, and where; empty unless it is read alone there, and nowhere else."""
    found: dict[int, int] = {}
    for k, (name, axes) in enumerate(s.operands):
        for r in reads(f.body):
            at = [a for a, i in enumerate(r.index) if any(x == axis for x, _ in i.terms)]
            if r.operand != name or not (at or axis in axes):
                continue
            if len(at) != 1 or r.index[at[0]].single != axis or axes[at[0]] != axis:
                return {}
            found[k] = at[0]
    used = [text for _, text in s.sizes if axis in text.replace("(", " ").replace(")", " ").split()]
    return {} if used else found


def _turned(s: Statement, f: Formula, k: int, perm: tuple[int, ...]) -> Statement:
    """The operator that reads operand k with its axes exchanged: axis a of what it gets is axis perm[a] of before."""
    name, axes = s.operands[k]
    back = [perm.index(a) for a in range(len(axes))]

    def change(r: Read) -> Read:
        return Read(r.operand, tuple(r.index[b] for b in back)) if r.operand == name else r

    operands = list(s.operands)
    operands[k] = (name, tuple(axes[b] for b in back))
    turned = replace(f, body=_changed(f.body, change))
    return replace(s, name=f"{s.name}_t", formula=formula_text(turned), operands=tuple(operands))


def _split(s: Statement, f: Formula, axis: str) -> Statement:
    """The operator with two axes in the place of one that is read alone."""
    taken = {a for _, axes in s.operands for a in axes} | {*f.axes, *f.over}
    one = next(n for n in (f"{axis}{'_' * m}0" for m in range(1, 99)) if n not in taken)
    two = (one, f"{one[:-1]}1")

    def put(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(x for a in axes for x in (two if a == axis else (a,)))

    def change(r: Read) -> Read:
        return Read(r.operand, tuple(x for i in r.index for x in (map(Affine.axis, two) if i.single == axis else (i,))))

    split = replace(f, axes=put(f.axes), body=_changed(f.body, change))
    operands = tuple((name, put(axes)) for name, axes in s.operands)
    return replace(s, name=f"{s.name}_s", formula=formula_text(split), operands=operands)


def _changed(e: Expression, change: Callable[[Read], Read]) -> Expression:
    """An expression with its reads changed."""
    match e:
        case Number():
            return e
        case Read():
            return change(e)
        case Apply():
            return Apply(e.function, tuple(_changed(x, change) for x in e.of))

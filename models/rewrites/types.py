"""Types a substitution for all shapes: sizes and degrees as polynomials over unknowns, facts about the
unknowns.

The left side and the preconditions are *assumed* (`knowledge`): every instance on which the left side types is an
instance of the unknowns that are left, with all facts true.

The right side and the agreement of the mapped outputs are *owed*: equations and inequalities that must follow from the
facts.

With integers for the unknowns the same code types one instance.  Everything here is deterministic: a proof refers to
facts by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from .index_expressions import Index, substitute
from .knowledge import Contradiction, Facts, NeedsChoice, cancel, content
from .ops import Auxiliary, Floor, Join, Largest, Meaning, Part, Quotient, RankError, Shrunk, meaning
from .polynomial import ONE, Poly
from .rule import AtLeast, Condition, Divides, Equal, Node, OneOrMultiple, Substitution, divides
from .shards import IllTyped, Lifted, TensorType, Tree, result_trees, shards


class Stuck(ValueError):
    """The right side types only under `condition`, which the facts do not show."""

    def __init__(self, condition: Condition, place: str) -> None:
        super().__init__(f"{place}: needs {condition}")
        self.condition, self.place = condition, place


@dataclass(frozen=True)
class Obligation:
    """`value` >= 0, or `value` = 0 if `equation`; `place` says where it comes from, `condition` in the unknowns
    before solving.
    """

    value: Poly
    equation: bool
    place: str
    condition: Condition


@dataclass(frozen=True)
class Side:
    """Types of all nodes of one side, and their lifted index expressions."""

    types: tuple[TensorType, ...]
    bodies: tuple[Lifted, ...]
    copies: tuple[tuple[str, int, tuple[Poly, ...], int], ...]
    """(place, wire, coordinates' extents, position of the coordinate the value must not depend on)."""


@dataclass
class Typed:
    """A typed substitution.  `owed`: what the right side and the outputs need (empty if only the left was typed)."""

    rule: Substitution
    facts: Facts
    inputs: tuple[TensorType, ...]
    left: Side
    right: Side
    owed: list[Obligation]

    def type_of(self, side: Side, wire: int) -> TensorType:
        """Type of a wire."""
        return side.types[wire] if wire >= 0 else self.inputs[-1 - wire]


def condition_names(rule: Substitution, facts: Facts, inputs: tuple[TensorType, ...]) -> dict[str, Poly]:
    """The names that conditions may use, in the unknowns of `facts`."""
    out: dict[str, Poly] = {s: Poly.of(f"@{s}") for s in rule.symbols}
    for p, t in zip(rule.inputs, inputs, strict=True):
        for a in range(p.rank):
            out[f"{p.name}.{a}"] = t.sizes[a]
            out[f"{p.name}.{a}.degree"] = t.degrees[a]
    return out


def translate(c: Condition, names: Mapping[str, Poly]) -> Condition:
    """A condition in other unknowns."""
    match c:
        case Equal():
            return Equal(c.left.substitute(names), c.right.substitute(names))
        case AtLeast():
            return AtLeast(c.value.substitute(names))
        case Divides():
            return Divides(c.divisor.substitute(names), c.value.substitute(names))
        case OneOrMultiple():
            return OneOrMultiple(c.divisor.substitute(names), c.value.substitute(names))
        case _:
            assert_never(c)


def type_left(rule: Substitution, choices: tuple[int, ...] = (), instance: Mapping[str, int] | None = None) -> Typed:
    """Type inputs and left side under the preconditions; with `instance` (values of the names of conditions) one
    concrete case.

    Raises `Contradiction` (no instance), `IllTyped` (no instance whatever the sizes) or `NeedsChoice`.
    """
    facts = Facts(choices)
    inputs = []
    for s in rule.symbols:
        facts.unknown(f"@{s}", 1)  # '@' keeps them apart from the names that operator rows bind
    for p in rule.inputs:
        fixed = dict(p.fixed)
        sizes, degrees = [], []
        for a in range(p.rank):
            if a in fixed:
                sizes.append(Poly.of(fixed[a]))
                degrees.append(ONE)
            elif p.sharded:
                d = facts.unknown(f"{p.name}.{a}.degree", 1)
                degrees.append(d)
                sizes.append(d * facts.unknown(f"{p.name}.{a}.block", 1))
            else:
                sizes.append(facts.unknown(f"{p.name}.{a}", 1))
                degrees.append(ONE)
        inputs.append(TensorType(tuple(sizes), tuple(degrees), (None,) * p.rank))
    names = condition_names(rule, facts, tuple(inputs))
    if instance is not None:
        for s, v in instance.items():
            facts.assume(Equal(names[s], Poly.of(v)))
    typed = Typed(rule, facts, tuple(inputs), Side((), (), ()), Side((), (), ()), [])
    typed.left = _type_side(typed, rule.left, "left", assumed=True)
    if instance is None:
        for c in rule.preconditions:
            facts.assume(translate(c, names))
    return typed


def type_right(typed: Typed) -> None:
    """Type the right side and compare the mapped outputs; fills `owed`.  Raises `IllTyped` or `Stuck`."""
    rule, facts = typed.rule, typed.facts
    typed.right = _type_side(typed, rule.right, "right", assumed=False)
    for a, b in rule.outputs:
        x, y = typed.type_of(typed.left, a), typed.type_of(typed.right, b)
        place = "mapped output"
        if len(x.sizes) != len(y.sizes):
            raise IllTyped(place, f"ranks {len(x.sizes)} and {len(y.sizes)} differ")
        if [k for k, _ in x.times] != [k for k, _ in y.times]:
            raise IllTyped(place, "time coordinates differ")
        xs, ys = ([s for q in t.sums if (s := facts.now(q)) != ONE] for t in (x, y))
        if len(xs) != len(ys):
            raise IllTyped(place, "partial sums differ")
        pairs = [
            *zip(x.sizes, y.sizes, strict=True),
            *zip(x.degrees, y.degrees, strict=True),
            (x.copy, y.copy),
            *zip(xs, ys, strict=True),
        ]
        pairs += [(m, n) for (_, m), (_, n) in zip(x.times, y.times, strict=True)]
        for m, n in pairs:
            _owe(typed, Equal(m, n), place)


def _owe(typed: Typed, c: Condition, place: str) -> None:
    facts = typed.facts
    match c:
        case Equal():
            p = facts.now(c.left - c.right)
            if p.constant is not None and p.terms:
                raise IllTyped(place, f"{c} is false")
            if p.terms:
                typed.owed.append(Obligation(p, True, place, Equal(facts.now(c.left), facts.now(c.right))))
        case AtLeast():
            p = facts.now(c.value)
            if p.constant is None or p.constant < 0:
                typed.owed.append(Obligation(p, False, place, AtLeast(p)))
        case Divides():
            _owed_quotient(typed, c.value, c.divisor, place)
        case OneOrMultiple():
            _owed_shrunk(typed, c.value, c.divisor, place)
        case _:
            assert_never(c)


def _owed_quotient(typed: Typed, value: Poly, divisor: Poly, place: str) -> Poly:
    v, d = typed.facts.now(value), typed.facts.now(divisor)
    q = v.exact_quotient(d)
    if v.constant is not None and d.constant is not None and not divides(d.constant, v.constant):
        raise IllTyped(place, f"{d} does not divide {v}")
    _owe_signs(typed, v, d, place)
    if q is None:
        factor, v, d = cancel(v, d)
        same = typed.facts.same_quotient(v, d)
        if same is None:
            multiple = d.exact_quotient(v)  # k v divides v only if k is 1
            raise Stuck(
                Divides(d, v) if multiple is None or not typed.facts.positive(v) else Equal(multiple, ONE), place
            )
        q = same * factor
    return q


def _owed_shrunk(typed: Typed, value: Poly, divisor: Poly, place: str) -> Poly:
    v, d = typed.facts.now(value), typed.facts.now(divisor)
    if v == ONE:
        return ONE
    q = v.exact_quotient(d)
    if q is None:
        if v.constant is not None and d.constant is not None and not divides(d.constant, v.constant):
            raise IllTyped(place, f"{v} is neither 1 nor a multiple of {d}")
        if content(v) > 1:  # never 1
            return _owed_quotient(typed, v, d, place)
        q = typed.facts.same_quotient(v, d)
        if q is None:
            raise Stuck(OneOrMultiple(d, v), place)
        return q
    _owe_signs(typed, v, d, place)
    return q


def _owe_signs(typed: Typed, value: Poly, divisor: Poly, place: str) -> None:
    """A divisibility also means value >= 0 and divisor >= 1; both are sizes nearly always, and then visible."""
    for p in (value, divisor - 1):
        if not typed.facts.positive(p + 1):
            _owe(typed, AtLeast(p), place)


def _type_side(typed: Typed, nodes: tuple[Node, ...], side: str, assumed: bool) -> Side:
    facts = typed.facts
    types: list[TensorType] = []
    bodies: list[Lifted] = []
    copies: list[tuple[str, int, tuple[Poly, ...], int]] = []
    for k, one in enumerate(nodes):
        place = f"{side} operator {k} ({one.operator})"
        operands = tuple(_type_now(facts, types[w] if w >= 0 else typed.inputs[-1 - w]) for w in one.inputs)
        try:
            m = meaning(one, tuple(len(t.sizes) for t in operands))
        except RankError as e:
            raise IllTyped(place, str(e)) from None
        settle: Callable[[Condition], None] = facts.assume if assumed else partial(_owe, typed, place=place)
        names = _operand_names(facts, one, operands)
        trees = list(result_trees(m, operands))
        if isinstance(m.tree, Part) and operands:
            tree = operands[0].trees[m.tree.axis]
            if tree is None:
                raise IllTyped(place, f"axis {m.tree.axis} was not joined by a concat")
            for first, second in tree.needs:
                settle(Equal(first, second))
            names[m.tree.at] = facts.now(tree.at)
            trees[m.tree.axis] = tree.first if m.tree.which == 0 else tree.second
        _define(typed, m, names, assumed, place)
        for c in m.require:
            settle(translate(c, names))
        if isinstance(m.tree, Join):
            trees[m.tree.axis] = Tree(
                operands[0].sizes[m.tree.axis], operands[0].trees[m.tree.axis], operands[1].trees[m.tree.axis]
            )
        renamed = _put_meaning(m, {s: facts.now(p) for s, p in names.items()})
        operands = tuple(_type_now(facts, t) for t in operands)
        degrees, copy, sums, times, conditions, body = shards(place, renamed, operands)
        for c in conditions:
            settle(c)
        for s in renamed.sizes:
            if not facts.positive(facts.now(s)):
                settle(AtLeast(s - 1))
        types.append(TensorType(renamed.sizes, degrees, tuple(trees), copy, sums, times))
        coordinates = (
            *(f"t{j}" for j in range(len(times))),
            *(f"q{j}" for j in range(len(sums))),
            *(f"i{j}" for j in range(len(m.sizes))),
        )
        bodies.append(Lifted(coordinates, body))
        for j, axis in m.copies:
            t = operands[j]
            extents = (*(e for _, e in t.times), *t.sums, *t.sizes)
            copies.append((place, one.inputs[j], extents, len(t.times) + len(t.sums) + axis))
    return Side(tuple(types), tuple(bodies), tuple(copies))


def _type_now(facts: Facts, t: TensorType) -> TensorType:
    """A type in the unknowns that are left."""
    n = facts.now
    return TensorType(
        tuple(map(n, t.sizes)),
        tuple(map(n, t.degrees)),
        tuple(_tree_now(facts, x) for x in t.trees),
        n(t.copy),
        tuple(map(n, t.sums)),
        tuple((a, n(e)) for a, e in t.times),
    )


def _operand_names(facts: Facts, one: Node, operands: tuple[TensorType, ...]) -> dict[str, Poly]:
    """Parameters of a node, and sizes and degrees of its operands, by the names that meanings use."""
    names: dict[str, Poly] = {}
    for key, value in one.parameters:
        if isinstance(value, int | str):
            names[key] = Poly.of(value) if isinstance(value, int) else facts.now(Poly.of(f"@{value}"))
    for j, t in enumerate(operands):
        for a, (s, d) in enumerate(zip(t.sizes, t.degrees, strict=True)):
            names[f"{j}.{a}"], names[f"{j}.{a}.degree"] = s, d
    x = operands[0] if operands else None
    names["0.sum"] = x.sums[0] if x and x.sums else ONE
    names["0.time"], names["0.time.axis"] = (
        (x.times[0][1], Poly.of(x.times[0][0])) if x and x.times else (ONE, Poly.of(-1))
    )
    return names


def _define(typed: Typed, m: Meaning, names: dict[str, Poly], assumed: bool, place: str) -> None:
    """Add the auxiliary numbers of a meaning to `names`."""
    facts = typed.facts
    for define in m.define:
        match define:
            case Floor():
                names[define.name] = facts.floor(
                    define.numerator.substitute(names), define.denominator.substitute(names)
                )
            case Largest():
                names[define.name] = facts.maximum(define.first.substitute(names), define.second.substitute(names))
            case Quotient():
                v, w = define.value.substitute(names), define.divisor.substitute(names)
                names[define.name] = facts.quotient(v, w) if assumed else _owed_quotient(typed, v, w, place)
            case Shrunk():
                v, w = define.value.substitute(names), define.divisor.substitute(names)
                names[define.name] = facts.shrunk(v, w) if assumed else _owed_shrunk(typed, v, w, place)
            case _:
                assert_never(define)


def _tree_now(facts: Facts, t: Tree | None) -> Tree | None:
    if t is None:
        return None
    needs = tuple((facts.now(a), facts.now(b)) for a, b in t.needs)
    return Tree(
        facts.now(t.at),
        _tree_now(facts, t.first),
        _tree_now(facts, t.second),
        tuple((a, b) for a, b in needs if a != b),
    )


def _put_meaning(m: Meaning, names: Mapping[str, Poly]) -> Meaning:
    def index(ps: Index) -> Index:
        return tuple(p.substitute(names) for p in ps)

    a = m.auxiliary
    aux = (
        None
        if a is None
        else Auxiliary(
            a.copy.substitute(names),
            a.sums_taken,
            index(a.sums),
            a.times_taken,
            tuple((k, e.substitute(names)) for k, e in a.times),
        )
    )
    return Meaning(
        index(m.sizes),
        substitute(m.body, names),
        (),
        (),
        None if m.degrees is None else index(m.degrees),
        m.copies,
        m.tree,
        aux,
    )


__all__ = [
    "Contradiction",
    "Facts",
    "NeedsChoice",
    "Obligation",
    "Side",
    "Stuck",
    "Typed",
    "condition_names",
    "translate",
    "type_left",
    "type_right",
]

"""Exact values of both sides of a substitution on one instance, by the operator table alone (Python
integers and fractions, small sizes).

    value of a node at (times, sums, data) = its index expression, sums and maxima written out

Functions are what `functions.FUNCTIONS` says: rational values are exact, others lie between bounds (`enclosures`).  Two
values count as different only if that is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, assert_never

from . import index_expressions
from .enclosures import NotDecided, Number, apply, differ, largest
from .index_expressions import Call, Digit, Expression, Most, Plus, Read, Times, Total, Where
from .polynomial import Poly
from .rule import Substitution
from .shards import IllTyped
from .types import Contradiction, Side, Stuck, Typed, type_left, type_right

Tensor = dict[tuple[int, ...], Number]
Keys = dict[tuple[object, ...], int]
MOST_WORK: Final = 2_000_000


Meter = Callable[[int], None]
"""Told of steps of evaluation before they are taken; it raises where they are too many."""

CALL: Final = 64
"""Steps that a meter counts for a function, whose bounds are fractions of many digits."""


@dataclass
class _Work:
    """Steps taken of an evaluation, and who else counts them."""

    meter: Meter | None
    taken: int = 0


class TooMuchWork(ValueError):
    """The instance is too large for element-by-element evaluation."""


def instance_names(rule: Substitution) -> tuple[str, ...]:
    """What an instance gives values to: parameters, degrees, sizes (fixed axes left out)."""
    out = list(rule.symbols)
    for p in rule.inputs:
        fixed = dict(p.fixed)
        free = [a for a in range(p.rank) if a not in fixed]
        if p.sharded:
            out += [f"{p.name}.{a}.degree" for a in free]
        out += [f"{p.name}.{a}" for a in free]
    return tuple(out)


def all_names(rule: Substitution, instance: Mapping[str, int]) -> dict[str, int]:
    """Values of every name that a condition may use."""
    out = dict(instance)
    for p in rule.inputs:
        fixed = dict(p.fixed)
        for a in range(p.rank):
            if a in fixed:
                out[f"{p.name}.{a}"] = fixed[a]
            out.setdefault(f"{p.name}.{a}.degree", 1)
    return out


def input_sizes(rule: Substitution, instance: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Shape of every pattern input."""
    names = all_names(rule, instance)
    return [tuple(names[f"{p.name}.{a}"] for a in range(p.rank)) for p in rule.inputs]


def type_instance(rule: Substitution, instance: Mapping[str, int]) -> Typed:
    """The left side typed on an instance; `Contradiction` or `IllTyped` if it does not type."""
    if set(instance) != set(instance_names(rule)) or any(v < 1 for v in instance.values()):
        raise Contradiction(f"an instance gives integers >= 1 to {', '.join(instance_names(rule))}")
    names = all_names(rule, instance)
    for p in rule.inputs:
        for a in range(p.rank):
            if names[f"{p.name}.{a}"] % names[f"{p.name}.{a}.degree"]:
                raise Contradiction(f"{p.name}.{a}: the degree does not divide the size")
    return type_left(rule, instance={k: instance[k] for k in instance_names(rule)})


def right_fault(typed: Typed) -> str | None:
    """Why the right side of an instance does not type or agree: "typing", "shape", or None."""
    try:
        type_right(typed)
    except IllTyped as e:
        return "shape" if e.place == "mapped output" else "typing"
    except Stuck:
        return "typing"
    for o in typed.owed:
        if o.value.constant is None or (o.value.terms and o.equation) or o.value.constant < 0:
            return "shape" if o.place == "mapped output" else "typing"
    return None


def tensors_of(
    typed: Typed, side: Side, values: Sequence[Tensor], keys: Keys, meter: Meter | None = None
) -> list[Tensor]:
    """Values of all nodes of a side on an instance; `NotDecided` if bounds do not determine one.  `keys`: those of
    all irrational values so far.
    """
    nodes = typed.rule.left if side is typed.left else typed.rule.right
    out: list[Tensor] = []
    work = _Work(meter)
    for k, lifted in enumerate(side.bodies):
        t = side.types[k]
        extents = [_whole(typed, e) for e in (*(e for _, e in t.times), *t.sums, *t.sizes)]
        operands = [out[w] if w >= 0 else values[-1 - w] for w in nodes[k].inputs]
        _spend(work, _volume(extents))
        run = _compiled(lifted.body, typed, operands, keys, work)
        here: Tensor = {}
        for at in product(*(range(n) for n in extents)):
            here[at] = run(dict(zip(lifted.coordinates, at, strict=True)))
        out.append(here)
    return out


def denotation(typed: Typed, side: Side, wire: int, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Value of a wire with its partial sums added up."""
    t = typed.type_of(side, wire)
    found = tensors[wire] if wire >= 0 else values[-1 - wire]
    out: Tensor = {}
    a, b = len(t.times), len(t.times) + len(t.sums)
    for at, v in found.items():
        key = (*at[:a], *at[b:])
        out[key] = out.get(key, 0) + v
    return out


def copies_differ(typed: Typed, side: Side, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> bool | None:
    """Whether some operand that must not depend on an axis does; None if bounds do not tell."""
    seen: set[bool | None] = set()
    for _, wire, _, position in side.copies:
        found = tensors[wire] if wire >= 0 else values[-1 - wire]
        seen |= {differ(v, found[(*at[:position], 0, *at[position + 1 :])]) for at, v in found.items()}
    return True if True in seen else None if None in seen else False


def value_fault(typed: Typed, values: Sequence[Tensor], meter: Meter | None = None) -> str | None:
    """What is certainly wrong on an instance typed on both sides: "left copy", "copy", "value" or None.  `NotDecided`
    if it depends on values that bounds do not determine."""
    keys: Keys = {}
    left = tensors_of(typed, typed.left, values, keys, meter)
    broken = copies_differ(typed, typed.left, left, values)
    if broken:
        return "left copy"
    right = tensors_of(typed, typed.right, values, keys, meter)
    found = None
    if copies_differ(typed, typed.right, right, values):
        found = "copy"
    elif any(
        _differ(denotation(typed, typed.left, a, left, values), denotation(typed, typed.right, b, right, values))
        for a, b in typed.rule.outputs
    ):
        found = "value"
    if found is not None and broken is None:
        raise NotDecided("whether copies of the left side are equal")
    return found


def _differ(x: Tensor, y: Tensor) -> bool:
    return x.keys() != y.keys() or any(differ(v, y[at]) for at, v in x.items())


def tensor(sizes: Sequence[int], entries: Sequence[int]) -> Tensor:
    """A tensor from row-major entries."""
    return dict(zip(product(*(range(n) for n in sizes)), entries, strict=True))


def _whole(typed: Typed, p: Poly) -> int:
    value = typed.facts.now(p).constant
    if value is None:
        raise Contradiction(f"{p} is not determined by the instance")
    return value


def _spend(work: _Work, steps: int) -> None:
    if work.meter is not None:
        work.meter(steps)
    work.taken += steps
    if work.taken > MOST_WORK:
        raise TooMuchWork(f"more than {MOST_WORK} steps of evaluation")


def _volume(extents: Sequence[int]) -> int:
    out = 1
    for n in extents:
        out *= max(n, 0)
    return out


Environment = dict[str, int]
Run = Callable[[Environment], Number]


def _compiled(e: Expression, typed: Typed, operands: Sequence[Tensor], keys: Keys, work: _Work) -> Run:
    def poly(p: Poly) -> Callable[[Environment], int]:
        q = typed.facts.now(p)
        terms = list(q.terms.items())
        if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
            name = terms[0][0][0]
            return lambda env: env[name]
        return q.value

    def sub(x: Expression) -> Run:
        return _compiled(x, typed, operands, keys, work)

    match e:
        case Read():
            index, table = [poly(p) for p in e.index], operands[e.operand]

            def read(env: Environment) -> Number:
                _spend(work, 1)
                return table[tuple(p(env) for p in index)]

            return read
        case index_expressions.Number():
            return poly(e.value)
        case Call():
            arguments, index, f = [sub(a) for a in e.arguments], [poly(p) for p in e.index], e.function

            def call(env: Environment) -> Number:
                if work.meter is not None:
                    work.meter(CALL)
                return apply(f, [p(env) for p in index], [a(env) for a in arguments], keys)

            return call
        case Plus():
            terms = [sub(t) for t in e.terms]
            return lambda env: sum(t(env) for t in terms)
        case Times():
            return _product([sub(t) for t in e.factors])
        case Where():
            guards, body = [poly(g) for g in e.guards], sub(e.body)
            return lambda env: body(env) if all(g(env) >= 0 for g in guards) else 0
        case Total():
            extent, body, v = poly(e.extent), sub(e.body), e.variable

            def total(env: Environment) -> Number:
                n = extent(env)
                _spend(work, n)
                return sum(body({**env, v: k}) for k in range(n))

            return total
        case Digit():
            top, modulus, body, v = poly(e.numerator), poly(e.modulus), sub(e.body), e.variable
            return lambda env: body({**env, v: top(env) // modulus(env)})
        case Most():
            box = {v: poly(n) for v, n in e.ranges}
            return _maximum(box, [poly(g) for g in e.guards], sub(e.body), keys, work)
        case _:
            assert_never(e)


def _product(factors: Sequence[Run]) -> Run:
    def times(env: Environment) -> Number:
        out: Number = 1
        for f in factors:
            out = out * f(env)
        return out

    return times


def _maximum(
    box: Mapping[str, Callable[[Environment], int]],
    guards: Sequence[Callable[[Environment], int]],
    body: Run,
    keys: Keys,
    work: _Work,
) -> Run:
    """The largest value of `body` where the variables of the box keep all guards; 0 where there is none."""

    def most(env: Environment) -> Number:
        found: list[Number] = []
        sizes = [n(env) for n in box.values()]
        _spend(work, _volume(sizes))
        for at in product(*map(range, sizes)):
            inner = {**env, **dict(zip(box, at, strict=True))}
            if all(g(inner) >= 0 for g in guards):
                found.append(body(inner))
        return largest(found, keys) if found else 0

    return most

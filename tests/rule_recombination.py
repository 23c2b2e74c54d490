"""Rules like those of the public files that were kept apart: development rules reversed, extended, substituted into,
joined and changed.

    reverse      target => source
    narrow       two pattern inputs become one
    extend       the same operator on both mapped outputs (truth stays, shapes grow)
    substitute   an operator in place of a pattern input, on both sides
    part         one more pair of tensors mapped
    join         two rules over shared inputs, all outputs mapped
    change       axis, degree, stride, kernel, padding, activation, operand order, operator: mostly false

All in the public format, so that loader and prover are exercised together.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from shardproof.models.sources.rules.formats import PublicOperator, PublicRule, PublicTensor, RuleError, check_rules
from shardproof.models.sources.rules.meaning import Reading

_WINDOW = (("KERNEL_H", 3), ("KERNEL_W", 2), ("STRIDE_H", 2), ("STRIDE_W", 1))
UNARY = {
    Reading.TASO: (
        *(("RELU", ()), ("SIGMOID", ()), ("TANH", ())) * 3,
        ("TRANSPOSE", (("NUMDIM", 2), ("PERM", 2))),
        ("TRANSPOSE", (("NUMDIM", 4), ("PERM", 30))),
        ("TRANSPOSE", (("NUMDIM", 3), ("PERM", 15))),
        *((kind, (*_WINDOW, ("PAD", pad))) for kind in ("POOL2D_MAX", "POOL2D_AVG") for pad in (0, 1)),
        ("ENLARGE", (("KERNEL_H", 5), ("KERNEL_W", 3))),
    ),
    Reading.FLEXFLOW: (
        ("RELU", ()),
        *(
            (kind, (("PARALLEL_DIM", axis), ("PARALLEL_DEGREE", d)))
            for kind in ("PARTITION", "COMBINE", "REPLICATE", "REDUCE")
            for axis in (0, 1, 2)
            for d in (2, 3, 4, 6)
        ),
    ),
}
BINARY = {
    Reading.TASO: (
        ("EW_ADD", ()),
        ("EW_MUL", ()),
        ("MATMUL", (("ACTI", 0),)),
        ("MATMUL", (("ACTI", 2),)),
        *(("CONCAT", (("AXIS", a), ("NUM_INPUTS", 2))) for a in (0, 1, 2)),
        ("CONV2D", (("STRIDE_H", 2), ("STRIDE_W", 1), ("PAD", 0), ("ACTI", 0), ("KERNEL_H", 2), ("KERNEL_W", 3))),
    ),
    Reading.FLEXFLOW: (
        ("EW_ADD", ()),
        ("EW_MUL", ()),
        ("LINEAR", (("ACTI", 0),)),
        ("LINEAR", (("ACTI", 2),)),
        *(("CONCAT", (("AXIS", a), ("NUMDIM", 3), ("NUM_INPUTS", 2))) for a in (0, 1, 2)),
    ),
}
ALIKE = (
    ("EW_ADD", "EW_MUL"),
    ("RELU", "SIGMOID", "TANH"),
    ("PARTITION", "COMBINE", "REPLICATE", "REDUCE"),
    ("MATMUL", "EW_MUL"),
    ("LINEAR", "EW_MUL"),
)
VALUES = {
    "AXIS": (0, 1, 2, 3),
    "PARALLEL_DIM": (0, 1, 2),
    "PARALLEL_DEGREE": (1, 2, 3, 4, 6),
    "STRIDE_H": (1, 2, 3),
    "STRIDE_W": (1, 2, 3),
    "PAD": (0, 1),
    "ACTI": (0, 1, 2, 3),
    "KERNEL_H": (1, 2, 3, 4, 5),
    "KERNEL_W": (1, 2, 3),
}


def recombined(rules: list[PublicRule], reading: Reading, count: int, seed: int) -> Iterator[PublicRule]:
    """`count` well-formed rules, each different from every given one."""
    rng = random.Random(seed)
    seen = {(r.source, r.target, r.outputs) for r in rules}
    made = 0
    while made < count:
        new = rng.choice(rules)
        ways = []
        for _ in range(rng.choice((1, 1, 2, 2, 3))):
            way = rng.choice((reverse, narrow, extend, substitute, join, part, change, change))
            new = way(new, rules, reading, rng)
            ways.append(way.__name__)
        key = (new.source, new.target, new.outputs)
        if key in seen or len(new.source) > 5 or len(new.target) > 5:
            continue
        seen.add(key)
        try:
            check_rules((new,))
        except RuleError:
            continue
        made += 1
        yield replace(new, index=made, name=f"{new.name}~{made}~{'-'.join(ways)}")


def reverse(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    return replace(r, source=r.target, target=r.source, outputs=tuple((t, s) for s, t in r.outputs))


def inputs_of(r: PublicRule) -> list[int]:
    return sorted({t.operator for op in (*r.source, *r.target) for t in op.inputs if t.operator < 0}, reverse=True)


def renamed(operators: tuple[PublicOperator, ...], names: dict[int, int], by: int = 0) -> tuple[PublicOperator, ...]:
    """Pattern inputs renamed, positions moved by `by`."""

    def tensor(t: PublicTensor) -> PublicTensor:
        return PublicTensor(names.get(t.operator, t.operator) if t.operator < 0 else t.operator + by, t.output)

    return tuple(replace(op, inputs=tuple(map(tensor, op.inputs))) for op in operators)


def narrow(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    names = inputs_of(r)
    if len(names) < 2:
        return r
    a, b = rng.sample(names, 2)
    outputs = tuple(
        (PublicTensor(b) if s.operator == a else s, PublicTensor(b) if t.operator == a else t) for s, t in r.outputs
    )
    return replace(r, source=renamed(r.source, {a: b}), target=renamed(r.target, {a: b}), outputs=outputs)


def extend(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    other = PublicTensor(rng.choice([*inputs_of(r), -8])) if rng.random() < 0.4 else None
    kind, parameters = rng.choice(UNARY[reading] if other is None else BINARY[reading])
    k = rng.randrange(len(r.outputs))
    s, t = r.outputs[k]
    source = (*r.source, PublicOperator(kind, (s,) if other is None else (s, other), parameters))
    target = (*r.target, PublicOperator(kind, (t,) if other is None else (t, other), parameters))
    pair = (PublicTensor(len(source) - 1), PublicTensor(len(target) - 1))
    return replace(r, source=source, target=target, outputs=(*r.outputs[:k], pair, *r.outputs[k + 1 :]))


def substitute(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    names = inputs_of(r)
    if not names:
        return r
    x = rng.choice(names)
    if rng.random() < 0.5:
        kind, parameters = rng.choice(UNARY[reading])
        first = PublicOperator(kind, (PublicTensor(x),), parameters)
    else:
        first = PublicOperator(
            rng.choice(("EW_ADD", "EW_MUL")), (PublicTensor(x), PublicTensor(rng.choice([*names, -9])))
        )

    def side(operators: tuple[PublicOperator, ...]) -> tuple[PublicOperator, ...]:
        moved = renamed(operators, {}, 1)
        return (
            first,
            *(replace(op, inputs=tuple(PublicTensor(0) if t.operator == x else t for t in op.inputs)) for op in moved),
        )

    def end(t: PublicTensor) -> PublicTensor:
        return PublicTensor(0) if t.operator == x else t if t.operator < 0 else PublicTensor(t.operator + 1, t.output)

    return replace(
        r, source=side(r.source), target=side(r.target), outputs=tuple((end(s), end(t)) for s, t in r.outputs)
    )


def join(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    o = rng.choice(rules)

    def end(t: PublicTensor, by: int) -> PublicTensor:
        return t if t.operator < 0 else PublicTensor(t.operator + by, t.output)

    outputs = (*r.outputs, *((end(s, len(r.source)), end(t, len(r.target))) for s, t in o.outputs))
    return replace(
        r,
        source=(*r.source, *renamed(o.source, {}, len(r.source))),
        target=(*r.target, *renamed(o.target, {}, len(r.target))),
        outputs=outputs,
    )


def part(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    """A second mapped output: both parts of a split of what was mapped, or an operator inside."""
    if not r.source or not r.target:
        return r
    s, t = rng.randrange(len(r.source)), rng.randrange(len(r.target))
    pair = (PublicTensor(s), PublicTensor(t))
    return r if pair in r.outputs else replace(r, outputs=(*r.outputs, pair))


def change(r: PublicRule, rules: list[PublicRule], reading: Reading, rng: random.Random) -> PublicRule:
    both = rng.random() < 0.4  # the same parameter everywhere: often still true
    side = rng.choice(("source", "target"))
    operators = list(getattr(r, side))
    if not operators:
        return r
    k = rng.randrange(len(operators))
    op = operators[k]
    match rng.randrange(4):
        case 0 if len(op.inputs) > 1:
            operators[k] = replace(op, inputs=op.inputs[::-1])
        case 1:
            others = [
                o
                for group in ALIKE
                if op.kind in group
                for o in group
                if o != op.kind and len(op.inputs) == (2 if o in ("EW_ADD", "EW_MUL", "LINEAR", "MATMUL") else 1)
            ]
            if others:
                operators[k] = replace(op, kind=rng.choice(others))
        case 2 if op.inputs:
            j = rng.randrange(len(op.inputs))
            w = rng.choice([*inputs_of(r), *range(k)])
            operators[k] = replace(op, inputs=(*op.inputs[:j], PublicTensor(w), *op.inputs[j + 1 :]))
        case _:
            keys = [key for key, _ in op.parameters if key in VALUES]
            if keys:
                key = rng.choice(keys)
                new, old = rng.choice(VALUES[key]), dict(op.parameters)[key]

                def put(one: PublicOperator) -> PublicOperator:
                    return replace(
                        one, parameters=tuple((a, new if (a, b) == (key, old) else b) for a, b in one.parameters)
                    )

                if both:
                    return replace(r, source=tuple(map(put, r.source)), target=tuple(map(put, r.target)))
                operators[k] = put(op)
    return replace(r, **{side: tuple(operators)})


__all__ = ["recombined"]

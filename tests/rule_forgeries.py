"""Forgeries of rule libraries: true files changed in one or two places and written again with fitting hashes.

rule         an operator, wire, parameter, side or output changed under an unchanged proof
precondition left out, weakened, its signs changed, with or without the counterexample that showed it necessary
proof        a case, fact, step, map or axiom changed; the proof of another rule
refutation   of a true rule: a made-up instance, entries, kind of failure
derivation   a step left out, doubled, turned, moved, of another rule, with other inputs or numbers; another rule
             claimed
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace

from shardproof.models.rewrites.polynomial import Poly
from shardproof.models.rewrites.rule import (
    AtLeast,
    Condition,
    Divides,
    Equal,
    OneOrMultiple,
    Substitution,
    SubstitutionError,
)
from shardproof.models.rewrites.value import input_sizes, instance_names
from shardproof.proofs.rewrites.derivation import Applied, Derivation
from shardproof.proofs.rewrites.judgement import Counterexample, Judgement, Proved, Refuted
from shardproof.proofs.rewrites.library import Library

from .substitution_cases import _changed


def forgeries(base: Library, count: int, seed: int) -> Iterator[tuple[str, Library, str]]:
    """(kind, library, name of the forged rule): the forged judgement alone, or the derivation with the rules that
    it may use.
    """
    rng = random.Random(seed)
    proved = [j for j in base.judgements if isinstance(j, Proved)]
    kinds = ("rule", "precondition", "proof", "refutation", *(("derivation", "derivation") if base.derivations else ()))
    made = 0
    while made < count:
        kind = rng.choice(kinds)
        found = _derivation(base, rng) if kind == "derivation" else _judgement(kind, rng.choice(proved), proved, rng)
        if found is None:
            continue
        made += 1
        if isinstance(found, Derivation):
            used = {s.rule for steps in found.steps for s in steps}
            yield kind, Library("forged", tuple(j for j in proved if j.rule.name in used), (found,)), found.rule.name
        else:
            yield kind, Library("forged", (found,)), found.rule.name


def _judgement(kind: str, j: Proved, proved: Sequence[Proved], rng: random.Random) -> Judgement | None:
    match kind:
        case "rule":
            new = _other_rule(j.rule, rng)
            return None if new is None or new == j.rule else replace(j, rule=new)
        case "precondition":
            return _precondition(j, rng)
        case "proof":
            other = rng.choice(proved)
            if rng.random() < 0.2:
                return replace(j, cases=other.cases)
            new = _part(j.cases, rng)
            return replace(j, cases=new) if isinstance(new, tuple) and new != j.cases else None
        case _:
            return _refutation(j, rng)


def _other_rule(r: Substitution, rng: random.Random) -> Substitution | None:
    match rng.randrange(6):
        case 0:
            new = replace(r, left=r.right, right=r.left, outputs=tuple((b, a) for a, b in r.outputs))
        case 1 if len(r.outputs) > 1:
            new = replace(
                r, outputs=tuple(zip((a for a, _ in r.outputs), (b for _, b in r.outputs[::-1]), strict=True))
            )
        case 2:
            a = r.outputs[0][0]
            new = replace(r, outputs=((a, rng.randrange(-len(r.inputs), len(r.right) or 1)), *r.outputs[1:]))
        case 3:
            k = rng.randrange(len(r.inputs) or 1)
            new = replace(
                r, inputs=tuple(replace(p, sharded=not p.sharded) if j == k else p for j, p in enumerate(r.inputs))
            )
        case _:
            new = _changed(r, rng)
    try:
        return new.check()
    except SubstitutionError:
        return None


def _precondition(j: Proved, rng: random.Random) -> Proved | None:
    conditions = list(j.rule.preconditions)
    needed = list(j.needed)
    if not conditions:
        names = sorted(j.rule.names)
        if not names:
            return None
        p = Poly.of(rng.choice(names))
        made: Condition = rng.choice(
            (
                AtLeast(p - 2),
                Divides(Poly.of(2), p - 3),
                Equal(p, Poly.of(1)),
                Divides(Poly.of(-1), p),
                OneOrMultiple(p, p),
            )
        )
        return replace(j, rule=replace(j.rule, preconditions=(made,)), needed=tuple(needed[:1]))
    k = rng.randrange(len(conditions))
    if rng.random() < 0.4:
        del conditions[k]
        if rng.random() < 0.8:
            del needed[k]
    else:
        conditions[k] = _other_condition(conditions[k], rng)
    return replace(j, rule=replace(j.rule, preconditions=tuple(conditions)), needed=tuple(needed))


def _other_condition(c: Condition, rng: random.Random) -> Condition:
    match c:
        case Equal():
            return rng.choice(
                (
                    AtLeast(c.left - c.right),
                    AtLeast(c.right - c.left),
                    Equal(c.left, c.right + 1),
                    Divides(c.right, c.left),
                    Equal(c.left * c.left, c.right * c.right),
                )
            )
        case AtLeast():
            return rng.choice((AtLeast(c.value + 1), AtLeast(-c.value), AtLeast(c.value * c.value)))
        case Divides():
            return rng.choice(
                (
                    Divides(-c.divisor, c.value),
                    Divides(c.divisor, -c.value),
                    Divides(c.value, c.divisor),
                    OneOrMultiple(c.divisor, c.value),
                    Divides(Poly.of(1), c.value),
                    Divides(c.divisor, c.value - c.divisor),
                )
            )
        case OneOrMultiple():
            return rng.choice(
                (
                    OneOrMultiple(-c.divisor, c.value),
                    OneOrMultiple(c.value, c.divisor),
                    OneOrMultiple(c.divisor, -c.value),
                    OneOrMultiple(Poly.of(1), c.value),
                )
            )


def _part(value: object, rng: random.Random) -> object:
    """A record tree with one part changed, chosen on a random walk from the root."""
    if isinstance(value, tuple) and value:
        k = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return (*value[:k], *value[k + 1 :])
            case 1:
                return (*value[:k], value[-1 - k], *value[k + 1 :])
            case _:
                return (*value[:k], _part(value[k], rng), *value[k + 1 :])
    if isinstance(value, Poly):
        return rng.choice((value + 1, -value, value * 2, value - 1, Poly({})))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 2))
    if isinstance(value, str):
        return rng.choice(("not negative", "not positive", "factor", "zero", "square", "maximum", "k$1", value + "'h"))
    if is_dataclass(value) and not isinstance(value, type | Substitution) and fields(value):
        f = rng.choice(fields(value))
        return replace(value, **{f.name: _part(getattr(value, f.name), rng)})
    return value


def _refutation(j: Proved, rng: random.Random) -> Refuted:
    """The rule is true: whatever is made up must not show that it fails."""
    if j.needed and rng.random() < 0.5:
        old = rng.choice(j.needed)
        return Refuted(j.rule, rng.choice((old, replace(old, what=rng.choice(("value", "typing", "shape", "copy"))))))
    values = {n: rng.randint(1, 4) for n in instance_names(j.rule)} if rng.random() < 0.5 else dict(j.witness)
    entries = []
    for s in input_sizes(j.rule, values):
        size = 1
        for n in s:
            size *= n
        entries.append(tuple(rng.randint(-6, 6) for _ in range(min(size, 4000))))
    what = rng.choice(("value", "typing", "shape", "copy", "left copy"))
    return Refuted(
        j.rule, Counterexample(tuple(sorted(values.items())), tuple(entries), rng.choice(("true", "any")), what)
    )


def _derivation(base: Library, rng: random.Random) -> Derivation | None:
    d = rng.choice(base.derivations)
    if rng.random() < 0.25:
        new = _other_rule(d.rule, rng)
        return None if new is None or new == d.rule else replace(d, rule=new)
    if rng.random() < 0.15 and d.rule.preconditions:
        return replace(d, rule=replace(d.rule, preconditions=d.rule.preconditions[1:]))
    at = rng.randrange(len(d.steps))
    steps = list(d.steps[at])
    if not steps:
        return None
    k = rng.randrange(len(steps))
    rules = [j.rule for j in base.judgements if isinstance(j, Proved)]
    match rng.randrange(7):
        case 0:
            del steps[k]
        case 1:
            steps.insert(k, steps[k])
        case 2:
            steps[k] = replace(steps[k], forward=not steps[k].forward)
        case 3:
            steps[k], steps[0] = steps[0], steps[k]
        case 4:
            used = rng.choice(rules)
            steps[k] = Applied(used.name, 0, rng.random() < 0.5, steps[k].inputs[: len(used.inputs)], steps[k].numbers)
        case 5:
            steps[k] = replace(steps[k], inputs=tuple(rng.sample(steps[k].inputs, len(steps[k].inputs))))
        case _:
            steps[k] = replace(
                steps[k],
                numbers=tuple((n, rng.choice((v, 1, 2, "d"))) for n, v in steps[k].numbers),
                output=rng.choice((0, 0, 1)),
            )
    return replace(d, steps=(*d.steps[:at], tuple(steps), *d.steps[at + 1 :]))

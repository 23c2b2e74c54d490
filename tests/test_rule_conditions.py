"""Conditions of rules mean one thing: what the prover takes for known, what a derivation takes for visible, and what
evaluation finds.

Story: the prover assumed the quotient of `Divides` to be >= 0 and evaluation did not, so one rule under one
precondition was accepted as proved and as refuted.  `rule.holds` is the meaning; here what others make of a condition
is compared with it on integers of all signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.formal.rewriting.facts import Reasoner
from shardproof.formal.rewriting.prove import judge
from shardproof.models.problem.claims import Verdict
from shardproof.models.rewrites.knowledge import Contradiction, Facts, NeedsChoice
from shardproof.models.rewrites.polynomial import Poly
from shardproof.models.rewrites.rule import (
    AtLeast,
    Condition,
    Divides,
    Equal,
    OneOrMultiple,
    Substitution,
    SubstitutionError,
    divides,
    holds,
)
from shardproof.models.rewrites.value import right_fault, type_instance
from shardproof.proofs.rewrites.judgement import Proved, Refuted
from shardproof.verify.rewrites.derivation import _visible
from shardproof.verify.rewrites.soundness import check_substitution

from .substitution_cases import node, rule

NAMES = ("a", "b", "c")
LOWS = (None, 0, 1)
VALUES = (-4, -3, -2, -1, 0, 1, 2, 3, 4, 6)

terms = st.lists(
    st.tuples(st.integers(-3, 3), st.sampled_from(["", "", "a", "b", "c", "a", "b", "aa", "ab", "bc"])),
    min_size=1,
    max_size=3,
)


def poly(found: list[tuple[int, str]]) -> Poly:
    out = Poly({})
    for c, names in found:
        out = out + Poly({tuple(sorted(names)): c})
    return out


polys = terms.map(poly)
conditions = st.one_of(
    st.builds(Equal, polys, polys),
    st.builds(AtLeast, polys),
    st.builds(Divides, polys, polys),
    st.builds(OneOrMultiple, polys, polys),
    st.builds(Divides, st.integers(-3, 4).map(Poly.of), polys),
    st.builds(OneOrMultiple, st.integers(-3, 4).map(Poly.of), polys),
)


def outcomes(lows: tuple[int | None, ...], assumed: list[Condition], choices: tuple[int, ...] = ()) -> Iterator[Facts]:
    """What is known after assuming the conditions, once per case."""
    facts = Facts(choices)
    for name, low in zip(NAMES, lows, strict=True):
        facts.unknown(name, low)
    try:
        for c in assumed:
            facts.assume(c)
    except NeedsChoice:
        for k in (0, 1):
            yield from outcomes(lows, assumed, (*choices, k))
        return
    except Contradiction:
        return
    yield facts


def extended(facts: Facts, values: dict[str, int]) -> dict[str, int] | None:
    """Values of the unknowns that were made on the way: quotients by what they divide, multiples by what they are a
    multiple of; None if one has none.
    """
    here = dict(values)
    for _ in range(8):
        for q, v, d in facts.quotients:
            (name,) = q.names
            if name not in here and v.names | d.names <= set(here):
                top, bottom = v.value(here), d.value(here)
                if not bottom or top % bottom:
                    return None
                here[name] = top // bottom
        for s, p in facts.sigma.items():
            missing = sorted(p.names - set(here))
            parts = p.coefficient(missing[0]) if len(missing) == 1 and s in here else None
            if parts is not None and parts[0].names <= set(here) and parts[0].value(here):
                rest = here[s] - parts[1].value(here)
                if rest % parts[0].value(here):
                    return None
                here[missing[0]] = rest // parts[0].value(here)
            elif not missing and s not in here:
                here[s] = p.value(here)
    return here


def fits(facts: Facts, values: dict[str, int]) -> bool:
    """Whether the values, extended, satisfy all that is known."""
    here = extended(facts, values)
    if here is None or not all(s in here for s in facts.low):
        return False
    return all(h.value(here) >= 0 for h in facts.all_facts()) and all(
        here[s] == p.value(here) for s, p in facts.sigma.items()
    )


def agrees(lows: tuple[int | None, ...], assumed: list[Condition]) -> int:
    """Every valuation on which the conditions hold is one of the general solution; the number of those."""
    known = list(outcomes(lows, assumed))
    found = 0
    ranges = [[v for v in VALUES if low is None or v >= low] for low in lows]
    for at in product(*ranges):
        values = dict(zip(NAMES, at, strict=True))
        if all(holds(c, values) for c in assumed):
            found += 1
            assert any(fits(f, values) for f in known), (list(map(str, assumed)), lows, values)
    return found


@settings(max_examples=250, deadline=None)
@given(st.tuples(*[st.sampled_from(LOWS)] * 3), st.lists(conditions, min_size=1, max_size=3))
def test_what_the_prover_knows_follows_from_what_holds(lows: tuple[int | None, ...], assumed: list[Condition]) -> None:
    agrees(lows, assumed)


@pytest.mark.slow
@settings(max_examples=4_000, deadline=None)
@given(st.tuples(*[st.sampled_from(LOWS)] * 3), st.lists(conditions, min_size=1, max_size=3))
def test_what_the_prover_knows_follows_from_what_holds_at_length(
    lows: tuple[int | None, ...], assumed: list[Condition]
) -> None:
    agrees(lows, assumed)


@settings(max_examples=400, deadline=None)
@given(st.tuples(*[st.sampled_from((0, 1))] * 3), conditions)
def test_what_a_derivation_sees_holds(lows: tuple[int, ...], c: Condition) -> None:
    facts = Facts()
    for name, low in zip(NAMES, lows, strict=True):
        facts.unknown(name, low)
    if _visible(c, facts):
        assert all(holds(c, dict(zip(NAMES, at, strict=True))) for at in product(*(range(low, 6) for low in lows))), (
            str(c)
        )


def test_signs_of_a_divisibility() -> None:
    assert [divides(2, v) for v in (-4, -1, 0, 3, 4)] == [False, False, True, False, True]
    assert not any(divides(d, v) for d in (0, -1, -2) for v in (-4, 0, 4))
    n, k = Poly.of("n"), Poly.of("k")
    assert str(Divides(k, n)) == "k divides n"
    assert str(Divides(Poly.of(2), n)) == "2 divides n" and ">= 0)" in str(Divides(Poly.of(2), n - 5))
    assert ">= 1" in str(Divides(k - 1, n)) and ">= 0" in str(OneOrMultiple(k, n - 3))


def sided(c: Condition) -> Substitution:
    """The right side drops 5 elements and joins them again: it types only where there are more than 5."""
    return replace(
        rule(
            "x",
            [node("relu", -1)],
            [
                node("drop", -1, axis=0, length=4),
                node("take", -1, axis=0, length=4),
                node("concat", 1, 0, axis=0),
                node("relu", 2),
            ],
            (0, 3),
        ),
        preconditions=(c,),
    )


@pytest.mark.parametrize(
    "c",
    [
        Divides(Poly.of(2), Poly.of("x.0") - 5),
        OneOrMultiple(Poly.of(3), Poly.of("x.0") - 5),
        AtLeast(Poly.of("x.0") - 5),
        Divides(5 - Poly.of("x.0"), Poly.of("x.0")),
        Divides(Poly.of("x.0") - 5, Poly.of("x.1")),
        Divides(Poly.of(2), 5 - Poly.of("x.0")),
        OneOrMultiple(Poly.of(2), Poly.of("x.0") - 3),
    ],
)
def test_one_rule_is_not_proved_and_refuted(c: Condition) -> None:
    """Verdict and evaluation on all small sizes agree, whatever the signs in the precondition."""
    r = sided(c)
    found = judge(r, reasoner=Reasoner())
    report = check_substitution(found)
    assert report.reason == "" or not isinstance(found, Proved | Refuted), report
    faults = set()
    for at in product(range(1, 12), range(1, 5)):
        values = dict(zip(("x.0", "x.1"), at, strict=True))
        if holds(c, values):
            faults.add(right_fault(type_instance(r, values)))
    if isinstance(found, Proved) and len(found.rule.preconditions) == 1:
        assert report.verdict is Verdict.PROVED and faults <= {None}
    if isinstance(found, Refuted):
        assert faults - {None}


def test_preconditions_speak_of_the_rule_only() -> None:
    """A name that typing makes up, or none at all, is refused by name: it would be an unknown of the prover, and an
    internal error of evaluation.
    """
    for name in ("part_2", "x.0.block", "@d", "y.0", "x.2", "x", "%0", "x.0.degree.degree"):
        with pytest.raises(SubstitutionError, match="no size, degree or parameter"):
            sided(AtLeast(Poly.of(name) - 1)).check()
    for name in ("x 0", "", "x\n", "x.0", "\x1b[2Jx"):
        bad = sided(AtLeast(Poly.of("x.0")))
        with pytest.raises(SubstitutionError):
            replace(bad, inputs=(replace(bad.inputs[0], name=name),)).check()

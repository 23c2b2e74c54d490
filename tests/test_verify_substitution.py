"""The checker of substitution proofs rejects what does not follow: changed facts, maps, cases, rules,
counterexamples, and captured names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache

import pytest
from budgets import some_or_all, work

from shardproof.formal.rewriting.facts import Reasoner
from shardproof.formal.rewriting.prove import judge
from shardproof.models.problem.claims import Verdict
from shardproof.models.rewrites.guarded_sums import Apply, Entry, GuardedSum, Monomial
from shardproof.models.rewrites.polynomial import Poly
from shardproof.models.rewrites.rule import Pattern, Substitution
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.rewrites.judgement import (
    Applied,
    Case,
    Cluster,
    Cut,
    Digits,
    Empty,
    Entries,
    Equality,
    Idle,
    Judgement,
    Keep,
    Leaf,
    Least,
    Member,
    Pin,
    Present,
    Proved,
    Refuted,
    Shown,
    Split,
    Undecided,
    Unequal,
    Vacuous,
    Void,
    Zero,
)
from shardproof.proofs.rewrites.library import Library, encode_library, read_library, write_library
from shardproof.verify.rewrites.facts import Rejected, check_equality, check_fact, replay_steps, scope_of
from shardproof.verify.rewrites.soundness import check_substitution

from .substitution_cases import mutants, node, public, rule

ASSOCIATES = rule(
    "x y z", [node("matmul", -2, -3), node("matmul", -1, 0)], [node("matmul", -1, -2), node("matmul", 0, -3)], (1, 1)
)
BLOCKS = rule(
    "x y z w",
    [node("matmul", -1, -2), node("matmul", -3, -4), node("add", 0, 1)],
    [node("concat", -1, -3, axis=1), node("concat", -2, -4, axis=0), node("matmul", 0, 1)],
    (2, 2),
)
CONCATS = rule(
    "x y z w",
    [node("concat", -1, -2, axis=1), node("concat", -3, -4, axis=1), node("concat", 0, 1, axis=0)],
    [node("concat", -1, -3, axis=0), node("concat", -2, -4, axis=0), node("concat", 0, 1, axis=1)],
    (2, 2),
)
SHARDED = rule(
    "x w",
    [node("linear", -1, -2, activation="none")],
    [
        node("partition", -1, axis=1, degree="d"),
        node("partition", -2, axis=1, degree="d"),
        node("linear", 0, 1, activation="none"),
        node("reduce", 2, degree="d"),
    ],
    (0, 3),
)
SUMS = rule(
    "x y",
    [node("concat", -1, -2, axis=0), node("relu", 0), node("reduce_sum", 1, axis=0)],
    [
        node("relu", -1),
        node("relu", -2),
        node("reduce_sum", 0, axis=0),
        node("reduce_sum", 1, axis=0),
        node("add", 2, 3),
    ],
    (2, 4),
)
RULES = (ASSOCIATES, BLOCKS, CONCATS, SHARDED, SUMS)


@cache
def judged() -> tuple[Judgement, ...]:
    """Rules with case splits, digits, cuts and preconditions, some of them from the public files."""
    extra = [r for k in ("taso-axioms", "taso-even") for r in public(k)[5::16]]
    return tuple(judge(r, reasoner=Reasoner()) for r in (*RULES, *extra))


def proofs() -> tuple[Proved, ...]:
    """Their proofs."""
    return tuple(j for j in judged() if isinstance(j, Proved))


def rebuilt(value: object, change: Callable[[object], object | None]) -> Iterator[object]:
    """Every copy of a record tree with exactly one part replaced by change(part), where that is not None."""
    new = change(value)
    if new is not None:
        yield new
    if isinstance(value, tuple):
        for k, item in enumerate(value):
            for other in rebuilt(item, change):
                yield (*value[:k], other, *value[k + 1 :])
    elif is_dataclass(value) and not isinstance(value, type | Substitution):
        for f in fields(value):
            for other in rebuilt(getattr(value, f.name), change):
                yield replace(value, **{f.name: other})


def weakened(value: object) -> object | None:
    """A change that must be noticed: facts were only stored where nothing is visible, so none can be left out or
    scaled in one place.
    """
    if isinstance(value, Zero | Empty):
        return replace(value, fact=())
    if isinstance(value, Pin):
        return replace(value, value=value.value + 1)
    if isinstance(value, Cut):
        return value.yes
    if isinstance(value, Digits):
        return replace(value, modulus=value.modulus + 1)
    if isinstance(value, Member):
        if value.assignment:
            (name, p), *rest = value.assignment
            return replace(value, assignment=((name, p + 1), *rest))
        return replace(value, number=value.number + 1)
    if isinstance(value, Cluster) and value.others:
        return replace(value, others=value.others[1:])
    if isinstance(value, Leaf) and value.clusters:
        return replace(value, clusters=value.clusters[1:])
    if isinstance(value, Shown) and value.outputs:
        return replace(value, outputs=())
    if isinstance(value, Entries) and value.facts:
        return replace(value, facts=value.facts[1:])
    if isinstance(value, Case):
        return replace(value, choices=(*value.choices, 0))
    return None


@pytest.mark.parametrize(("every", "least"), some_or_all((4, 30), (1, 150)))
def test_changed_proofs_are_rejected(every: int, least: int) -> None:
    tried = 0
    for j in proofs()[::every]:
        assert check_substitution(j).verdict is Verdict.PROVED
        for cases in rebuilt(j.cases, weakened):
            assert isinstance(cases, tuple)
            report = check_substitution(replace(j, cases=cases))
            assert report.verdict is Verdict.UNDECIDED, (j.rule.name, cases)
            assert report.reason.startswith("rejected")
            tried += 1
    assert tried > least, [
        (j.rule.name, getattr(j, "reason", "refuted")) for j in judged() if not isinstance(j, Proved)
    ]


def test_facts_left_out_are_noticed() -> None:
    def emptied(value: object) -> object | None:
        looks = (
            isinstance(value, tuple)
            and value
            and all(isinstance(t, tuple) and len(t) == 3 and all(type(i) is int for i in t) for t in value)
        )
        return () if looks else None

    tried = 0
    for j in proofs():
        for cases in rebuilt(j.cases, emptied):
            assert isinstance(cases, tuple)
            assert check_substitution(replace(j, cases=cases)).verdict is Verdict.UNDECIDED
            tried += 1
    assert tried > 20


@pytest.mark.parametrize(("every", "least"), some_or_all((6, 3), (1, 20)))
def test_a_proof_does_not_fit_a_false_rule(every: int, least: int) -> None:
    """The proof of a rule, attached to a mutant of the rule that has a counterexample."""
    tried, reasoner = 0, Reasoner()
    for k, j in list(enumerate(proofs()))[::every]:
        for m in mutants([replace(j.rule, preconditions=())], 4, k):
            if isinstance(judge(m, tries=60, clock=work(3), reasoner=reasoner), Refuted):
                assert (
                    check_substitution(replace(j, rule=replace(m, preconditions=j.rule.preconditions))).verdict
                    is Verdict.UNDECIDED
                )
                tried += 1
    assert tried > least


def test_preconditions_and_witness_are_checked() -> None:
    j = judge(CONCATS)
    assert isinstance(j, Proved)
    without = replace(j, rule=replace(j.rule, preconditions=()), needed=())
    assert "owed" in check_substitution(without).reason
    assert "preconditions" in check_substitution(replace(j, needed=())).reason
    values = dict(j.witness)
    assert (
        "witness"
        in check_substitution(replace(j, witness=tuple(sorted({**values, "x.1": values["x.1"] + 1}.items())))).reason
    )
    ones = tuple((n, 1) for n, _ in j.witness)
    assert (
        check_substitution(replace(j, needed=(replace(j.needed[0], instance=ones, values=((0,),) * 4),))).verdict
        is Verdict.UNDECIDED
    )
    assert check_substitution(replace(j, cases=(*j.cases, Case((1,), Void(None))))).verdict is Verdict.UNDECIDED


def test_refutations_are_evaluated() -> None:
    j = judge(rule("x y", [node("matmul", -1, -2)], [node("matmul", -2, -1)], (0, 0)))
    assert isinstance(j, Refuted)
    assert check_substitution(j).verdict is Verdict.REFUTED
    zero = replace(j.counterexample, values=tuple((0,) * len(v) for v in j.counterexample.values))
    assert j.counterexample.what == "value"
    assert check_substitution(replace(j, counterexample=zero)).verdict is Verdict.UNDECIDED
    assert (
        check_substitution(replace(j, counterexample=replace(j.counterexample, what="typing"))).verdict
        is Verdict.UNDECIDED
    )
    true = replace(j, rule=rule("x y", [node("matmul", -1, -2)], [node("matmul", -1, -2)], (0, 0)))
    assert check_substitution(true).verdict is Verdict.UNDECIDED
    assert check_substitution(Undecided(j.rule, "limit")).verdict is Verdict.UNDECIDED


def test_unequal_copies_are_shown_for_every_instance() -> None:
    """A left side that feeds unequal copies to Linear is vacuous on all shapes, not only on one that was looked at."""
    patterns = tuple(Pattern(n, 3, ((0, 1),), True) for n in "xyw")
    joined, linear = node("concat", -1, -2, axis=0), node("linear3", 1, -3, activation="none")
    left = (joined, node("relu", 0), linear)
    found = judge(Substitution("copies", patterns, left, (node("relu", -1),), ((2, 0),)))
    assert isinstance(found, Vacuous) and found.violation is not None and found.cases
    (case,) = found.cases
    u = case.outcome
    assert isinstance(u, Unequal)
    assert check_substitution(found).vacuous
    assert read_library(write_library(None, Library("one", (found,))))[0].judgements == (found,)

    def refused(changed: Unequal, rule: Substitution = found.rule) -> None:
        report = check_substitution(replace(found, rule=rule, cases=(replace(case, outcome=changed),), violation=None))
        assert not report.vacuous and report.reason.startswith("rejected"), report

    for changed in (
        replace(u, number=u.number + 1),
        replace(u, swapped=not u.swapped),
        replace(u, ones=()),
        replace(u, ones=(0, 1)),
        replace(u, ones=(2,)),
        replace(u, at=Poly({})),
        replace(u, at=u.at + 1),
        replace(u, zero=()),
        replace(u, some=()),
        replace(u, zero=u.some, some=u.zero),
        replace(u, some=(Least(),) * len(u.some)),
        replace(u, zero=(Least(),) * len(u.zero)),
        replace(u, zero=tuple(replace(s, atom=7) if isinstance(s, Idle) else s for s in u.zero)),
        replace(u, some=tuple(replace(s, inner=()) if isinstance(s, Present) else s for s in u.some)),
        replace(u, some=tuple(replace(s, point=(("v", Poly({})),)) if isinstance(s, Present) else s for s in u.some)),
    ):
        refused(changed)
    tiled = (
        node("tile", -1, axis=0, degree=2),
        node("relu", 0),
        linear,
    )  # equal copies: the proof of the other left side must not fit
    refused(u, replace(found.rule, left=tiled))
    refused(u, replace(found.rule, left=(joined, node("sigmoid", 0), linear)))
    assert isinstance(judge(Substitution("copies", patterns, tiled, tiled, ((2, 2),))), Proved)


def test_huge_instances_are_refused_quickly() -> None:
    huge = rule("x", [node("ones2", extent_0="n", extent_1="m"), node("mul", -1, 0)], [], (1, -1))
    j = judge(huge)
    assert isinstance(j, Proved)
    for witness in (
        (("m", 10**9), ("n", 1), ("x.0", 1), ("x.1", 10**9)),
        (("m", 10**30), ("n", 10**30), ("x.0", 10**30), ("x.1", 10**30)),
    ):
        assert "witness" in check_substitution(replace(j, witness=witness)).reason
    tiled = judge(
        rule(
            "x",
            [node("tile", -1, axis=0, degree="d"), node("relu", 0)],
            [node("relu", -1), node("tile", 0, axis=0, degree="d")],
            (1, 1),
        )
    )
    assert isinstance(tiled, Proved)
    assert "steps" in check_substitution(replace(tiled, witness=(("d", 10**9), ("x.0", 1), ("x.1", 1)))).reason


# ---- names
# ----------------------------------------------------------------------------------------------------------------------


def total(variable: str, entry: Poly, *guards: Poly) -> GuardedSum:
    """Sum over 0 <= variable < n of input 0 at `entry`."""
    v, n = Poly.of(variable), Poly.of("n")
    return (Monomial(1, (variable,), (v, n - 1 - v, *guards), (Entry(0, (entry,)),)),)


def member(assignment: tuple[tuple[str, Poly], ...], back: int = 2) -> Leaf:
    """One cluster that carries the right term onto the left one."""
    return Leaf(
        (Keep(),),
        (Keep(),),
        (Cluster(0, (Member(1, assignment, ((),) * back, ((),) * back, (0,), (Entries((((), ()),)),)),)),),
    )


SCOPE = scope_of([Poly.of("n") - 1], [], ())


def test_a_bijection_is_needed() -> None:
    v, w = Poly.of("v"), Poly.of("w")
    check_equality(total("v", v), total("w", w), SCOPE, member((("w", v),)), "test")
    with pytest.raises(Rejected, match="determinant|visible"):
        check_equality(total("v", 2 * v), total("w", w), SCOPE, member((("w", 2 * v),)), "test")
    with pytest.raises(Rejected, match="free"):
        check_equality(total("v", v), total("w", w), SCOPE, member((("w", Poly.of("u")),)), "test")
    with pytest.raises(Rejected):
        check_equality(total("v", v + 1), total("w", w), SCOPE, member((("w", v),)), "test")


def test_a_guard_cannot_speak_of_a_name_that_is_bound_further_in() -> None:
    """Otherwise a case split on the free name v would be used, inside, as if it held for the bound v: it proves
    f(sum x) = f(0).
    """
    v = Poly.of("v")
    left: GuardedSum = (Monomial(1, (), (), (Apply("f", (), (total("v", v),)),)),)
    right: GuardedSum = (Monomial(1, (), (), (Apply("f", (), ((),)),)),)
    inner: Equality = Leaf((Zero(((1, -1, 1), (2, -1, 1))),), (), ())
    below: Equality = Leaf(
        (Keep(),), (Keep(),), (Cluster(0, (Member(1, (), (), (), (0,), (Applied((), (inner,)),)),)),)
    )
    with pytest.raises(Rejected, match="not free"):
        check_equality(left, right, SCOPE, Split(v, below, below), "test")
    m = Monomial(1, ("u",), (Poly.of("u"), -Poly.of("u")), (Apply("f", (), (total("v", v),)),))
    for step in (Cut(v, Keep(), Keep()), Pin("u", v, (), (), Keep()), Digits("u", v + 1, (), Keep())):
        with pytest.raises(Rejected, match="not free"):
            replay_steps(m, step, SCOPE, "test", 0)


def test_facts_need_positive_multipliers_and_existing_hypotheses() -> None:
    h = [Poly.of("a"), -Poly.of("a") - 1]
    check_fact(h, ((0, -1, 1), (1, -1, 1)), "test")
    for fact in (((0, -1, -1),), ((0, -1, 0),), ((2, -1, 1),), ((0, 5, 1),), ((-1, -1, 1),), ((0, -1, 1),), ()):
        with pytest.raises(Rejected):
            check_fact(h, fact, "test")


# ---- files
# ----------------------------------------------------------------------------------------------------------------------


def test_files_round_trip_and_are_small() -> None:
    some = (
        *proofs(),
        judge(rule("x y", [node("matmul", -1, -2)], [node("matmul", -2, -1)], (0, 0))),
        Undecided(ASSOCIATES, "limit"),
    )
    found = tuple(replace(j, rule=replace(j.rule, name=f"{j.rule.name} {k}")) for k, j in enumerate(some))
    data = write_library(None, Library("some", found))
    assert read_library(data)[0].judgements == found
    assert write_library(None, read_library(data)[0]) == data
    assert len(data) < 2000 * len(found)


def test_malformed_files_are_refused_with_a_place() -> None:
    members = encode_library(Library("one", proofs()[:1]))
    text = members["rules.json"]
    assert isinstance(text, bytes)
    rng = random.Random(5)
    for old, new in (
        (b'"Proved"', b'"Prov"'),
        (b'"Leaf"', b'"Dict"'),
        (b'"Keep"', b"1"),
        (b'"matmul"', b"true"),
        (
            b"[[",
            b"[[[",
        ),
        (b"null", b"0.5"),
    ):
        if old in text:
            with pytest.raises(ContainerError):
                read_library(write_container(None, {**members, "rules.json": text.replace(old, new, 1)}))
    for _ in range(200):  # whatever is read is either the same, or refused, or not proved by accident of a crash
        at = rng.randrange(len(text))
        changed = text[:at] + bytes([rng.choice(b'0123456789[],"x')]) + text[at + 1 :]
        try:
            found = read_library(write_container(None, {**members, "rules.json": changed}))[0].judgements
        except ContainerError:
            continue
        for j in found:
            check_substitution(j)

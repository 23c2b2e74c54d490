"""Checks judgements about substitutions: replays, evaluates, believes nothing.

Proved     * the rule is well formed; every case of typing (choices of `OneOrMultiple`, completely enumerated) has an
           outcome
           * void: typing the left side fails visibly, or what is known of the unknowns is contradictory (a fact)
           * unequal: the left side breaks its own copy requirement on every instance (`copies`)
           * shown: everything the right side owes by facts; copy requirements of both sides and mapped outputs by
             equality proofs
           * the witness satisfies all preconditions, both sides type with equal types and have equal values
           * every precondition has a counterexample that satisfies all the others and not it
Refuted    the counterexample satisfies the preconditions, the left side types and keeps its copies, the right side
           fails as claimed
Vacuous    every case is void or unequal; or, without cases, the left side breaks its own copy requirement on the stored
           instance: then nothing is known of other instances (`reason` says so)
Undecided  nothing

Trusted: the operator table with typing and guarded sums (`models.rewrites`, `models.rewrites.guarded_sums`), and this
file with `facts`.  No solver, no search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from ...models.problem.claims import Verdict
from ...models.rewrites.enclosures import NotDecided
from ...models.rewrites.guarded_sums import Builder, TooLarge
from ...models.rewrites.polynomial import Poly
from ...models.rewrites.rule import Condition, Substitution, SubstitutionError, holds
from ...models.rewrites.shards import IllTyped
from ...models.rewrites.types import Contradiction, NeedsChoice, Side, Stuck, Typed, type_left, type_right
from ...models.rewrites.value import (
    Meter,
    TooMuchWork,
    all_names,
    input_sizes,
    right_fault,
    tensor,
    type_instance,
    value_fault,
)
from ...proofs.rewrites.judgement import (
    TRUE,
    Counterexample,
    Equality,
    Instance,
    Judgement,
    Proved,
    Refuted,
    Shown,
    Undecided,
    Unequal,
    Vacuous,
    Void,
)
from .copies import check_unequal
from .facts import Rejected, check_equality, check_fact, check_implied, scope_of

MOST_ELEMENTS: Final = 50_000


@dataclass(frozen=True)
class SubstitutionReport:
    """`verdict` PROVED: the rule holds under its preconditions; REFUTED: it fails; UNDECIDED: nothing is known, or
    `reason` says what was wrong with the proof.  `vacuous`: the left side has no instance (verdict UNDECIDED: nothing
    to rewrite)."""

    rule: str
    verdict: Verdict
    vacuous: bool
    reason: str


def check_substitution(judgement: Judgement, meter: Meter | None = None) -> SubstitutionReport:
    """Check a judgement; a proof that fails is reported, never raised.  `meter`: told of steps of evaluation, and of
    what replaying a proof takes, before.
    """
    name = judgement.rule.name
    try:
        judgement.rule.check()
        match judgement:
            case Proved():
                _proved(judgement, meter)
                return SubstitutionReport(name, Verdict.PROVED, False, "")
            case Refuted():
                _refuted(judgement.rule, judgement.counterexample, meter)
                return SubstitutionReport(name, Verdict.REFUTED, False, "")
            case Vacuous():
                _vacuous(judgement, meter)
                return SubstitutionReport(name, Verdict.UNDECIDED, True, "")
            case Undecided():
                return SubstitutionReport(name, Verdict.UNDECIDED, False, judgement.reason)
            case _:
                assert_never(judgement)
    except (Rejected, SubstitutionError, TooLarge, TooMuchWork, NotDecided, RecursionError) as error:
        return SubstitutionReport(name, Verdict.UNDECIDED, False, f"rejected: {error}")


def _proved(proved: Proved, meter: Meter | None) -> None:
    rule = proved.rule
    outcomes = {c.choices: c.outcome for c in proved.cases}
    if len(outcomes) != len(proved.cases):
        raise Rejected("cases", "two outcomes for one case")
    shown = _cases(rule, (), outcomes)
    if not shown:
        raise Rejected("cases", "no case is shown: the rule is vacuous")
    if outcomes:
        raise Rejected("cases", f"{len(outcomes)} outcomes for cases that do not exist")
    _witness(rule, proved.witness, meter)
    if len(proved.needed) != len(rule.preconditions):
        raise Rejected(
            "preconditions",
            f"{len(rule.preconditions)} preconditions, {len(proved.needed)} counterexamples that show them necessary",
        )
    for k, (c, e) in enumerate(zip(rule.preconditions, proved.needed, strict=True)):
        others = tuple(d for j, d in enumerate(rule.preconditions) if j != k)
        _counterexample(rule, e, others, c, f"precondition {c}", meter)


def _cases(
    rule: Substitution, choices: tuple[int, ...], outcomes: dict[tuple[int, ...], Void | Shown | Unequal]
) -> int:
    """Check and remove all outcomes below `choices`; the number shown."""
    if len(choices) > 12:
        raise Rejected("cases", "more than 12 choices")
    place = f"case {list(choices)}"
    try:
        typed = type_left(rule, choices)
    except NeedsChoice:
        return _cases(rule, (*choices, 0), outcomes) + _cases(rule, (*choices, 1), outcomes)
    except (Contradiction, IllTyped):
        outcome = outcomes.pop(choices, None)
        if not isinstance(outcome, Void):
            raise Rejected(place, "has no instance and is not listed as void") from None
        return 0
    outcome = outcomes.pop(choices, None)
    match outcome:
        case None:
            raise Rejected(place, "is missing")
        case Void():
            if outcome.fact is None:
                raise Rejected(place, "is not visibly without instances")
            check_fact(typed.facts.all_facts(), outcome.fact, place)
            return 0
        case Unequal():
            check_unequal(typed, outcome, place)
            return 0
        case Shown():
            _shown(typed, outcome, place)
            return 1
        case _:
            assert_never(outcome)


def _shown(typed: Typed, shown: Shown, place: str) -> None:
    try:
        type_right(typed)
    except (Stuck, IllTyped, Contradiction) as error:
        raise Rejected(place, f"the right side does not type: {error}") from None
    context = typed.facts.all_facts()
    if len(shown.owed) != len(typed.owed):
        raise Rejected(place, f"{len(typed.owed)} conditions are owed, {len(shown.owed)} are shown")
    for o, facts in zip(typed.owed, shown.owed, strict=True):
        goals = (o.value, -o.value) if o.equation else (o.value,)
        if len(facts) != len(goals):
            raise Rejected(place, f"{o.condition} needs {len(goals)} facts")
        for g, f in zip(goals, facts, strict=True):
            check_implied(context, g, f, f"{place}, {o.place}")
    copies = [(side, k) for side in (typed.left, typed.right) for k in range(len(side.copies))]
    if len(copies) != len(shown.copies) or len(typed.rule.outputs) != len(shown.outputs):
        raise Rejected(place, "copy requirements or outputs are missing")
    for (side, k), proof in zip(copies, shown.copies, strict=True):
        _copy(typed, side, k, proof, place)
    for k, ((a, b), proof) in enumerate(zip(typed.rule.outputs, shown.outputs, strict=True)):
        _output(typed, a, b, proof, f"{place}, output {k}")


def _free(typed: Typed, extents: tuple[Poly, ...]) -> tuple[tuple[Poly, ...], list[Poly]]:
    """Free coordinates %0, %1, .. and that they are in range."""
    free = tuple(Poly.of(f"%{k}") for k in range(len(extents)))
    return free, [g for p, e in zip(free, extents, strict=True) for g in (p, typed.facts.now(e) - 1 - p)]


def _maxima(typed: Typed) -> tuple[tuple[Poly, Poly, Poly], ...]:
    n = typed.facts.now
    return tuple((n(Poly.of(s)), n(a), n(b)) for s, a, b in typed.facts.largest)


def _copy(typed: Typed, side: Side, number: int, proof: Equality, place: str) -> None:
    where, wire, extents, position = side.copies[number]
    free, ranges = _free(typed, extents)
    builder = Builder(typed)
    left = builder.whole(side, wire, free)
    right = builder.whole(side, wire, tuple(Poly({}) if k == position else p for k, p in enumerate(free)))
    context = (*typed.facts.all_facts(), *ranges, *builder.facts())
    check_equality(
        left,
        right,
        scope_of(context, (s for p in free for s in p.names), _maxima(typed)),
        proof,
        f"{place}, copies of {where}",
    )


def _output(typed: Typed, a: int, b: int, proof: Equality, place: str) -> None:
    t = typed.type_of(typed.left, a)
    free, ranges = _free(typed, (*(e for _, e in t.times), *t.sizes))
    builder = Builder(typed)
    left, right = builder.output(typed.left, a, free), builder.output(typed.right, b, free)
    context = (*typed.facts.all_facts(), *ranges, *builder.facts())
    check_equality(left, right, scope_of(context, (s for p in free for s in p.names), _maxima(typed)), proof, place)


# ---- instances
# ----------------------------------------------------------------------------------------------------------------------


def _instance(rule: Substitution, instance: Instance, place: str) -> Typed:
    values = dict(instance)
    if len(values) != len(instance):
        raise Rejected(place, "gives a name two values")
    try:
        typed = type_instance(rule, values)
        if sum(map(_elements, input_sizes(rule, values))) > MOST_ELEMENTS:
            raise Rejected(place, f"has more than {MOST_ELEMENTS} entries")
        return typed
    except (Contradiction, IllTyped) as error:
        raise Rejected(place, f"the left side does not type on the instance: {error}") from None


def _witness(rule: Substitution, instance: Instance, meter: Meter | None) -> None:
    typed = _instance(rule, instance, "witness")
    names = all_names(rule, dict(instance))
    for c in rule.preconditions:
        if not holds(c, names):
            raise Rejected("witness", f"precondition {c} does not hold")
    wrong = right_fault(typed)
    if wrong is not None:
        raise Rejected("witness", f"right side: {wrong}")
    sizes = input_sizes(rule, dict(instance))
    values = [
        tensor(s, [(7 * k + 3 * k * k + 5 * j) % 13 - 6 for k in range(_elements(s))]) for j, s in enumerate(sizes)
    ]
    try:
        found = value_fault(typed, values, meter)
    except NotDecided:
        # an irrational value that bounds do not separate: the witness shows that both sides type, the proof that they
        # are equal
        return
    if found is not None:
        raise Rejected("witness", f"the sides differ: {found}")


def _elements(sizes: tuple[int, ...]) -> int:
    out = 1
    for n in sizes:
        out *= n
    return out


def _counterexample(
    rule: Substitution,
    e: Counterexample,
    keep: tuple[Condition, ...],
    broken: Condition | None,
    place: str,
    meter: Meter | None,
) -> None:
    typed = _instance(rule, e.instance, place)
    names = all_names(rule, dict(e.instance))
    for c in keep:
        if not holds(c, names):
            raise Rejected(place, f"the counterexample breaks {c}")
    if broken is not None and holds(broken, names):
        raise Rejected(place, f"the counterexample satisfies {broken}")
    sizes = input_sizes(rule, dict(e.instance))
    if e.functions != TRUE:
        raise Rejected(place, "the counterexample needs an arbitrary function, and the rule's functions are not")
    if len(e.values) != len(sizes) or any(len(v) != _elements(s) for v, s in zip(e.values, sizes, strict=True)):
        raise Rejected(place, "the entries do not fit the sizes")
    values = [tensor(s, v) for s, v in zip(sizes, e.values, strict=True)]
    if typed.left.copies:
        left_only = Typed(_without_right(rule), typed.facts, typed.inputs, typed.left, Side((), (), ()), [])
        if (value_fault(left_only, values, meter) == "left copy") != (e.what == "left copy"):
            raise Rejected(place, "the left side breaks its own copies, or is claimed to and does not")
        if e.what == "left copy":
            return
    what = right_fault(typed)
    if what is None:
        what = value_fault(typed, values, meter)
    if what is None or what != e.what:
        raise Rejected(place, f"the right side is claimed to fail by {e.what}, found {what}")


def _without_right(rule: Substitution) -> Substitution:
    return Substitution(rule.name, rule.inputs, rule.left, (), (), rule.preconditions)


def _refuted(rule: Substitution, e: Counterexample, meter: Meter | None) -> None:
    if e.what == "left copy":
        raise Rejected("counterexample", "the left side breaks its own copies: vacuous there, not refuted")
    _counterexample(rule, e, rule.preconditions, None, "counterexample", meter)


def _vacuous(vacuous: Vacuous, meter: Meter | None) -> None:
    if vacuous.violation is not None:
        if vacuous.violation.what != "left copy":
            raise Rejected("violation", "must be of the left side's copies")
        _counterexample(vacuous.rule, vacuous.violation, (), None, "violation", meter)
        if not vacuous.cases:
            return
    outcomes = {c.choices: c.outcome for c in vacuous.cases}
    if _cases(vacuous.rule, (), outcomes) or outcomes:
        raise Rejected("cases", "some case is neither void nor unequal")

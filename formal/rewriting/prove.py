"""Judges a substitution: proved with the preconditions it needs, refuted, vacuous, or undecided.

    judge(rule) = Proved    every case of typing is void or shown; a witness; per precondition a counterexample
                            without it
                | Vacuous   the left side has no instance, or breaks its own copy requirement: on every instance
                            if that can be shown
                | Refuted   an exact counterexample under the stated preconditions
                | Undecided with the reason

Preconditions are found from what the right side owes and cannot show: first the condition itself, in sizes, degrees and
parameters of the pattern; then, if values differ, "this quotient is 1" (groups of convolutions) and "this degree is 1".
Each is kept only if a counterexample without it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from ...models.rewrites.guarded_sums import Builder, TooLarge
from ...models.rewrites.polynomial import Poly
from ...models.rewrites.rule import AtLeast, Condition, Equal, Substitution
from ...models.rewrites.shards import IllTyped
from ...models.rewrites.types import (
    Contradiction,
    NeedsChoice,
    Side,
    Stuck,
    Typed,
    condition_names,
    type_left,
    type_right,
)
from ...proofs.rewrites.judgement import (
    Case,
    Counterexample,
    Equality,
    Fact,
    Judgement,
    Proved,
    Refuted,
    Shown,
    Undecided,
    Vacuous,
    Void,
)
from ..selection.model.clock import Clock
from .conditions import fixes_a_size, spare_conditions, stated_condition
from .facts import Reasoner
from .matching import Matcher, OutOfTime
from .refute import counterexample, fault, instances, satisfies, unaffected_instances, witness
from .unequal import unequal_everywhere

STEPS_PER_RULE = 20_000_000
"""About 20 seconds."""

CASE = 1_000
"""Steps of work of a case of typing."""

_MOST_PRECONDITIONS = 8
_MOST_ATTEMPTS = 60
_MOST_COST = 14
_CHANCES = 8
"""Draws of entries on which copies may be equal by chance: where a relu leaves 0 of both."""


_Offers = tuple[tuple[int, Condition], ...]


@dataclass
class _Attempt:
    """Result of one pass over all cases: `cases` if everything was shown, else `wanted` conditions and a `reason`."""

    cases: list[Case] = field(default_factory=list)
    shown: int = 0
    wanted: list[Condition] = field(default_factory=list)
    spare: list[Condition] = field(default_factory=list)
    reason: str = ""
    left_copies: bool = False
    samples: int = 0
    differs: dict[str, int] | None = None


def judge(
    rule: Substitution, clock: Clock | None = None, tries: int = 400, reasoner: Reasoner | None = None
) -> Judgement:
    """Verdict on a rule with everything needed to check it without this module, found before `clock` is over; without
    one `STEPS_PER_RULE` of work are done, so that no machine changes a verdict.

    Raises `SubstitutionError` for a rule that is not well formed.
    """
    rule.check()
    reasoner = reasoner or Reasoner()
    clock = clock or Clock(work=STEPS_PER_RULE)
    stated = rule.preconditions
    try:
        attempt, found = _search(rule, reasoner, clock)
    except OutOfTime:
        attempt, found = _Attempt(reason="time limit"), None
    if found is not None and attempt.shown == 0 and not stated:
        return Vacuous(rule, tuple(attempt.cases), None)
    if found is not None and attempt.shown:
        judged = _finish(rule, found, attempt, reasoner, clock, tries)
        if isinstance(judged, Proved) and judged.rule.preconditions != stated:
            judged = _weaker(rule, judged, reasoner, clock, tries)
        if judged is not None:
            return judged
    if attempt.left_copies or found is None:
        broken = _broken_left(rule, tries)
        if broken is not None:
            return Vacuous(rule, unequal_everywhere(rule, reasoner) or (), broken)
    bad = counterexample(rule, stated, tries=tries)
    if bad is not None:
        return Refuted(rule, bad)
    return Undecided(rule, attempt.reason or "no witness")


def _weaker(rule: Substitution, proved: Proved, reasoner: Reasoner, clock: Clock, tries: int) -> Proved:
    """The same with preconditions that do not rule out instances on which the rule holds, if such can be found."""
    conditions = proved.rule.preconditions
    good = [
        at
        for c in conditions
        if c not in rule.preconditions
        for at in unaffected_instances(rule, tuple(d for d in conditions if d != c), c)
    ]
    if not good:
        return proved
    try:
        attempt, found = _search(rule, reasoner, clock, good)
    except OutOfTime:
        return proved
    again = _finish(rule, found, attempt, reasoner, clock, tries) if found is not None and attempt.shown else None
    return again if isinstance(again, Proved) else proved


def _search(
    rule: Substitution, reasoner: Reasoner, clock: Clock, good: Sequence[dict[str, int]] = ()
) -> tuple[_Attempt, Substitution | None]:
    """Add conditions until the rule is proved: those that the right side asks for cost 1, others 3, any that fixes a
    size 7; cheapest set first.

    An instance on which values differ rules out every set that it satisfies; such a set is only extended by conditions
    that exclude it.  A condition that rules out an instance of `good` is not added.
    """
    queue: list[tuple[int, int, Substitution, _Offers]] = [(0, 0, rule, ())]
    seen: set[frozenset[Condition]] = set()
    bad: list[dict[str, int]] = []
    first: _Attempt | None = None
    tried = pushed = 0
    while queue and tried < _MOST_ATTEMPTS:
        cost, _, current, offers = heappop(queue)
        key = frozenset(current.preconditions)
        if key in seen:
            continue
        seen.add(key)
        against = next((i for i in bad if satisfies(current, current.preconditions, i)), None)
        if against is None:
            tried += 1
            attempt = _attempt(current, reasoner, clock, 3 if current is rule else 12)
            first = first or attempt
            if not attempt.reason and (attempt.shown or current is rule):
                return attempt, current
            if attempt.left_copies and current is rule:
                return attempt, None
            if not attempt.reason:
                continue  # the conditions leave nothing
            against = attempt.differs
            if against is not None:
                bad.append(against)
            offers = (
                *((7 if fixes_a_size(c) else 1, c) for c in attempt.wanted),
                *((7 if fixes_a_size(c) else 3, c) for c in attempt.spare),
            )
        if len(current.preconditions) - len(rule.preconditions) >= _MOST_PRECONDITIONS:
            continue
        for price, c in offers:
            if c in key or cost + price > _MOST_COST or (against is not None and satisfies(current, (c,), against)):
                continue
            if not all(satisfies(current, (c,), at) for at in good):
                continue
            pushed += 1
            heappush(queue, (cost + price, pushed, replace(current, preconditions=(*current.preconditions, c)), offers))
    assert first is not None
    return first, None


def _finish(
    rule: Substitution, proved: Substitution, attempt: _Attempt, reasoner: Reasoner, clock: Clock, tries: int
) -> Judgement | None:
    """Keep only necessary preconditions, find the counterexamples that show it, and a witness."""
    stated = rule.preconditions
    needed: dict[Condition, Counterexample] = {}
    for c in list(proved.preconditions):
        without = tuple(d for d in proved.preconditions if d != c)
        bad = counterexample(rule, without, c, tries)
        if bad is not None:
            needed[c] = bad
            continue
        weaker = replace(proved, preconditions=without)
        try:
            again = _attempt(weaker, reasoner, clock)
        except OutOfTime:
            again = _Attempt(reason="time limit")
        if not again.reason and again.shown:
            proved, attempt = weaker, again
        elif c not in stated:
            return Undecided(rule, f"precondition {c} is sufficient but was not shown necessary")
    for (
        c
    ) in proved.preconditions:  # what was shown necessary beside a condition that has gone may have to be shown again
        if c in needed:
            bad = counterexample(rule, tuple(d for d in proved.preconditions if d != c), c, tries)
            if bad is not None:
                needed[c] = bad
    seen = witness(proved, tries)
    if seen is None:
        return None
    return Proved(proved, tuple(attempt.cases), seen, tuple(needed[c] for c in proved.preconditions if c in needed))


def _broken_left(rule: Substitution, tries: int) -> Counterexample | None:
    """An instance whose left side breaks its own copies, provided that all instances looked at do."""
    first = None
    for k, instance in enumerate(instances(rule, min(tries, 40), 5)):
        tried = (fault(rule, instance, seed) for seed in range(5 + k, 5 + k + _CHANCES))
        here = next((f for f in tried if f is not None and f.what == "left copy"), None)
        if here is None:
            return None
        first = first or here
    return first


# ---- one pass
# ----------------------------------------------------------------------------------------------------------------------


def _attempt(rule: Substitution, reasoner: Reasoner, clock: Clock, samples: int = 0) -> _Attempt:
    """One pass.  With `samples`, that many instances are evaluated first where values are to be compared: no proof
    is sought for what is false.
    """
    out = _Attempt(samples=samples)
    _explore(rule, (), out, reasoner, clock)
    return out


def _explore(rule: Substitution, choices: tuple[int, ...], out: _Attempt, reasoner: Reasoner, clock: Clock) -> None:
    if out.reason:
        return
    clock.charge(CASE)
    if clock.over():
        raise OutOfTime
    try:
        typed = type_left(rule, choices)
    except NeedsChoice:
        for c in (0, 1):
            _explore(rule, (*choices, c), out, reasoner, clock)
        return
    except (Contradiction, IllTyped):
        out.cases.append(Case(choices, Void(None)))
        return
    context = typed.facts.all_facts()
    fact = reasoner.contradiction(context)
    if fact is not None:
        out.cases.append(Case(choices, Void(fact)))
        return
    names = {n: typed.facts.now(p) for n, p in condition_names(rule, typed.facts, typed.inputs).items()}
    out.spare += spare_conditions(typed, names)
    try:
        type_right(typed)
    except Stuck as e:
        out.reason, out.wanted = str(e), [c for c in (stated_condition(e.condition, typed, names),) if c is not None]
        return
    except IllTyped as e:
        out.reason = str(e)
        out.left_copies = _left_fails(typed, reasoner, clock)
        return
    shown = _show(typed, names, out, reasoner, clock)
    if shown is not None:
        out.cases.append(Case(choices, shown))
        out.shown += 1


def _show(typed: Typed, names: dict[str, Poly], out: _Attempt, reasoner: Reasoner, clock: Clock) -> Shown | None:
    context = typed.facts.all_facts()
    owed: list[tuple[Fact, ...]] = []
    for o in typed.owed:
        goals = (o.value, -o.value) if o.equation else (o.value,)
        facts = [reasoner.prove_fact(context, g) for g in goals]
        if any(f is None for f in facts):
            out.reason = f"{o.place}: needs {o.condition}"
            out.wanted = [
                c
                for c in (stated_condition(Equal(o.value, Poly({})) if o.equation else AtLeast(o.value), typed, names),)
                if c is not None
            ]
            out.left_copies = _left_fails(typed, reasoner, clock)
            return None
        owed.append(tuple(f for f in facts if f is not None))
    if out.samples:
        found = _differs(typed.rule, out.samples)
        out.samples = 0
        if found is not None:
            out.differs = found
            out.reason = "mapped output: values differ on an instance"
            out.left_copies = _left_fails(typed, reasoner, clock)
            return None
    copies: list[Equality] = []
    for side in (typed.left, typed.right):
        for k in range(len(side.copies)):
            proof = copy_equality(typed, side, k, reasoner, clock)
            if proof is None:
                out.reason = f"{side.copies[k][0]}: operands' copies are not shown equal"
                out.left_copies = side is typed.left
                return None
            copies.append(proof)
    outputs: list[Equality] = []
    for a, b in typed.rule.outputs:
        try:
            proof = _output_equality(typed, a, b, reasoner, clock)
        except TooLarge as e:
            out.reason = f"mapped output: {e}"
            return None
        if proof is None:
            out.reason = "mapped output: values are not shown equal"
            return None
        outputs.append(proof)
    return Shown(tuple(owed), tuple(copies), tuple(outputs))


def _differs(rule: Substitution, samples: int) -> dict[str, int] | None:
    """An instance on which values differ or copies are unequal on the right, among a few."""
    for k, instance in enumerate(instances(rule, 4 * samples, 11)):
        if k == samples:
            break
        bad = fault(rule, instance, 11 + k)
        if bad is not None and bad.what in (
            "value",
            "copy",
        ):  # what types differently elsewhere is found, and repaired, in its own case
            return instance
    return None


def _left_fails(typed: Typed, reasoner: Reasoner, clock: Clock) -> bool:
    return any(copy_equality(typed, typed.left, k, reasoner, clock) is None for k in range(len(typed.left.copies)))


def copy_equality(typed: Typed, side: Side, number: int, reasoner: Reasoner, clock: Clock) -> Equality | None:
    """Proof that operand `number` of the side's copy requirements does not depend on its axis."""
    _, wire, extents, position = side.copies[number]
    builder = Builder(typed)
    free = tuple(Poly.of(f"%{k}") for k in range(len(extents)))
    first = tuple(Poly({}) if k == position else p for k, p in enumerate(free))
    left, right = builder.whole(side, wire, free), builder.whole(side, wire, first)
    context = [
        *typed.facts.all_facts(),
        *(g for p, e in zip(free, extents, strict=True) for g in (p, typed.facts.now(e) - 1 - p)),
        *builder.facts(),
    ]
    return Matcher(reasoner, maxima(typed), clock, tuple(u for u, _, _ in builder.digits)).equal(left, right, context)


def _output_equality(typed: Typed, a: int, b: int, reasoner: Reasoner, clock: Clock) -> Equality | None:
    t = typed.type_of(typed.left, a)
    extents = (*(e for _, e in t.times), *t.sizes)
    builder = Builder(typed)
    free = tuple(Poly.of(f"%{k}") for k in range(len(extents)))
    left, right = builder.output(typed.left, a, free), builder.output(typed.right, b, free)
    context = [
        *typed.facts.all_facts(),
        *(g for p, e in zip(free, extents, strict=True) for g in (p, typed.facts.now(e) - 1 - p)),
        *builder.facts(),
    ]
    return Matcher(reasoner, maxima(typed), clock, tuple(u for u, _, _ in builder.digits)).equal(left, right, context)


def maxima(typed: Typed) -> tuple[tuple[Poly, Poly, Poly], ...]:
    """Maxima of the typing in the unknowns that are left."""
    n = typed.facts.now
    return tuple((n(Poly.of(s)), n(a), n(b)) for s, a, b in typed.facts.largest)

"""Finds left sides that break their own copy requirement on every instance: such a rule never fires.

Search for `proofs.rewrites.judgement.Unequal`: some inputs all 1, the others all 0, such that the operand is 0 at one
replica and positive at another.  30 of the 640 published rules are such rules.
"""

from __future__ import annotations

from itertools import combinations
from typing import TypeGuard

from ...models.rewrites.guarded_sums import Apply, Builder, Entry, GuardedSum, Monomial, TooLarge, put_atom
from ...models.rewrites.polynomial import Poly
from ...models.rewrites.rule import Substitution
from ...models.rewrites.shards import IllTyped
from ...models.rewrites.types import Contradiction, NeedsChoice, Typed, type_left
from ...proofs.rewrites.judgement import Absent, Case, Fact, Idle, Least, Present, Sign, Unequal, Void
from .facts import Reasoner

_MOST_CHOICES = 6


def unequal_everywhere(
    rule: Substitution, reasoner: Reasoner, choices: tuple[int, ...] = ()
) -> tuple[Case, ...] | None:
    """An outcome (void, or unequal copies) for every case of typing the left side; None if one has none that is
    found.
    """
    if len(choices) > _MOST_CHOICES:
        return None
    try:
        typed = type_left(rule, choices)
    except NeedsChoice:
        below = [unequal_everywhere(rule, reasoner, (*choices, c)) for c in (0, 1)]
        return None if None in below else tuple(c for cases in below if cases is not None for c in cases)
    except (Contradiction, IllTyped):
        return (Case(choices, Void(None)),)
    fact = reasoner.contradiction(typed.facts.all_facts())
    if fact is not None:
        return (Case(choices, Void(fact)),)
    try:
        found = next(
            (u for k in range(len(typed.left.copies)) if (u := _unequal(typed, k, reasoner)) is not None), None
        )
    except TooLarge:
        return None
    return None if found is None else (Case(choices, found),)


def _unequal(typed: Typed, number: int, reasoner: Reasoner) -> Unequal | None:
    _, wire, extents, position = typed.left.copies[number]
    known = typed.facts.all_facts()
    last = typed.facts.now(extents[position]) - 1
    count = len(typed.rule.inputs)
    for at in dict.fromkeys((last, Poly.of(1))):
        bounds = reasoner.prove_fact(known, at - 1), reasoner.prove_fact(known, last - at)
        if bounds[0] is None or bounds[1] is None:
            continue
        builder = Builder(typed)
        first = builder.whole(typed.left, wire, tuple(Poly({}) for _ in extents))
        other = builder.whole(typed.left, wire, tuple(at if k == position else Poly({}) for k in range(len(extents))))
        context = [*known, *builder.facts()]
        for chosen in (c for n in range(1, count + 1) for c in combinations(range(count), n)):
            signs = _Signs(frozenset(chosen), reasoner)
            for swapped, none, some in ((False, first, other), (True, other, first)):
                zero = signs.none(none, context)
                positive = None if zero is None else signs.some(some, context)
                if zero is not None and positive is not None:
                    return Unequal(number, at, swapped, chosen, (bounds[0], bounds[1]), zero, positive)
    return None


class _Signs:
    """Signs of guarded sums when the inputs `ones` are all 1 and the others all 0."""

    def __init__(self, ones: frozenset[int], reasoner: Reasoner) -> None:
        self.ones, self.reasoner = ones, reasoner

    def none(self, s: GuardedSum, context: list[Poly]) -> tuple[Sign, ...] | None:
        """A sign for each monomial of a sum that is 0."""
        out: list[Sign] = []
        for m in s:
            sign = self._zero(m, context)
            if sign is None:
                return None
            out.append(sign)
        return tuple(out)

    def some(self, s: GuardedSum, context: list[Poly]) -> tuple[Sign, ...] | None:
        """A sign for each monomial of a sum that is at least 1."""
        out: list[Sign] = []
        for m in s:
            sign = self._zero(m, context) or self._present(m, context)
            if sign is None:
                if m.coefficient < 1 or not all(isinstance(a, Entry) or _relu(a) for a in m.atoms):
                    return None
                sign = Least()
            out.append(sign)
        return tuple(out) if any(isinstance(sign, Present) for sign in out) else None

    def _zero(self, m: Monomial, context: list[Poly]) -> Sign | None:
        for k, a in enumerate(m.atoms):
            if isinstance(a, Entry) and a.operand not in self.ones:
                return Idle(k, ())
        fact = self.reasoner.contradiction([*context, *m.guards])
        if fact is not None:
            return Absent(fact)
        for k, a in enumerate(m.atoms):
            if _relu(a):
                inner = self.none(a.arguments[0], [*context, *m.guards])
                if inner is not None:
                    return Idle(k, inner)
        return None

    def _present(self, m: Monomial, context: list[Poly]) -> Present | None:
        if m.coefficient < 1:
            return None
        point = {v: Poly({}) for v in m.variables}
        facts: list[Fact] = []
        for g in m.guards:
            fact = self.reasoner.prove_fact(context, g.substitute(point))
            if fact is None:
                return None
            facts.append(fact)
        inner: list[tuple[Sign, ...]] = []
        for a in m.atoms:
            there = put_atom(a, point)
            if isinstance(there, Entry) and there.operand in self.ones:
                inner.append(())
            elif _relu(there) and (found := self.some(there.arguments[0], context)) is not None:
                inner.append(found)
            else:
                return None
        return Present(tuple(point.items()), tuple(facts), tuple(inner))


def _relu(atom: object) -> TypeGuard[Apply]:
    return isinstance(atom, Apply) and atom.function == "relu" and not atom.index and len(atom.arguments) == 1

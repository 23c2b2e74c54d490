"""Finds equality of guarded sums by case splits, refinement of monomials and affine bijections: finds
`proofs.rewrites.judgement.Equality` trees.

    equal(L, R, context)
      1. a guard without bound variables that the context does not decide  ->  Split
      2. every monomial is refined: zero, pinned variables, digits, cuts
      3. monomials are carried onto each other by integer affine maps with determinant +-1 and equal ranges;
         coefficients must cancel

Nothing here is trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import assert_never

from ...models.rewrites.guarded_sums import (
    Apply,
    Atom,
    Entry,
    GuardedSum,
    Highest,
    Monomial,
    Value,
    put_atom,
    put_monomial,
)
from ...models.rewrites.polynomial import Poly
from ...proofs.rewrites.judgement import (
    Applied,
    AtomProof,
    Cluster,
    Cut,
    Digits,
    Empty,
    Entries,
    Equality,
    Fact,
    Facts,
    Keep,
    Known,
    Larger,
    Leaf,
    Member,
    Peak,
    Pin,
    Split,
    Step,
    Zero,
)
from ..selection.model.clock import Clock
from .facts import Reasoner, visible
from .known import FunctionAxioms
from .maps import atom_pairings, candidate_maps, unimodular
from .refine import Refiner
from .terms_inside import (
    by_axiom,
    free_guards,
    in_digits,
    kept_of,
    names_of,
    signature_of,
    some_atoms,
    with_guard,
    with_pinned,
)

EQUALITY = 500
"""Steps of work of an equality, or of a product that is matched."""

_MOST_MAPS = 120
_MOST_DEPTH = 40
_MOST_ROUNDS = 5
_MOST_AXIOMS = 6
"""Rounds more where axioms of functions are used: each takes one function apart."""


class OutOfTime(Exception):
    """The rule took longer than its limit."""


class Matcher:
    """Proves equalities.  `maxima`: the maxima of the typing (symbol, first, second), for `Larger` splits."""

    def __init__(
        self,
        reasoner: Reasoner,
        maxima: tuple[tuple[Poly, Poly, Poly], ...] = (),
        clock: Clock | None = None,
        digits: tuple[Poly, ...] = (),
    ) -> None:
        self.reasoner, self.maxima, self.clock = reasoner, maxima, clock or Clock()
        self.refiner = Refiner(reasoner, digits)
        self.axioms = FunctionAxioms(self.refiner)
        self.failure = ""

    def equal(self, left: GuardedSum, right: GuardedSum, context: list[Poly], depth: int = 0) -> Equality | None:
        """A proof that left = right under the context, or None."""
        self.clock.charge(EQUALITY)
        if self.clock.over():
            raise OutOfTime
        if depth > _MOST_DEPTH:
            return None
        guard = self._undecided(left, right, context)
        if guard is not None:
            yes = self._under([*context, guard], left, right, depth)
            if yes is None:
                return None
            no = self._under([*context, -guard - 1], left, right, depth)
            return None if no is None else Split(guard, yes, no)
        leaf = self._leaf(left, right, context, depth)
        if leaf is None and (self.axioms.speak_of(left, context) or self.axioms.speak_of(right, context)):
            leaf = self._leaf(left, right, context, depth, axioms=True)
        if leaf is not None:
            return leaf
        return self._larger(left, right, context, depth)

    def _under(self, context: list[Poly], left: GuardedSum, right: GuardedSum, depth: int) -> Equality | None:
        fact = self.reasoner.contradiction(context)
        return Empty(fact) if fact is not None else self.equal(left, right, context, depth + 1)

    def _larger(self, left: GuardedSum, right: GuardedSum, context: list[Poly], depth: int) -> Equality | None:
        """Split on a maximum that is not decided and occurs in what failed."""
        names = names_of(left) | names_of(right)
        for k, (s, a, b) in enumerate(self.maxima):
            if s.names.isdisjoint(names) and not any(not s.names.isdisjoint(c.names) for c in context):
                continue
            first, second = a - s, b - s
            if (
                self.reasoner.prove_fact(context, first) is not None
                or self.reasoner.prove_fact(context, second) is not None
            ):
                continue
            one = self._under([*context, first], left, right, depth)
            if one is None:
                return None
            two = self._under([*context, second], left, right, depth)
            return None if two is None else Larger(k, one, two)
        return None

    # ---- case splits
    # ------------------------------------------------------------------------------------------------------------------

    def _undecided(self, left: GuardedSum, right: GuardedSum, context: list[Poly]) -> Poly | None:
        seen: set[Poly] = set()
        for g in (*free_guards(left, frozenset()), *free_guards(right, frozenset())):
            if g in seen or -g - 1 in seen:
                continue
            seen.add(g)
            if visible(context, g) or visible(context, -g - 1):
                continue
            if self.reasoner.prove_fact(context, g) is None and self.reasoner.prove_fact(context, -g - 1) is None:
                return g
        return None

    # ---- leaves
    # ------------------------------------------------------------------------------------------------------------------

    def _leaf(
        self, left: GuardedSum, right: GuardedSum, context: list[Poly], depth: int, axioms: bool = False
    ) -> Leaf | None:
        steps = [[self.refiner.simplify(m, context) for m in side] for side in (left, right)]
        if (
            len(left) * len(right) > 4
        ):  # products of joined axes: most terms are 0, and comparing them costs more than finding that out
            steps = [
                [
                    (self.refiner.zero(m, context) or s) if isinstance(s, Keep) else s
                    for m, s in zip(side, steps[k], strict=True)
                ]
                for k, side in enumerate((left, right))
            ]
        for rounds in range(_MOST_ROUNDS + (_MOST_AXIOMS if axioms else 0)):
            kept = [
                m
                for k, side in enumerate((left, right))
                for m, s in zip(side, steps[k], strict=True)
                for m in kept_of(m, s)
            ]
            count = sum(len(kept_of(m, s)) for m, s in zip(left, steps[0], strict=True))
            clusters, failed = self._clusters(kept, count, context, depth)
            if not failed:
                return Leaf(tuple(steps[0]), tuple(steps[1]), tuple(clusters))
            if rounds == 0:
                steps, changed = self._each(left, right, steps, failed, partial(self.refiner.zero, context=context))
                if changed:
                    continue
            if axioms:
                steps, changed = self._each(left, right, steps, failed, partial(self.axioms.step, context=context))
                if changed:
                    continue
            others = [kept[n] for n in sorted(failed)]
            steps, changed = self._each(
                left, right, steps, failed, partial(self.refiner.finer, context=context, others=others)
            )
            if not changed:
                self.failure = f"{len(failed)} terms left over"
                return None
        return None

    def _each(
        self,
        left: GuardedSum,
        right: GuardedSum,
        steps: list[list[Step]],
        failed: set[int],
        change: Callable[[Monomial], Step | None],
    ) -> tuple[list[list[Step]], bool]:
        """Replace the Keep of every kept monomial whose number failed by change(monomial), if it has something to
        offer.
        """
        number, changed = 0, False

        def visit(m: Monomial, s: Step) -> Step:
            nonlocal number, changed
            match s:
                case Keep():
                    number += 1
                    if number - 1 in failed:
                        new = change(m)
                        if new is not None:
                            changed = True
                            return new
                    return s
                case Zero():
                    return s
                case Cut():
                    return Cut(s.guard, visit(with_guard(m, s.guard), s.yes), visit(with_guard(m, -s.guard - 1), s.no))
                case Pin():
                    return Pin(s.variable, s.value, s.at_least, s.at_most, visit(with_pinned(m, s), s.rest))
                case Digits():
                    return Digits(s.variable, s.modulus, s.fact, visit(in_digits(m, s), s.rest))
                case Known():
                    return replace(s, rest=tuple(visit(w, r) for w, r in zip(by_axiom(m, s), s.rest, strict=True)))
                case _:
                    assert_never(s)

        out = [[visit(m, s) for m, s in zip(side, steps[k], strict=True)] for k, side in enumerate((left, right))]
        return out, changed

    # ---- clusters
    # ------------------------------------------------------------------------------------------------------------------

    def _clusters(
        self, kept: list[Monomial], left: int, context: list[Poly], depth: int
    ) -> tuple[list[Cluster], set[int]]:
        """Clusters, and the numbers of monomials in clusters that do not cancel."""
        found: list[tuple[int, list[Member]]] = []
        weight: list[int] = []
        by_signature: dict[object, list[int]] = {}
        for k, m in enumerate(kept):
            sign = m.coefficient if k < left else -m.coefficient
            mine = by_signature.setdefault(signature_of(m), [])
            mine.sort(key=lambda c: weight[c] == 0)
            for c in mine:
                member = self._member(kept[found[c][0]], m, k, context, depth)
                if member is not None:
                    found[c][1].append(member)
                    weight[c] += sign
                    break
            else:
                mine.append(len(found))
                found.append((k, []))
                weight.append(sign)
        failed = {
            n
            for (first, others), w in zip(found, weight, strict=True)
            if w
            for n in (first, *(o.number for o in others))
        }
        return [Cluster(first, tuple(others)) for first, others in found], failed

    def _member(self, first: Monomial, m: Monomial, number: int, context: list[Poly], depth: int) -> Member | None:
        if len(first.variables) != len(m.variables) or len(first.atoms) != len(m.atoms):
            return None
        self.clock.charge(EQUALITY)
        if self.clock.over():
            raise OutOfTime
        for count, (assignment, pairing) in enumerate(candidate_maps(first, m)):
            if count >= _MOST_MAPS:
                return None
            ranges = self._ranges(first.variables, first.guards, m.variables, m.guards, assignment, context)
            if ranges is None:
                continue
            inside = [*context, *first.guards]
            moved = tuple(put_atom(a, assignment) for a in m.atoms)
            for order in (pairing,) if pairing is not None else atom_pairings(first.atoms, moved):
                atoms = self._atoms(first.atoms, tuple(moved[j] for j in order), inside, depth)
                if atoms is not None:
                    return Member(number, tuple(sorted(assignment.items())), *ranges, order, atoms)
        return None

    def _ranges(
        self,
        variables: tuple[str, ...],
        guards: tuple[Poly, ...],
        others: tuple[str, ...],
        other_guards: tuple[Poly, ...],
        assignment: dict[str, Poly],
        context: list[Poly],
    ) -> tuple[Facts, Facts] | None:
        if others and not unimodular(variables, others, assignment):
            return None
        mapped = [g.substitute(assignment) for g in other_guards]
        there = self._all([*context, *guards], mapped)
        if there is None:
            return None
        back = self._all([*context, *mapped], guards)
        return None if back is None else (there, back)

    def _all(self, known: list[Poly], goals: list[Poly] | tuple[Poly, ...]) -> Facts | None:
        out: list[Fact] = []
        for g in goals:
            fact = self.reasoner.prove_fact(known, g)
            if fact is None:
                return None
            out.append(fact)
        return tuple(out)

    def _atoms(
        self, first: tuple[Atom, ...], second: tuple[Atom, ...], known: list[Poly], depth: int
    ) -> tuple[AtomProof, ...] | None:
        pairs = sorted(range(len(first)), key=lambda k: not isinstance(first[k], Entry | Value))
        proofs: dict[int, AtomProof] = {}
        for k in pairs:
            proof = self._atom(first[k], second[k], known, depth)
            if proof is None:
                return None
            proofs[k] = proof
        return tuple(proofs[k] for k in range(len(first)))

    def _atom(self, a: Atom, b: Atom, known: list[Poly], depth: int) -> AtomProof | None:
        if isinstance(a, Entry) and isinstance(b, Entry):
            if a.operand != b.operand or len(a.index) != len(b.index):
                return None
            facts = self._same(a.index, b.index, known)
            return None if facts is None else Entries(facts)
        if isinstance(a, Value) and isinstance(b, Value):
            facts = self._same((a.value,), (b.value,), known)
            return None if facts is None else Entries(facts)
        if isinstance(a, Apply) and isinstance(b, Apply):
            if a.function != b.function or len(a.arguments) != len(b.arguments) or len(a.index) != len(b.index):
                return None
            facts = self._same(a.index, b.index, known)
            if facts is None:
                return None
            inner: list[Equality] = []
            for s, t in zip(a.arguments, b.arguments, strict=True):
                proof = self.equal(s, t, known, depth + 1)
                if proof is None:
                    return None
                inner.append(proof)
            return Applied(facts, tuple(inner))
        if isinstance(a, Highest) and isinstance(b, Highest) and len(a.variables) == len(b.variables):
            x = Monomial(1, a.variables, a.guards, some_atoms(a.body))
            y = Monomial(1, b.variables, b.guards, some_atoms(b.body))
            for count, (assignment, _) in enumerate(candidate_maps(x, y, anything=True)):
                if count >= _MOST_MAPS:
                    return None
                ranges = self._ranges(a.variables, a.guards, b.variables, b.guards, assignment, known)
                if ranges is None:
                    continue
                body = self.equal(
                    a.body, tuple(put_monomial(m, assignment) for m in b.body), [*known, *a.guards], depth + 1
                )
                if body is not None:
                    return Peak(tuple(sorted(assignment.items())), *ranges, body)
        return None

    def _same(
        self, p: tuple[Poly, ...], q: tuple[Poly, ...], known: list[Poly]
    ) -> tuple[tuple[Fact, Fact], ...] | None:
        out: list[tuple[Fact, Fact]] = []
        for a, b in zip(p, q, strict=True):
            d = a - b
            if d.constant is not None:
                if d.terms:
                    return None
                out.append(((), ()))
                continue
            low = self.reasoner.prove_fact(known, d)
            high = self.reasoner.prove_fact(known, -d) if low is not None else None
            if low is None or high is None:
                return None
            out.append((low, high))
        return tuple(out)


__all__ = ["Matcher", "OutOfTime"]

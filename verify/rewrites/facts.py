"""Replays the proof trees of `proofs.rewrites.judgement`: no solver, no search.  Every function raises
`Rejected` or
returns.

* a fact: the combination of hypotheses with the given positive multipliers is a negative constant
* a map of bound variables: integer polynomials of the other side's bound variables, determinant +-1, every guard of one
  side from those of the other, both ways; so it is a bijection of the two ranges
* steps: each rewrites a monomial into monomials of the same sum
* clusters: every kept monomial is in exactly one; coefficients, those of the right side negated, add up to 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from ...models.rewrites.function_axioms import bound_names, collect, may_apply, rewritten, spread
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
from ...models.rewrites.index_expressions import Index
from ...models.rewrites.polynomial import ONE, Poly, determinant
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

MOST_VARIABLES: Final = 7
MOST_DEPTH: Final = 120

Maxima = Sequence[tuple[Poly, Poly, Poly]]
Context = tuple[Poly, ...]


class Rejected(ValueError):
    """A proof that does not show what it claims; `place` names the part."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


def check_fact(hypotheses: Sequence[Poly], fact: Fact, place: str) -> None:
    """The hypotheses cannot all be >= 0."""
    total = Poly({})
    for i, j, c in fact:
        if c < 1 or not 0 <= i < len(hypotheses) or not -1 <= j < len(hypotheses):
            raise Rejected(place, "a fact names a hypothesis that does not exist, or has a multiplier below 1")
        term = hypotheses[i] if j < 0 else hypotheses[i] * hypotheses[j]
        total = total + term * c
    if total.constant is None or total.constant >= 0:
        raise Rejected(place, f"a combination of facts gives {str(total)[:80]}, not a negative constant")


def check_implied(known: Sequence[Poly], goal: Poly, fact: Fact, place: str) -> None:
    """goal >= 0 follows from known >= 0 in integers."""
    if not fact:
        if goal.constant is not None:
            if goal.constant >= 0:
                return
        elif any((goal - h).constant is not None and (goal - h).value({}) >= 0 for h in known):
            return
        raise Rejected(place, f"{str(goal)[:80]} >= 0 is claimed to be visible and is not")
    check_fact((*known, -goal - 1), fact, place)


def _implied_all(known: Sequence[Poly], goals: Sequence[Poly], facts: Sequence[Fact], place: str) -> None:
    if len(goals) != len(facts):
        raise Rejected(place, f"{len(facts)} facts for {len(goals)} guards")
    for g, f in zip(goals, facts, strict=True):
        check_implied(known, g, f, place)


@dataclass(frozen=True)
class Scope:
    """What holds and which names are free at a place of the proof; `maxima` of the typing."""

    context: Context
    names: frozenset[str]
    maxima: Maxima

    def under(self, *guards: Poly) -> Scope:
        """With guards over names that are already free (so that no guard can speak of a name that is bound further
        in).
        """
        return Scope((*self.context, *guards), self.names, self.maxima)

    def inside(self, variables: Iterable[str], guards: Iterable[Poly]) -> Scope:
        """Within a term: its bound variables are free there."""
        return Scope((*self.context, *guards), self.names | frozenset(variables), self.maxima)

    def speaks(self, p: Poly, variables: Iterable[str], place: str) -> None:
        """Every name of p is free, or one of `variables`."""
        if not p.names <= self.names | frozenset(variables):
            raise Rejected(place, f"{str(p)[:80]} uses a name that is not free here")


def scope_of(context: Sequence[Poly], free: Iterable[str], maxima: Maxima) -> Scope:
    """The outermost scope: the names of the context and the free coordinates."""
    return Scope(tuple(context), frozenset(s for p in context for s in p.names) | frozenset(free), maxima)


def check_equality(
    left: GuardedSum, right: GuardedSum, scope: Scope, proof: Equality, place: str, depth: int = 0
) -> None:
    """left = right for all integers that satisfy the context."""
    if depth > MOST_DEPTH:
        raise Rejected(place, "is nested too deeply")
    match proof:
        case Split():
            g = proof.guard
            scope.speaks(g, (), place)
            check_equality(left, right, scope.under(g), proof.yes, f"{place}/yes", depth + 1)
            check_equality(left, right, scope.under(-g - 1), proof.no, f"{place}/no", depth + 1)
        case Larger():
            if not 0 <= proof.number < len(scope.maxima):
                raise Rejected(place, f"there is no maximum {proof.number}")
            s, a, b = scope.maxima[proof.number]
            check_equality(left, right, scope.under(a - s), proof.first, f"{place}/first", depth + 1)
            check_equality(left, right, scope.under(b - s), proof.second, f"{place}/second", depth + 1)
        case Empty():
            check_fact(scope.context, proof.fact, place)
        case Leaf():
            _leaf(left, right, scope, proof, place, depth)
        case _:
            assert_never(proof)


def _leaf(left: GuardedSum, right: GuardedSum, scope: Scope, proof: Leaf, place: str, depth: int) -> None:
    kept: list[tuple[int, Monomial]] = []
    for sign, side, steps in ((1, left, proof.left), (-1, right, proof.right)):
        if len(side) != len(steps):
            raise Rejected(place, f"{len(steps)} steps for {len(side)} terms")
        for m, s in zip(side, steps, strict=True):
            if len(set(m.variables)) < len(m.variables) or not scope.names.isdisjoint(m.variables):
                raise Rejected(place, "a bound name is also free")
            kept += [(sign * k.coefficient, k) for k in replay_steps(m, s, scope, place, 0)]
    seen: set[int] = set()
    for n, cluster in enumerate(proof.clusters):
        _cluster(kept, cluster, scope, f"{place}/cluster {n}", depth, seen)
    if len(seen) != len(kept):
        raise Rejected(place, f"{len(kept) - len(seen)} terms are in no cluster")


def _cluster(
    kept: list[tuple[int, Monomial]], cluster: Cluster, scope: Scope, place: str, depth: int, seen: set[int]
) -> None:
    total = 0
    for number in (cluster.first, *(m.number for m in cluster.others)):
        if not 0 <= number < len(kept) or number in seen:
            raise Rejected(place, f"term {number} does not exist or is used twice")
        seen.add(number)
        total += kept[number][0]
    if total:
        raise Rejected(place, f"coefficients add up to {total}")
    first = kept[cluster.first][1]
    for member in cluster.others:
        m = kept[member.number][1]
        values = _bijection(_Range.of(first), _Range.of(m), member, scope, place)
        atoms = tuple(put_atom(a, values) for a in m.atoms)
        if (
            sorted(member.pairing) != list(range(len(first.atoms)))
            or len(atoms) != len(first.atoms)
            or len(member.atoms) != len(atoms)
        ):
            raise Rejected(place, "atoms do not pair off")
        for a, j, p in zip(first.atoms, member.pairing, member.atoms, strict=True):
            _atom(a, atoms[j], scope.inside(first.variables, first.guards), p, place, depth)


@dataclass(frozen=True)
class _Range:
    """Integer points of bound variables where all guards are at least zero."""

    variables: tuple[str, ...]
    guards: Index

    @classmethod
    def of(cls, bound: Monomial | Highest) -> _Range:
        """Where the bound variables of a sum or of a maximum run."""
        return cls(bound.variables, bound.guards)


def _bijection(mine: _Range, other: _Range, stated: Member | Peak, scope: Scope, place: str) -> dict[str, Poly]:
    """The stated map of the variables of `other` to polynomials in `mine`'s, checked to be a bijection of both."""
    variables, others = mine.variables, other.variables
    values = dict(stated.assignment)
    if (
        set(values) != set(others)
        or len(stated.assignment) != len(others)
        or len(others) != len(variables)
        or len(variables) > MOST_VARIABLES
    ):
        raise Rejected(place, "a map of bound variables does not fit them")
    rows = []
    for v in others:
        scope.speaks(values[v], variables, place)
        row, rest = [], values[v]
        for w in variables:
            parts = rest.coefficient(w)
            if parts is None or parts[0].names & set(variables):
                raise Rejected(place, f"the map of {v} is not affine")
            row.append(parts[0])
            rest = parts[1]
        rows.append(row)
    if rows and determinant(rows) not in (ONE, -ONE):
        raise Rejected(place, "the map of bound variables does not have determinant 1 or -1")
    mapped = tuple(g.substitute(values) for g in other.guards)
    _implied_all((*scope.context, *mine.guards), mapped, stated.there, place)
    _implied_all((*scope.context, *mapped), mine.guards, stated.back, place)
    return values


def _atom(a: Atom, b: Atom, scope: Scope, proof: AtomProof, place: str, depth: int) -> None:
    match proof:
        case Entries():
            if isinstance(a, Entry) and isinstance(b, Entry) and a.operand == b.operand:
                _same(a.index, b.index, proof.facts, scope.context, place)
            elif isinstance(a, Value) and isinstance(b, Value):
                _same((a.value,), (b.value,), proof.facts, scope.context, place)
            else:
                raise Rejected(place, "entries of different inputs are paired")
        case Applied():
            if not (isinstance(a, Apply) and isinstance(b, Apply) and a.function == b.function):
                raise Rejected(place, "applications of different functions are paired")
            if not len(a.arguments) == len(b.arguments) == len(proof.arguments):
                raise Rejected(place, "applications have different numbers of arguments")
            _same(a.index, b.index, proof.facts, scope.context, place)
            for k, (s, t, p) in enumerate(zip(a.arguments, b.arguments, proof.arguments, strict=True)):
                check_equality(s, t, scope, p, f"{place}/{a.function} {k}", depth + 1)
        case Peak():
            if not (isinstance(a, Highest) and isinstance(b, Highest)):
                raise Rejected(place, "a maximum is paired with something else")
            values = _bijection(_Range.of(a), _Range.of(b), proof, scope, place)
            body = tuple(put_monomial(m, values) for m in b.body)
            check_equality(a.body, body, scope.inside(a.variables, a.guards), proof.body, f"{place}/maximum", depth + 1)
        case _:
            assert_never(proof)


def _same(p: Index, q: Index, facts: Sequence[tuple[Fact, Fact]], context: Context, place: str) -> None:
    if not len(p) == len(q) == len(facts):
        raise Rejected(place, "indices have different lengths")
    for a, b, (low, high) in zip(p, q, facts, strict=True):
        if a != b:
            check_implied(context, a - b, low, place)
            check_implied(context, b - a, high, place)


def replay_steps(m: Monomial, step: Step, scope: Scope, place: str, depth: int) -> list[Monomial]:
    """Monomials whose sum is m, by the steps."""
    if depth > MOST_DEPTH:
        raise Rejected(place, "steps are nested too deeply")
    match step:
        case Keep():
            return [m]
        case Zero():
            check_fact((*scope.context, *m.guards), step.fact, place)
            return []
        case Cut():
            scope.speaks(step.guard, m.variables, place)
            yes = Monomial(m.coefficient, m.variables, (*m.guards, step.guard), m.atoms)
            no = Monomial(m.coefficient, m.variables, (*m.guards, -step.guard - 1), m.atoms)
            return [
                *replay_steps(yes, step.yes, scope, place, depth + 1),
                *replay_steps(no, step.no, scope, place, depth + 1),
            ]
        case Pin():
            if step.variable not in m.variables or step.variable in step.value.names:
                raise Rejected(place, f"{step.variable} cannot be pinned to {step.value}")
            scope.speaks(step.value, m.variables, place)
            known = (*scope.context, *m.guards)
            check_implied(known, Poly.of(step.variable) - step.value, step.at_least, place)
            check_implied(known, step.value - step.variable, step.at_most, place)
            return replay_steps(put_monomial(m, {step.variable: step.value}), step.rest, scope, place, depth + 1)
        case Digits():
            high, low = f"{step.variable}'h", f"{step.variable}'l"
            if step.variable not in m.variables or step.modulus.names & set(m.variables):
                raise Rejected(place, f"{step.variable} has no digits for {step.modulus}")
            scope.speaks(step.modulus, (), place)
            check_implied(scope.context, step.modulus - 1, step.fact, place)
            p = put_monomial(m, {step.variable: step.modulus * high + low})
            two = Monomial(
                p.coefficient, (*p.variables, high, low), (*p.guards, Poly.of(low), step.modulus - 1 - low), p.atoms
            )
            return replay_steps(two, step.rest, scope, place, depth + 1)
        case Known():
            found = _by_axiom(m, step, scope, place, depth)
            if len(found) != len(step.rest):
                raise Rejected(place, f"{len(step.rest)} steps for the {len(found)} terms of axiom {step.axiom!r}")
            return [
                k for w, s in zip(found, step.rest, strict=True) for k in replay_steps(w, s, scope, place, depth + 1)
            ]
        case _:
            assert_never(step)


def _by_axiom(m: Monomial, step: Known, scope: Scope, place: str, depth: int) -> tuple[Monomial, ...]:
    """Monomials whose sum is m, by an axiom of a function."""
    if not 0 <= step.atom < len(m.atoms):
        raise Rejected(place, f"there is no atom {step.atom}")
    atom, others = m.atoms[step.atom], (*m.atoms[: step.atom], *m.atoms[step.atom + 1 :])
    if not isinstance(atom, Apply) or atom.index or len(atom.arguments) != 1:
        raise Rejected(place, f"axiom {step.axiom!r} is about functions of one sum")
    inside = scope.inside(m.variables, m.guards)
    (argument,) = atom.arguments
    if len(argument) != len(step.steps):
        raise Rejected(place, f"{len(step.steps)} steps for {len(argument)} terms of an argument")
    terms: list[Monomial] = []
    for k, s in zip(argument, step.steps, strict=True):
        if len(set(k.variables)) < len(k.variables) or not inside.names.isdisjoint(k.variables):
            raise Rejected(place, "a bound name is also free")
        terms += replay_steps(k, s, inside, place, depth + 1)
    found = collect(terms)
    result = rewritten(step.axiom, atom.function, found, step.factors)
    # "square" looks for the same function beside it, as it stands
    asked = argument if step.axiom == "square" else found
    if result is None or not may_apply(
        step.axiom, atom.function, asked, step.factors, inside.context, others, _filled(found, step, inside, place)
    ):
        raise Rejected(place, f"axiom {step.axiom!r} does not apply to {atom.function}")
    outside = bound_names(others)
    for w in result:
        if not outside.isdisjoint(w.variables) or not inside.names.isdisjoint(w.variables):
            raise Rejected(place, "a name that an axiom brings out is bound already")
    return spread(m, step.atom, result)


def _filled(s: GuardedSum, step: Known, scope: Scope, place: str) -> bool:
    """Whether the range of the maximum holds the point of the step (False if there is none)."""
    if step.axiom != "maximum" or not step.point:
        return False
    top = s[0].atoms[0] if s and s[0].atoms else None
    point = dict(step.point)
    if not isinstance(top, Highest) or set(point) != set(top.variables) or len(point) != len(step.point):
        raise Rejected(place, "the point does not fit the maximum")
    for p in point.values():
        scope.speaks(p, (), place)
    _implied_all(scope.context, tuple(g.substitute(point) for g in top.guards), step.facts, place)
    return True

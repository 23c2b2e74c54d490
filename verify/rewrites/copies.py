"""Checks "no instance keeps its copies" (`proofs.rewrites.judgement.Unequal`): inputs all 0 or all 1, so
that values are sums of non-negative terms.

    value 0              every monomial is absent (guards contradictory) or has an atom that is 0
    value at least 1     every monomial is at least 0, and one is present: a point of its range where every atom is at
                         least 1

relu is max(v, 0); a monomial with any other function counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard, assert_never

from ...models.rewrites.guarded_sums import Apply, Builder, Entry, GuardedSum, Monomial, put_atom
from ...models.rewrites.polynomial import Poly
from ...models.rewrites.types import Typed
from ...proofs.rewrites.judgement import Absent, Idle, Least, Present, Sign, Unequal
from .facts import Rejected, check_fact, check_implied


@dataclass(frozen=True)
class _Inputs:
    """Which inputs are 1, and where the proof stands."""

    ones: frozenset[int]
    place: str


def check_unequal(typed: Typed, u: Unequal, place: str) -> None:
    """`Rejected` unless every instance of this case breaks the copy requirement."""
    if not 0 <= u.number < len(typed.left.copies):
        raise Rejected(place, f"the left side has no copy requirement {u.number}")
    _, wire, extents, position = typed.left.copies[u.number]
    known = typed.facts.all_facts()
    for goal, fact in zip((u.at - 1, typed.facts.now(extents[position]) - 1 - u.at), u.in_range, strict=True):
        check_implied(known, goal, fact, f"{place}, replica {u.at}")
    builder = Builder(typed)
    first = builder.whole(typed.left, wire, tuple(Poly({}) for _ in extents))
    other = builder.whole(typed.left, wire, tuple(u.at if k == position else Poly({}) for k in range(len(extents))))
    context = [*known, *builder.facts()]
    inputs = _Inputs(frozenset(u.ones), place)
    none, some = (other, first) if u.swapped else (first, other)
    _none(none, u.zero, context, inputs)
    _some(some, u.some, context, inputs)


def _none(s: GuardedSum, signs: Sequence[Sign], context: list[Poly], inputs: _Inputs) -> None:
    if len(s) != len(signs):
        raise Rejected(inputs.place, f"{len(signs)} signs for {len(s)} monomials")
    for m, sign in zip(s, signs, strict=True):
        if not isinstance(sign, Absent | Idle):
            raise Rejected(inputs.place, "a monomial of a value that must be 0 is not shown to be 0")
        _sign(m, sign, context, inputs)


def _some(s: GuardedSum, signs: Sequence[Sign], context: list[Poly], inputs: _Inputs) -> None:
    if len(s) != len(signs):
        raise Rejected(inputs.place, f"{len(signs)} signs for {len(s)} monomials")
    if not any(isinstance(sign, Present) for sign in signs):
        raise Rejected(inputs.place, "no monomial of a value that must be positive is shown to be")
    for m, sign in zip(s, signs, strict=True):
        _sign(m, sign, context, inputs)


def _sign(m: Monomial, sign: Sign, context: list[Poly], inputs: _Inputs) -> None:
    match sign:
        case Absent():
            check_fact([*context, *m.guards], sign.fact, inputs.place)
        case Idle():
            if not 0 <= sign.atom < len(m.atoms):
                raise Rejected(inputs.place, f"there is no atom {sign.atom}")
            atom = m.atoms[sign.atom]
            if isinstance(atom, Entry) and atom.operand not in inputs.ones:
                return
            if not _relu(atom):
                raise Rejected(
                    inputs.place,
                    "the atom that is claimed to be 0 is neither an entry of an input that is 0 nor a relu",
                )
            _none(atom.arguments[0], sign.inner, [*context, *m.guards], inputs)
        case Present():
            _present(m, sign, context, inputs)
        case Least():
            if m.coefficient < 1 or not all(isinstance(a, Entry) or _relu(a) for a in m.atoms):
                raise Rejected(inputs.place, "a monomial is not visibly at least 0")
        case _:
            assert_never(sign)


def _present(m: Monomial, sign: Present, context: list[Poly], inputs: _Inputs) -> None:
    point = dict(sign.point)
    if m.coefficient < 1 or set(point) != set(m.variables) or len(point) != len(sign.point):
        raise Rejected(
            inputs.place,
            "a monomial that must be positive has a negative coefficient, or the point does not fit its variables",
        )
    if any(not p.names.isdisjoint(m.variables) for p in point.values()):
        raise Rejected(inputs.place, "the point of a monomial speaks of its own variables")
    if len(sign.facts) != len(m.guards) or len(sign.inner) != len(m.atoms):
        raise Rejected(inputs.place, "facts or atoms of a positive monomial are missing")
    for g, fact in zip(m.guards, sign.facts, strict=True):
        check_implied(context, g.substitute(point), fact, inputs.place)
    if not all(isinstance(a, Entry) or _relu(a) for a in m.atoms):
        raise Rejected(inputs.place, "a monomial that must be positive applies a function other than relu")
    for atom, inner in zip(m.atoms, sign.inner, strict=True):
        there = put_atom(atom, point)
        if isinstance(there, Entry):
            if there.operand not in inputs.ones:
                raise Rejected(inputs.place, "a monomial that must be positive reads an input that is 0")
        elif isinstance(there, Apply):
            _some(there.arguments[0], inner, context, inputs)


def _relu(atom: object) -> TypeGuard[Apply]:
    return isinstance(atom, Apply) and atom.function == "relu" and not atom.index and len(atom.arguments) == 1


__all__ = ["check_unequal"]

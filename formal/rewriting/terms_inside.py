"""Looks inside guarded sums: entries, guards, names, extents; and monomials rewritten by the steps of a
proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from ...models.rewrites.function_axioms import collect, rewritten, spread
from ...models.rewrites.guarded_sums import Apply, Atom, Entry, GuardedSum, Highest, Monomial, Value, put_monomial
from ...models.rewrites.polynomial import Poly
from ...proofs.rewrites.judgement import Cut, Digits, Fact, Keep, Known, Pin, Step, Zero


def with_guard(m: Monomial, g: Poly) -> Monomial:
    return Monomial(m.coefficient, m.variables, (*m.guards, g), m.atoms)


def with_pinned(m: Monomial, s: Pin) -> Monomial:
    return put_monomial(m, {s.variable: s.value})


def in_digits(m: Monomial, s: Digits) -> Monomial:
    high, low = f"{s.variable}'h", f"{s.variable}'l"
    p = put_monomial(m, {s.variable: s.modulus * high + low})
    return Monomial(p.coefficient, (*p.variables, high, low), (*p.guards, Poly.of(low), s.modulus - 1 - low), p.atoms)


def extents_of(m: Monomial, v: str) -> list[Poly]:
    """n for every guard n - 1 - v with n free of the monomial's variables."""
    return [n for g in m.guards if g.terms.get((v,)) == -1 and (n := g + v + 1).names.isdisjoint(m.variables)]


def strides_of(m: Monomial) -> list[Poly]:
    """Coefficients other than +-1 of bound variables in the indices of entries."""
    out: list[Poly] = []
    for e in all_entries(m.atoms):
        for p in e.index:
            for v in m.variables:
                parts = p.coefficient(v) if v in p.names else None
                if parts is not None and parts[0].constant not in (1, -1) and parts[0].names.isdisjoint(m.variables):
                    out.append(parts[0] if all(c > 0 for c in parts[0].terms.values()) else -parts[0])
    return out


def by_axiom(m: Monomial, s: Known) -> tuple[Monomial, ...]:
    """What an axiom makes of a monomial."""
    atom = m.atoms[s.atom]
    assert isinstance(atom, Apply)
    found = collect(k for x, t in zip(atom.arguments[0], s.steps, strict=True) for k in kept_of(x, t))
    return spread(m, s.atom, rewritten(s.axiom, atom.function, found, s.factors) or ())


def kept_of(m: Monomial, s: Step) -> list[Monomial]:
    match s:
        case Keep():
            return [m]
        case Zero():
            return []
        case Cut():
            return [*kept_of(with_guard(m, s.guard), s.yes), *kept_of(with_guard(m, -s.guard - 1), s.no)]
        case Pin():
            return kept_of(with_pinned(m, s), s.rest)
        case Digits():
            return kept_of(in_digits(m, s), s.rest)
        case Known():
            return [k for w, r in zip(by_axiom(m, s), s.rest, strict=True) for k in kept_of(w, r)]
        case _:
            assert_never(s)


def refutation_of(fact: Fact, context: list[Poly], m: Monomial, g: Poly) -> Fact:
    """A fact over context + guards from one that shows -g-1 >= 0 over the context."""
    n, at = len(context), len(context) + m.guards.index(g)
    if fact:  # the negated goal, last of the hypotheses, is -(-g-1)-1 = g
        return tuple((at if i == n else i, at if j == n else j, c) for i, j, c in fact)
    goal = -g - 1
    base = goal.terms.get((), 0)
    for i, h in enumerate(context):
        if h.terms.get((), 0) <= base and h - h.terms.get((), 0) == goal - base:
            return ((i, -1, 1), (at, -1, 1))
    return ((at, -1, 1),)


def head_of(a: Atom) -> object:
    match a:
        case Entry():
            return ("entry", a.operand)
        case Value():
            return ("value",)
        case Apply():
            return (a.function, len(a.arguments))
        case Highest():
            return ("highest", len(a.variables))
        case _:
            assert_never(a)


def signature_of(m: Monomial) -> object:
    return len(m.variables), tuple(sorted(map(str, map(head_of, m.atoms))))


def some_atoms(s: GuardedSum) -> tuple[Atom, ...]:
    return s[0].atoms if s else ()


def all_entries(atoms: tuple[Atom, ...]) -> list[Entry]:
    """Entries of a product, those inside functions and maxima included."""
    found = [a for a in atoms if isinstance(a, Entry)]
    for a in atoms:
        for s in a.arguments if isinstance(a, Apply) else (a.body,) if isinstance(a, Highest) else ():
            for m in s:
                found += all_entries(m.atoms)
    return found


def free_guards(s: GuardedSum, bound: frozenset[str]) -> Iterator[Poly]:
    for m in s:
        inside = bound | set(m.variables)
        for g in m.guards:
            if g.constant is None and g.names.isdisjoint(inside):
                yield g
        for a in m.atoms:
            if isinstance(a, Apply):
                for t in a.arguments:
                    yield from free_guards(t, inside)
            elif isinstance(a, Highest):
                within = inside | set(a.variables)
                for g in a.guards:
                    if g.constant is None and g.names.isdisjoint(within):
                        yield g
                yield from free_guards(a.body, within)


def inner_guards(a: Atom, allowed: frozenset[str]) -> Iterator[Poly]:
    """Guards inside an atom that hold none of the atom's own bound variables, but some of the monomial's."""
    sums = a.arguments if isinstance(a, Apply) else (a.body,) if isinstance(a, Highest) else ()
    own = frozenset(a.variables) if isinstance(a, Highest) else frozenset()
    for s in sums:
        for g in free_guards(s, own):
            if g.names & allowed:
                yield g


def names_of(s: GuardedSum) -> set[str]:
    out: set[str] = set()
    for m in s:
        for g in m.guards:
            out |= g.names
        for a in m.atoms:
            if isinstance(a, Entry | Apply):
                for p in a.index:
                    out |= p.names
            if isinstance(a, Apply):
                for t in a.arguments:
                    out |= names_of(t)
            if isinstance(a, Highest):
                for p in a.guards:
                    out |= p.names
                out |= names_of(a.body)
            if isinstance(a, Value):
                out |= a.value.names
    return out


def leading_part(p: Poly, m: Poly) -> Poly:
    """The part of p that m divides, as a quotient."""
    out = Poly({})
    lead = next(iter(m.terms)) if len(m.terms) == 1 else None
    if lead is None:
        for v in sorted(p.names):
            parts = p.coefficient(v)
            q = parts[0].exact_quotient(m) if parts is not None and parts[0].terms else None
            if q is not None:
                out = out + q * v
    else:
        for t, c in p.terms.items():
            q = Poly({t: c}).exact_quotient(m)
            if q is not None:
                out = out + q
    return out

"""Axioms of elementwise functions, as rewritings of one atom f(argument) of a guarded sum.

    zero          f() = 0                    f keeps 0;   exp() = 1
    not negative  relu(s) = s                every term of s is visibly not negative
    not positive  relu(s) = 0                every term of s is visibly not positive
    factor        relu([g] c P Q) = [g] |c| P relu(+-Q)      P, a product of entries, visibly not negative; no variables
    square        relu(s) relu(s) = s relu(s)
    sign          relu(f(s)) = f(relu(s))    f keeps the sign
    maximum       f([g] max b) = [g] max f(b)                f monotone; f keeps 0, or no guard and the range of the
                  maximum is not empty
    split         exp(s + t) = exp(s) exp(t)

Each follows from the definition and the properties in `functions.FUNCTIONS` (a sum without terms and a maximum over
nothing are 0).  What comes out is built here; whether the conditions hold is looked at by `may_apply`, by structure
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from .functions import function
from .guarded_sums import Apply, Atom, Entry, GuardedSum, Highest, Monomial, Value
from .polynomial import Poly

AXIOMS: Final = ("zero", "not negative", "not positive", "factor", "sign", "maximum", "split", "square")
MOST_POWERS: Final = 8
"""exp(c s) is written as exp(s) times itself for c up to this."""

Known = Sequence[Poly]
_ONE: Final = Monomial(1, (), (), ())


def collect(s: Iterable[Monomial]) -> GuardedSum:
    """The sum with identical monomials put together."""
    out: dict[tuple[object, ...], Monomial] = {}
    for m in s:
        key = (m.variables, m.guards, m.atoms)
        c = m.coefficient + (out[key].coefficient if key in out else 0)
        out[key] = Monomial(c, m.variables, m.guards, m.atoms)
    return tuple(m for m in out.values() if m.coefficient)


def rewritten(axiom: str, f: str, s: GuardedSum, factors: Sequence[int]) -> GuardedSum | None:
    """What f(s) is by the axiom, its conditions aside; None if the axiom does not speak of such a sum.  `factors`:
    atoms of P (axiom "factor").
    """
    one = s[0] if len(s) == 1 and not s[0].variables else None
    match axiom:
        case "zero":
            return None if s else (_ONE,) if f == "exp" else ()
        case "not negative" | "square":
            return s if f == "relu" else None
        case "not positive":
            return () if f == "relu" else None
        case "factor":
            if one is None or f != "relu" or not set(factors) <= set(range(len(one.atoms))):
                return None
            inside = Monomial(
                1 if one.coefficient > 0 else -1, (), (), tuple(a for k, a in enumerate(one.atoms) if k not in factors)
            )
            kept = tuple(a for k, a in enumerate(one.atoms) if k in factors)
            return (Monomial(abs(one.coefficient), (), one.guards, (*kept, Apply("relu", (), ((inside,),)))),)
        case "sign":
            inner = (
                one.atoms[0]
                if one is not None and len(one.atoms) == 1 and one.coefficient == 1 and not one.guards
                else None
            )
            if f != "relu" or not isinstance(inner, Apply) or inner.index or len(inner.arguments) != 1:
                return None
            return (Monomial(1, (), (), (Apply(inner.function, (), (_under("relu", inner.arguments[0]),)),)),)
        case "maximum":
            top = one.atoms[0] if one is not None and len(one.atoms) == 1 and one.coefficient == 1 else None
            if one is None or not isinstance(top, Highest):
                return None
            return (Monomial(1, (), one.guards, (Highest(top.variables, top.guards, _under(f, top.body)),)),)
        case "split":
            if f != "exp" or (len(s) < 2 and not (s and 1 < s[0].coefficient <= MOST_POWERS)):
                return None
            parts: list[Atom] = []
            for m in s:
                times = m.coefficient if 1 < m.coefficient <= MOST_POWERS else 1
                part = Monomial(1, m.variables, m.guards, m.atoms) if times > 1 else m
                parts += [Apply("exp", (), ((part,),))] * times
            return (Monomial(1, (), (), tuple(parts)),)
        case _:
            return None


def may_apply(
    axiom: str, f: str, s: GuardedSum, factors: Sequence[int], known: Known, others: Sequence[Atom], filled: bool
) -> bool:
    """Whether the axiom's conditions hold for f(s) beside the atoms `others`, where every polynomial of `known` is >=
    0.  `filled`: the range of the maximum was shown not to be empty."""
    match axiom:
        case "zero":
            return not s and (f == "exp" or function(f).keeps_zero)
        case "not negative":
            return all(m.coefficient > 0 and not_negative(m.atoms, (*known, *m.guards)) for m in s)
        case "not positive":
            return all(m.coefficient < 0 and not_negative(m.atoms, (*known, *m.guards)) for m in s)
        case "factor":
            m = s[0]
            chosen = [m.atoms[k] for k in factors]
            return bool(factors or m.guards or abs(m.coefficient) > 1) and not_negative(chosen, (*known, *m.guards))
        case "square":
            return Apply("relu", (), (s,)) in others
        case "sign":
            inner = s[0].atoms[0]
            return isinstance(inner, Apply) and function(inner.function).keeps_sign
        case "maximum":
            return function(f).monotone and (function(f).keeps_zero or (filled and not s[0].guards))
        case _:
            return axiom == "split" and f == "exp"


def not_negative(atoms: Sequence[Atom], known: Known) -> bool:
    """Whether a product is visibly >= 0: every atom is, or occurs an even number of times."""
    return all(_not_negative(a, known) or sum(b == a for b in atoms) % 2 == 0 for a in atoms)


def _not_negative(a: Atom, known: Known) -> bool:
    match a:
        case Entry():
            return False
        case Value():
            least = {next(iter(h.names)) for h in known if len(h.names) == 1 and _is_low(h)}
            return all(c > 0 for c in a.value.terms.values()) and a.value.names <= least
        case Apply():
            if function(a.function).not_negative:
                return True
            return (
                function(a.function).keeps_sign and len(a.arguments) == 1 and _sum_not_negative(a.arguments[0], known)
            )
        case Highest():
            return _sum_not_negative(a.body, (*known, *a.guards))
        case _:
            assert_never(a)


def _sum_not_negative(s: GuardedSum, known: Known) -> bool:
    return all(m.coefficient > 0 and not_negative(m.atoms, (*known, *m.guards)) for m in s)


def _is_low(h: Poly) -> bool:
    """Whether h >= 0 says name >= c with c >= 0."""
    (name,) = h.names
    return h.terms.get((name,)) == 1 and len(h.terms) <= 2 and (len(h.terms) == 1 or h.terms.get((), 1) <= 0)


def _under(f: str, s: GuardedSum) -> GuardedSum:
    return (Monomial(1, (), (), (Apply(f, (), (s,)),)),)


def spread(m: Monomial, atom: int, s: GuardedSum) -> tuple[Monomial, ...]:
    """The monomial with an atom replaced by a sum, multiplied out."""
    others = (*m.atoms[:atom], *m.atoms[atom + 1 :])
    return tuple(
        Monomial(
            m.coefficient * w.coefficient, (*m.variables, *w.variables), (*m.guards, *w.guards), (*others, *w.atoms)
        )
        for w in s
    )


def bound_names(atoms: Iterable[Atom]) -> set[str]:
    """Names bound anywhere inside atoms."""
    out: set[str] = set()
    for a in atoms:
        if isinstance(a, Highest):
            out |= set(a.variables)
        for s in a.arguments if isinstance(a, Apply) else (a.body,) if isinstance(a, Highest) else ():
            for m in s:
                out |= set(m.variables) | bound_names(m.atoms)
    return out

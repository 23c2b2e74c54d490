"""Normal forms of pointwise expressions, so that a function is recognised however its formula was
written.

An expression over reads of tensors is a sum of products

    sum_i  c_i * prod_j  atom_ij ^ e_ij          atom = a read | f(normal form) | (normal form of several terms)

with real coefficients and exponents.  Addition, multiplication, scaling, division, and powers of a single atom are
carried out; tanh, erf, sigmoid, exp, log are atoms over the normal form of their argument; casts between floating types
are left out.  Equal normal forms mean equal functions over the reals.  Coefficients are compared to seven digits, for
models write constants such as sqrt(2/pi) with ten.

>>> x = leaf("x")
>>> scale_form(plus(product(x, x), constant(1.0)), 2.0) == plus(constant(2.0), scale_form(power(x, 2.0), 2.0))
True
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

Atom = Hashable
Monomial = tuple[tuple[Atom, float], ...]
Form = Mapping[Monomial, float]

MOST_TERMS = 48


class TooLarge(Exception):
    """A normal form with more terms than a formula has; never leaves the frontends."""


def _clean(terms: dict[Monomial, float]) -> Form:
    if len(terms) > MOST_TERMS:
        raise TooLarge
    return {m: rounded for m, c in terms.items() if (rounded := float(f"{c:.7g}")) != 0.0}


def _monomial(factors: dict[Atom, float]) -> Monomial:
    return tuple(sorted(((a, e) for a, e in factors.items() if e != 0.0), key=repr))


def constant(value: float) -> Form:
    """A number."""
    return _clean({(): value})


def leaf(name: Atom) -> Form:
    """A read."""
    return {((name, 1.0),): 1.0}


def apply_function(function: str, argument: Form) -> Form:
    """function(argument), as an atom."""
    return {(((function, key(argument)), 1.0),): 1.0}


def key(form: Form) -> Hashable:
    """A form as an atom's name."""
    return tuple(sorted(form.items(), key=repr))


def plus(a: Form, b: Form) -> Form:
    """a + b."""
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0.0) + c
    return _clean(out)


def scale_form(a: Form, factor: float) -> Form:
    """factor * a."""
    return _clean({m: c * factor for m, c in a.items()})


def product(a: Form, b: Form) -> Form:
    """a * b."""
    out: dict[Monomial, float] = {}
    for m, c in a.items():
        for n, d in b.items():
            factors: dict[Atom, float] = dict(m)
            for atom, e in n:
                factors[atom] = factors.get(atom, 0.0) + e
            merged = _monomial(factors)
            out[merged] = out.get(merged, 0.0) + c * d
    return _clean(out)


def power(a: Form, exponent: float) -> Form:
    """a ^ exponent: carried out for whole exponents up to 4 and for one atom; else an atom of its own."""
    if exponent == int(exponent) and 1 <= exponent <= 4:
        out = a
        for _ in range(int(exponent) - 1):
            out = product(out, a)
        return out
    if len(a) == 1:
        ((monomial, c),) = a.items()
        if not monomial and c > 0:
            return constant(c**exponent)
        if c == 1.0 and len(monomial) == 1 and monomial[0][1] == 1.0:
            return {((monomial[0][0], exponent),): 1.0}
    return {((("sum", key(a)), exponent),): 1.0}

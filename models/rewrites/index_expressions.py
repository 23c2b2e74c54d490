"""Index expressions: what an operator computes at one output index.

    e ::= Read(k, [p..])            operand k at integer polynomials p
        | Number(p)                 an integer polynomial of sizes and parameters
        | Call(f, [p..], [e..])     uninterpreted function of indices and values (relu, exp, reciprocal, hit, ..)
        | Plus(e..) | Times(e..)
        | Where(p.., e)             e if every p >= 0, else 0
        | Total(v, n, e)            sum of e over 0 <= v < n
        | Most(v.., p.., e)         maximum of e over the v in their ranges with every p >= 0
        | Digit(v, p, m, e)         e with v = floor(p / m)

Names inside polynomials: `i0 i1 ..` output index, `q0 ..` leading device coordinates of the output, `t0 ..` leading
time coordinates, `k.a` size of axis a of operand k, `k.a.degree` its degree, parameter keys, and the names bound by
Total, Most, Digit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from .polynomial import Poly

Index = tuple[Poly, ...]


@dataclass(frozen=True)
class Read:
    """Operand at `index`; `device`, `time`: its leading auxiliary coordinates (the rest are passed pointwise)."""

    operand: int
    index: Index
    device: Index = ()
    time: Index = ()


@dataclass(frozen=True)
class Number:
    """An integer."""

    value: Poly


@dataclass(frozen=True)
class Call:
    """`function` of integers and values; equal arguments give equal results, nothing else is known."""

    function: str
    index: Index
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Plus:
    """Sum."""

    terms: tuple[Expression, ...]


@dataclass(frozen=True)
class Times:
    """Product."""

    factors: tuple[Expression, ...]


@dataclass(frozen=True)
class Where:
    """`body` where all guards are >= 0, else 0."""

    guards: Index
    body: Expression


@dataclass(frozen=True)
class Total:
    """Sum over 0 <= variable < extent."""

    variable: str
    extent: Poly
    body: Expression


@dataclass(frozen=True)
class Most:
    """Maximum over a box of (variable, extent), restricted by guards."""

    ranges: tuple[tuple[str, Poly], ...]
    guards: Index
    body: Expression


@dataclass(frozen=True)
class Digit:
    """`body` with variable = floor(numerator / modulus), modulus >= 1."""

    variable: str
    numerator: Poly
    modulus: Poly
    body: Expression


Expression = Read | Number | Call | Plus | Times | Where | Total | Most | Digit


def children(e: Expression) -> tuple[Expression, ...]:
    """Direct parts of an expression."""
    match e:
        case Read() | Number():
            return ()
        case Call():
            return e.arguments
        case Plus():
            return e.terms
        case Times():
            return e.factors
        case Where() | Total() | Most() | Digit():
            return (e.body,)
        case _:
            assert_never(e)


def walk(e: Expression) -> Iterator[Expression]:
    """The expression and all its parts, parents first."""
    yield e
    for part in children(e):
        yield from walk(part)


def substitute(e: Expression, values: Mapping[str, Poly]) -> Expression:
    """Substitute names (not those bound inside, which are never substituted by callers)."""

    def index(ps: Index) -> Index:
        return tuple(p.substitute(values) for p in ps)

    match e:
        case Read():
            return Read(e.operand, index(e.index), index(e.device), index(e.time))
        case Number():
            return Number(e.value.substitute(values))
        case Call():
            return Call(e.function, index(e.index), tuple(substitute(a, values) for a in e.arguments))
        case Plus():
            return Plus(tuple(substitute(a, values) for a in e.terms))
        case Times():
            return Times(tuple(substitute(a, values) for a in e.factors))
        case Where():
            return Where(index(e.guards), substitute(e.body, values))
        case Total():
            return Total(e.variable, e.extent.substitute(values), substitute(e.body, values))
        case Most():
            return Most(
                tuple((v, n.substitute(values)) for v, n in e.ranges), index(e.guards), substitute(e.body, values)
            )
        case Digit():
            return Digit(
                e.variable, e.numerator.substitute(values), e.modulus.substitute(values), substitute(e.body, values)
            )
        case _:
            assert_never(e)


def linear_in(e: Expression, operands: frozenset[int]) -> bool:
    """Whether e is a sum of terms each of which holds exactly one factor read from `operands` (outside calls and
    maxima).

    Then e(sum_q x_q) = sum_q e(x_q) when the operands outside `operands` do not depend on q.
    """
    match e:
        case Read():
            return e.operand in operands
        case Number() | Call() | Most():
            return False
        case Plus():
            return all(linear_in(t, operands) for t in e.terms)
        case Times():
            hold = [f for f in e.factors if any(isinstance(p, Read) and p.operand in operands for p in walk(f))]
            return len(hold) == 1 and linear_in(hold[0], operands)
        case Where() | Total() | Digit():
            return linear_in(e.body, operands)
        case _:
            assert_never(e)


def number(value: Poly | str | int) -> Number:
    """Shorthand for `Number`."""
    return Number(Poly.of(value))


def where(body: Expression, *guards: Poly) -> Where:
    """Shorthand for `Where`."""
    return Where(guards, body)

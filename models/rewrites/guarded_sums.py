"""Guarded sums: the normal form in which two sides of a substitution are compared.

    sum      = monomial + monomial + ..
    monomial = c * SUM over all integers `variables` with every guard >= 0 of the product of `atoms`
    atom     = Entry(k, [p..])          pattern input k at integer polynomials
             | Value(p)                 an integer polynomial as a value
             | Apply(f, [p..], [sum..]) uninterpreted function
             | Highest(variables, guards, sum)   maximum over the variables with every guard >= 0

Guards always bound the variables, so sums are finite.  `Builder` turns typed operators into guarded sums by
substitution alone; bound variables are renamed apart every time.  A digit floor(p/m) of free coordinates is a named
unknown with its two defining inequalities; of bound variables it is a bound variable with those inequalities as guards
(exactly one value fits, so it may stand outside a function that its numerator does not depend on the inside of).
Construction is deterministic: proofs address monomials by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from .index_expressions import Call, Digit, Expression, Index, Most, Number, Plus, Read, Times, Total, Where
from .polynomial import Poly
from .rule import Substitution
from .types import Side, Typed


@dataclass(frozen=True)
class Entry:
    """Pattern input `operand` at `index` (its data axes)."""

    operand: int
    index: Index


@dataclass(frozen=True)
class Value:
    """An integer polynomial."""

    value: Poly


@dataclass(frozen=True)
class Apply:
    """Function of integers and guarded sums."""

    function: str
    index: Index
    arguments: tuple[GuardedSum, ...]


@dataclass(frozen=True)
class Highest:
    """Maximum of a guarded sum."""

    variables: tuple[str, ...]
    guards: Index
    body: GuardedSum


Atom = Entry | Value | Apply | Highest


@dataclass(frozen=True)
class Monomial:
    """See the module docstring."""

    coefficient: int
    variables: tuple[str, ...]
    guards: Index
    atoms: tuple[Atom, ...]


GuardedSum = tuple[Monomial, ...]


class TooLarge(ValueError):
    """The normal form has more monomials than anything we compare."""


MOST_MONOMIALS = 4096


def put_sum(s: GuardedSum, values: Mapping[str, Poly]) -> GuardedSum:
    """Substitute in a guarded sum (bound names are unique, so nothing is captured)."""
    return tuple(put_monomial(m, values) for m in s)


def put_monomial(m: Monomial, values: Mapping[str, Poly]) -> Monomial:
    """Substitute in a monomial; variables that are substituted stay listed only if they are not keys."""
    return Monomial(
        m.coefficient,
        tuple(v for v in m.variables if v not in values),
        tuple(g.substitute(values) for g in m.guards),
        tuple(put_atom(a, values) for a in m.atoms),
    )


def put_atom(a: Atom, values: Mapping[str, Poly]) -> Atom:
    """Substitute in an atom."""
    match a:
        case Entry():
            return Entry(a.operand, tuple(p.substitute(values) for p in a.index))
        case Value():
            return Value(a.value.substitute(values))
        case Apply():
            return Apply(
                a.function, tuple(p.substitute(values) for p in a.index), tuple(put_sum(s, values) for s in a.arguments)
            )
        case Highest():
            return Highest(a.variables, tuple(g.substitute(values) for g in a.guards), put_sum(a.body, values))
        case _:
            assert_never(a)


@dataclass
class _Scope:
    """Bound variables of the inside of a function, and digits hoisted out of it, to be bound just outside."""

    inside: set[str] = field(default_factory=set)
    hoisted: list[tuple[str, Poly, Poly]] = field(default_factory=list)


@dataclass(frozen=True)
class _Frame:
    """Where an index expression is evaluated: operands' wires, and the extents of its output coordinates."""

    side: Side
    wires: tuple[int, ...]
    extents: Mapping[str, Poly]


class Builder:
    """Guarded sums of the tensors of a typed substitution.  `digits`: facts about named digits, in order of
    creation.
    """

    def __init__(self, typed: Typed) -> None:
        self.typed = typed
        self.rule: Substitution = typed.rule
        self.digits: list[tuple[Poly, Poly, Poly]] = []
        self._named: dict[tuple[Poly, Poly], Poly] = {}
        self._bound: set[str] = set()
        self._extent: dict[str, Poly] = {}
        self._count = 0
        self._scopes: list[_Scope] = []

    def output(self, side: Side, wire: int, coordinates: Index) -> GuardedSum:
        """Value of a wire at free data coordinates and times, partial sums summed: `coordinates` are times then
        data.
        """
        t = self.typed.type_of(side, wire)
        variables = [self._fresh("q") for _ in t.sums]
        guards: list[Poly] = []
        for v, e in zip(variables, t.sums, strict=True):
            guards += [Poly.of(v), self._now(e) - 1 - v]
        k = len(t.times)
        self._bound.update(variables)
        self._range(coordinates, (*(e for _, e in t.times), *t.sizes))
        found = self.tensor(side, wire, (*coordinates[:k], *map(Poly.of, variables), *coordinates[k:]))
        return tuple(Monomial(m.coefficient, (*variables, *m.variables), (*guards, *m.guards), m.atoms) for m in found)

    def whole(self, side: Side, wire: int, coordinates: Index) -> GuardedSum:
        """Value of a wire at all coordinates (times, sums, data)."""
        t = self.typed.type_of(side, wire)
        self._range(coordinates, (*(e for _, e in t.times), *t.sums, *t.sizes))
        return self.tensor(side, wire, coordinates)

    def facts(self) -> list[Poly]:
        """Defining inequalities of the named digits."""
        return [g for u, p, m in self.digits for g in (p - m * u, m * u + m - 1 - p)]

    def tensor(self, side: Side, wire: int, index: Index) -> GuardedSum:
        """Value of a wire at an index over all its coordinates."""
        if wire < 0:
            return (Monomial(1, (), (), (Entry(-1 - wire, index),)),)
        lifted = side.bodies[wire]
        nodes = self.rule.left if side is self.typed.left else self.rule.right
        extents = {f"i{k}": self._now(n) for k, n in enumerate(side.types[wire].sizes)}
        return self._sum(
            lifted.body, dict(zip(lifted.coordinates, index, strict=True)), _Frame(side, nodes[wire].inputs, extents)
        )

    def _range(self, coordinates: Index, extents: Index) -> None:
        """Free coordinates are in range: the caller's context says so."""
        for p, n in zip(coordinates, extents, strict=True):
            if len(p.names) == 1 and p == Poly.of(next(iter(p.names))):
                self._extent[next(iter(p.names))] = self._now(n)

    def _now(self, p: Poly) -> Poly:
        return self.typed.facts.now(p)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem.split('$')[0]}${self._count}"

    def _bind(self, *names: str) -> None:
        self._bound.update(names)
        for scope in self._scopes:
            scope.inside.update(names)

    def _sum(self, e: Expression, env: dict[str, Poly], frame: _Frame) -> GuardedSum:
        def at(p: Poly) -> Poly:
            return self._now(p).substitute(env)

        match e:
            case Read():
                return self.tensor(frame.side, frame.wires[e.operand], tuple(map(at, e.index)))
            case Number():
                p = at(e.value)
                if p.constant is not None:
                    return (Monomial(p.constant, (), (), ()),) if p.terms else ()
                return (Monomial(1, (), (), (Value(p),)),)
            case Plus():
                return self._limited(tuple(m for t in e.terms for m in self._sum(t, env, frame)))
            case Times():
                return self._product(e, env, frame)
            case Where():
                guards = tuple(map(at, e.guards))
                return tuple(
                    Monomial(m.coefficient, m.variables, (*guards, *m.guards), m.atoms)
                    for m in self._sum(e.body, env, frame)
                )
            case Total():
                v = self._fresh(e.variable)
                self._bind(v)
                self._extent[v] = at(e.extent)
                inner = self._sum(e.body, {**env, e.variable: Poly.of(v)}, frame)
                bounds = (Poly.of(v), at(e.extent) - 1 - v)
                return tuple(Monomial(m.coefficient, (v, *m.variables), (*bounds, *m.guards), m.atoms) for m in inner)
            case Digit():
                return self._digit(e, env, frame)
            case Call():
                scope = _Scope()
                self._scopes.append(scope)
                arguments = tuple(self._sum(a, env, frame) for a in e.arguments)
                self._scopes.pop()
                return self._hoisted(scope, Apply(e.function, tuple(map(at, e.index)), arguments))
            case Most():
                return self._highest(e, env, frame)
            case _:
                assert_never(e)

    def _product(self, e: Times, env: dict[str, Poly], frame: _Frame) -> GuardedSum:
        """Every monomial of a factor times every one of the others."""
        out: GuardedSum = (Monomial(1, (), (), ()),)
        for f in e.factors:
            right = self._sum(f, env, frame)
            out = self._limited(
                tuple(
                    Monomial(
                        a.coefficient * b.coefficient,
                        (*a.variables, *b.variables),
                        (*a.guards, *b.guards),
                        (*a.atoms, *b.atoms),
                    )
                    for a, b in self._pairs(out, right)
                )
            )
        return out

    def _highest(self, e: Most, env: dict[str, Poly], frame: _Frame) -> GuardedSum:
        """A maximum over a box and guards, with variables of its own."""
        scope = _Scope()
        self._scopes.append(scope)
        renamed = {v: self._fresh(v) for v, _ in e.ranges}
        self._bind(*renamed.values())
        inside = {**env, **{v: Poly.of(n) for v, n in renamed.items()}}
        ends = {v: self._now(n).substitute(env) for v, n in e.ranges}
        box = tuple(g for v, n in renamed.items() for g in (Poly.of(n), ends[v] - 1 - n))
        guards = (*box, *(self._now(g).substitute(inside) for g in e.guards))
        body = self._sum(e.body, inside, frame)
        self._scopes.pop()
        return self._hoisted(scope, Highest(tuple(renamed.values()), guards, body))

    def _pairs(self, left: GuardedSum, right: GuardedSum) -> list[tuple[Monomial, Monomial]]:
        """All pairs; bound names stay apart because a factor that is used again is renamed."""
        return [
            (a, b if i == 0 else self._renamed(b)) if j == 0 else (self._renamed(a), b if i == 0 else self._renamed(b))
            for i, a in enumerate(left)
            for j, b in enumerate(right)
        ]

    def _renamed(self, m: Monomial) -> Monomial:
        new = {v: self._fresh(v) for v in m.variables}
        self._bind(*new.values())
        p = put_monomial(m, {v: Poly.of(n) for v, n in new.items()})
        return Monomial(p.coefficient, tuple(new.values()), p.guards, p.atoms)

    def _hoisted(self, scope: _Scope, atom: Atom) -> GuardedSum:
        variables, guards = [], []
        for u, p, m in scope.hoisted:
            variables.append(u)
            guards += [p - m * u, m * u + m - 1 - p]
        return (Monomial(1, tuple(variables), tuple(guards), (atom,)),)

    def _digit(self, e: Digit, env: dict[str, Poly], frame: _Frame) -> GuardedSum:
        p, m = self._now(e.numerator).substitute(env), self._now(e.modulus).substitute(env)
        if m.constant == 1:
            return self._sum(e.body, {**env, e.variable: p}, frame)
        if any(
            e.numerator == Poly.of(i) and m == n for i, n in frame.extents.items()
        ):  # an index in range has leading digit 0
            return self._sum(e.body, {**env, e.variable: Poly({})}, frame)
        for v in sorted(p.names):  # p = m q + v with 0 <= v < m
            if p.terms.get((v,)) == 1 and self._extent.get(v) == m:
                q = (p - v).exact_quotient(m)
                if q is not None:
                    return self._sum(e.body, {**env, e.variable: q}, frame)
        if p.names.isdisjoint(self._bound):
            if (p, m) not in self._named:
                u = Poly.of(self._fresh(f"#{e.variable}"))
                self._named[p, m] = u
                self.digits.append((u, p, m))
            return self._sum(e.body, {**env, e.variable: self._named[p, m]}, frame)
        u_name = self._fresh(e.variable)
        level = len(self._scopes)
        while level > 0 and p.names.isdisjoint(self._scopes[level - 1].inside):
            level -= 1
        if level < len(self._scopes):
            again = next((v for v, q, n in self._scopes[level].hoisted if q == p and n == m), None)
            if again is not None:
                return self._sum(e.body, {**env, e.variable: Poly.of(again)}, frame)
        u = Poly.of(u_name)
        self._bound.add(u_name)
        for scope in self._scopes[:level]:
            scope.inside.add(u_name)
        if level < len(self._scopes):
            self._scopes[level].hoisted.append((u_name, p, m))
        inner = self._sum(e.body, {**env, e.variable: u}, frame)
        if level < len(self._scopes):
            return inner
        guards = (p - m * u, m * u + m - 1 - p)
        return tuple(Monomial(x.coefficient, (u_name, *x.variables), (*guards, *x.guards), x.atoms) for x in inner)

    def _limited(self, s: GuardedSum) -> GuardedSum:
        if len(s) > MOST_MONOMIALS:
            raise TooLarge(f"{len(s)} monomials")
        return s

"""What is known of the unknown sizes, degrees and parameters of a substitution while it is typed.

Each equation is solved by replacing an unknown with coefficient +-1 (after cancelling common positive factors), each
divisibility by a quotient unknown; what cannot be solved stays as a fact.  The general solution is kept: every instance
of the assumptions is an instance of the unknowns that are left, with all facts true.  Deterministic: proofs refer to
facts by position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import assert_never

from .polynomial import ONE, Poly
from .rule import AtLeast, Condition, Divides, Equal, OneOrMultiple


class Contradiction(ValueError):
    """The assumptions hold for no instance."""


class NeedsChoice(ValueError):
    """Typing splits into two cases here (`condition`), and the list of choices is used up."""

    def __init__(self, condition: OneOrMultiple) -> None:
        super().__init__(str(condition))
        self.condition = condition


@dataclass
class Facts:
    """The unknowns and what is known about them.  `sigma`: solved unknowns; `low`: least values; `known`:
    polynomials >= 0.
    """

    choices: tuple[int, ...] = ()
    sigma: dict[str, Poly] = field(default_factory=dict)
    low: dict[str, int | None] = field(default_factory=dict)
    extra: list[Poly] = field(default_factory=list)
    equations: list[Poly] = field(default_factory=list)
    largest: list[tuple[str, Poly, Poly]] = field(default_factory=list)
    floors: list[tuple[str, Poly, Poly]] = field(default_factory=list)
    quotients: list[tuple[Poly, Poly, Poly]] = field(default_factory=list)
    used: int = 0

    def unknown(self, name: str, low: int | None) -> Poly:
        """A new unknown."""
        self.low[name] = low
        return Poly.of(name)

    def fresh(self, stem: str, low: int | None) -> Poly:
        """A new unknown with a name of its own."""
        return self.unknown(f"{stem}_{len(self.low)}", low)

    def now(self, p: Poly) -> Poly:
        """p in the unknowns that are left."""
        return p.substitute(self.sigma)

    def all_facts(self) -> list[Poly]:
        """All facts, in order: least values, solved unknowns and inequalities, floors, maxima, unsolved equations
        both ways.
        """
        out = [Poly.of(s) - low for s, low in self.low.items() if low is not None and s not in self.sigma]
        out += [p for q in self.extra if (p := self.now(q)).constant is None or (p.constant or 0) < 0]
        for name, num, den in self.floors:
            s, n, d = self.now(Poly.of(name)), self.now(num), self.now(den)
            out += [n - d * s, d * s + d - 1 - n]
        for name, a, b in self.largest:
            s = self.now(Poly.of(name))
            out += [s - self.now(a), s - self.now(b)]
        for e in self.equations:
            p = self.now(e)
            out += [p, -p]
        return list(dict.fromkeys(out))

    def assume(self, c: Condition) -> None:
        """Add a condition; `Contradiction` if it visibly has no instance."""
        match c:
            case Equal():
                self._solve(c.left - c.right)
            case AtLeast():
                p = self.now(c.value)
                if p.constant is not None and p.constant < 0:
                    raise Contradiction(f"{c} is false")
                self.extra.append(p)
            case Divides():
                self.quotient(c.value, c.divisor)
            case OneOrMultiple():
                self.shrunk(c.value, c.divisor)
            case _:
                assert_never(c)

    def quotient(self, value: Poly, divisor: Poly) -> Poly:
        """value / divisor, assumed to be an integer >= 0 (`rule.divides`)."""
        v, d = self.now(value), self.now(divisor)
        if (v.constant is not None and v.constant < 0) or (d.constant is not None and d.constant < 1):
            raise Contradiction(f"{d} does not divide {v}")
        exact = v.exact_quotient(d)
        if exact is not None:
            self._divisible(v, d)
            return exact
        if v.constant is not None and d.constant is not None:
            raise Contradiction(f"{d} does not divide {v}")
        self._divisible(v, d)
        factor, v, d = cancel(v, d)
        again = self.same_quotient(v, d)
        if again is not None:
            return again * factor
        low = 1 if self.positive(v) else 0
        q = self.fresh("part", low)
        self.quotients.append((q, v, d))
        self._solve(v - d * q)
        return self.now(q) * factor

    def _divisible(self, value: Poly, divisor: Poly) -> None:
        """Remember the signs that a divisibility means, where they are not visible."""
        for p in (value, divisor - 1):
            if p.constant is None and not self.positive(p + 1):
                self.extra.append(p)

    def same_quotient(self, value: Poly, divisor: Poly) -> Poly | None:
        """A quotient already assumed of the same value and divisor."""
        for q, v, d in self.quotients:
            if self.now(v) == value and self.now(d) == divisor:
                return self.now(q)
        return None

    def shrunk(self, value: Poly, divisor: Poly) -> Poly:
        """1 if value = 1, else value / divisor, assumed exact; a case split unless decided."""
        v, d = self.now(value), self.now(divisor)
        if v == ONE:
            return ONE
        exact = v.exact_quotient(d)
        if v.constant is not None and d.constant is not None and (exact is None or v.constant < 0 or d.constant < 1):
            raise Contradiction(f"{v} is neither 1 nor a multiple of {d}")
        if exact is not None and (v.constant is not None or self.positive(v)) and self.positive(d):
            return exact
        if content(v) > 1:  # never 1
            return self.quotient(v, d)
        if self.used == len(self.choices):
            raise NeedsChoice(OneOrMultiple(d, v))
        self.used += 1
        if self.choices[self.used - 1] == 0:
            self._solve(v - 1)
            return ONE
        return self.quotient(v, d)

    def positive(self, p: Poly) -> bool:
        """Whether p >= 1 is visible: no negative coefficient, and a term that is at least 1."""
        if any(c < 0 for c in p.terms.values()) or any(
            (self.low.get(s) or 0) < 0 or self.low.get(s) is None for s in p.names
        ):
            return False
        return any(all((self.low[s] or 0) >= 1 for s in m) for m in p.terms)

    def floor(self, numerator: Poly, denominator: Poly) -> Poly:
        """floor(numerator / denominator) as a polynomial or an unknown; equal arguments give one unknown."""
        n, d = self.now(numerator), self.now(denominator)
        if n.constant is not None and d.constant is not None:
            return Poly.of(n.constant // d.constant)
        exact = n.exact_quotient(d)
        if exact is not None:
            return exact
        for name, a, b in self.floors:
            if self.now(a) == n and self.now(b) == d:
                return self.now(Poly.of(name))
        s = self.fresh("floor", None)
        self.floors.append((next(iter(s.names)), n, d))
        return s

    def maximum(self, a: Poly, b: Poly) -> Poly:
        """max(a, b) as a polynomial or an unknown."""
        a, b = self.now(a), self.now(b)
        gap = (a - b).constant
        if gap is not None:
            return a if gap >= 0 else b
        for name, x, y in self.largest:
            if self.now(x) == a and self.now(y) == b:
                return self.now(Poly.of(name))
        s = self.fresh("max", None)
        self.largest.append((next(iter(s.names)), a, b))
        return s

    def _solve(self, equation: Poly) -> None:
        """Assume equation = 0, then look again at all equations kept and at unknowns that became congruent."""
        waiting = [equation]
        while waiting:
            p = self.reduce(self.now(waiting.pop(0)))
            if not p.terms:
                continue
            pick = self._pick(p)
            if pick is None:
                if p not in self.equations and -p not in self.equations:
                    self.equations.append(p)
                continue
            for name, value in pick:
                self._replace(name, value)
            waiting += [p, *self.equations]
            self.equations = []
            for group in (self.floors, self.largest):
                seen: dict[tuple[Poly, Poly], str] = {}
                for name, x, y in group:
                    key = (self.now(x), self.now(y))
                    if key in seen and self.now(Poly.of(name)) != self.now(Poly.of(seen[key])):
                        waiting.append(Poly.of(name) - Poly.of(seen[key]))
                    seen.setdefault(key, name)
                    known = self._value(group is self.floors, *key)
                    if known is not None and self.now(Poly.of(name)) != known:
                        waiting.append(Poly.of(name) - known)

    def _value(self, is_floor: bool, a: Poly, b: Poly) -> Poly | None:
        if is_floor:
            if a.constant is not None and b.constant is not None:
                return Poly.of(a.constant // b.constant)
            return a.exact_quotient(b)
        gap = (a - b).constant
        return None if gap is None else a if gap >= 0 else b

    def reduce(self, p: Poly) -> Poly:
        """p without common positive factors (p = 0 says the same); `Contradiction` if p = 0 visibly has no solution."""
        if not p.terms:
            return p
        g = 0
        for c in p.terms.values():
            g = gcd(g, c)
        common = [s for s in sorted(p.names) if (self.low.get(s) or 0) >= 1 and all(s in m for m in p.terms)]
        for s in common:
            p = Poly({_less(m, s): c for m, c in p.terms.items()})
        p = Poly({m: c // g for m, c in p.terms.items()})
        if common:
            return self.reduce(p)
        if p.constant is not None:
            raise Contradiction(f"{p} = 0")
        inner = 0
        for m, c in p.terms.items():
            if m:
                inner = gcd(inner, c)
        if p.terms.get((), 0) % inner:
            raise Contradiction(f"{p} = 0 has no integer solution")
        return p

    def _pick(self, p: Poly) -> list[tuple[str, Poly]] | None:
        rest = p - p.terms.get((), 0)
        if len(rest.terms) == 1:
            ((m, c),) = rest.terms.items()
            if p.terms.get((), 0) == -c and all(
                (self.low.get(s) or 0) >= 1 for s in m
            ):  # a product of positive integers that is 1
                return [(s, ONE) for s in sorted(set(m))]
        order = {s: k for k, s in enumerate(self.low)}
        best: tuple[tuple[int, int], str, Poly] | None = None
        for m, c in p.terms.items():
            if len(m) == 1 and abs(c) == 1 and sum(m[0] in n for n in p.terms) == 1:
                value = Poly.of(m[0]) - p if c == 1 else Poly.of(m[0]) + p
                negative = int(any(v < 0 for v in value.terms.values()))
                rank = (negative, -order[m[0]])
                if best is None or rank < best[0]:
                    best = (rank, m[0], value)
        return self._multiple(p) if best is None else [(best[1], best[2])]

    def _multiple(self, p: Poly) -> list[tuple[str, Poly]] | None:
        """c s = a r with coprime a, c and a > 1: s is a multiple of a."""
        for m, c in sorted(p.terms.items()):
            if len(m) != 1 or sum(m[0] in n for n in p.terms) > 1:
                continue
            a = content(p - Poly({m: c}))
            if a > 1:
                return [(m[0], a * self.fresh("multiple", self.low[m[0]] and 1))]
        return None

    def _replace(self, name: str, value: Poly) -> None:
        low = self.low[name]
        one = {name: value}
        self.sigma = {s: p.substitute(one) for s, p in self.sigma.items()}
        self.sigma[name] = value
        if low is not None:
            if value.constant is not None and value.constant < low:
                raise Contradiction(f"{name} would be {value}")
            if value.constant is None:
                self.extra.append(value - low)


def content(p: Poly) -> int:
    """Greatest common divisor of the coefficients (0 for the polynomial 0)."""
    g = 0
    for c in p.terms.values():
        g = gcd(g, c)
    return g


def cancel(v: Poly, d: Poly) -> tuple[int, Poly, Poly]:
    """(c, w, e) with v / d = c * w / e and: d divides v iff e divides w.  Both lose common integer factors, v then what
    is coprime to a constant d.

    >>> c, w, e = cancel(4 * Poly.of("n"), Poly.of(6))
    >>> c, str(w), str(e)
    (2, 'n', '3')
    """
    if not d.terms or not v.terms:
        return 1, v, d
    c = content(v)
    g = gcd(c, content(d))
    e = Poly({m: k // g for m, k in d.terms.items()})
    c = c if e.constant is not None and e.constant > 0 else g
    return c // g, Poly({m: k // c for m, k in v.terms.items()}), e


def _less(m: tuple[str, ...], name: str) -> tuple[str, ...]:
    at = m.index(name)
    return (*m[:at], *m[at + 1 :])

"""Integer polynomials over named symbols: sizes, degrees, indices and guards of substitution proofs.

    p = sum_m c_m * s_1 * .. * s_k        c_m in Z, m a sorted tuple of names (repeated for powers)

Values are immutable by convention; equality is equality of polynomials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations

Monomial = tuple[str, ...]


class Poly:
    """An integer polynomial; `terms` maps sorted monomials to non-zero coefficients.

    >>> n, m = Poly.of("n"), Poly.of("m")
    >>> str((n + 1) * m - m), (2 * n * m).exact_quotient(m) == 2 * n, (n + 1).exact_quotient(m)
    ('m*n', True, None)
    """

    __slots__ = ("_hash", "_key", "_names", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = {m: c for m, c in terms.items() if c}
        self._hash: int | None = None
        self._key: tuple[tuple[Monomial, int], ...] | None = None
        self._names: frozenset[str] | None = None

    @staticmethod
    def of(value: Poly | str | int) -> Poly:
        """A symbol (text) or a constant (integer)."""
        if isinstance(value, Poly):
            return value
        return Poly({(value,): 1}) if isinstance(value, str) else Poly({(): value})

    @property
    def key(self) -> tuple[tuple[Monomial, int], ...]:
        """Terms in canonical order."""
        if self._key is None:
            self._key = tuple(sorted(self.terms.items()))
        return self._key

    @property
    def names(self) -> frozenset[str]:
        """Symbols that occur."""
        if self._names is None:
            self._names = frozenset(s for m in self.terms for s in m)
        return self._names

    @property
    def constant(self) -> int | None:
        """The value if no symbol occurs, else None."""
        if not self.terms:
            return 0
        return self.terms[()] if len(self.terms) == 1 and () in self.terms else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.key)
        return self._hash

    def __add__(self, other: Poly | str | int) -> Poly:
        out = dict(self.terms)
        for m, c in Poly.of(other).terms.items():
            out[m] = out.get(m, 0) + c
        return Poly(out)

    def __radd__(self, other: str | int) -> Poly:
        return self + other

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly | str | int) -> Poly:
        out = dict(self.terms)
        for m, c in Poly.of(other).terms.items():
            out[m] = out.get(m, 0) - c
        return Poly(out)

    def __rsub__(self, other: str | int) -> Poly:
        return Poly.of(other) - self

    def __mul__(self, other: Poly | str | int) -> Poly:
        right = Poly.of(other).terms
        out: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in right.items():
                k = tuple(sorted(m + n)) if m and n else m or n
                out[k] = out.get(k, 0) + c * d
        return Poly(out)

    def __rmul__(self, other: str | int) -> Poly:
        return self * other

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """Substitute symbols simultaneously."""
        if self.names.isdisjoint(values):
            return self
        if len(self.terms) == 1:
            ((m, c),) = self.terms.items()
            if c == 1 and len(m) == 1:  # a symbol alone, which most are
                return values[m[0]]
        out: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            term = Poly({tuple(s for s in m if s not in values): c})
            for s in m:
                if s in values:
                    term = term * values[s]
            for n, d in term.terms.items():
                out[n] = out.get(n, 0) + d
        return Poly(out)

    def value(self, values: Mapping[str, int]) -> int:
        """Value at integers; KeyError for a symbol without one."""
        total = 0
        for m, c in self.terms.items():
            for s in m:
                c *= values[s]
            total += c
        return total

    def exact_quotient(self, other: Poly) -> Poly | None:
        """Exact quotient self / other, None if there is none (or other is zero)."""
        if not other.terms:
            return None
        lead = max(other.terms, key=_order)
        rest, out = self, Poly({})
        for _ in range(64):
            if not rest.terms:
                return out
            top = max(rest.terms, key=_order)
            q, r = divmod(rest.terms[top], other.terms[lead])
            left = _without(top, lead)
            if r or left is None:
                return None
            part = Poly({left: q})
            out, rest = out + part, rest - part * other
        return None

    def coefficient(self, name: str) -> tuple[Poly, Poly] | None:
        """(a, b) with self = a*name + b, neither holding `name`; None if `name` occurs squared."""
        a: dict[Monomial, int] = {}
        b: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            k = m.count(name)
            if k > 1:
                return None
            if k:
                a[_without(m, (name,)) or ()] = c
            else:
                b[m] = c
        return Poly(a), Poly(b)

    def __str__(self) -> str:
        parts = []
        for m, c in sorted(self.terms.items(), key=lambda t: (-len(t[0]), t[0])):
            body = "*".join(m)
            parts.append(str(c) if not m else body if c == 1 else f"-{body}" if c == -1 else f"{c}*{body}")
        return "+".join(parts).replace("+-", "-") or "0"

    def __repr__(self) -> str:
        return f"Poly({self})"


ZERO, ONE = Poly({}), Poly({(): 1})


def determinant(rows: list[list[Poly]]) -> Poly:
    """Determinant of a small square matrix (at most 6 x 6 in practice).

    >>> str(determinant([[Poly.of("a"), Poly.of(1)], [Poly.of(1), Poly.of(0)]]))
    '-1'
    """
    total = ZERO
    for p in permutations(range(len(rows))):
        term = ONE
        for i, j in enumerate(p):
            term = term * rows[i][j]
            if not term.terms:
                break
        if term.terms:
            swaps = sum(1 for i in range(len(p)) for j in range(i) if p[j] > p[i])
            total = total - term if swaps % 2 else total + term
    return total


def product(values: Iterable[Poly]) -> Poly:
    """Product of polynomials."""
    out = ONE
    for v in values:
        out = out * v
    return out


def _order(m: Monomial) -> tuple[int, Monomial]:
    return len(m), m


def _without(m: Monomial, part: Monomial) -> Monomial | None:
    left = list(m)
    for s in part:
        if s not in left:
            return None
        left.remove(s)
    return tuple(left)

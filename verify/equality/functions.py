"""Functions of forms: powers, exponentials and logarithms, greatest elements."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Final

from .digits import joined_boxes
from .forms import MOST_POWER, MOST_TERMS, ONE, require_short
from .index import OWN, Index, Range, Undecided, constant, variable
from .infinity import Infinity
from .labels import content, ranges_of
from .terms import TRUTHS, ZERO, Factor, Form, Head, Kind, Power, Term

HALF: Final = Fraction(1, 2)
LARGEST_POWER: Final = 64
"""Numerator and denominator of a power that is taken of a form."""
MOST_CANCELLED: Final = 8
"""Sums of one product that are what the other one is divided by."""
MOST_SUMMED: Final = 16
"""Terms of such a sum."""
ROOTS: Final = 64
"""Of work for the squares that are looked for in a number."""


class Forms(Infinity):
    """Forms with all that programs make of them."""

    def power(self, p: Form, e: Power) -> Form:
        """A form to a rational power, where that is defined."""
        if abs(e.numerator) > LARGEST_POWER or e.denominator > LARGEST_POWER:
            raise Undecided(f"a power beyond {LARGEST_POWER}")
        if e == 1:
            return p
        if e == 0:
            return self.number(1)
        if not p:
            if e < 0:
                raise Undecided("divides by zero")
            return ZERO
        if e.denominator == 1 and 0 < e <= 4 and len(p) ** int(e) <= MOST_TERMS // 4:
            found = p
            for _ in range(int(e) - 1):
                found = self.product(found, p)
            return found
        size, common, base = self._as_base(p, e)
        factor = self._root(size, e)
        out = [(h, at, q * e) for h, at, q in (*common, *base)]
        return self._of([(c, list(r), [*f, *out]) for (r, f), c in factor])

    def _as_base(self, p: Form, e: Power) -> tuple[Fraction, list[Factor], list[Factor]]:
        """A form as a number, factors of all its terms that leave a power, and the base that is left, if any."""
        common = self._common(p, e)
        inner = self._of(
            [(c, list(ranges), [*factors, *((h, at, -q) for h, at, q in common)]) for (ranges, factors), c in p]
        )
        size = content(inner)
        if e.denominator not in (1, 2):
            size = ONE
        elif len(inner) == 1 and e.denominator == 1:
            size = inner[0][1]
        inner = self.times(inner, 1 / size)
        if inner == self.number(1):
            return size, common, []
        base = self.abstract(Kind.BASE, "base", (), (inner,))
        (((_, ((h, at, _),)), _),) = base
        return size, common, [(h, at, ONE)]

    def product(self, a: Form, b: Form) -> Form:
        """The product; a sum times what is divided by it is what is left: (x + y) (z / (x + y)) = z."""
        for _ in range(MOST_CANCELLED):
            found = self._cancelled(a, b) or self._cancelled(b, a)
            if found is None:
                break
            a, b = found
        return super().product(a, b)

    def _cancelled(self, a: Form, b: Form) -> tuple[Form, Form] | None:
        """Without the sum `a` where every term of `b` is divided by it; None where none is."""
        if not b or not a or len(a) > MOST_SUMMED or (len(a) == 1 and not a[0][0][0]):
            return None
        below = {f[:2] for f in b[0][0][1] if f[2] <= -1 and self.heads[f[0]].kind is Kind.BASE}
        for (_, factors), _ in b[1:]:
            below &= {f[:2] for f in factors if f[2] <= -1} if below else below
        if not below:
            return None
        size, common, base = self._as_base(a, Fraction(-1))
        if not base or base[0][:2] not in below:
            return None
        return self._of([(size, [], common)]), self._of([(c, list(r), [*f, *base]) for (r, f), c in b])

    def _root(self, size: Fraction, e: Power) -> Form:
        """A positive number to a power in halves; any number to a whole one."""
        if e.denominator == 1:
            return self.number(size ** int(e))
        whole = size ** (e.numerator // 2)  # e = n + 1/2
        return self.times(self.root(size), whole) if e.denominator == 2 else self.number(1)

    def root(self, size: Fraction) -> Form:
        """The square root of a positive number: sqrt(p / q) = sqrt(p q) / q, squares taken out."""
        require_short(size)
        self.work(ROOTS)
        n, out = size.numerator * size.denominator, Fraction(1, size.denominator)
        square, k = 1, 2
        while k * k <= n and k < 1 << 12:
            while n % (k * k) == 0:
                n //= k * k
                square *= k
            k += 1
        whole = Fraction(out * square)
        if n == 1:
            return self.number(whole)
        return self._of([(whole, [], [(self.head(Head(Kind.ROOT, "root", (n,))), (), ONE)])])

    def _common(self, p: Form, e: Power) -> list[Factor]:
        """Factors of all terms that may leave a power: any for whole powers, those above 0 for others."""
        shared: dict[tuple[int, tuple[Index, ...]], Power] | None = None
        for (_, factors), _ in p:
            here = {
                (h, at): q
                for h, at, q in factors
                if h != self.iota
                and all(v >= 0 for i in at for v, _ in i[0])
                and (
                    e.denominator == 1
                    or self.heads[h].kind is Kind.EXP
                    or (self.heads[h].kind is Kind.BASE and q.denominator % 2 == 0)  # has a root: is not below 0
                )
            }
            if shared is None:
                shared = here
            else:
                kept = {}
                for k, q in shared.items():
                    if k in here and (here[k] > 0) == (q > 0):
                        kept[k] = min(q, here[k], key=abs)
                shared = kept
        return [(h, at, q) for (h, at), q in sorted((shared or {}).items())]

    def exp(self, p: Form) -> Form:
        """exp(p); greatest elements and logarithms are factors of their own."""
        found, rest = self.number(1), list[tuple[Term, Fraction]]()
        for term, c in p:
            ranges, factors = term
            if not ranges and len(factors) == 1 and factors[0][2] == 1 and self.heads[factors[0][0]].kind is Kind.LOG:
                found = self.product(found, self.power(self._body(factors[0]), c))
            elif not ranges and self._of_greatest(factors):
                found = self.product(found, self._exp(((term, c),)))
            else:
                rest.append((term, c))
        if not rest:
            return found
        masked = self.by_infinity(tuple(rest), self._exp_beside)
        return self.product(found, self._exp(tuple(rest)) if masked is None else masked)

    def _of_greatest(self, factors: Sequence[Factor]) -> bool:
        """Whether factors are a greatest value, and truth values that choose it: what is subtracted before exp, or not
        where it is no number.
        """
        heads = [self.heads[h] for h, _, p in factors if p == 1]
        most = [head for head in heads if head.kind is Kind.GREATEST or head.name == "maximum"]
        rest = [head for head in heads if head.kind in TRUTHS or head.name in ("eq", "ne")]
        return len(most) == 1 and len(rest) + 1 == len(factors)

    def _exp_beside(self, p: Form, sign: int) -> Form:
        """exp(p), beside the infinity of a sign: 0 where that is subtracted, beyond all numbers where it is added."""
        return ZERO if sign < 0 else self._exp(self.plus(p, self.infinity()) if sign else p)

    def _exp(self, p: Form) -> Form:
        size = content(p)
        size = size if max(size.numerator, size.denominator) <= MOST_POWER else ONE
        one = self.times(p, 1 / size)
        plus = self.abstract(Kind.EXP, "exp", (), (one,))
        minus = self.abstract(Kind.EXP, "exp", (), (self.times(one, Fraction(-1)),))
        (((_, ((h, at, _),)), _),) = plus
        (((_, ((g, to, _),)), _),) = minus
        return self._of([(ONE, [], [(h, at, size) if h <= g else (g, to, -size)])])

    def log(self, p: Form) -> Form:
        """log(p) for p above 0; exponentials in every term are numbers beside it; of 0 it is minus infinity."""
        if not p:
            return self.times(self.infinity(), Fraction(-1))
        found, inner = ZERO, p
        for h, at, q in self._common(p, HALF):
            if self.heads[h].kind is Kind.EXP:
                found = self.plus(found, self.times(self._body((h, at, ONE)), q))
                inner = self._of([(c, list(r), [*f, (h, at, -q)]) for (r, f), c in inner])
        if inner == self.number(1):
            return found
        return self.plus(found, self.abstract(Kind.LOG, "log", (), (inner,)))

    def greatest(self, p: Form, over: Sequence[tuple[int, Range]]) -> Form:
        """The greatest value over ranges of free variables; of greatest values, over the ranges of both."""
        p, over = self._nested(p, over)
        used = {v for (_, factors), _ in p for _, at, _ in factors for i in at for v, _ in i[0]}
        kept = [(v, r) for v, r in over if v in used]
        return self.abstract(Kind.GREATEST, "greatest", (), (p,), kept) if kept else p

    def _nested(self, p: Form, over: Sequence[tuple[int, Range]]) -> tuple[Form, list[tuple[int, Range]]]:
        """A greatest value of greatest values as one; variables that occur only as D h + d, with D values of d, too."""
        rows = list(over)
        while len(p) == 1 and p[0][1] == 1 and not p[0][0][0] and len(p[0][0][1]) == 1:
            ((h, at, power),) = p[0][0][1]
            head = self.heads[h]
            if head.kind is not Kind.GREATEST or power != 1:
                break
            first = 1 + max([OWN, *(v for v, _ in rows), *(v for i in at for v, _ in i[0])])
            names: dict[int, Index] = dict(enumerate(at[: head.free]))
            for k, r in enumerate(ranges_of(at[head.free :])):
                names[OWN + k] = variable(first + k)
                rows.append((first + k, r))
            p = self.substitute(head.of[0], names)
        again = len(rows) > 1
        while again:
            again = False
            uses = [dict(i[0]) for (_, factors), _ in p for _, at, _ in factors for i in at]
            self.work(1 + len(rows) * len(rows) * len(uses) // 16)
            for (h, (low, high)), (d, (first, last)) in product(rows, rows):
                size = last - first
                if h == d or any(u.get(h, 0) != size * u.get(d, 0) for u in uses) or not any(d in u for u in uses):
                    continue
                p = self.substitute(p, {d: (tuple(sorted(((d, 1), (h, -size)))), 0)})
                rows = [row for row in rows if row[0] not in (h, d)]
                rows.append((d, (size * low + first, size * (high - 1) + first + size)))
                again = len(rows) > 1
                break
        return p, rows

    def larger(self, forms: Sequence[Form]) -> Form:
        """The greatest of several forms; parts of one range are one."""
        rest = list(dict.fromkeys(forms))
        again = len(rest) > 1
        while again:
            again = False
            self.work(1 + len(rest) * len(rest) // 16)
            for a, b in product(rest, rest):
                if a != b and (one := self._adjacent(a, b)) is not None:
                    rest = [f for f in rest if f not in (a, b)] + [one]
                    again = len(rest) > 1
                    break
        return rest[0] if len(rest) == 1 else self.abstract(Kind.FUNCTION, "maximum", (), tuple(sorted(rest)))

    def _adjacent(self, a: Form, b: Form) -> Form | None:
        """Two greatest values over adjacent ranges as one."""
        if len(a) != 1 or len(b) != 1 or a[0][1] != 1 or b[0][1] != 1 or a[0][0][0] or b[0][0][0]:
            return None
        f, g = a[0][0][1], b[0][0][1]
        if len(f) != 1 or len(g) != 1 or f[0][0] != g[0][0] or self.heads[f[0][0]].kind is not Kind.GREATEST:
            return None
        h, at, p = f[0]
        n, to = self.heads[h].free, g[0][1]
        if p != 1 or g[0][2] != 1 or at[:n] != to[:n]:
            return None
        ranges = joined_boxes([ranges_of(at[n:]), ranges_of(to[n:])])
        if len(ranges) != 1:
            return None
        return self._of([(ONE, [], [(h, (*at[:n], *(constant(x) for r in ranges[0] for x in r)), ONE)])])

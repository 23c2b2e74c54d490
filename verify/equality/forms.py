"""Normal forms of elements of tensors: sums of products that are equal as tuples if their terms are the same.

Rewritten to, all of it equal over the real numbers where the program is defined:

    sums        terms that are the same but for one range, whose parts are adjacent, are one term (`_gathered`); those
                whose parts overlap are cut there (`_overlapped`)
    bound       the variable of a sum that occurs nowhere is a factor; two that occur only as D h + d, with D values of
                d, are one; each is shifted so that its first index begins at 0 (`_placed`); they have no names
                (`_ordered`)
    products    equal factors are one power; a root is taken to a power below two; what is 0 or 1 is its own square
    truths      [p > 0], [p = 0] of numbers that are known are 1 or 0; a sum is cut where one changes (`_decided`);
                beside [p = 0] other conditions on what stands in p are conditions on the rest of p (`_under`); of whole
                inputs [p > 0] is 1 - [1 - p > 0], whichever begins with a positive term
    exp, log    exp(m + x) = exp(m) exp(x) for greatest elements m; exp(log p) = p; log(exp(x) p) = x + log p
    heads       a function of forms has a number; free variables have no names and no origin in it (`abstract`)

Terms that grow beyond `Limits` are `Undecided`: nothing is ever guessed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from .digits import joined_boxes
from .index import LENT, Index, Range, Undecided, constant, substitute, variable
from .indices import Bound
from .labels import marks_in, merge_variables, orders, shifts, without_idle
from .terms import TRUTHS, ZERO, Factor, Form, Head, Kind, Power, Term

ONE: Final = Fraction(1)
MOST_TERMS: Final = 400
"""Terms of one form."""
MOST_BOUND: Final = 64
"""Variables that one term sums over."""
MOST_POWER: Final = 1024
"""Numerator and denominator of a power."""
MOST_BITS: Final = 4096
"""Of numerators and denominators of numbers."""

Loose = tuple[Fraction, list[Range], list[Factor]]
"""A term before it is in normal form."""
Box = Mapping[int, Range]


def require_small(p: Power) -> Power:
    """A power that is not beyond `MOST_POWER`."""
    if abs(p.numerator) > MOST_POWER or p.denominator > MOST_POWER:
        raise Undecided(f"a power is beyond {MOST_POWER}")
    return p


def require_short(c: Fraction) -> Fraction:
    """A number of not more than `MOST_BITS`."""
    if c.numerator.bit_length() > MOST_BITS or c.denominator.bit_length() > MOST_BITS:
        raise Undecided(f"a number has more than {MOST_BITS} bits")
    return c


class Algebra(ABC):
    """Sums and products of forms; `work(things)` is called for what is made, and may raise."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self.heads: list[Head] = []
        self._numbers: dict[Head, int] = {}
        self._abstract: dict[object, Form] = {}
        self._infinities: dict[int, bool] = {}
        self._no_numbers: dict[int, bool] = {}
        self.floors: dict[int, int] = {}
        self.ceilings: dict[int, int] = {}
        self.excepted: dict[int, Bound] = {}
        self.integers, self.truths = set[int](), set[int]()
        self.work = work
        self.iota = self.head(Head(Kind.IOTA, "iota"))

    def is_truth(self, h: int) -> bool:
        """Whether a head is 0 or 1: a condition, or an input of truth values."""
        return self.heads[h].kind in TRUTHS or h in self.truths

    def head(self, head: Head) -> int:
        """The number of a head."""
        if head not in self._numbers:
            self._numbers[head] = len(self.heads)
            self.heads.append(head)
        return self._numbers[head]

    @staticmethod
    def number(value: Fraction | int) -> Form:
        """A number."""
        return ((((), ()), Fraction(value)),) if value else ZERO

    def element(self, head: int, at: Sequence[Index]) -> Form:
        """An element of a head."""
        return self._of([(ONE, [], [(head, tuple(at), ONE)])])

    def position(self, index: Index) -> Form:
        """The value of an index."""
        pairs: list[Loose] = [(Fraction(c), [], [(self.iota, (variable(v),), ONE)]) for v, c in index[0]]
        return self._of([*pairs, (Fraction(index[1]), [], [])])

    def plus(self, *forms: Form) -> Form:
        """The sum."""
        filled = [f for f in forms if f]
        if len(filled) <= 1:
            return filled[0] if filled else ZERO
        return self._gathered([(t, c) for f in filled for t, c in f])

    @staticmethod
    def times(form: Form, factor: Fraction) -> Form:
        """A rational multiple."""
        return tuple((t, c * factor) for t, c in form) if factor else ZERO

    def product(self, a: Form, b: Form) -> Form:
        """The product."""
        if len(a) * len(b) > MOST_TERMS:
            raise Undecided(f"a product has more than {MOST_TERMS} terms")
        pairs: list[Loose] = []
        for (s, f), c in a:
            for (r, g), d in b:
                moved = {-i - 1: variable(-i - 1 - len(s)) for i in range(len(r))}
                pairs.append(
                    (c * d, [*s, *r], [*f, *((h, tuple(substitute(i, moved) for i in at), p) for h, at, p in g)])
                )
        return self._of(pairs)

    def substitute(self, form: Form, values: Mapping[int, Index], box: Box | None = None) -> Form:
        """With free variables replaced; `box`: ranges of the free variables that are left."""
        pairs: list[Loose] = []
        for (ranges, factors), c in form:
            pairs.extend(self._replaced(c, list(ranges), factors, values))
        return self._of(pairs, box)

    def total(self, form: Form, v: int, over: Range) -> Form:
        """Summed over a free variable."""
        pairs: list[Loose] = []
        for (ranges, factors), c in form:
            values = {v: variable(-len(ranges) - 1)}
            pairs.extend(self._replaced(c, [*ranges, over], factors, values))
        return self._of(pairs)

    def fix(self, form: Form) -> Form:
        """Bound variables of one value are that number."""
        if all(high - low > 1 for (ranges, _), _ in form for low, high in ranges):
            return form
        parts = list[Form]()
        for (ranges, factors), c in form:
            one = {-i - 1: constant(low) for i, (low, high) in enumerate(ranges) if high - low == 1}
            parts.append(self.fix_term((ranges, factors), c, one))
        return self.plus(*parts)

    def fix_term(self, term: Term, c: Fraction, at: Mapping[int, Index]) -> Form:
        """A term where some of the variables that it sums over have one value."""
        ranges, factors = term
        free = {-i - 1: variable(LENT + i) for i in range(len(ranges))}
        placed = tuple((h, tuple(substitute(i, free) for i in to), p) for h, to, p in factors)
        made = self.substitute(((((), placed), c),), {LENT - 1 - v: index for v, index in at.items()})
        for i, over in enumerate(ranges):
            if -i - 1 not in at:
                made = self.total(made, LENT + i, over)
        return made

    def within(self, form: Form, box: Box) -> Form:
        """Where free variables are in ranges."""
        if any(self.heads[h].kind in TRUTHS for (_, factors), _ in form for h, _, _ in factors):
            return self._of([(c, list(ranges), list(factors)) for (ranges, factors), c in form], box)
        return form

    def _replaced(
        self, c: Fraction, ranges: list[Range], factors: Iterable[Factor], values: Mapping[int, Index]
    ) -> list[Loose]:
        """With variables replaced in factors: the position of an index is a sum of positions."""
        found: list[Loose] = [(c, ranges, [])]
        for h, at, p in factors:
            new = tuple(substitute(i, values) for i in at)
            if h != self.iota or new == at:
                for _, _, out in found:
                    out.append((h, new, p))
                continue
            for _ in range(int(p)):
                parts: list[tuple[Fraction, list[Factor]]] = [
                    (Fraction(d), [(h, (variable(v),), ONE)]) for v, d in new[0][0]
                ]
                if new[0][1]:
                    parts.append((Fraction(new[0][1]), []))
                found = [(c * d, ranges, [*out, *more]) for c, ranges, out in found for d, more in parts]
                if len(found) > MOST_TERMS:
                    raise Undecided(f"a power of a position has more than {MOST_TERMS} terms")
                self.work(len(found))
        return [(c, list(ranges), out) for c, ranges, out in found]

    def _of(self, pairs: Iterable[Loose], box: Box | None = None) -> Form:
        return self._gathered([found for pair in pairs for found in self._normal(pair, box)])

    def _gathered(self, pairs: Sequence[tuple[Term, Fraction]]) -> Form:
        """Equal terms are one; so are terms that differ in one range, whose parts are adjacent."""
        self.work(1 + len(pairs))
        found: dict[Term, Fraction] = {}
        for term, c in pairs:
            found[term] = found.get(term, Fraction(0)) + c
        self._overlapped(found)
        again = True
        while again:
            again = False
            alike: dict[tuple[Fraction, int, tuple[Factor, ...]], list[Term]] = {}
            for term, c in found.items():
                if c and term[0]:
                    alike.setdefault((c, len(term[0]), term[1]), []).append(term)
            for (c, _, factors), terms in alike.items():
                if len(terms) > 1 and len(ranges := joined_boxes([t[0] for t in terms])) < len(terms):
                    for t in terms:
                        del found[t]
                    for r in ranges:
                        for term, d in self._normal((c, list(r), list(factors)), None):
                            found[term] = found.get(term, Fraction(0)) + d
                    again = True
                    break
        if len(found) > MOST_TERMS:
            raise Undecided(f"a form has more than {MOST_TERMS} terms")
        for c in found.values():
            require_short(c)
        return tuple(sorted((t, c) for t, c in found.items() if c))

    def _overlapped(self, found: dict[Term, Fraction]) -> None:
        """Sums of the same over ranges that overlap in one variable, as sums over ranges that do not: over 0 to 8 less
        over 2 to 8 is over 0 to 2.
        """
        beside: dict[tuple[int, tuple[Range, ...], tuple[Factor, ...]], list[Term]] = {}
        for (ranges, factors), c in found.items():
            for k in range(len(ranges)) if c else ():
                beside.setdefault((k, (*ranges[:k], *ranges[k + 1 :]), factors), []).append((ranges, factors))
        for (k, rest, factors), terms in beside.items():
            rows = [(t[0][k], found[t]) for t in terms if found.get(t)] if len(terms) > 1 else []
            if not any(a < last and b > first for i, ((first, last), _) in enumerate(rows) for (a, b), _ in rows[:i]):
                continue
            for t in terms:
                found.pop(t, None)
            for first, last in pairwise(sorted({x for over, _ in rows for x in over})):
                c = sum((d for (a, b), d in rows if a <= first and last <= b), Fraction(0))
                for term, d in self._normal((c, [*rest[:k], (first, last), *rest[k:]], list(factors)), None):
                    found[term] = found.get(term, Fraction(0)) + d

    def _normal(self, start: Loose, box: Box | None) -> list[tuple[Term, Fraction]]:
        found, rest = list[tuple[Term, Fraction]](), [start]
        while rest:
            if len(rest) + len(found) > MOST_TERMS:
                raise Undecided(f"a form falls into more than {MOST_TERMS} parts")
            c, ranges, factors = rest.pop()
            self.work(1 + len(factors))
            if not c or any(low >= high for low, high in ranges):
                continue
            if len(ranges) > MOST_BOUND:
                raise Undecided(f"a term sums over more than {MOST_BOUND} variables")
            c, factors = self._powers(c, factors)
            if any(self.heads[h].kind in TRUTHS for h, _, _ in factors):
                parts = self._decided(c, ranges, factors, box)
                if parts is not None:
                    rest.extend(parts)
                    continue
            if ranges:
                factors = self._surely(ranges, factors)
                c, ranges, factors = without_idle(c, ranges, factors)
                ranges, factors = merge_variables(ranges, factors)
            if not ranges:
                found.append((((), tuple(sorted(factors))), c))
                continue
            placed = self._ordered(c, ranges, factors)
            if isinstance(placed, list):
                rest.extend(placed)
            else:
                found.append((placed, c))
        return found

    def _powers(self, c: Fraction, factors: Sequence[Factor]) -> tuple[Fraction, list[Factor]]:
        """Equal factors are one power."""
        if len(factors) == 1 and self.heads[h := factors[0][0]].kind is not Kind.ROOT and not self.is_truth(h):
            return c, list(factors)
        powers: dict[tuple[int, tuple[Index, ...]], Power] = {}
        for h, at, p in factors:
            powers[h, at] = powers.get((h, at), Fraction(0)) + p
        out = list[Factor]()
        for (h, at), p in powers.items():
            head = self.heads[h]
            if self.is_truth(h):
                if p < 0:
                    raise Undecided("divides by what may be 0")
                p = ONE if p else p
            elif head.kind is Kind.ROOT:
                n = head.words[0]
                if not isinstance(n, int):
                    raise Undecided("a root of no number")
                c, p = c * Fraction(n) ** (require_small(p).numerator // 2), Fraction(p.numerator % 2)
            if require_small(p):
                out.append((h, at, p))
        return c, out

    def _ordered(self, c: Fraction, ranges: list[Range], factors: list[Factor]) -> Term | list[Loose]:
        """Bound variables in the order of where they occur; several terms where a position is shifted."""
        marks = [tuple(sorted(marks_in(factors, -i - 1))) for i in range(len(ranges))]
        least: Term | None = None
        for order in orders(list(range(len(ranges))), marks):
            names = {-old - 1: variable(-new - 1) for new, old in enumerate(order)}
            renamed = [(h, tuple(substitute(i, names) for i in at), p) for h, at, p in factors]
            moved = shifts(renamed, [-i - 1 for i in range(len(order))], self.iota)
            lows = [ranges[old] for old in order]
            if any(moved.values()):
                values = {v: (((v, 1),), -s) for v, s in moved.items() if s}
                lows = [(a + moved[-i - 1], b + moved[-i - 1]) for i, (a, b) in enumerate(lows)]
                if any(h == self.iota and any(v in values for v, _ in at[0][0]) for h, at, _ in renamed):
                    return self._replaced(c, lows, renamed, values)
                renamed = [(h, tuple(substitute(i, values) for i in at), p) for h, at, p in renamed]
            term = (tuple(lows), tuple(sorted(renamed)))
            if least is None or (term[1], term[0]) < (least[1], least[0]):
                least = term
        if least is None:
            raise Undecided("a term has no order")
        return least

    @abstractmethod
    def _decided(self, c: Fraction, ranges: list[Range], factors: list[Factor], box: Box | None) -> list[Loose] | None:
        """The same without a condition that is known; None if there is none: see `conditions`."""

    @abstractmethod
    def _surely(self, ranges: list[Range], factors: list[Factor]) -> list[Factor]:
        """Factors without what is 1 in one place of a sum and 0 in all others: see `conditions`."""

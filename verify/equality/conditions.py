"""Decides conditions: [p > 0] and [p = 0] are known, or a sum is cut where one changes, or one tells of another
(truths of `forms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import Final

from .abstraction import Abstraction
from .forms import ONE, Box, Loose
from .index import HELD, Index, Range, Undecided, substitute, variable
from .labels import content
from .terms import TRUTHS, ZERO, Factor, Form, Kind, Term

COUNTED: Final = HELD + (1 << 12)
"""The variable of a sum inside what a condition is about."""


class Conditions(Abstraction):
    """What is 0 or 1."""

    def positive(self, p: Form) -> Form:
        """[p > 0]"""
        if (apart := self._by_case(p, self.positive)) is not None:
            return apart
        low, high = self._limits(p, {})
        if low is not None and low > 0:
            return self.number(1)
        if high is not None and high <= 0:
            return ZERO
        if self._whole(p) and next(c for (_, factors), c in p if factors) < 0:  # of whole numbers: not [1 - p > 0]
            other = self.positive(self.plus(self.number(1), self.times(p, Fraction(-1))))
            return self.plus(self.number(1), self.times(other, Fraction(-1)))
        return self.abstract(Kind.POSITIVE, "positive", (), (self.times(p, 1 / content(p)),))

    def _whole(self, p: Form) -> bool:
        """Whether a form is a sum of whole inputs and positions, with whole coefficients, and of an input at all."""
        heads = set[int]()
        for (ranges, factors), c in p:
            if ranges or len(factors) > 1 or c.denominator != 1:
                return False
            if factors:
                h, _, power = factors[0]
                if power != 1 or (h != self.iota and h not in self.integers):
                    return False
                heads.add(h)
        return bool(heads - {self.iota})

    def null(self, p: Form) -> Form:
        """[p = 0]"""
        if (apart := self._by_case(p, self.null)) is not None:
            return apart
        low, high = self._limits(p, {})
        if low == high == 0:
            return self.number(1)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return ZERO
        one = self.times(p, 1 / content(p))
        return min(
            (self.abstract(Kind.NULL, "null", (), (self.times(one, Fraction(s)),)) for s in (1, -1)),
            key=lambda f: f[0][0][1][0][0],
        )

    def _by_case(self, p: Form, condition: Callable[[Form], Form]) -> Form | None:
        """A condition on what depends on a truth value t: t [p where t is 1] + (1 - t) [p where t is 0]."""
        for (_, factors), _ in p:
            for h, at, _ in factors:
                if not self.is_truth(h) or any(v < 0 for i in at for v, _ in i[0]):
                    continue
                yes, no = (condition(case) for case in self.cases(p, h, at))
                return self.choice(self.element(h, at), yes, no)
        return None

    def cases(self, p: Form, h: int, at: tuple[Index, ...]) -> tuple[Form, Form]:
        """What a form is where a truth value is 1, and where it is 0."""
        inside = [(c, list(r), [g for g in f if g[:2] != (h, at)]) for (r, f), c in p]
        outside = [(c, list(r), list(f)) for (r, f), c in p if all(g[:2] != (h, at) for g in f)]
        return self._of(inside), self._of(outside)

    def choice(self, truth: Form, yes: Form, no: Form) -> Form:
        """t yes + (1 - t) no"""
        return self.plus(no, self.product(truth, self.plus(yes, self.times(no, Fraction(-1)))))

    def _decided(self, c: Fraction, ranges: list[Range], factors: list[Factor], box: Box | None) -> list[Loose] | None:
        """The same without a condition that is known, or cut at where one changes; None if all stay.

        In what conditions are about, bound variable -i-1 is called `HELD + i`, as forms bind others inside.
        """
        known: dict[int, Range] = {**(box or {}), **{HELD + i: r for i, r in enumerate(ranges)}}
        nulls = [f for f in factors if self.heads[f[0]].kind is Kind.NULL]
        for f in factors:
            head = self.heads[f[0]]
            if head.kind not in TRUTHS:
                continue
            others = [g for g in factors if g is not f]
            if (first := f[1][0][1] if len(f[1]) == 2 else 0) and self._is_difference(f[0]):
                return [(c, ranges, [*others, (f[0], tuple((i[0], i[1] - first) for i in f[1]), f[2])])]
            p = self._body(f)
            low, high = self._limits(p, known)
            above, below = low is not None and low > 0, high is not None and high < 0
            if head.kind is Kind.POSITIVE:
                if above:
                    return [(c, ranges, others)]
                if below or high == 0:
                    return []
            elif low == high == 0:
                return [(c, ranges, others)]
            elif above or below:
                return []
            if head.kind is Kind.NULL and (found := self._excepted(c, ranges, f, others)) is not None:
                return found
            if (flat := self._flat(p)) is not None:
                terms, offset = flat
                if len(terms) == 1 and HELD <= terms[0][0] < HELD + len(ranges):
                    return _cut(c, ranges, factors, head.kind, (HELD - 1 - terms[0][0], terms[0][1]), offset)
                if head.kind is Kind.NULL and len(terms) == 1 and _in_indices(terms[0][0], others):
                    point = -offset / terms[0][1]
                    if point.denominator != 1:
                        return []
                    there = {terms[0][0]: variable(-len(ranges) - 1)}  # as where a sum is cut to one position
                    alone = self._replaced(c, [*ranges, (int(point), int(point) + 1)], others, there)
                    return [(d, list(r), [*g, f]) for d, r, g in alone]
                if head.kind is Kind.POSITIVE and (cut := _partly(terms, offset, known, len(ranges))) is not None:
                    return [
                        (c, [over if HELD + i == cut[0] else r for i, r in enumerate(ranges)], list(factors))
                        for over in cut[1]
                    ]
                if head.kind is Kind.NULL and (one := _same(terms, offset, known, len(ranges))) is not None:
                    v, at = one[0] - HELD, one[1]
                    changed = list(ranges)
                    if HELD <= at[0][0][0] < HELD + len(ranges):  # the other one has only its values
                        w, (low_v, high_v) = at[0][0][0] - HELD, ranges[v]
                        first, last = ranges[w]
                        changed[w] = (max(first, low_v - at[1]), min(last, high_v - at[1]))
                        at = (((-w - 1, 1),), at[1])
                    changed[v] = (0, 1)
                    return self._replaced(c, changed, others, {-v - 1: at})
                continue
            for g in nulls:
                if g is not f and (q := self._under(p, self._body(g))) is not None:
                    made = self.positive(q) if head.kind is Kind.POSITIVE else self.null(q)
                    return self._beside(c, ranges, others, made)
        return None

    def _beside(self, c: Fraction, ranges: list[Range], others: list[Factor], made: Form) -> list[Loose]:
        """Factors times a form in which bound variable -i-1 is called `HELD + i`."""
        back = {HELD + i: variable(-i - 1) for i in range(len(ranges))}
        return [
            (c * d, list(ranges), [*others, *((h, tuple(substitute(i, back) for i in at), e) for h, at, e in more)])
            for (_, more), d in made
        ]

    def _is_difference(self, h: int) -> bool:
        """Whether a condition is one of how far two positions are apart: it is the same where both are moved."""
        flat = self._flat(self.heads[h].of[0])
        return flat is not None and len(flat[0]) == 2 and sum(c for _, c in flat[0]) == 0

    def _excepted(self, c: Fraction, ranges: list[Range], f: Factor, others: list[Factor]) -> list[Loose] | None:
        """Summed over [index = v], where v occurs nowhere else and takes every value that the index may have but one:
        1 - [index is that one]; None for anything else.
        """
        for v in {w for i in f[1] for w, _ in i[0] if w < 0} if self.excepted else ():
            if any(w == v for _, at, _ in others for i in at for w, _ in i[0]):
                continue
            own, rest = None, list[tuple[Term, Fraction]]()
            for term, d in self._body(f):
                flat = self._flat(((term, d),))
                if flat is not None and flat[0] and flat[0][0][0] == HELD - 1 - v:
                    own = d
                else:
                    rest.append((term, d))
            inside = [(term, d) for term, d in rest if term != ((), ())]
            if own is None or abs(own) != 1 or len(inside) != 1 or inside[0][1] != -own or inside[0][0][0]:
                continue
            if _in_indices(HELD - 1 - v, inside[0][0][1]):  # [index_v = v]: how often is not known
                continue
            ((h, at, power),) = inside[0][0][1] if len(inside[0][0][1]) == 1 else ((self.iota, (), ONE),)
            offset = dict(rest).get(((), ()), Fraction(0)) / own
            if h not in self.excepted or power != 1 or offset.denominator != 1:
                continue
            bound, (low, high) = self.excepted[h], ranges[-v - 1]
            if low + offset > 0 or high + offset < bound.below:
                continue
            changed = [(0, 1) if i == -v - 1 else r for i, r in enumerate(ranges)]
            parts: list[Loose] = [(c, changed, others)]
            if bound.but is not None and not low + offset <= bound.but < high + offset:
                here = self.null(self.plus(self.element(h, at), self.number(-bound.but)))
                parts += self._beside(-c, changed, others, here)
            return parts
        return None

    def _surely(self, ranges: list[Range], factors: list[Factor]) -> list[Factor]:
        """Without [index = v], where v occurs nowhere else and takes every value that the index may have: the sum is
        one.  The variable is idle then, and stands for one value.
        """
        for f in factors:
            if self.heads[f[0]].kind is not Kind.NULL:
                continue
            mine = {v for i in f[1] for v, _ in i[0] if v < 0}
            alone = mine - {v for g in factors if g is not f for i in g[1] for v, _ in i[0]}
            for v in sorted(alone):
                low, high = self._values(self._body(f), HELD - 1 - v)
                if low is not None and high is not None and ranges[-v - 1][0] <= low and high < ranges[-v - 1][1]:
                    ranges[-v - 1] = (0, 1)
                    return [g for g in factors if g is not f]
        return factors

    def _values(self, p: Form, v: int) -> tuple[Fraction | None, Fraction | None]:
        """Between which values a variable lies where `p` is 0, if that is one whole number for every index."""
        own, rest = None, list[tuple[Term, Fraction]]()
        for term, c in p:
            ranges, factors = term
            if not ranges and len(factors) == 1 and factors[0][0] == self.iota and factors[0][1][0][0][0][0] == v:
                own = c
            else:
                rest.append((term, c))
        if own is None or abs(own) != 1 or any(abs(c) != 1 and term != ((), ()) for term, c in rest):
            return None, None
        if any(_in_indices(v, factors) for (_, factors), _ in rest):  # another value for every index
            return None, None
        whole = all(term == ((), ()) or (len(term[1]) == 1 and term[1][0][0] in self.ceilings) for term, _ in rest)
        if not whole or any(c.denominator != 1 for _, c in rest):
            return None, None
        return self._limits(self.times(tuple(rest), -1 / own), {})

    def _body(self, f: Factor) -> Form:
        """What a condition is about."""
        at = [tuple((HELD - 1 - v if v < 0 else v, c) for v, c in i[0]) for i in f[1]]
        return self.substitute(self.heads[f[0]].of[0], {k: (tuple(sorted(i)), f[1][k][1]) for k, i in enumerate(at)})

    def _flat(self, p: Form) -> tuple[list[tuple[int, Fraction]], Fraction] | None:
        """Variables with their coefficients and a number, if a form is that."""
        terms, offset = list[tuple[int, Fraction]](), Fraction(0)
        for (ranges, factors), c in p:
            if not factors and not ranges:
                offset = c
            elif len(factors) == 1 and not ranges and factors[0][0] == self.iota and factors[0][2] == 1:
                terms.append((factors[0][1][0][0][0][0], c))
            else:
                return None
        return terms, offset

    def _limits(self, p: Form, known: Box) -> tuple[Fraction | None, Fraction | None]:
        """Least and greatest value of a form; None: not known."""
        low: Fraction | None = Fraction(0)
        high: Fraction | None = Fraction(0)
        for (ranges, factors), c in p:
            least: Fraction | None = None
            most: Fraction | None = None
            if not factors and not ranges:
                least = most = ONE
            elif len(factors) == 1 and not ranges and factors[0][2] == 1:
                h, at, _ = factors[0]
                if h == self.iota and (v := at[0][0][0][0]) in known:
                    least, most = Fraction(known[v][0]), Fraction(known[v][1] - 1)
                elif h in self.floors:
                    least = Fraction(self.floors[h])
                    most = Fraction(self.ceilings[h] - 1) if h in self.ceilings else None
            elif len(factors) == len(ranges) == 1 and self.heads[factors[0][0]].kind is Kind.POSITIVE:
                least, most = self._count_of(factors[0], ranges[0], known)
            a, b = (least, most) if c > 0 else (most, least)
            low = None if low is None or a is None else low + c * a
            high = None if high is None or b is None else high + c * b
        return low, high

    def _count_of(self, f: Factor, over: Range, known: Box) -> tuple[Fraction, Fraction]:
        """At how many values of the variable of a sum a condition surely holds, and at how many it may."""
        at = tuple(substitute(i, {-1: variable(COUNTED)}) for i in f[1])
        flat = self._flat(self.substitute(self.heads[f[0]].of[0], dict(enumerate(at))))
        split = None if flat is None else _regions(flat[0], flat[1], {**known, COUNTED: over}, COUNTED)
        if split is None:
            return Fraction(0), Fraction(over[1] - over[0])
        holds, may, _ = split
        return Fraction(len(holds)), Fraction(len(holds) + len(may))

    def _under(self, p: Form, null: Form) -> Form | None:
        """`p` where `null` is 0, if that is free of other things than positions."""
        for term, c in null:
            if self._flat(((term, c),)) is None:
                found = dict(p).get(term)
                if found is None:
                    return None
                rest = self.plus(p, self.times(null, -found / c))
                return rest if self._flat(rest) is not None else None
        return None


def _cut(
    c: Fraction, ranges: list[Range], factors: list[Factor], kind: Kind, one: tuple[int, Fraction], offset: Fraction
) -> list[Loose]:
    """A sum as several, on each of which a condition on its variable is known."""
    v, d = one
    low, high = ranges[-v - 1]
    edge = -offset / d
    if kind is Kind.NULL:
        cuts = [int(edge), int(edge) + 1] if edge.denominator == 1 else []
    else:  # positive from the first whole number above the edge on, or below it
        cuts = [edge.numerator // edge.denominator + 1 if d > 0 else -((-edge.numerator) // edge.denominator)]
    points = [low, *(x for x in cuts if low < x < high), high]
    if len(points) == 2:
        raise Undecided("a condition on a variable is not known")
    return [
        (c, [(a, b) if i == -v - 1 else r for i, r in enumerate(ranges)], list(factors)) for a, b in pairwise(points)
    ]


def _regions(
    terms: Sequence[tuple[int, Fraction]], offset: Fraction, known: Box, v: int
) -> tuple[range, range, range] | None:
    """Where a sum of variables is surely above 0, may be, and surely is not, of the values of variable `v`; None where
    that is not known.
    """
    own = dict(terms).get(v)
    if own is None or any(w not in known for w, _ in terms):
        return None
    least = offset + sum(min(c * known[w][0], c * (known[w][1] - 1)) for w, c in terms if w != v)
    most = offset + sum(max(c * known[w][0], c * (known[w][1] - 1)) for w, c in terms if w != v)
    low, high = known[v]
    if own > 0:  # above 0 from the first value behind -least / own on
        sure, may = (min(max(floor(-x / own) + 1, low), high) for x in (least, most))
        return range(sure, high), range(may, sure), range(low, may)
    sure, may = (min(max(ceil(x / -own), low), high) for x in (least, most))
    return range(low, sure), range(sure, may), range(may, high)


def _partly(
    terms: Sequence[tuple[int, Fraction]], offset: Fraction, known: Box, many: int
) -> tuple[int, list[Range]] | None:
    """A variable that is summed over and its range in parts, on some of which a condition on it and others is known;
    `many` are summed over.
    """
    bound = [w for w, _ in terms if HELD <= w < HELD + many]
    regions = _regions(terms, offset, known, bound[0]) if len(bound) == 1 < len(terms) else None
    if regions is None or sum(map(bool, regions)) < 2:
        return None
    return bound[0], [(r.start, r.stop) for r in regions if r]


def _in_indices(v: int, factors: Sequence[Factor]) -> bool:
    return any(w == v for _, at, _ in factors for i in at for w, _ in i[0])


def _same(terms: list[tuple[int, Fraction]], offset: Fraction, known: Box, many: int) -> tuple[int, Index] | None:
    """Of `many` bound variables one and the index that it equals, where the sum over it has that value."""
    if len(terms) != 2 or offset.denominator != 1:
        return None
    for (v, c), (w, d) in (terms, terms[::-1]):
        if not HELD <= v < HELD + many or abs(c) != 1 or d != -c:
            continue
        at: Index = (((w, 1),), int(-offset * c))
        if HELD <= w < HELD + many:
            return v, at
        if w in known and known[v][0] <= known[w][0] + at[1] and known[w][1] + at[1] <= known[v][1]:
            return v, at
    return None

"""Sees that two forms are equal which name different tensors, or of which one is a sum that is written out.

names    give way to what they stand for, the last named first, until both forms name the same: a tensor of the one
         device is named after those that it is made of, so this ends.  With N(v) = exp(v), f = N(a) + 1 becomes
         exp(a) + 1
sums     over heads or ranks of which one form has every value as a term of its own are written out in the other
within   where no names are left, conditions inside powers and logarithms are decided where free variables lie, and
         squares of absolute values are squares
cleared  last, what is left is multiplied with what it is divided by: a / (a + b) + b / (a + b) - 1 is a + b - a - b
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from .forms import MOST_TERMS, ONE, Box
from .functions import Forms
from .index import LENT, OWN, Index, Undecided, constant, substitute, variable
from .labels import ranges_of
from .meaning import COMPARED
from .terms import ZERO, Factor, Form, Kind, Power, Term

MOST_ROUNDS: Final = 64
"""Names of one pair that give way."""
MOST_MADE: Final = 1000
"""Terms of one pair that are made anew; right transformers take up to 250 (one head on each of 8 ranks)."""
MOST_LOST: Final = 8000
"""Terms of all pairs together that were made and did not show that they are equal: after that names stay."""
MOST_CLEARED: Final = 16
"""Denominators of one pair."""
MOST_SPLITS: Final = 8
"""Sums of one pair that are written out."""


def _apart(f: Form, g: Form) -> tuple[Form, Form]:
    """Both without the terms that they share."""
    both = set(f) & set(g)
    return tuple(t for t in f if t not in both), tuple(t for t in g if t not in both)


class Lost:
    """Terms of all pairs that were made and did not show that they are equal."""

    def __init__(self) -> None:
        self.terms = 0


class Unfolding:
    """Compares forms of one `Forms`."""

    def __init__(self, forms: Forms, lost: Lost) -> None:
        self.forms, self.lost = forms, lost
        self._names: dict[int, frozenset[int]] = {}
        self._made: dict[tuple[int, Form], Form] = {}
        self._left = MOST_MADE

    def equal(self, f: Form, g: Form, box: Box) -> bool:
        """Whether both are seen to be one form where free variables are in ranges."""
        self._left = min(MOST_MADE, MOST_LOST - self.lost.terms)
        before = self._left
        found = self._equal(f, g, box)
        self.lost.terms += 0 if found else before - self._left
        return found

    def _equal(self, f: Form, g: Form, box: Box) -> bool:
        try:
            for _ in range(MOST_ROUNDS):
                f, g = (self.forms.within(self._settled(h), box) for h in (f, g))
                f, g = _apart(f, g)
                mine, theirs = self.names(f), self.names(g)
                if f == g or (mine == theirs and self._split_equal(f, g)):
                    return True
                if not mine | theirs:
                    apart = _apart(self._within(f, box), self._within(g, box))
                    if apart == (f, g):
                        return self._cleared(self.forms.plus(f, self.forms.times(g, Fraction(-1)))) == ZERO
                    f, g = apart
                    continue
                last = max(mine ^ theirs or mine | theirs)
                f, g = self.without(f, last), self.without(g, last)
        except Undecided:
            return False
        return False

    # ------------------------------------------------------------------ sums that are written out

    def _settled(self, form: Form) -> Form:
        """Variables of one value are that number."""
        found = self.forms.fix(form)
        return found if found is form else self._count(found)

    def _split_equal(self, f: Form, g: Form) -> bool:
        """Whether sums are equal of which one is written out over ranks, heads or chunks, the other is not."""
        for _ in range(MOST_SPLITS):
            if f == g:
                return True
            if not f or not g:
                return False
            f, g = (f, g) if len(f) <= len(g) else (g, f)
            widths = sorted({high - low for (ranges, _), _ in f for low, high in ranges})
            width = len(g) // len(f) if len(g) % len(f) == 0 and len(g) // len(f) in widths else min(widths, default=0)
            if not 1 < width <= MOST_TERMS // len(f):
                return False
            f, g = _apart(self.forms.plus(*(part for t, c in f for part in self._split(t, c, width))), g)
        return f == g

    def _split(self, term: Term, c: Fraction, width: int) -> list[Form]:
        """A term for every value of its first variable of so many."""
        ranges, _ = term
        for i, (low, high) in enumerate(ranges):
            if high - low == width:
                return [self._count(self.forms.fix_term(term, c, {-i - 1: constant(k)})) for k in range(low, high)]
        return [((term, c),)]

    # ------------------------------------------------------------------ names

    def names(self, form: Form) -> frozenset[int]:
        """Named tensors that a form is made of, inside its functions too."""
        found = frozenset[int]()
        for (_, factors), _ in form:
            for h, _, _ in factors:
                found |= self._in_head(h)
        return found

    def _in_head(self, h: int) -> frozenset[int]:
        if h not in self._names:
            head = self.forms.heads[h]
            if head.kind is Kind.NAMED:
                self._names[h] = frozenset({h})
            else:
                self._names[h] = frozenset().union(*(self.names(f) for f in head.of))
        return self._names[h]

    def without(self, form: Form, name: int) -> Form:
        """With what a name stands for in its place."""
        if name not in self.names(form):
            return form
        if (name, form) not in self._made:

            def new(f: Factor, box: Box) -> Form | None:
                return self._factor(f, name) if name in self._in_head(f[0]) else None

            self._made[name, form] = self.forms.plus(*(self._term(term, c, new, {}) for term, c in form))
        return self._made[name, form]

    def _within(self, form: Form, box: Box) -> Form:
        """With conditions inside its powers and logarithms decided where free variables are in ranges."""

        def new(f: Factor, here: Box) -> Form | None:
            head = self.forms.heads[f[0]]
            alone = head.kind is Kind.FUNCTION and head.name == "abs"
            squared = alone and f[2].denominator == 1 and f[2].numerator % 2 == 0  # |x| |x| = x x
            if head.kind not in (Kind.BASE, Kind.LOG) and not squared:
                return None
            of = self.forms.within(self.forms.substitute(head.of[0], dict(enumerate(f[1]))), here)
            return self.forms.power(self.forms.log(of) if head.kind is Kind.LOG else of, f[2])

        return self.forms.plus(*(self._term(term, c, new, box) for term, c in form))

    def _cleared(self, form: Form) -> Form:
        """Times all that it is divided by, one after another: what is 0 then, is 0 wherever it is defined."""
        for _ in range(MOST_CLEARED):
            powers: dict[tuple[int, tuple[Index, ...]], Power] = {}
            for (_, factors), _ in form:
                for h, at, p in factors:
                    free = all(v >= 0 for i in at for v, _ in i[0])
                    if p < 0 and p.denominator == 1 and free and self.forms.heads[h].kind is Kind.BASE:
                        powers[h, at] = min(p, powers.get((h, at), p))
            if not powers:
                return form
            (head, place), least = max(powers.items())  # made last: others are inside
            body = self.forms.substitute(self.forms.heads[head].of[0], dict(enumerate(place)))
            parts = list[Form]()
            for (ranges, factors), c in form:
                mine = sum((p for h, at, p in factors if (h, at) == (head, place)), Fraction(0))
                rest = tuple(f for f in factors if f[:2] != (head, place))
                times = self.forms.power(body, mine - least)
                parts.append(self._count(self.forms.product((((ranges, rest), c),), times)))
            form = self.forms.plus(*parts)
        return form

    def _term(self, term: Term, c: Fraction, new: Callable[[Factor, Box], Form | None], box: Box) -> Form:
        """One term with `new` factors for those that are made anew; what it sums over is free until its factors are
        multiplied.
        """
        (ranges, factors), forms = term, self.forms
        free = {-i - 1: variable(LENT + i) for i in range(len(ranges))}
        here = {**box, **{LENT + i: r for i, r in enumerate(ranges)}}
        made = forms.number(c)
        for h, at, p in factors:
            one = (h, tuple(substitute(i, free) for i in at), p)
            found = new(one, here)
            made = self._count(
                forms.product(made, forms.substitute(((((), (one,)), ONE),), {}) if found is None else found)
            )
        for i, over in enumerate(ranges):
            made = forms.total(made, LENT + i, over)
        return self._count(made)

    def _count(self, made: Form) -> Form:
        """Terms that are made anew, as long as there may be more."""
        self._left -= 1 + len(made)
        if self._left < 0:
            raise Undecided(f"more than {MOST_MADE} terms are made anew")
        return made

    def _factor(self, factor: Factor, name: int) -> Form:
        """One factor, with what a name stands for in its place."""
        forms, (h, at, p) = self.forms, factor
        head = forms.heads[h]
        if head.kind is Kind.NAMED:
            return forms.power(forms.substitute(head.of[0], dict(enumerate(at))), p)
        of = tuple(self.without(f, name) for f in head.of)
        values: Mapping[int, Index] = dict(enumerate(at[: head.free]))
        match head.kind:
            case Kind.EXP:
                return forms.exp(forms.times(forms.substitute(of[0], values), p))
            case Kind.LOG:
                return forms.power(forms.log(forms.substitute(of[0], values)), p)
            case Kind.BASE:
                return forms.power(forms.substitute(of[0], values), p)
            case Kind.POSITIVE:
                return forms.positive(forms.substitute(of[0], values))
            case Kind.NULL:
                return forms.null(forms.substitute(of[0], values))
            case Kind.GREATEST:
                over = [(OWN + i, r) for i, r in enumerate(ranges_of(at[head.free :]))]
                return forms.power(forms.substitute(forms.greatest(of[0], over), values), p)
            case Kind.FUNCTION:
                made = [forms.substitute(f, values) for f in of]
                if head.name == "maximum":
                    return forms.power(forms.larger(made), p)
                if head.name in COMPARED and not head.words:
                    return forms.power(forms.beside_infinity(head.name, made[0], made[1]), p)
                return forms.power(forms.abstract(Kind.FUNCTION, head.name, head.words, made), p)
            case _:
                raise Undecided(f"{head.name} of a named tensor")

"""Tells what is known of the infinity that masks add or subtract: beside it every number is nothing.

    exp         of what it is subtracted from is 0: exp(x - t L) = (1 - t) exp(x) for a truth value t; of what it is
                added to, exp(x + L), nothing is known
    comparison  x - t L = -L exactly where t is 1; x = L nowhere, -L < x < L everywhere; of two logarithms, which may
                both be of 0, nothing is known

with x finite: no logarithm stands in it but of what is above 0 (what makes no number, as infinity minus infinity, is
outside what is proved).  Anything else of it is a function of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from .conditions import Conditions
from .terms import ZERO, Factor, Form, Head, Kind

MOST_MASKS = 8
"""Truth values that masks of one number are made of: each doubles the cases."""


class Infinity(Conditions):
    """Forms in which the infinity of masks may stand."""

    def infinity(self) -> Form:
        """That of masks."""
        return self.element(self.head(Head(Kind.LIMIT, "infinity")), ())

    def take_for_infinite(self, h: int) -> None:
        """The infinity of masks may stand in a head."""
        self._infinities[h] = True

    def take_for_logarithm(self, h: int) -> None:
        """A logarithm of what may be 0 may stand in a head."""
        self._no_numbers[h] = True

    def rests_on_infinity(self, form: Form) -> bool:
        """Whether the infinity of masks stands in a form, or in what its functions are made of."""
        return any(self._infinite(h) for (_, factors), _ in form for h, _, _ in factors)

    def _infinite(self, h: int) -> bool:
        if h not in self._infinities:
            head = self.heads[h]
            self._infinities[h] = head.kind is Kind.LIMIT or any(self.rests_on_infinity(f) for f in head.of)
        return self._infinities[h]

    def may_be_infinite(self, form: Form) -> bool:
        """Whether an infinity may stand in a form: that of masks, or a logarithm of what may be 0."""
        return any(self._no_number(h) for (_, factors), _ in form for h, _, _ in factors)

    def _no_number(self, h: int) -> bool:
        if h not in self._no_numbers:
            head = self.heads[h]
            self._no_numbers[h] = (
                self._infinite(h)
                or (head.kind is Kind.LOG and not self.is_above_zero(head.of[0]))
                or any(self.may_be_infinite(f) for f in head.of)
            )
        return self._no_numbers[h]

    def is_above_zero(self, p: Form) -> bool:
        """Whether a form is a sum of what is above 0: exponentials, powers of sums of them, numbers."""
        return bool(p) and all(c > 0 and all(self._above_zero(h) for h, _, _ in factors) for (_, factors), c in p)

    def _above_zero(self, h: int) -> bool:
        head = self.heads[h]
        return head.kind in (Kind.EXP, Kind.ROOT) or (
            head.kind in (Kind.BASE, Kind.NAMED) and self.is_above_zero(head.of[0])
        )

    def by_infinity(self, p: Form, of: Callable[[Form, int], Form], left: int = MOST_MASKS) -> Form | None:
        """A function of a form by cases of the truth values that choose whether an infinity is added: `of` what is left
        and its sign, 0 where none is; None where it is not known which.
        """
        masked = [(factors, c) for (ranges, factors), c in p if not ranges and self._limits_in(factors)]
        rest = tuple(pair for pair in p if pair[0][0] or not self._limits_in(pair[0][1]))
        if not masked or self.rests_on_infinity(rest):
            return None
        for factors, _ in masked:
            others = [f for f in factors if self.heads[f[0]].kind is not Kind.LIMIT]
            if len(others) + 1 < len(factors) or any(f[2] != 1 for f in factors):
                return None
            if not all(self.is_truth(h) for h, _, _ in others):
                return None
            if others:
                h, at, _ = others[0]
                found = [self._case(case, of, left - 1) for case in self.cases(p, h, at)]
                return None if None in found else self.choice(self.element(h, at), *(f for f in found if f is not None))
        return of(rest, 1 if sum(c for _, c in masked) > 0 else -1)

    def _case(self, p: Form, of: Callable[[Form, int], Form], left: int) -> Form | None:
        if not self.rests_on_infinity(p):
            return of(p, 0)
        return self.by_infinity(p, of, left) if left else None

    def _limits_in(self, factors: Sequence[Factor]) -> bool:
        return any(self.heads[h].kind is Kind.LIMIT for h, _, _ in factors)

    def has_difference(self, a: Form, b: Form) -> bool:
        """Whether what is compared is compared as a difference is with 0: not where that may be no number."""
        both = self.may_be_infinite(a) and self.may_be_infinite(b)
        return not both and not self.rests_on_infinity(a) and not self.rests_on_infinity(b)

    def beside_infinity(self, name: str, a: Form, b: Form) -> Form:
        """A comparison of what an infinity stands in: whether it is that infinity, where that is asked and known."""
        one = b[0][0][1] if len(b) == 1 and not b[0][0][0] else ()
        alone = len(one) == 1 and self._limits_in(one) and one[0][2] == 1
        beside = tuple(pair for pair in a if not self._limits_in(pair[0][1]))  # numbers, or logarithms of 0
        same: Form | None = None
        if name not in ("eq", "ne"):
            if alone and not self.may_be_infinite(a):  # every number is between both infinities
                return self.number(int((name in ("lt", "le")) == (b[0][1] > 0)))
        elif self.has_difference(a, b):  # no infinity is left where names gave way
            same = self.null(self.plus(a, self.times(b, Fraction(-1))))
        elif alone and not self.may_be_infinite(a):
            same = ZERO
        elif alone and not self.may_be_infinite(beside):
            sign = 1 if b[0][1] > 0 else -1
            same = self.by_infinity(a, lambda _, mine: self.number(int(mine == sign)))
        if same is not None:
            return same if name == "eq" else self.plus(self.number(1), self.times(same, Fraction(-1)))
        return self.abstract(Kind.FUNCTION, name, (), (a, b))

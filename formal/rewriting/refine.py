"""The refinement of monomials that match nothing: which variable is forced, which sum is to be cut,
which index has
digits.  Nothing here is trusted.
"""

from __future__ import annotations

from ...models.rewrites.guarded_sums import Monomial
from ...models.rewrites.polynomial import Poly
from ...proofs.rewrites.judgement import Cut, Digits, Fact, Keep, Pin, Step, Zero
from .facts import Reasoner, visible
from .terms_inside import (
    extents_of,
    in_digits,
    inner_guards,
    leading_part,
    refutation_of,
    strides_of,
    with_guard,
    with_pinned,
)


class Refiner:
    """Offers steps for a monomial.  `digits`: named digits of free coordinates, candidates for the value of a bound
    digit.
    """

    def __init__(self, reasoner: Reasoner, digits: tuple[Poly, ...]) -> None:
        self.reasoner, self.digits = reasoner, digits

    def simplify(self, m: Monomial, context: list[Poly]) -> Step:
        """Zero if a guard without bound variables is false; variables fixed by a pair of guards g, -g."""
        for g in m.guards:
            if g.constant is not None and g.constant < 0:
                return Zero(((len(context) + m.guards.index(g), -1, 1),))
            if g.names.isdisjoint(m.variables) and not visible(context, g):
                fact = self.reasoner.prove_fact(context, -g - 1)
                if fact is not None:
                    return Zero(refutation_of(fact, context, m, g))
        guards = set(m.guards)
        for g in m.guards:
            if -g in guards:
                for v in m.variables:
                    parts = g.coefficient(v) if v in g.names else None
                    if parts is not None and parts[0].constant in (1, -1):
                        value = -parts[1] if parts[0].constant == 1 else parts[1]
                        pin = self._pin(m, v, value, context)
                        if pin is not None:
                            return Pin(
                                pin.variable,
                                pin.value,
                                pin.at_least,
                                pin.at_most,
                                self.simplify(with_pinned(m, pin), context),
                            )
        return Keep()

    def _pin(self, m: Monomial, v: str, value: Poly, context: list[Poly]) -> Pin | None:
        known = [*context, *m.guards]
        low = self.reasoner.prove_fact(known, Poly.of(v) - value)
        if low is None:
            return None
        high = self.reasoner.prove_fact(known, value - v)
        return None if high is None else Pin(v, value, low, high, Keep())

    def zero(self, m: Monomial, context: list[Poly]) -> Step | None:
        """Zero if the guards contradict the context."""
        fact = self.reasoner.contradiction([*context, *m.guards])
        return None if fact is None else Zero(fact)

    def finer(self, m: Monomial, context: list[Poly], others: list[Monomial]) -> Step | None:
        """One refinement of a monomial that matched nothing; `others` are all of those."""
        fact = self.reasoner.contradiction([*context, *m.guards])
        if fact is not None:
            return Zero(fact)
        return (
            self._pinned_digit(m, context)
            or self._small_range(m, context)
            or self._low_digit(m, context)
            or self._inner_cut(m, context)
            or self._two_variables(m, context, others)
            or self._earlier_end(m, context, others)
        )

    def _pinned_digit(self, m: Monomial, context: list[Poly]) -> Step | None:
        """A digit of something whose digits are known: floor((m q + r) / m) = q."""
        bound = set(m.variables)
        for v in m.variables:
            for g in m.guards:
                parts = g.coefficient(v) if v in g.names else None
                if parts is None or parts[0].constant == -1 or any(c > 0 for c in parts[0].terms.values()):
                    continue
                whole = leading_part(parts[1], -parts[0])
                moving = leading_part(
                    Poly({t: c for t, c in parts[1].terms.items() if not bound.isdisjoint(t)}), -parts[0]
                )
                for quotient in dict.fromkeys((whole, moving, *self.digits)):
                    pin = self._pin(m, v, quotient, context)
                    if pin is not None:
                        return self._at(m, pin, context)
        return None

    def _at(self, m: Monomial, pin: Pin, context: list[Poly]) -> Pin:
        """A pin with what is left behind it."""
        rest = self.simplify(with_pinned(m, pin), context)
        return Pin(pin.variable, pin.value, pin.at_least, pin.at_most, rest)

    def _small_range(self, m: Monomial, context: list[Poly]) -> Step | None:
        """A small constant range is unrolled."""
        for v in m.variables:
            upper = next(
                (
                    g + v
                    for g in m.guards
                    if g.names == {v} and g.coefficient(v) is not None and g.terms.get((v,)) == -1
                ),
                None,
            )
            if upper is None or upper.constant is None or not 0 <= upper.constant <= 8:
                continue
            if upper.constant == 0:
                pin = self._pin(m, v, Poly.of(0), context)
                if pin is not None:
                    return self._at(m, pin, context)
            elif (cut := self._unrolled(m, v, 0, upper.constant, context)) is not None:
                return cut
        return None

    def _low_digit(self, m: Monomial, context: list[Poly]) -> Step | None:
        """v - m u is the low digit of v: v is split."""
        bound = set(m.variables)
        for g in m.guards:
            for v in m.variables:
                if g.terms.get((v,)) != 1:
                    continue
                for u in bound - {v}:
                    parts = g.coefficient(u) if u in g.names else None
                    if parts is None or parts[0].constant == -1 or any(c >= 0 for c in parts[0].terms.values()):
                        continue
                    modulus = -parts[0]
                    if modulus.names & bound:
                        continue
                    if (fact := self.reasoner.prove_fact(context, modulus - 1)) is not None:
                        return self._split(m, v, modulus, fact, context)
        return None

    def _split(self, m: Monomial, v: str, modulus: Poly, fact: Fact, context: list[Poly]) -> Digits:
        """A variable in two digits."""
        return Digits(v, modulus, fact, self.simplify(in_digits(m, Digits(v, modulus, fact, Keep())), context))

    def _cut(self, m: Monomial, g: Poly, context: list[Poly]) -> Cut | None:
        """Where a guard holds and where it does not, if neither is known."""
        known = [*context, *m.guards]
        if (
            visible(known, g)
            or self.reasoner.prove_fact(known, g) is not None
            or self.reasoner.prove_fact(known, -g - 1) is not None
        ):
            return None
        return Cut(g, self.simplify(with_guard(m, g), context), self.simplify(with_guard(m, -g - 1), context))

    def _inner_cut(self, m: Monomial, context: list[Poly]) -> Step | None:
        """A cut at a guard inside of an atom."""
        for g in dict.fromkeys(x for a in m.atoms for x in inner_guards(a, frozenset(m.variables))):
            if (cut := self._cut(m, g, context)) is not None:
                return cut
        return None

    def _two_variables(self, m: Monomial, context: list[Poly], others: list[Monomial]) -> Step | None:
        """The sum runs over d * n here, over two variables elsewhere, one of them with stride n."""
        moduli = list(dict.fromkeys(c for o in others if o is not m for c in strides_of(o)))
        for v in m.variables:
            for whole in extents_of(m, v):
                for n in moduli:
                    if (
                        n != whole
                        and whole.exact_quotient(n) is not None
                        and (fact := self.reasoner.prove_fact(context, n - 1)) is not None
                    ):
                        return self._split(m, v, n, fact, context)
        return None

    def _earlier_end(self, m: Monomial, context: list[Poly], others: list[Monomial]) -> Step | None:
        """Elsewhere a sum of the same entries ends earlier, at n: cut there."""
        ends = list(dict.fromkeys(e for o in others if o is not m for v in o.variables for e in extents_of(o, v)))
        for v in m.variables:
            for whole in extents_of(m, v):
                for n in ends:
                    if self.reasoner.prove_fact(context, whole - n - 1) is None:
                        continue
                    if (cut := self._cut(m, Poly.of(v) - n, context)) is not None:
                        return cut
        return None

    def _unrolled(self, m: Monomial, v: str, low: int, high: int, context: list[Poly]) -> Step | None:
        if low == high:
            pin = self._pin(m, v, Poly.of(low), context)
            return (
                None
                if pin is None
                else Pin(
                    pin.variable, pin.value, pin.at_least, pin.at_most, self.simplify(with_pinned(m, pin), context)
                )
            )
        g = Poly.of(v) - low - 1
        yes = self._unrolled(with_guard(m, g), v, low + 1, high, context)
        no = self._unrolled(with_guard(m, -g - 1), v, low, low, context)
        return None if yes is None or no is None else Cut(g, yes, no)

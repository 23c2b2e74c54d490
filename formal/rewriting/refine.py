"""The refinement of monomials that match nothing: which variable is forced, which sum is to be cut,
which index has
digits.  Nothing here is trusted.
"""

from __future__ import annotations

from ...models.rewrites.guarded_sums import Monomial
from ...models.rewrites.polynomial import Poly
from ...proofs.rewrites.judgement import Cut, Digits, Keep, Pin, Step, Zero
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
        known = [*context, *m.guards]
        bound = set(m.variables)
        for v in m.variables:  # a digit of something whose digits are known: floor((m q + r) / m) = q
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
                        return Pin(
                            pin.variable,
                            pin.value,
                            pin.at_least,
                            pin.at_most,
                            self.simplify(with_pinned(m, pin), context),
                        )
        for v in m.variables:  # small constant range: unroll
            upper = next(
                (
                    g + v
                    for g in m.guards
                    if g.names == {v} and g.coefficient(v) is not None and g.terms.get((v,)) == -1
                ),
                None,
            )
            if upper is not None and upper.constant is not None and 0 <= upper.constant <= 8:
                if upper.constant == 0:
                    pin = self._pin(m, v, Poly.of(0), context)
                    if pin is not None:
                        return Pin(
                            pin.variable,
                            pin.value,
                            pin.at_least,
                            pin.at_most,
                            self.simplify(with_pinned(m, pin), context),
                        )
                else:
                    cut = self._unrolled(m, v, 0, upper.constant, context)
                    if cut is not None:
                        return cut
        for g in m.guards:  # v - m u is the low digit of v: split v
            for v in m.variables:
                if g.terms.get((v,)) != 1:
                    continue
                for u in bound - {v}:
                    parts = g.coefficient(u) if u in g.names else None
                    if parts is not None and parts[0].constant != -1 and all(c < 0 for c in parts[0].terms.values()):
                        modulus = -parts[0]
                        if (
                            not modulus.names & bound
                            and (fact := self.reasoner.prove_fact(context, modulus - 1)) is not None
                        ):
                            draft = Digits(v, modulus, fact, Keep())
                            return Digits(v, modulus, fact, self.simplify(in_digits(m, draft), context))
        for g in dict.fromkeys(x for a in m.atoms for x in inner_guards(a, frozenset(bound))):
            if (
                not visible(known, g)
                and self.reasoner.prove_fact(known, g) is None
                and self.reasoner.prove_fact(known, -g - 1) is None
            ):
                return Cut(g, self.simplify(with_guard(m, g), context), self.simplify(with_guard(m, -g - 1), context))
        moduli = list(dict.fromkeys(c for o in others if o is not m for c in strides_of(o)))
        for v in m.variables:  # the sum runs over d * n here, over two variables elsewhere, one of them with stride n
            for whole in extents_of(m, v):
                for n in moduli:
                    if (
                        n != whole
                        and whole.exact_quotient(n) is not None
                        and (fact := self.reasoner.prove_fact(context, n - 1)) is not None
                    ):
                        draft = Digits(v, n, fact, Keep())
                        return Digits(v, n, fact, self.simplify(in_digits(m, draft), context))
        ends = list(dict.fromkeys(e for o in others if o is not m for v in o.variables for e in extents_of(o, v)))
        for v in m.variables:  # elsewhere a sum of the same entries ends earlier, at n: cut there
            for whole in extents_of(m, v):
                for n in ends:
                    if self.reasoner.prove_fact(context, whole - n - 1) is None:
                        continue
                    g = Poly.of(v) - n
                    if (
                        not visible(known, g)
                        and self.reasoner.prove_fact(known, g) is None
                        and self.reasoner.prove_fact(known, -g - 1) is None
                    ):
                        return Cut(
                            g, self.simplify(with_guard(m, g), context), self.simplify(with_guard(m, -g - 1), context)
                        )
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

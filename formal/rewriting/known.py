"""Where axioms of elementwise functions apply: offers `Known` steps.  Nothing here is trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...models.rewrites.function_axioms import AXIOMS, bound_names, collect, may_apply, not_negative, rewritten
from ...models.rewrites.functions import FUNCTIONS, function
from ...models.rewrites.guarded_sums import Apply, Atom, GuardedSum, Highest, Monomial
from ...models.rewrites.polynomial import Poly
from ...proofs.rewrites.judgement import Assignment, Facts, Keep, Known, Step
from .refine import Refiner
from .terms_inside import kept_of

_MOST_INSIDE = 6
"""Functions within functions that are looked into."""


class FunctionAxioms:
    """Offers steps for monomials that hold functions."""

    def __init__(self, refiner: Refiner) -> None:
        self.refiner = refiner

    def speak_of(self, s: GuardedSum, context: list[Poly]) -> bool:
        """Whether some axiom applies to a monomial of the sum."""
        return any(self.step(m, context) is not None for m in s)

    def step(self, m: Monomial, context: list[Poly], deep: int = 0) -> Known | None:
        """An axiom for one of the monomial's functions."""
        if deep > _MOST_INSIDE:
            return None
        inside = [*context, *m.guards]
        for k, a in enumerate(m.atoms):
            if not isinstance(a, Apply) or a.index or len(a.arguments) != 1 or a.function not in FUNCTIONS:
                continue
            others = (*m.atoms[:k], *m.atoms[k + 1 :])
            steps = tuple(self._inside(x, inside, deep) for x in a.arguments[0])
            found = collect(t for x, s in zip(a.arguments[0], steps, strict=True) for t in kept_of(x, s))
            for axiom in AXIOMS:
                step = self._applied(axiom, a, k, steps, found, others, inside)
                if step is not None:
                    return step
        return None

    def _inside(self, m: Monomial, context: list[Poly], deep: int) -> Step:
        """What a monomial of an argument is, before an axiom looks at it."""
        simple = self.refiner.zero(m, context) or self.refiner.simplify(m, context)
        return self.step(m, context, deep + 1) or simple if isinstance(simple, Keep) else simple

    def _applied(
        self,
        axiom: str,
        a: Apply,
        k: int,
        steps: tuple[Step, ...],
        found: GuardedSum,
        others: Sequence[Atom],
        context: list[Poly],
    ) -> Known | None:
        factors = _factors(found[0], context) if axiom == "factor" and len(found) == 1 else ()
        result = rewritten(axiom, a.function, found, factors)
        if result is None:
            return None
        outside = bound_names(others)
        if any(not outside.isdisjoint(w.variables) for w in result):
            return None
        point, facts = self._point(a.function, found, context) if axiom == "maximum" else ((), ())
        asked = a.arguments[0] if axiom == "square" else found
        if not may_apply(axiom, a.function, asked, factors, context, others, bool(point)):
            return None
        return Known(k, axiom, steps, factors, point, facts, tuple(Keep() for _ in result))

    def _point(self, f: str, s: GuardedSum, context: list[Poly]) -> tuple[Assignment, Facts]:
        """A point in the range of a maximum, for functions that do not keep 0: all variables 0, or where a guard
        ends.
        """
        top = s[0].atoms[0]
        if not isinstance(top, Highest) or function(f).keeps_zero or not function(f).monotone:
            return (), ()
        for point in _points(top):
            facts = []
            for g in top.guards:
                fact = self.refiner.reasoner.prove_fact(context, g.substitute(point))
                if fact is None:
                    break
                facts.append(fact)
            else:
                return tuple(sorted(point.items())), tuple(facts)
        return (), ()


def _factors(m: Monomial, context: Sequence[Poly]) -> tuple[int, ...]:
    """Atoms of a product that are not negative, alone or in pairs."""
    known = (*context, *m.guards)
    out: list[int] = []
    for k, a in enumerate(m.atoms):
        same = [j for j, b in enumerate(m.atoms) if b == a]
        if not_negative((a,), known) or same.index(k) < len(same) // 2 * 2:
            out.append(k)
    return tuple(out)


def _points(top: Highest) -> Iterator[dict[str, Poly]]:
    zero = dict.fromkeys(top.variables, Poly({}))
    yield zero
    yield from (
        {**zero, v: value}
        for v in top.variables
        for g in top.guards
        if g.terms.get((v,)) == 1 and not (value := v_end(g, v)).names & set(top.variables)
    )


def v_end(g: Poly, v: str) -> Poly:
    """Where a guard v - p >= 0 begins: p."""
    return Poly.of(v) - g

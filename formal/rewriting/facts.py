"""Finds side facts: which integer polynomials follow from others, with Farkas multipliers.

    h_1, .., h_n >= 0  |-  g >= 0      iff found: non-negative c with  sum c_k h_i h_j  (h_{n+1} = -g-1)  =  negative
                                       constant

Order of attempts, cheapest first: visible; a known integer model in which g fails; linear combination; Z3 (a model ends
it); linear combination with pairwise products.  "Not found" is treated as "may fail", which is safe everywhere.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import highspy
import numpy as np
import z3

from ...models.rewrites.polynomial import Monomial, Poly
from ...proofs.rewrites.judgement import Fact
from ..highs import run_alone, silent_solver

_MOST_PRODUCTS = 700
_Z3_EFFORT = 1_000_000
"""Z3's own count of work, not milliseconds: a busy machine must not change a verdict."""


class Reasoner:
    """Answers side facts, remembering answers and models.  `counts`: how often each attempt was used."""

    def __init__(self) -> None:
        self._answers: dict[tuple[tuple[Poly, ...], Poly], Fact | None] = {}
        self._contradictions: dict[tuple[Poly, ...], Fact | None] = {}
        self._models: list[dict[str, int]] = []
        self.counts = {"asked": 0, "visible": 0, "model": 0, "linear": 0, "z3": 0, "products": 0}

    def prove_fact(self, known: list[Poly], goal: Poly) -> Fact | None:
        """A fact that shows goal >= 0 from `known`, or None."""
        self.counts["asked"] += 1
        if visible(known, goal):
            self.counts["visible"] += 1
            return ()
        key = (tuple(known), goal)
        if key not in self._answers:
            self._answers[key] = self._find([*known, -goal - 1], goal)
        return self._answers[key]

    def contradiction(self, known: list[Poly]) -> Fact | None:
        """A fact that shows `known` contradictory, or None."""
        key = tuple(known)
        if key not in self._contradictions:
            self._contradictions[key] = self._find(known, None)
        return self._contradictions[key]

    def _find(self, hypotheses: list[Poly], goal: Poly | None) -> Fact | None:
        if self._modelled(hypotheses):
            self.counts["model"] += 1
            return None
        relevant = _relevant(hypotheses, goal)
        fact = _combination([(i, -1, hypotheses[i]) for i in relevant])
        if fact is not None:
            self.counts["linear"] += 1
            return fact
        self.counts["z3"] += 1
        model = _model(hypotheses)
        if model is not None:
            self._models.append(model)
            del self._models[:-60]
            return None
        self.counts["products"] += 1
        columns = [(i, -1, hypotheses[i]) for i in relevant]
        pairs = [(i, j) for a, i in enumerate(relevant) for j in relevant[: a + 1]]
        last = len(hypotheses) - 1
        pairs.sort(key=lambda t: (last not in t, t))
        columns += [(i, j, hypotheses[i] * hypotheses[j]) for i, j in pairs[:_MOST_PRODUCTS]]
        return _combination(columns)

    def _modelled(self, hypotheses: list[Poly]) -> bool:
        for k in range(len(self._models) - 1, -1, -1):
            model = self._models[k]
            try:
                if all(h.value(model) >= 0 for h in reversed(hypotheses)):
                    self._models.append(self._models.pop(k))
                    return True
            except KeyError:
                continue
        return False


def visible(known: list[Poly], goal: Poly) -> bool:
    """Whether goal is a constant >= 0, or a known polynomial plus one."""
    if goal.constant is not None:
        return goal.constant >= 0
    if goal in known:
        return True
    shape = goal - goal.terms.get((), 0)
    at = goal.terms.get((), 0)
    return any(
        len(h.terms) - (() in h.terms) == len(shape.terms)
        and h.terms.get((), 0) <= at
        and h - h.terms.get((), 0) == shape
        for h in known
    )


def _relevant(hypotheses: list[Poly], goal: Poly | None) -> list[int]:
    """Hypotheses connected with the goal through shared symbols (all of them if there is no goal)."""
    if goal is None:
        return list(range(len(hypotheses)))
    reached, chosen, grew = set(goal.names), {len(hypotheses) - 1}, True
    while grew:
        grew = False
        for i, h in enumerate(hypotheses):
            if i not in chosen and not h.names.isdisjoint(reached):
                chosen.add(i)
                reached |= h.names
                grew = True
    return sorted(chosen)


def _combination(columns: list[tuple[int, int, Poly]]) -> Fact | None:
    """Non-negative multipliers whose combination is a negative constant: LP for the support, then exact arithmetic."""
    rows: dict[Monomial, int] = {}
    starts, index, value = [0], [], []
    for _, _, p in columns:
        for m, c in p.terms.items():
            index.append(rows.setdefault(m, len(rows)))
            value.append(float(c))
        starts.append(len(index))
    if () not in rows:
        return None
    n, r = len(columns), len(rows)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n, r
    lp.col_cost_ = np.ones(n)
    lp.col_lower_, lp.col_upper_ = np.zeros(n), np.full(n, highspy.kHighsInf)
    low, high = np.zeros(r), np.zeros(r)
    low[rows[()]], high[rows[()]] = -highspy.kHighsInf, -1.0
    lp.row_lower_, lp.row_upper_ = low, high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = np.array(starts), np.array(index), np.array(value)
    solver = _solver()
    solver.passModel(lp)
    if run_alone(solver) != highspy.HighsModelStatus.kOptimal:
        return None
    x = np.array(solver.getSolution().col_value)
    support = [k for k in range(n) if x[k] > 1e-7]
    exact = [Fraction(float(x[k])).limit_denominator(5040) for k in support]
    scale = lcm(*(f.denominator for f in exact)) if exact else 1
    found = tuple((columns[k][0], columns[k][1], int(f * scale)) for k, f in zip(support, exact, strict=True) if f > 0)
    total = Poly({})
    for k, f in zip(support, exact, strict=True):
        total = total + columns[k][2] * int(f * scale)
    constant = total.constant
    return found if constant is not None and constant < 0 else None


_SOLVER: list[highspy.Highs] = []


def _solver() -> highspy.Highs:
    if not _SOLVER:
        h = silent_solver()
        h.setOptionValue("threads", 1)
        h.setOptionValue("presolve", "off")
        _SOLVER.append(h)
    return _SOLVER[0]


def _model(hypotheses: list[Poly]) -> dict[str, int] | None:
    """Integers that satisfy all hypotheses, if Z3 finds some in time."""
    solver = z3.SolverFor("QF_NIA") if any(len(m) > 1 for h in hypotheses for m in h.terms) else z3.SolverFor("QF_LIA")
    solver.set("rlimit", _Z3_EFFORT)
    names = sorted({s for h in hypotheses for s in h.names})
    symbols = {s: z3.Int(s) for s in names}
    for h in hypotheses:
        total: z3.ArithRef = z3.IntVal(0)
        for m, c in h.terms.items():
            term: z3.ArithRef = z3.IntVal(c)
            for s in m:
                term = term * symbols[s]
            total = total + term
        solver.add(total >= 0)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    return {s: model.eval(symbols[s], model_completion=True).as_long() for s in names}

"""This module answers a large problem whose structure repeats at once: a plan that is the same in every repetition, and
messages of one block swept over the whole.

    plan      the symmetric solution (`decomposition/symmetric.py`) read off messages at prices of the resource rows:
              none first; where it breaks a row, a price at the moments that are exceeded, raised until a plan fits and
              lowered until none does; then the cheaper one on as many layers as fit
    bound     messages of one block at the best of these prices, given to every repetition, swept until they hardly move

Branching and columns need a solution to begin with and minutes to find one; this takes the time of a problem with one
layer, and of a few sweeps over all of them.  (Llama with 80 layers, Adam, all recomputed, on 16x8 under 80 GiB, 14,138
vertices: nothing but a plan of 289 s after 300 s, 45.7 s and a gap of 0.2 % after 6 s of the processor so.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Dual
from .answer import Answer, claimed
from .bound.converge import converge
from .bound.decode import decode
from .bound.dual import score_of
from .bound.subgradient import apply_multipliers
from .bound.trws import Sweeper, load
from .decomposition.blocks import spread
from .decomposition.layers import layers
from .decomposition.quotient import Quotient, quotient
from .decomposition.symmetric import average, symmetric_problem
from .model.clock import Clock
from .model.factored import Base, allowed, build, exact_cost, whole
from .model.priced import Floats, priced
from .model.resources import Rows
from .options import Options
from .primal.descent import descend
from .primal.repair import settle

Plan = tuple[int, ...]


def uniform_start(problem: SelectionProblem, clock: Clock, options: Options, gap: Fraction) -> Answer | None:
    """A solution that fits, and the bound of messages that know nothing of it; None where nothing repeats, the problem
    is small, or no price gives a plan that fits.
    """
    at = options.decomposition
    rows = problem.limit is not None and bool(problem.usages)
    least = at.uniform_vertices_with_rows if rows else at.uniform_vertices
    if len(problem.vertices) < least or problem.fine is not None or not all(d.size for d in allowed(problem)):
        return None
    found = quotient(problem, at)
    if found is None:
        return None
    search = _Uniform(problem, found, options)
    prices, best = search.plans(_part(clock, at.uniform_plan_share, at.uniform_plan_s))
    if best is None:
        return None
    cost = problem.cost_of(best)
    record, bound = search.bound(prices, cost, gap, _part(clock, at.uniform_bound_share, at.uniform_bound_s))
    return claimed(problem, best, cost, record, bound, clock.seconds())


def _part(clock: Clock, share: float, least_s: float) -> Clock:
    """A share of the time, but `least_s` seconds even when less is left: they find more than any others."""
    part = clock.share(share)
    return part if part.left() >= least_s else clock.beside(least_s)


@dataclass(eq=False)
class _Uniform:
    """The start of a problem with the quotient `found`."""

    problem: SelectionProblem
    found: Quotient
    options: Options

    @cached_property
    def same(self) -> SelectionProblem:
        """The symmetric problem."""
        return symmetric_problem(self.problem, self.found)

    @cached_property
    def rows(self) -> Rows:
        """What symmetric plans use; only where there are rows."""
        return Rows(self.same)

    def plans(self, until: Clock) -> tuple[Floats, Plan | None]:
        """Prices over the events, and the best plan of the whole problem that was found."""
        events = np.zeros(len(self.problem.events()))
        free, _, warm = self._symmetric(replace(self.same, usages=(), limit=None), None, until)
        if free is None:
            return events, None
        limit = self.problem.limit
        if limit is None or self._fits(free):
            return events, self.found.solution_back(free)
        scale = max(1, self.same.cost_of(free)) / limit
        cheap, lean, best, value = free, None, events, -np.inf
        weight = self._weight(free, events)
        low, high, price = 0.0, float("inf"), self.options.decomposition.uniform_price
        for _ in range(self.options.decomposition.uniform_columns):
            near = low > 0.0 and high / low < self.options.decomposition.uniform_near
            if until.over() or near or price > self.options.decomposition.uniform_dearest:
                break
            n = weight * (price * scale / weight.sum())
            x, bound, warm = self._symmetric(priced(self.rows, n), warm, until)
            if x is None:
                break
            if bound - limit * float(n.sum()) > value:
                value, best = bound - limit * float(n.sum()), n
            if self._fits(x):
                lean, high = self._leaner(lean, x), price
            else:
                cheap, low, weight = x, price, self._weight(x, weight)
            price = price * 4 if high == float("inf") else price / 4 if low == 0.0 else float(np.sqrt(low * high))
        return best, None if lean is None else self._mixture(cheap, lean, until)

    def _leaner(self, known: Plan | None, x: Plan) -> Plan:
        return x if known is None or self.same.cost_of(x) < self.same.cost_of(known) else known

    def _weight(self, x: Plan, known: Floats) -> Floats:
        """Prices also where `x` uses most."""
        out = known.copy()
        out[int(self.rows.use(x).argmax())] += max(1.0, float(known.max(initial=0.0)))
        return out

    def _fits(self, x: Plan) -> bool:
        return exact_cost(self.problem, self.found.solution_back(x)) is not None

    def _symmetric(
        self, problem: SelectionProblem, warm: Dual | None, until: Clock
    ) -> tuple[Plan | None, float, Dual | None]:
        """A solution of a symmetric problem, near the bound that comes with it, and the messages."""
        domains = allowed(problem)
        network = build(Base(problem), domains)
        sweeper = Sweeper(network, options=self.options.bound)
        if warm is not None:
            load(sweeper, warm)
        bound = converge(sweeper, until)
        plans: list[Plan] = []
        for forward in (False, True):
            x = descend(network, decode(sweeper, forward), until, self.options.primal)
            plan = network.solution(x)
            if exact_cost(problem, plan) is not None:
                plans.append(plan)
        best = min(plans, key=problem.cost_of, default=None)
        record = sweeper.dual()
        return best, -np.inf if bound is None else float(bound + problem.constant), record

    def _mixture(self, cheap: Plan, lean: Plan, until: Clock) -> Plan:
        """The cheaper plan on the first layers, or on the last, as many as fit; then moves that keep every row."""
        one, two = (np.array(self.found.solution_back(x)) for x in (cheap, lean))
        layer = layers(self.problem, self.found)
        most = int(layer.max()) + 1
        plans = [tuple(two.tolist())]
        for first in (True, False):
            plans.extend(self._most(one, two, layer if first else most - 1 - layer, most))
        best = min(plans, key=self.problem.cost_of)
        network = build(Base(self.problem), allowed(self.problem))
        at = network.positions(best)
        moved = settle(network, Rows(self.problem), at, until, self.options.primal)
        better = network.solution(moved)
        return better if exact_cost(self.problem, better) is not None else best

    def _most(self, cheap: np.ndarray, lean: np.ndarray, layer: np.ndarray, most: int) -> Iterator[Plan]:
        low, high = 0, most
        while high - low > 1:
            k = (low + high) // 2
            x = tuple(np.where(layer < k, cheap, lean).tolist())
            if exact_cost(self.problem, x) is None:
                high = k
            else:
                low = k
                yield x

    def bound(self, prices: Floats, cost: int, gap: Fraction, until: Clock) -> tuple[Dual, int]:
        """Messages of the whole at rounded prices, and what they prove."""
        network = build(Base(self.problem), whole(self.problem))
        sweeper = Sweeper(network, options=self.options.bound)
        n = np.rint(prices).astype(np.int64)
        block = self.found.problem if not n.any() else average(self.rows, self.found, prices)
        ring = build(Base(block), allowed(block))
        inner = Sweeper(ring, options=self.options.bound)
        converge(inner, until)
        load(sweeper, spread(self.problem, self.found, inner.dual()))
        term, multipliers = 0, tuple[tuple[int, int], ...]()
        if n.any():
            rows = Rows(self.problem)
            multipliers = rows.pairs(n)
            apply_multipliers(sweeper, rows, n)
            term = rows.limit * int(n.sum())
        enough = cost - (cost * gap.numerator) // gap.denominator
        converge(sweeper, until, enough - network.base.constant + term)
        record = sweeper.dual(multipliers)
        bound = score_of(network.base, network.domains, record).bound
        return record, cost if bound is None else bound

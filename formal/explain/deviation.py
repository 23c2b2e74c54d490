"""Computes the price of deciding differently at one vertex.

Price of deviating at v:  min { F(x') : x'_v != x_v } - F(x).  Three statements, and each says which one it is:

    at least   certified: root dual record (m, n) of the certificate,  LB + min_{a != x_v} reduced_cost_v(a) - F(x)  ->
               deviation_bounds() (`bound.dual`; any integer messages are valid, so this needs no trust in
               where they come from)
    at most    another choice at v, everything else as in the plan: feasible, hence an upper bound, not the price ->
               Neighbourhood.local_alternative()
    exactly    solved again without the choice (`deviation`), or with a forced one (`best_with`), with a certificate
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import assert_never

import numpy as np

from ...models.cost.selection import DecisionKind, Planning
from ...models.layout.classes import copy_key, operator_key
from ...models.problem.claims import Infeasible, LowerBound, Optimal, Status, WithinGap
from ...models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Usage
from ...models.text import join_lines
from ...proofs.selection.certificates import Dual, SelectionCertificate
from ..plans.report import amount
from ..plans.strategy import Split, StrategyError, placement, vertex_names
from ..selection.answer import Answer
from ..selection.bound.dual import score_of
from ..selection.model.clock import Clock, Progress
from ..selection.model.factored import Base, whole
from ..selection.model.restrict import restrict
from ..selection.question import Engine
from ..selection.solve import solve
from .compare import Comparison, compare, render_comparison
from .terms import PlanTerms


@dataclass(frozen=True, eq=False)
class Deviation:
    """The plan against the best plan under a condition at one vertex.  `exact`: the other is proved optimal under the
    condition, else its price lies in [`least`, `price`].  `price` None: nothing feasible was found (`exact`: proved
    that nothing is)."""

    name: str
    condition: str
    price: int | None
    least: int | None
    exact: bool
    choices: tuple[int, ...] | None
    comparison: Comparison | None
    certificate: SelectionCertificate | None

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "name": self.name,
            "condition": self.condition,
            "price": self.price,
            "price_at_least": self.least,
            "exact": self.exact,
            "difference": None if self.comparison is None else self.comparison.to_json(),
        }


def best_with(
    planning: Planning,
    choices: tuple[int, ...],
    op: str,
    config: Split,
    clock: Clock | None = None,
    engine: Engine = "native",
    progress: Progress | None = None,
) -> Deviation:
    """The best plan in which `op` has the placement `config`, against `choices`.  Raises `StrategyError`,
    `SpaceError`.
    """
    v = vertex_of(planning, op)
    terms = PlanTerms(planning)
    decision = planning.decisions[v]
    here = placement(config, decision.axes, planning.machine, f"{op!r}")
    choice = decision.choice(here)
    words = f"{op} is {terms.words(v, choice)}"
    return _solved(planning, choices, {v: (choice,)}, words, clock, engine, progress, terms)


def deviation(
    planning: Planning,
    choices: tuple[int, ...],
    vertex: int,
    clock: Clock | None = None,
    engine: Engine = "native",
    progress: Progress | None = None,
    terms: PlanTerms | None = None,
) -> Deviation:
    """The best plan in which one vertex has any other placement than in `choices`."""
    names = PlanTerms(planning) if terms is None else terms
    name = name_of(planning, vertex)
    condition = f"{name} is not {names.words(vertex, choices[vertex])}"
    others = tuple(a for a in range(planning.problem.domain_size(vertex)) if a != choices[vertex])
    if not others:
        return Deviation(name, condition, None, None, True, None, None, None)
    return _solved(planning, choices, {vertex: others}, condition, clock, engine, progress, names)


def _solved(
    planning: Planning,
    choices: tuple[int, ...],
    allowed: dict[int, tuple[int, ...]],
    condition: str,
    clock: Clock | None,
    engine: Engine,
    progress: Progress | None,
    terms: PlanTerms,
) -> Deviation:
    """The best plan in which one vertex has one of the choices that are `allowed`."""
    problem, (vertex,) = planning.problem, allowed
    small = restrict(problem, allowed)
    answer: Answer = solve(small.inner, clock=clock, engine=engine, progress=progress)
    cost = problem.cost_of(choices)
    least = None if answer.lower_bound is None else answer.lower_bound - cost
    exact = answer.status is Status.OPTIMAL or answer.status is Status.INFEASIBLE
    name = name_of(planning, vertex)
    if answer.solution is None or answer.cost is None:
        return Deviation(name, condition, None, least, exact, None, None, answer.certificate)
    y = small.solution_back(answer.solution)
    return Deviation(
        name, condition, answer.cost - cost, least, exact, y, compare(problem, terms, choices, y), answer.certificate
    )


def deviation_bounds(
    problem: SelectionProblem, x: tuple[int, ...], certificate: SelectionCertificate | None
) -> tuple[int | None, list[int]]:
    """(lower bound of the claim, certified lower bound on the price of deviating per vertex); zeros where the
    record says nothing.
    """
    zeros = [0] * len(problem.vertices)
    if certificate is None or certificate.problem_sha256 != problem.sha256():
        return None, zeros
    claim = certificate.claim
    match claim:
        case Optimal():
            lower: int | None = claim.cost
        case WithinGap() | LowerBound():
            lower = claim.lower_bound
        case Infeasible():
            lower = None
        case _:
            assert_never(claim)
    record, cost = certificate.proof, problem.cost_of(x)
    floor = 0 if lower is None else min(0, lower - cost)
    if not isinstance(record, Dual):
        return lower, [floor] * len(zeros)
    found = score_of(Base(problem, record.denominator), whole(problem), record)
    if found.bound is None:
        return lower, [floor] * len(zeros)
    out = []
    for v, costs in enumerate(found.reduced_costs):
        others = np.delete(costs, x[v])
        least = int(others.min()) if others.size else 0
        out.append(max(floor, -(-(found.bound + least) // found.denominator) - cost))
    return lower, out


@dataclass(frozen=True)
class Neighbourhood:
    """A feasible solution `x` and what changes of one choice need: the edges and usages of every vertex, and the usage
    of every interval between two events (`times`, ascending; `load[i]` from times[i] to times[i + 1]).
    """

    problem: SelectionProblem
    x: tuple[int, ...]
    edges: tuple[tuple[Edge, ...], ...]
    usages: tuple[tuple[Usage, ...], ...]
    times: Ints
    load: Ints

    @staticmethod
    def of(problem: SelectionProblem, x: tuple[int, ...]) -> Neighbourhood:
        """One pass over edges and usages."""
        edges: list[list[Edge]] = [[] for _ in problem.vertices]
        usages: list[list[Usage]] = [[] for _ in problem.vertices]
        for e in problem.edges:
            for v in {e.u, e.v}:
                edges[v].append(e)
        for usage in problem.usages:
            usages[usage.vertex].append(usage)
        times = np.array(sorted({t for u in problem.usages for t in (u.start, u.end)}), np.int64)
        change = np.zeros(len(times), np.int64)
        for u in problem.usages:
            if u.start < u.end:
                change[np.searchsorted(times, [u.start, u.end])] += [
                    int(u.amount[x[u.vertex]]),
                    -int(u.amount[x[u.vertex]]),
                ]
        return Neighbourhood(problem, x, tuple(map(tuple, edges)), tuple(map(tuple, usages)), times, np.cumsum(change))

    def local_alternative(self, v: int) -> tuple[int | None, int | None]:
        """(difference, choice) of the cheapest other choice at `v` with everything else kept and all resource rows
        holding.
        """
        problem, x = self.problem, self.x
        delta: Ints = problem.vertices[v].cost.copy()
        bad = delta >= FORBIDDEN
        for e in self.edges[v]:
            there, map_here, map_there = (e.v, e.rows, e.cols) if e.u == v else (e.u, e.cols, e.rows)
            table = problem.tables[e.table] if e.u == v else problem.tables[e.table].T
            column = table[:, x[there] if map_there is None else int(map_there[x[there]])]
            entries = column if map_here is None else column[map_here]
            bad |= entries >= FORBIDDEN
            delta = delta + np.where(entries >= FORBIDDEN, 0, entries)
        bad[x[v]] = True
        now = int(delta[x[v]])
        for a in np.argsort(delta, kind="stable"):
            if not bad[a] and self._fits(v, int(a)):
                return int(delta[a]) - now, int(a)
        return None, None

    def _fits(self, v: int, choice: int) -> bool:
        """Whether all resource rows hold with another choice at `v`."""
        if self.problem.limit is None or not self.usages[v]:
            return self.problem.limit is None or int(self.load.max(initial=0)) <= self.problem.limit
        load = self.load.copy()
        for u in self.usages[v]:
            start, end = np.searchsorted(self.times, [u.start, u.end])
            load[start:end] += int(u.amount[choice]) - int(u.amount[self.x[v]])
        return int(load.max()) <= self.problem.limit


def vertex_of(planning: Planning, op: str) -> int:
    """Vertex of an operator, or of the copy `tensor:NAME`.  Raises `StrategyError` with the closest names."""
    names = vertex_names(planning)
    if operator_key(op) in names and op not in names:
        return names[operator_key(op)]
    if op not in names:
        close = get_close_matches(op, names, n=3, cutoff=0.0)
        raise StrategyError(f"operator {op!r}", "does not exist", f"closest: {', '.join(close)}")
    return names[op]


def name_of(planning: Planning, v: int) -> str:
    """Name of an operator, `tensor:NAME` of a copy."""
    decision = planning.decisions[v]
    return copy_key(decision.name) if decision.kind is DecisionKind.COPY else operator_key(decision.name)


def render_deviation(
    d: Deviation, problem: SelectionProblem, most: int = 40, width: int = 160, color: bool = False
) -> str:
    """The price of a forced choice and the terms that pay it."""
    if d.price is None:
        return f"when {d.condition}: " + (
            "nothing is feasible (proved)" if d.exact else "no solution found in the time given"
        )
    words = f"when {d.condition}: {amount(d.price, problem, signed=True)}"
    if d.exact:
        words += " (exact: solved again under this condition, proved)"
    else:
        words += (
            f" at most, {'unknown' if d.least is None else amount(d.least, problem, signed=True)} at least (not "
            f"closed in the time given)"
        )
    if d.comparison is None or not d.comparison.rows:
        return words
    return join_lines([words, render_comparison(d.comparison, "plan", "instead", most, width, color)])

"""Why the plan is what it is: times by cause, the price of deviating, and exact what-ifs.

    time of vertex v  =  compute_v + statistics_v  +  summing of its own partial results  +  moving of its operands to it
                         (edges: the (L2) part belongs to the source, the fetch to the target; the sum over v is the plan's cost)

Price of deviating at v:  min { F(x') : x'_v != x_v } - F(x).  Three statements, and each says which one it is:

    at least   certified: root dual record (m, n) of the certificate,  LB + min_{a != x_v} excess_v(a) - F(x)   (formal.selection.bounds)
    at most    another choice at v, everything else as in the plan: feasible, hence an upper bound, not the price
    exactly    solved again without the choice (`deviation`), or with a forced one (`forced`), with a certificate

If every true cost is within a factor 1 +- e of the table and the plan has cost F and lower bound L, then every other plan truly
costs at least (1-e) L and this one at most (1+e) F: within (1+e)/(1-e) F/L of the true optimum  (costs >= 0).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Final

import numpy as np

from ..models.claims import Status
from ..models.problems import FORBIDDEN, Ints, SelectionProblem
from ..models.selection import DecisionKind, Planning
from ..proofs.certificates import Dual, SelectionCertificate
from .compare import Comparison, compare, render_comparison
from .report import amount, bytes_text, label, pattern, percent, table_text
from .selection.bounds import gather, row_costs, score
from .selection.clock import Progress
from .selection.network import Base, build, whole
from .selection.restrict import restrict
from .selection.solve import Answer, Engine, solve
from .strategy import Split, StrategyError, placement
from .terms import PlanTerms

DEFAULT_ERRORS: Final = (Fraction(1, 20), Fraction(1, 10))
"""Errors e for which the worth of the optimum is printed while no calibration residual is known: 5 % and 10 %."""


@dataclass(frozen=True)
class OperatorTerms:
    """One vertex.  Times in units; `bytes_per_level`: bytes through the busiest link of each level for the terms counted here;
    `at_least`, `at_most`: bounds on the price of deviating (None: the vertex has no other feasible choice known)."""

    kind: str
    name: str
    words: str
    compute: int
    statistics: int
    summing: int
    moving: int
    bytes_per_level: tuple[int, ...]
    at_least: int
    at_most: int | None
    neighbour: str | None

    @property
    def time(self) -> int:
        """All four parts."""
        return self.compute + self.statistics + self.summing + self.moving


@dataclass(frozen=True)
class Worth:
    """With every true cost within 1 +- `error` of the table, the plan is within the factor `ratio` of optimal."""

    error: Fraction
    ratio: Fraction


@dataclass(frozen=True, eq=False)
class Explanation:
    """`operators[v]`: every vertex of the plan in order.  `only`, `deviation`: when asked for one vertex."""

    planning: Planning
    choices: tuple[int, ...]
    cost: int
    lower_bound: int | None
    operators: tuple[OperatorTerms, ...]
    worth: tuple[Worth, ...]
    only: int | None
    deviation: Deviation | None

    def to_json(self) -> dict[str, object]:
        """Plain data; times in units of 1/scale."""
        p = self.planning.problem
        return {
            "cost": self.cost, "lower_bound": self.lower_bound, "scale": p.scale, "unit": p.unit_name, "space": p.space,
            "levels": [level.name for level in self.planning.machine.levels],
            "operators": [
                {
                    "kind": o.kind, "name": o.name, "placement": o.words, "compute": o.compute, "statistics": o.statistics, "summing": o.summing,
                    "moving": o.moving, "bytes_per_level": list(o.bytes_per_level), "price_at_least": o.at_least, "price_at_most": o.at_most,
                }
                for v, o in enumerate(self.operators) if self.only in (None, v)
            ],
            "worth": [{"error": str(w.error), "within": str(w.ratio)} for w in self.worth],
            "deviation": None if self.deviation is None else self.deviation.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Deviation:
    """The plan against the best plan under a condition at one vertex.  `exact`: the other is proved optimal under the condition,
    else its price lies in [`least`, `price`].  `price` None: nothing feasible was found (`exact`: proved that nothing is)."""

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
            "name": self.name, "condition": self.condition, "price": self.price, "price_at_least": self.least, "exact": self.exact,
            "difference": None if self.comparison is None else self.comparison.to_json(),
        }


def explain(
    planning: Planning, choices: tuple[int, ...], certificate: SelectionCertificate | None = None, op: str | None = None,
    errors: Iterable[Fraction] = DEFAULT_ERRORS, time_limit: float | None = None, engine: Engine = "native", progress: Progress | None = None,
) -> Explanation:
    """Explain the solution `choices`; `certificate` gives the bounds on prices, `op` asks for the exact price at one vertex
    (an operator, or `tensor:NAME`).  Raises `StrategyError` for an unknown `op`."""
    problem, terms = planning.problem, PlanTerms(planning)
    only = None if op is None else _vertex(planning, op)
    cost = problem.cost_of(choices)
    parts = _parts(planning, terms, choices)
    lower, at_least = deviation_bounds(problem, choices, certificate)
    rows = []
    for v, decision in enumerate(planning.decisions):
        at_most, other = local_alternative(problem, choices, v)
        neighbour = None if other is None else terms.words(v, other)
        compute, statistics, summing, moving, sent = parts[v]
        rows.append(OperatorTerms(
            decision.kind.value, decision.name, terms.words(v, choices[v]), compute, statistics, summing, moving, sent, at_least[v], at_most, neighbour
        ))
    worth = () if lower is None or lower <= 0 else tuple(Worth(e, (1 + e) / (1 - e) * Fraction(cost, lower)) for e in errors if 0 <= e < 1)
    changed = None
    if only is not None:
        changed = deviation(planning, choices, only, time_limit, engine, progress, terms)
    return Explanation(planning, choices, cost, lower, tuple(rows), worth, only, changed)


def forced(
    planning: Planning, choices: tuple[int, ...], op: str, config: Split, time_limit: float | None = None, engine: Engine = "native",
    progress: Progress | None = None,
) -> Deviation:
    """The best plan in which `op` has the placement `config`, against `choices`.  Raises `StrategyError`, `SpaceError`."""
    v = _vertex(planning, op)
    terms = PlanTerms(planning)
    decision = planning.decisions[v]
    here = placement(config, decision.axes, planning.machine, f"{op!r}")
    choice = decision.choice(here)
    return _solved(planning, choices, v, {v: (choice,)}, f"{op} is {terms.words(v, choice)}", time_limit, engine, progress, terms)


def deviation(
    planning: Planning, choices: tuple[int, ...], vertex: int, time_limit: float | None = None, engine: Engine = "native",
    progress: Progress | None = None, terms: PlanTerms | None = None,
) -> Deviation:
    """The best plan in which one vertex has any other placement than in `choices`."""
    names = PlanTerms(planning) if terms is None else terms
    name = _name(planning, vertex)
    condition = f"{name} is not {names.words(vertex, choices[vertex])}"
    others = tuple(a for a in range(planning.problem.domain_size(vertex)) if a != choices[vertex])
    if not others:
        return Deviation(name, condition, None, None, True, None, None, None)
    return _solved(planning, choices, vertex, {vertex: others}, condition, time_limit, engine, progress, names)


def _solved(
    planning: Planning, choices: tuple[int, ...], vertex: int, allowed: dict[int, tuple[int, ...]], condition: str, time_limit: float | None,
    engine: Engine, progress: Progress | None, terms: PlanTerms,
) -> Deviation:
    problem = planning.problem
    small, back = restrict(problem, allowed)
    answer: Answer = solve(small, time_limit_s=time_limit, engine=engine, progress=progress)
    cost = problem.cost_of(choices)
    least = None if answer.lower_bound is None else answer.lower_bound - cost
    exact = answer.status is Status.OPTIMAL or answer.status is Status.INFEASIBLE
    name = _name(planning, vertex)
    if answer.solution is None or answer.cost is None:
        return Deviation(name, condition, None, least, exact, None, None, answer.certificate)
    y = back(answer.solution)
    return Deviation(name, condition, answer.cost - cost, least, exact, y, compare(problem, terms, choices, y), answer.certificate)


def deviation_bounds(problem: SelectionProblem, x: tuple[int, ...], certificate: SelectionCertificate | None) -> tuple[int | None, list[int]]:
    """(lower bound of the claim, certified lower bound on the price of deviating per vertex); zeros where the record says nothing."""
    zeros = [0] * len(problem.vertices)
    if certificate is None or certificate.problem_sha256 != problem.sha256():
        return None, zeros
    claim = certificate.claim
    lower = getattr(claim, "lower_bound", getattr(claim, "cost", None))
    record, cost = certificate.proof, problem.cost_of(x)
    floor = 0 if lower is None else min(0, lower - cost)
    if not isinstance(record, Dual):
        return lower, [floor] * len(zeros)
    network = build(Base(problem, record.denominator), whole(problem))
    added, term = row_costs(network, record.multipliers)
    found = score(network, *gather(network, record), added, term)
    if found.bound is None:
        return lower, [floor] * len(zeros)
    out = []
    for v, excess in enumerate(found.excess):
        others = np.delete(excess, x[v])
        least = int(others.min()) if others.size else 0
        out.append(max(floor, -(-(found.bound + least) // found.denominator) - cost))
    return lower, out


def local_alternative(problem: SelectionProblem, x: tuple[int, ...], v: int) -> tuple[int | None, int | None]:
    """(difference, choice) of the cheapest other choice at `v` with everything else kept and all resource rows holding."""
    delta: Ints = problem.vertices[v].cost.copy()
    bad = delta >= FORBIDDEN
    for e in problem.edges:
        if v in (e.u, e.v):
            there, map_here, map_there = (e.v, e.rows, e.cols) if e.u == v else (e.u, e.cols, e.rows)
            table = problem.tables[e.table] if e.u == v else problem.tables[e.table].T
            column = table[:, x[there] if map_there is None else int(map_there[x[there]])]
            entries = column if map_here is None else column[map_here]
            bad |= entries >= FORBIDDEN
            delta = delta + np.where(entries >= FORBIDDEN, 0, entries)
    bad[x[v]] = True
    now = int(delta[x[v]])
    for a in np.argsort(delta, kind="stable"):
        if bad[a]:
            continue
        if problem.limit is not None and problem.peak_of((*x[:v], int(a), *x[v + 1 :]))[0] > problem.limit:
            continue
        return int(delta[a]) - now, int(a)
    return None, None


def _parts(planning: Planning, terms: PlanTerms, x: tuple[int, ...]) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
    n, levels = len(planning.decisions), len(planning.machine.levels)
    summing, moving = [0] * n, [0] * n
    sent = [[0] * levels for _ in range(n)]
    for e, route in enumerate(planning.routes):
        parts = terms.edge_parts(e, x)
        summing[route.source] += parts.summing
        moving[route.target] += parts.moving
        at = route.source if parts.summing and not parts.moving else route.target
        for i, load in enumerate(parts.loads):
            sent[at][i] += load * parts.element_bytes
    out = []
    for v in range(n):
        costs = planning.costs[v]
        compute, statistics = (0, 0) if costs is None else (int(costs.compute[x[v]]), int(costs.reduction[x[v]]))
        out.append((compute, statistics, summing[v], moving[v], tuple(sent[v])))
    return out


def _vertex(planning: Planning, op: str) -> int:
    names = {**planning.operators, **{"tensor:" + n: v for n, v in planning.copies.items()}}
    if op not in names:
        close = get_close_matches(op, names, n=3, cutoff=0.0)
        raise StrategyError(f"operator {op!r}", "does not exist", f"closest: {', '.join(close)}")
    return names[op]


def _name(planning: Planning, v: int) -> str:
    decision = planning.decisions[v]
    return ("tensor:" if decision.kind is DecisionKind.COPY else "") + decision.name


def render_explanation(e: Explanation, width: int = 190, color: bool = False) -> str:
    """A table with one row per operator (repeated layers together), what it adds up to, and what it is worth."""
    problem, levels = e.planning.problem, [level.name for level in e.planning.machine.levels]
    groups: dict[tuple[object, ...], list[OperatorTerms]] = {}
    for v, o in enumerate(e.operators):
        if e.only not in (None, v):
            continue
        if o.kind == "copy" and o.time == 0 and e.only is None:
            continue
        groups.setdefault((o.kind, pattern(o.name), o.words, o.compute, o.statistics, o.summing, o.moving, o.bytes_per_level), []).append(o)
    rows = []
    for members in groups.values():
        one, n = members[0], len(members)
        most = [m.at_most for m in members]
        least = min(m.at_least for m in members)
        high = None if any(m is None for m in most) else max(m for m in most if m is not None)
        rows.append([
            ("copy of " if one.kind == "copy" else "") + label([m.name for m in members]), f"x{n}" if n > 1 else "", one.words,
            *(amount(n * t, problem) if t else "-" for t in (one.compute, one.statistics + one.summing, one.moving)),
            " ".join(bytes_text(n * b) if b else "-" for b in one.bytes_per_level),
            _price(least, high, problem),
        ])
    totals = [sum(getattr(o, part) for o in e.operators) for part in ("compute", "statistics", "summing", "moving")]
    if e.only is None:
        rows.append(["total", "", "", amount(totals[0], problem), amount(totals[1] + totals[2], problem), amount(totals[3], problem), "", ""])
    columns = ["operator", "", "placement", "compute", "reduction", "redistribution", "bytes over " + ", ".join(levels), "another choice costs"]
    lines = [table_text("", columns, rows, (3, 4, 5), width, color), "", f"cost {amount(e.cost, problem)} over the space {problem.space!r}"]
    if e.cost:
        shares = zip(("compute", "reduction", "redistribution"), (totals[0], totals[1] + totals[2], totals[3]), strict=True)
        lines[-1] += ": " + ", ".join(f"{name} {percent(t, e.cost)}" for name, t in shares)
    if any(len(members) > 1 for members in groups.values()):
        lines.append("xN: N repetitions in one row, times and bytes of all N together, prices for one of them")
    lines.append(
        "another choice costs: certified 'at least' from the certificate's messages; 'at most' with everything else unchanged (an upper bound, "
        "not the price); the exact price of one operator: --op NAME"
    )
    if e.lower_bound is not None and e.lower_bound < e.cost:
        lines.append(f"the plan is not proved optimal: nothing costs less than {amount(e.lower_bound, problem)}")
    lines.append("if every true cost is within a factor 1 +- e of the table, the plan is within (1+e)/(1-e) of optimal"
                 + ("" if e.lower_bound in (None, e.cost) else " times cost / bound")
                 + "".join(f"; e = {100 * float(w.error):g} %: within {percent_above(w.ratio)}" for w in e.worth))
    if e.deviation is not None:
        lines += ["", render_deviation(e.deviation, problem, width=width, color=color)]
    return "\n".join(lines)


def percent_above(ratio: Fraction) -> str:
    """How much more than 1.

    >>> percent_above(Fraction(105, 95))
    '10.5 %'
    """
    return f"{100 * float(ratio - 1):.3g} %"


def _price(least: int, most: int | None, problem: SelectionProblem) -> str:
    if most is None:
        return "no other alone"
    if least == most:
        return amount(least, problem, signed=True)
    return f"{'>= ' + amount(least, problem, signed=True) + ', ' if least > 0 else ''}<= {amount(most, problem, signed=True)}"


def render_deviation(d: Deviation, problem: SelectionProblem, most: int = 40, width: int = 160, color: bool = False) -> str:
    """The price of a forced choice and the terms that pay it."""
    if d.price is None:
        return f"when {d.condition}: " + ("nothing is feasible (proved)" if d.exact else "no solution found in the time given")
    words = f"when {d.condition}: {amount(d.price, problem, signed=True)}"
    if d.exact:
        words += " (exact: solved again under this condition, proved)"
    else:
        words += f" at most, {'unknown' if d.least is None else amount(d.least, problem, signed=True)} at least (not closed in the time given)"
    if d.comparison is None or not d.comparison.rows:
        return words
    return words + "\n" + render_comparison(d.comparison, "plan", "instead", most, width, color)


__all__ = [
    "DEFAULT_ERRORS", "Deviation", "Explanation", "OperatorTerms", "Worth", "deviation", "deviation_bounds", "explain", "forced",
    "local_alternative", "render_deviation", "render_explanation",
]

"""Why the plan is what it is: times by cause, the price of deviating (`formal.explain.deviation`), and
what the optimum is worth.

    time of vertex v  =  compute_v + statistics_v  +  summing of its own partial results  +  moving of its operands to
                         it (edges: the (L2) part belongs to the source, the fetch to the target; the sum over v is the
                         plan's cost)

If every true cost is within a factor 1 +- e of the table and the plan has cost F and lower bound L, then every other
plan truly costs at least (1-e) L and this one at most (1+e) F: within (1+e)/(1-e) F/L of the true optimum  (costs >=
0).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Final

from ...models.cost.selection import Planning
from ...models.problem.selection_problem import SelectionProblem
from ...models.problem.unit import rounding_bound, rounding_text
from ...models.text import join_lines
from ...proofs.selection.certificates import SelectionCertificate
from ..plans.report import amount, bytes_text, label, pattern, percent, table_text
from ..selection.model.clock import Clock, Progress
from ..selection.question import Engine
from .balance import balance_text, uneven
from .deviation import Deviation, Neighbourhood, best_with, deviation, deviation_bounds, render_deviation, vertex_of
from .parallelism import LevelParallelism, parallelism_of, render_parallelism
from .reductions import ProgramRow, program_lines, program_rows
from .stored_state import StoredState, render_stored_state, stored_state
from .terms import PlanTerms

DEFAULT_ERRORS: Final = (Fraction(1, 20), Fraction(1, 10))
"""Errors e for which the worth of the optimum is printed while no calibration residual is known: 5 % and 10 %."""


@dataclass(frozen=True)
class OperatorTerms:
    """One vertex.  Times in units; `bytes_per_level`: bytes through the busiest link of each level for the terms
    counted here; `at_least`, `at_most`: bounds on the price of deviating (None: the vertex has no other feasible choice
    known)."""

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
    """`operators[v]`: every vertex of the plan in order.  `only`, `deviation`: when asked for one vertex.

    `state`: how a training step keeps its weights, gradients and moments; `scheme`: which parallelism every level has.
    """

    planning: Planning
    choices: tuple[int, ...]
    cost: int
    lower_bound: int | None
    operators: tuple[OperatorTerms, ...]
    worth: tuple[Worth, ...]
    only: int | None
    deviation: Deviation | None
    state: tuple[StoredState, ...] = ()
    scheme: tuple[LevelParallelism, ...] = ()
    programs: tuple[ProgramRow, ...] = ()

    def __str__(self) -> str:
        return render_explanation(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def parallelism(self) -> str:
        """Which parallelism every level has, in a line; empty without levels."""
        return render_parallelism(self.scheme, self.state)

    def to_json(self) -> dict[str, object]:
        """Plain data; times in units of 1/scale."""
        p = self.planning.problem
        return {
            "cost": self.cost,
            "lower_bound": self.lower_bound,
            "scale": p.scale,
            "rounding_bound": rounding_bound(p),
            "unit": p.unit_name,
            "space": p.space,
            "levels": [level.name for level in self.planning.machine.levels],
            "operators": [
                {
                    "kind": o.kind,
                    "name": o.name,
                    "placement": o.words,
                    "compute": o.compute,
                    "statistics": o.statistics,
                    "summing": o.summing,
                    "moving": o.moving,
                    "bytes_per_level": list(o.bytes_per_level),
                    "price_at_least": o.at_least,
                    "price_at_most": o.at_most,
                }
                for v, o in enumerate(self.operators)
                if self.only in (None, v)
            ],
            "scheme": self.parallelism() or None,
            "stored_state": [s.to_json() for s in self.state],
            "uneven_queries": [
                {"name": u.name, "runs": u.runs, "fullest_over_mean": str(u.ratio), "lost": u.lost_units}
                for u in (uneven(self.planning, self.choices) if self.only is None else ())
            ],
            "worth": [{"error": str(w.error), "within": str(w.ratio)} for w in self.worth],
            **({"collectives": [r.to_json() for r in self.programs]} if self.programs else {}),
            "deviation": None if self.deviation is None else self.deviation.to_json(),
        }


def explain(
    planning: Planning,
    choices: tuple[int, ...],
    certificate: SelectionCertificate | None = None,
    op: str | None = None,
    errors: Iterable[Fraction] = DEFAULT_ERRORS,
    clock: Clock | None = None,
    engine: Engine = "native",
    progress: Progress | None = None,
) -> Explanation:
    """Explain the solution `choices`; `certificate` gives the bounds on prices, `op` asks for the exact price at one
    vertex (an operator, or `tensor:NAME`).  Raises `StrategyError` for an unknown `op`."""
    problem, terms = planning.problem, PlanTerms(planning)
    only = None if op is None else vertex_of(planning, op)
    cost = problem.cost_of(choices)
    parts = _parts(planning, terms, choices)
    lower, at_least = deviation_bounds(problem, choices, certificate)
    neighbours = Neighbourhood.of(problem, choices)
    rows = []
    for v, decision in enumerate(planning.decisions):
        at_most, other = neighbours.local_alternative(v)
        neighbour = None if other is None else terms.words(v, other)
        compute, statistics, summing, moving, sent = parts[v]
        rows.append(
            OperatorTerms(
                decision.kind.value,
                decision.name,
                terms.words(v, choices[v]),
                compute,
                statistics,
                summing,
                moving,
                sent,
                at_least[v],
                at_most,
                neighbour,
            )
        )
    worth = (
        ()
        if lower is None or lower <= 0
        else tuple(Worth(e, (1 + e) / (1 - e) * Fraction(cost, lower)) for e in errors if 0 <= e < 1)
    )
    changed = None
    if only is not None:
        changed = deviation(planning, choices, only, clock, engine, progress, terms)
    return Explanation(
        planning,
        choices,
        cost,
        lower,
        tuple(rows),
        worth,
        only,
        changed,
        stored_state(planning, choices) if only is None else (),
        parallelism_of(planning, choices) if only is None else (),
        program_rows(planning, choices) if only is None else (),
    )


def _parts(
    planning: Planning, terms: PlanTerms, x: tuple[int, ...]
) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
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


def render_explanation(e: Explanation, width: int = 190, color: bool = False) -> str:
    """A table with one row per operator (repeated layers together), what it adds up to, and what it is worth."""
    problem = e.planning.problem
    totals = [sum(getattr(o, part) for o in e.operators) for part in ("compute", "statistics", "summing", "moving")]
    groups = _alike(e)
    columns = [
        *("operator", "", "placement", "compute", "reduction", "resharding"),
        "bytes over " + ", ".join(level.name for level in e.planning.machine.levels),
        "another choice costs",
    ]
    rows = [_row(members, problem) for members in groups]
    if e.only is None:
        spent = (amount(t, problem) for t in (totals[0], totals[1] + totals[2], totals[3]))
        rows.append(["total", "", "", *spent, "", ""])
    lines = [
        table_text("", columns, rows, (3, 4, 5), width, color),
        "",
        f"cost {amount(e.cost, problem)} over the space {problem.space!r}",
    ]
    if e.cost:
        shares = zip(("compute", "reduction", "resharding"), (totals[0], totals[1] + totals[2], totals[3]), strict=True)
        lines[-1] += ": " + ", ".join(f"{name} {percent(t, e.cost)}" for name, t in shares)
    lines.append(rounding_text(problem))
    if any(len(members) > 1 for members in groups):
        lines.append("xN: N repetitions in one row, times and bytes of all N together, prices for one of them")
    lines.append(
        "another choice costs: certified 'at least' from the certificate's messages; 'at most' with everything "
        "else unchanged (an upper bound, "
        "not the price); the exact price of one operator: --op NAME"
    )
    lines += _worth_lines(e)
    if e.only is None and (rows_of := uneven(e.planning, e.choices)):
        together = (sum(r.lost_units for r in rows_of), sum(r.compute for r in rows_of))
        lines.append(balance_text(rows_of, [amount(t, problem) for t in together]))
    if e.scheme:
        lines.append(e.parallelism())
    if e.state:
        lines += ["", render_stored_state(e.state, width, color)]
    lines += program_lines(e.planning, e.programs)
    if e.deviation is not None:
        lines += ["", render_deviation(e.deviation, problem, width=width, color=color)]
    return join_lines(lines)


def _alike(e: Explanation) -> list[list[OperatorTerms]]:
    """What is shown, operators of repeated layers with equal terms together."""
    groups: dict[tuple[object, ...], list[OperatorTerms]] = {}
    for v, o in enumerate(e.operators):
        if e.only not in (None, v):
            continue
        if o.kind == "copy" and o.time == 0 and e.only is None:
            continue
        groups.setdefault(
            (o.kind, pattern(o.name), o.words, o.compute, o.statistics, o.summing, o.moving, o.bytes_per_level), []
        ).append(o)
    return [*groups.values()]


def _row(members: list[OperatorTerms], problem: SelectionProblem) -> list[str]:
    """A row for operators that are alike: times and bytes of all, the price of another choice of one."""
    one, n = members[0], len(members)
    most = [m.at_most for m in members]
    least = min(m.at_least for m in members)
    high = None if any(m is None for m in most) else max(m for m in most if m is not None)
    spent = (one.compute, one.statistics + one.summing, one.moving)
    return [
        ("copy of " if one.kind == "copy" else "") + label([m.name for m in members]),
        f"x{n}" if n > 1 else "",
        one.words,
        *(amount(n * t, problem) if t else "-" for t in spent),
        " ".join(bytes_text(n * b) if b else "-" for b in one.bytes_per_level),
        _price(least, high, problem),
    ]


def _worth_lines(e: Explanation) -> list[str]:
    """How near to the optimum the plan is, also where the table errs."""
    out = []
    if e.lower_bound is not None and e.lower_bound < e.cost:
        least = amount(e.lower_bound, e.planning.problem)
        out.append(f"the plan is not proved optimal: nothing costs less than {least}")
    out.append(
        "if every true cost is within a factor 1 +- e of the table, the plan is within (1+e)/(1-e) of optimal"
        + ("" if e.lower_bound in (None, e.cost) else " times cost / bound")
        + "".join(f"; e = {100 * float(w.error):g} %: within {percent_above(w.ratio)}" for w in e.worth)
    )
    return out


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
    return (
        f"{'>= ' + amount(least, problem, signed=True) + ', ' if least > 0 else ''}<= "
        f"{amount(most, problem, signed=True)}"
    )


__all__ = [
    "DEFAULT_ERRORS",
    "Deviation",
    "Explanation",
    "Neighbourhood",
    "OperatorTerms",
    "Worth",
    "best_with",
    "deviation",
    "deviation_bounds",
    "explain",
    "render_deviation",
    "render_explanation",
]

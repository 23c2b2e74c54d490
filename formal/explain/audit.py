"""Whether a strategy is optimal.

Let S be the solutions that agree with the user's strategy, F* the optimum of the problem, F_S the optimum over S.  Two
searches, each with its certificate:

    over S:            upper U (the best completion found), lower L_S <= F_S <= U
    over everything:   upper C (the best solution found),   lower L <= F* <= C

    optimal        U <= L: nothing costs less than the completion found                      (proved; exit 0)
    within-gap     U - L <= gap |U|                                                          (proved; exit 0)
    refuted        C < L_S and the gap asked for is exceeded: the better solution beats every completion (exit 10)
    undecided      otherwise, with U and L as the certified gap                              (exit 5)
    infeasible     nothing at all is feasible                                                (proved; exit 20)

U is within a tenth of the gap of L_S, so that a gap of 0 asks for the best completion.

A strategy that no completion makes feasible (memory) is refuted by any feasible solution.

On a machine with error bounds (`bars.py`) a refutation stands only if the better solution is cheaper on every machine
within them; else the strategy is undecided, and the constant to measure is named.  All other answers are about the
machine's own constants, and say how far the cost may be off within the bars.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from fractions import Fraction
from html import escape
from typing import Final, assert_never

from ...models.cost.selection import Planning
from ...models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, Status, WithinGap
from ...models.problem.selection_problem import SelectionProblem
from ...models.sources.frameworks.settings import Settings
from ...models.text import join_lines
from ...proofs.plan.error_bounds import ErrorBounds
from ...proofs.selection.certificates import SelectionCertificate
from ..plans.layouts import TensorLayouts, resolve_layouts
from ..plans.report import amount, percent
from ..plans.strategy import Applied, ChoiceList, Derived, Strategy, choices_of, resolve
from ..selection.answer import Answer
from ..selection.model.clock import Clock, Overdue, Progress
from ..selection.model.restrict import restrict
from ..selection.question import Engine
from ..selection.solve import solve
from .compare import Comparison, compare, render_comparison
from .error_bounds import error_bound_lines, error_bounds_json, error_bounds_of
from .terms import Names, PlainNames, PlanTerms

FINER: Final = Fraction(1, 10)
"""Of the gap that is accepted, what a completion may cost more than the best one: its cost is what is compared."""


class Outcome(Enum):
    """What an audit ends in."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within-gap"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    INFEASIBLE = "infeasible"

    @property
    def exit_code(self) -> int:
        """Exit code of the command line."""
        match self:
            case Outcome.OPTIMAL | Outcome.WITHIN_GAP:
                return 0
            case Outcome.REFUTED:
                return 10
            case Outcome.UNDECIDED:
                return 5
            case Outcome.INFEASIBLE:
                return 20
            case _:
                assert_never(self)


@dataclass(frozen=True, eq=False)
class AuditReport:
    """`completed`: answer over S in the numbers of the problem; `best`: answer over everything.

    `certificate` is about the whole problem: it claims the user's solution when that is optimal (or the best known
    within a gap), else the better one.  `completion_certificate` is about `restricted`, the problem with the strategy's
    choices only: a refutation of a strategy that the solver completed rests on it.  `comparison`: strategy against
    better solution.  `planning`, `bars`: on a machine with error bounds; `settings`: where the strategy is a
    framework's.
    """

    outcome: Outcome
    problem: SelectionProblem
    completed: Answer
    best: Answer
    free: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    bare: tuple[str, ...]
    derived: tuple[Derived, ...]
    comparison: Comparison | None
    certificate: SelectionCertificate | None
    completion_certificate: SelectionCertificate | None
    restricted: SelectionProblem
    gap: Fraction
    seconds: float
    planning: Planning | None = None
    bars: ErrorBounds | None = None
    settings: Settings | None = None

    @property
    def nominal(self) -> Outcome:
        """The outcome at the machine's own constants."""
        return decide(self.completed, self.best, self.gap)

    @property
    def solution(self) -> tuple[int, ...] | None:
        """The solution that `bars` are about: the better one where there is one, else the strategy's."""
        return self.best.solution if self.nominal is Outcome.REFUTED else self.completed.solution

    @property
    def exit_code(self) -> int:
        """0 proved, 10 refuted, 5 undecided, 20 infeasible."""
        return self.outcome.exit_code

    @property
    def lower_bound(self) -> int | None:
        """What no solution costs less than."""
        return self.best.lower_bound

    def __str__(self) -> str:
        return render_audit(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> dict[str, object]:
        """Plain data; costs in units of 1/scale."""
        found: dict[str, object] = {
            "outcome": self.outcome.value,
            "scale": self.problem.scale,
            "unit": self.problem.unit_name,
            "space": self.problem.space,
            "strategy_cost": self.completed.cost,
            "strategy_lower_bound": self.completed.lower_bound,
            "strategy_status": self.completed.status.value,
            "best_cost": self.best.cost,
            "lower_bound": self.best.lower_bound,
            "status": self.best.status.value,
            "gap": None
            if self.completed.cost is None or self.best.lower_bound is None
            else self.completed.cost - self.best.lower_bound,
            "completed_by_solver": list(self.free),
            "ignored": [list(p) for p in self.ignored],
            "replicated_by_globs": list(self.bare),
            "derived": [asdict(d) for d in self.derived],
            "difference": None if self.comparison is None else self.comparison.to_json(),
            "problem_sha256": self.problem.sha256(),
            "assumptions": list(self.problem.assumptions),
            "seconds": round(self.seconds, 3),
        }
        if self.bars is not None:
            found |= {"bars": error_bounds_json(self.bars), "nominal_outcome": self.nominal.value}
        if self.settings is not None:
            found["settings"] = self.settings.to_json()
        return found


def audit(
    planning: Planning,
    strategy: Strategy | TensorLayouts,
    time_limit: float | None = None,
    gap: Fraction = Fraction(0),
    engine: Engine = "native",
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> AuditReport:
    """Audit a strategy for a model.  Raises `StrategyError` or `SpaceError` when the strategy does not fit."""
    applied = applied_strategy(strategy, planning)
    report = _audit(planning.problem, PlanTerms(planning), applied, time_limit, gap, engine, progress, clock)
    if not planning.machine.bars:
        return report
    try:
        return within_error_bounds(report, planning)
    except Overdue:  # without them nothing is refuted
        open_ = report.outcome is Outcome.REFUTED
        return replace(report, planning=planning, outcome=Outcome.UNDECIDED if open_ else report.outcome)


def within_error_bounds(report: AuditReport, planning: Planning) -> AuditReport:
    """The report with what holds on every machine within the bars; see the module docstring."""
    x, user = report.solution, report.completed.solution
    if x is None:
        return replace(report, planning=planning)
    refuted = report.nominal is Outcome.REFUTED
    others = [("the strategy", user)] if refuted and user is not None else []
    bars = error_bounds_of(planning, x, report.best.lower_bound, others)
    open_ = refuted and bars is not None and any(a.verdict != "better" or a.least == 0 for a in bars.against)
    outcome = Outcome.UNDECIDED if open_ else report.outcome
    return replace(report, planning=planning, bars=bars, outcome=outcome)


def applied_strategy(strategy: Strategy | TensorLayouts, planning: Planning) -> Applied:
    """What a strategy decides.  Raises `StrategyError` or `SpaceError` when it does not fit."""
    return resolve_layouts(strategy, planning) if isinstance(strategy, TensorLayouts) else resolve(strategy, planning)


def audit_problem(
    problem: SelectionProblem,
    x: ChoiceList,
    time_limit: float | None = None,
    gap: Fraction = Fraction(0),
    engine: Engine = "native",
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> AuditReport:
    """Audit choices for a selection problem.  Raises `ProblemError` when they do not fit.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))), (np.array([[0, 9],
    ...     [9, 0]]),), (Edge(0, 1, 0),))
    >>> audit_problem(p, ChoiceList((0, 0))).outcome.value, audit_problem(p, ChoiceList((1, None))).outcome.value
    ('optimal', 'refuted')
    """
    problem.check()
    allowed = choices_of(x, problem)
    names = PlainNames(problem)
    free = tuple(names.vertex(v) for v in range(len(problem.vertices)) if v not in allowed)
    return _audit(problem, names, Applied(allowed, free, ()), time_limit, gap, engine, progress, clock)


def _audit(
    problem: SelectionProblem,
    names: Names,
    applied: Applied,
    time_limit: float | None,
    gap: Fraction,
    engine: Engine,
    progress: Progress | None,
    clock: Clock | None,
) -> AuditReport:
    clock = (clock or Clock()).at_most(time_limit)
    small = restrict(problem, applied.allowed)
    inner = solve(small.inner, clock=clock.share(0.5), gap=gap * FINER, engine=engine, progress=progress)
    lifted = None if inner.solution is None else small.solution_back(inner.solution)
    completed = Answer(inner.status, None, inner.lower_bound, inner.cost, lifted, inner.seconds)
    best = solve(
        problem, clock=clock, gap=gap, engine=engine, progress=progress, brought=() if lifted is None else (lifted,)
    )
    outcome = decide(completed, best, gap)
    better = best.solution is not None and (
        completed.cost is None or best.cost is not None and best.cost < completed.cost
    )
    difference = (
        compare(problem, names, lifted, best.solution)
        if better and lifted is not None and best.solution is not None
        else None
    )
    return AuditReport(
        outcome,
        problem,
        completed,
        best,
        applied.free,
        applied.ignored,
        applied.bare,
        applied.derived,
        difference,
        _certificate(outcome, completed, best),
        inner.certificate,
        small.inner,
        gap,
        clock.seconds(),
    )


def decide(completed: Answer, best: Answer, gap: Fraction) -> Outcome:
    """The outcome of two answers; see the module docstring."""
    if best.status is Status.INFEASIBLE:
        return Outcome.INFEASIBLE
    upper, lower = completed.cost, best.lower_bound
    if upper is not None and lower is not None:
        if upper <= lower:
            return Outcome.OPTIMAL
        if upper - lower <= gap * abs(upper):
            return Outcome.WITHIN_GAP
    if best.cost is not None:
        if completed.status is Status.INFEASIBLE:
            return Outcome.REFUTED
        least = completed.lower_bound
        if least is not None and best.cost < least and (gap == 0 or least - best.cost > gap * abs(least)):
            return Outcome.REFUTED
    return Outcome.UNDECIDED


def _certificate(outcome: Outcome, completed: Answer, best: Answer) -> SelectionCertificate | None:
    """The solver's certificate, with the user's solution as claim where it costs the same (the record proves both)."""
    found = best.certificate
    if found is None or completed.solution is None or completed.cost is None or completed.cost != best.cost:
        return found
    claim: SelectionClaim
    match found.claim:
        case Optimal():
            claim = Optimal(completed.solution, completed.cost)
        case WithinGap():
            claim = WithinGap(completed.solution, completed.cost, found.claim.lower_bound)
        case LowerBound() | Infeasible():
            claim = found.claim
        case _:
            assert_never(found.claim)
    return SelectionCertificate(found.problem_sha256, claim, found.proof)


def render_audit(
    report: AuditReport, name: str = "strategy", most: int = 40, width: int = 160, color: bool = False
) -> str:
    """The answer first, then what it rests on, then the difference operator by operator."""
    p, user = report.problem, report.completed
    lines = _answer_lines(report, name)
    if report.free:
        shown = ", ".join(report.free[:6]) + (", .." if len(report.free) > 6 else "")
        kind = "best completion, proved" if user.status is Status.OPTIMAL else f"completion {user.status.value}"
        lines.append(f"{len(report.free)} left to the solver ({kind}): {shown}")
    if report.ignored:
        axes = sorted({a for _, a in report.ignored})
        lines.append(
            f"{len(report.ignored)} entries of globs name an axis that the operator lacks (ignored there): "
            f"{', '.join(axes)}"
        )
    if report.bare:
        shown = ", ".join(report.bare[:6]) + (", .." if len(report.bare) > 6 else "")
        lines.append(
            f"{len(report.bare)} operators have no axis that their glob names, and are replicated by it: {shown}"
        )
    lines += [d.words() for d in report.derived]
    if report.settings is not None:
        lines.append(report.settings.line())
    if report.bars is not None and report.planning is not None:
        lines += error_bound_lines(
            report.bars, report.planning, "the better one" if report.nominal is Outcome.REFUTED else name
        )
    if p.assumptions:
        lines.append(f"assumptions: {', '.join(p.assumptions)}")
    if report.comparison is not None:
        lines += ["", render_comparison(report.comparison, name, "better", most, width, color)]
    return join_lines(lines)


def _answer_lines(report: AuditReport, name: str) -> list[str]:
    """The answer to whether a strategy is the best one."""
    p, user, best = report.problem, report.completed, report.best
    cost, lower = amount(user.cost, p), amount(best.lower_bound, p)
    match report.outcome:
        case Outcome.OPTIMAL:
            lines = [f"optimal (proved): {name} costs {cost}, and nothing in the space {p.space!r} costs less"]
        case Outcome.WITHIN_GAP:
            lines = [
                f"within the gap (proved): {name} costs {cost}, nothing costs less than {lower}{_open_gap(report)}"
            ]
        case Outcome.REFUTED if user.cost is None:
            lines = [f"refuted: no completion of {name} is feasible; a feasible solution costs {amount(best.cost, p)}"]
        case Outcome.REFUTED:
            proof = "optimal (proved)" if best.status is Status.OPTIMAL else f"nothing costs less than {lower}"
            lines = [
                f"refuted: {name} costs {cost}, a better one costs {amount(best.cost, p)}; the better one: {proof}"
            ]
        case Outcome.UNDECIDED if report.nominal is Outcome.REFUTED:
            better = f"a better one {amount(best.cost, p)}"
            lines = [f"undecided within the machine's error bounds: at its own constants {name} costs {cost}, {better}"]
        case Outcome.UNDECIDED:
            lines = [f"undecided: {name} costs {cost}, nothing costs less than {lower}{_open_gap(report)}"]
            if best.cost is not None and user.cost is not None and best.cost < user.cost:
                lines.append(
                    f"a solution of cost {amount(best.cost, p)} is known, but the best completion may cost as "
                    f"little as {amount(user.lower_bound, p)}"
                )
            lines.append("raise --time-limit, or accept a --gap")
        case Outcome.INFEASIBLE:
            lines = ["infeasible (proved): no solution satisfies the limits, whatever the strategy"]
        case _:
            assert_never(report.outcome)
    return lines


def _open_gap(report: AuditReport) -> str:
    user, best = report.completed, report.best
    if user.cost is None or best.lower_bound is None:
        return ""
    return f" (gap {percent(user.cost - best.lower_bound, user.cost)})"


def render_unconfirmed(report: AuditReport, name: str, late: bool) -> str:
    """What is said of an answer that the checker has not confirmed; `late`: as the time was over."""
    user, best = (amount(a.cost, report.problem) for a in (report.completed, report.best))
    why = "the check did not end in time: raise --time-limit" if late else "the checker did not confirm it"
    return f"undecided: {name} costs {user}, the best known {best}, as the search says; nothing is confirmed\n{why}"

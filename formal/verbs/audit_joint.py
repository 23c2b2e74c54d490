"""`audit --joint`: is this program with this strategy the best of all equal programs and their
placements?
"""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

from ...models.cost.limits import check_sizes
from ...models.layout.placement import Space
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import InputError, seconds_text
from ...proofs.plan.bundle import write_plan
from ...proofs.publishing.publisher import Publisher
from ..explain.audit import Outcome
from ..explain.request import AuditRequest, is_proved, propagate_strategy
from ..plans.plan import fitting_space
from ..plans.strategy import Strategy
from ..plans.time_limit import TimeLimit
from ..rewriting.joint.audit import JointAudit, audit_jointly
from ..rewriting.joint.gains import gains, lines
from ..rewriting.joint.job import JointJob
from ..rewriting.joint.request import SEARCH_SHARE, rules_for
from ..rewriting.joint.solve import joint_plan
from .joint import GAINS_S


def audit_program(
    publisher: Publisher, program: Graph, request: AuditRequest, clock: TimeLimit, output: Path | None, as_json: bool
) -> int:
    """Audit `program`, said to compute what the graph of the request does; publish the best joint plan, and say what
    was found.
    """
    default = fitting_space(request.graph, request.machine)
    check_sizes(request.graph, request.machine, request.space or default)
    where = request.space or default
    if where.vocabulary:
        raise InputError("--joint compares over whole spaces: leave out the vocabulary")
    settings = request.strategy.settings if isinstance(request.strategy, Strategy) else None
    with Watch("auditing jointly"), clock.phase("search"):
        report = _report(request, program, where, clock)
    plan = joint_plan(report.found)
    with Watch("checking"), clock.phase("check"):
        checked = _confirmed(publisher, report)
        published = None if plan is None else publisher.publish(output, write_plan(None, plan))
        checked &= published is not None and published.verdict is Verdict.PROVED
    code = Exit(report.outcome.exit_code) if checked else Exit.UNDECIDED
    cost = Fraction(report.found.answer.cost or 0, report.found.planning.problem.scale)
    gained = [] if plan is None else list(gains(plan, cost, clock.clock.beside(GAINS_S)))
    if as_json:
        emit(
            {
                "outcome": report.outcome.value if checked else Outcome.UNDECIDED.value,
                "program": program.name,
                **_costs_json(report),
                "rewrites": [r for g in gained for r in g.to_json()],
                "libraries": [{"identity": b.identity, "title": b.title} for b in request.rewrites.books],
                "assumptions": list(report.found.planning.problem.assumptions),
                "plan": None if output is None or plan is None else str(output),
                **({} if published is None else published.to_json()),
                "seconds": round(clock.elapsed_s, 3),
                **({} if settings is None else {"settings": settings.to_json()}),
                "processor_seconds": round(clock.processor_s, 3),
            }
        )
        return code
    say(*_words(report, program, checked))
    user, best, _ = report.costs
    if best is not None and user is not None and best < user:
        say("the better program rewrites:", *lines(gained))
    if settings is not None:
        say(settings.line())
    say(f"assumptions: {', '.join(report.found.planning.problem.assumptions)}")
    if output is not None and plan is not None:
        say(f"wrote {output}", *(() if published is None else published.advice))
    return code


def _report(request: AuditRequest, program: Graph, where: Space, clock: TimeLimit) -> JointAudit:
    """The audit, over all programs and placements of a space."""
    strategy = propagate_strategy(request.strategy, program, request.machine) if request.carry else request.strategy
    job = JointJob(
        request.graph,
        request.machine,
        where,
        clock=clock.clock.at_most(None if clock.limit_s is None else SEARCH_SHARE * clock.limit_s),
        gap=request.gap,
        engine=request.engine,
        memory_limit=request.memory,
        rules=rules_for(request.rewrites),
        rounds=request.rewrites.rounds,
        most=request.rewrites.nodes,
        rewriting_s=request.rewrites.seconds,
    )
    return audit_jointly(program, strategy, job)


def _costs_json(report: JointAudit) -> dict[str, object]:
    """What the strategy and the best program cost, and what was added to the strategy."""
    user, best, lower = report.costs
    return {
        "derived": not report.unequal,
        "reason": report.unequal,
        "strategy_cost": None if user is None else float(user),
        "best_cost": None if best is None else float(best),
        "lower_bound": None if lower is None else float(lower),
        "completed_by_solver": list(report.applied.free),
        "derived_choices": [asdict(d) for d in report.applied.derived],
    }


def _confirmed(publisher: Publisher, report: JointAudit) -> bool:
    """Whether the checker accepts that no completion is cheaper, which a refutation rests on."""
    if report.outcome is not Outcome.REFUTED or report.completed.cost is None:
        return True
    certificate = report.completed.certificate
    if certificate is None:
        return False
    return is_proved(publisher, certificate, report.restricted)


def _words(report: JointAudit, program: Graph, checked: bool) -> list[str]:
    user, best, lower = ("unknown" if c is None else seconds_text(c.numerator, c.denominator) for c in report.costs)
    everything = "no equal program under any placement"
    match report.outcome if checked else Outcome.UNDECIDED:
        case Outcome.OPTIMAL:
            out = [f"optimal (proved): {program.name} costs {user}, and {everything} costs less"]
        case Outcome.WITHIN_GAP:
            out = [f"within the gap (proved): {program.name} costs {user}, {everything} costs less than {lower}"]
        case Outcome.REFUTED if report.costs[0] is None:
            out = [f"refuted: no completion of {program.name} fits, a program that computes the same costs {best}"]
        case Outcome.REFUTED:
            out = [f"refuted: {program.name} costs {user}, a program that computes the same costs {best}"]
        case Outcome.INFEASIBLE:
            out = ["infeasible (proved): no program fits the limit, whatever the strategy"]
        case Outcome.UNDECIDED:
            out = [f"undecided: the cost of {program.name} is {user}, the bound of all {lower}, the best known {best}"]
    if report.applied.free:
        out.append(f"{len(report.applied.free)} left to the solver: {', '.join(report.applied.free[:6])}")
    if report.unequal:
        out.append(f"that it computes what the model does is not proved: {report.unequal}")
    return out

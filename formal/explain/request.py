"""Carries out requests for audits: what the command line and the Python way in ask about a strategy.

strategy of a model       its tables (in time), then `audit`; a default space that cannot say it gives way
.. carried                `planning.schedules` first carries it to what it is joined to
list of choices           `audit_problem`
an answer                 said only after the checker accepted the certificate behind it (`is_confirmed`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from ...models.cost.selection import Notify, Planning, build
from ...models.layout.placement import Space, SpaceError, space
from ...models.machine.machine import Machine
from ...models.problem.claims import Verdict
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.sources.building.original import Schedule
from ...models.text import InputError
from ...proofs.joint.books import Rewrites
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.publisher import Opened, Publisher
from ...proofs.selection.certificates import SelectionCertificate
from ...proofs.selection.file import write_certificate
from ..plans.frameworks import framework_settings, strategy_of_settings
from ..plans.layouts import TensorLayouts, tensor_layouts
from ..plans.plan import fitting_space, require_size
from ..plans.request import AS_EVER
from ..plans.schedules import propagate
from ..plans.strategy import ChoiceList, Strategy, StrategyError, read_strategy
from ..plans.strategy_file import load_strategy
from ..plans.tables import SMALLER, tables_in_time, tables_or_none
from ..plans.time_limit import TimeLimit, check_seconds
from ..plans.written import written_strategy
from ..selection.model.clock import Progress
from ..selection.question import Engine
from .audit import AuditReport, Outcome, applied_strategy, audit, audit_problem

Splits = Mapping[str, Mapping[str, Mapping[str, int]] | None]
"""A strategy as an object: operator or glob -> axis -> level -> degree; None: left to the solver."""


@dataclass(frozen=True)
class AuditRequest:
    """What is asked of a strategy for a model.  `space`: None for the default; `memory`: bytes per device; `carry`:
    take the strategy to what its operators are joined to; `gap`: (cost - bound) / cost that is enough; `rewrites`: what
    it is compared with where other programs count.
    """

    graph: Graph
    machine: Machine
    strategy: Strategy | TensorLayouts
    space: Space | None = None
    memory: int | None = None
    carry: bool = False
    engine: Engine = "native"
    gap: Fraction = Fraction(0)
    rewrites: Rewrites = AS_EVER


def strategy_for(source: Path | str | Splits, graph: Graph, machine: Machine) -> Strategy | TensorLayouts:
    """The strategy in a file (ours, a framework's settings, or where tensors lie), the text of settings, or an object.

    Raises `StrategyError`, or `InputError` for a list of choices, which belongs to a selection problem.

    >>> from ...models.machine.machine import load_machine
    >>> from ...models.sources.zoo import build as zoo
    >>> strategy_for({"fc*": {"b": {"ranks": 4}}}, zoo("mlp-unity"), load_machine("localhost:4")).place
    'strategy'
    """
    if isinstance(source, Mapping):
        read = read_strategy(json.dumps({k: v if v is None else _plain(v) for k, v in source.items()}))
    else:
        settings = framework_settings(source)
        if settings is not None:
            return strategy_of_settings(settings, graph, machine, str(source)[:200])
        layouts = tensor_layouts(source)
        if layouts is not None:
            return layouts
        read = load_strategy(source)
    if isinstance(read, ChoiceList):
        raise InputError(
            f"{read.place} is a list of choices, which belongs to a selection problem; for a model write "
            f"{{operator: {{axis: {{level: degree}}}}}}"
        )
    return read


def strategy_to_plan(
    source: Path | str | Splits | None,
    schedule: Schedule,
    graph: Graph,
    machine: Machine,
    searches: Mapping[str, bool],
) -> Strategy | None:
    """The strategy that a plan takes: the given one, else the schedules that the program writes, if any.

    Raises as `strategy_for` and `written_strategy`, and `InputError` for places of tensors.
    """
    if source is None:
        return written_strategy(schedule, searches)
    given = strategy_for(source, graph, machine)
    if isinstance(given, TensorLayouts):
        raise InputError(f"{given.place} says where tensors lie, which audits take; plans take degrees of operators")
    return given


def _plain(axes: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {axis: dict(degrees) for axis, degrees in axes.items()}


def carry_out_audit(
    request: AuditRequest, limit: TimeLimit, progress: Progress | None = None, notify: Notify | None = None
) -> AuditReport:
    """Whether the strategy is optimal, within `limit`.  Raises `StrategyError`, `SpaceError`, `TooLarge`, or `TooSlow`
    where the tables that it needs do not fit into the time.
    """
    graph, machine, where, strategy = request.graph, request.machine, request.space, request.strategy
    default = fitting_space(graph, machine)
    require_size(graph, machine, where or default)
    if request.carry:
        strategy = propagate_strategy(strategy, graph, machine)
    planning = tables_in_time(graph, machine, where, default, request.memory, limit, notify)
    larger = [] if where is not None else SMALLER[SMALLER.index(default.name) : SMALLER.index(planning.space.name)]
    for name in reversed(larger):
        if _inside(strategy, planning):
            break
        limit.announce(f"the strategy is not in the space {planning.space.name!r}; on to {name!r}")
        planning = tables_or_none(graph, machine, space(name), request.memory, limit, notify)
    limit.hold_back(check_seconds(planning.problem, limit))
    with limit.phase("search"):
        report = audit(planning, strategy, None, request.gap, request.engine, progress, clock=limit.clock)
    return replace(report, settings=request.strategy.settings if isinstance(request.strategy, Strategy) else None)


def propagate_strategy(strategy: Strategy | TensorLayouts, graph: Graph, machine: Machine) -> Strategy:
    """The strategy taken to what its operators are joined to.  Raises `InputError` for layouts of tensors."""
    if isinstance(strategy, TensorLayouts):
        raise InputError("--propagate carries schedules of operators; the file says where tensors lie")
    return propagate(graph, machine, strategy).strategy(machine)


def carry_out_audit_of_choices(
    problem: SelectionProblem,
    choices: ChoiceList,
    limit: TimeLimit,
    gap: Fraction = Fraction(0),
    engine: Engine = "native",
    progress: Progress | None = None,
) -> AuditReport:
    """The same for choices of a selection problem."""
    limit.hold_back(check_seconds(problem, limit))
    with limit.phase("search"):
        return audit_problem(problem, choices, None, gap, engine, progress, limit.clock)


def _inside(strategy: Strategy | TensorLayouts, planning: Planning) -> bool:
    try:
        applied_strategy(strategy, planning)
    except (SpaceError, StrategyError):
        return False
    return True


def is_proved(
    publisher: Publisher, certificate: SelectionCertificate, problem: SelectionProblem, output: Path | None = None
) -> bool:
    """Whether the checker accepts a certificate about a problem; it is written to `output`."""
    return publisher.publish(output, write_certificate(None, certificate), problem).verdict is Verdict.PROVED


def is_confirmed(publisher: Publisher, report: AuditReport, output: Path | None = None) -> bool:
    """Whether the checker accepted the certificate behind an answer; it is written to `output`.

    `refuted` rests on the cost of the better solution, which is evaluated exactly, and, where the strategy leaves
    operators free, on the claim that no completion of it is cheaper: that certificate is checked too.  So is what is
    said of the machines within error bounds.
    """
    if report.bars is not None and report.planning is not None and report.solution is not None:
        bound = report.best.lower_bound
        if publisher.bars(report.planning, report.solution, report.bars, bound).verdict is not Verdict.PROVED:
            return False
    if report.outcome is Outcome.UNDECIDED:  # its bound is said too
        return report.certificate is None or is_proved(publisher, report.certificate, report.problem, output)
    if report.certificate is not None:
        known = is_proved(publisher, report.certificate, report.problem, output)
        if not known and report.outcome is not Outcome.REFUTED:
            return False
    elif report.outcome is not Outcome.REFUTED:
        return False
    if report.outcome is Outcome.REFUTED and report.free:
        if report.completion_certificate is None:
            return False
        return (
            publisher.publish(None, write_certificate(None, report.completion_certificate), report.restricted).verdict
            is Verdict.PROVED
        )
    return True


def problem_of(found: Opened, plan: Plan) -> tuple[Planning, tuple[int, ...]]:
    """The problem of an opened plan of placements alone, and the plan as a solution of it."""
    planning = found.planning or rebuilt(plan)[0]
    return planning, planning.solution(plan.choices)


def rebuilt(plan: Plan) -> tuple[Planning, tuple[int, ...]]:
    """The problem of a plan, built again, and the plan as a solution of it."""
    planning = problem_again(plan)
    return planning, planning.solution(plan.choices)


def problem_again(plan: Plan) -> Planning:
    """The problem of a plan, built again."""
    return build(plan.graph, plan.machine, space(plan.space), plan.memory_limit)

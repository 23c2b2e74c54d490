"""Makes plans of schedules that a user brings: a few are given, `schedules` carries them to the rest,
nothing else is decided.

The plan holds the user's choices.  Its certificate says how far they are from the optimum: the solver's record where
that holds whatever solution is claimed, else its messages alone, else the bound of every vertex and edge on its own.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from ...models.cost.limits import check_sizes
from ...models.layout.classes import COPY
from ...models.layout.placement import Space, space
from ...models.problem.claims import Status
from ...models.problem.selection_problem import FORBIDDEN
from ...models.program.graph import Graph
from ...models.text import InputError, join_lines
from ..selection.answer import Answer
from ..selection.fallback import certify
from ..selection.model.clock import Clock
from ..selection.solve import solve
from .frameworks import framework_settings
from .plan import PlacementJob, Planned, bundle, fitting_space
from .schedules import Propagated, propagate
from .strategy import ChoiceList, Strategy, StrategyError, resolve
from .strategy_file import load_strategy
from .tables import tables_in_time
from .time_limit import TimeLimit, plan_check_seconds


def plan_strategy(strategy: Strategy, job: PlacementJob) -> tuple[Planned, Propagated]:
    """The plan of a strategy; the job's gap: where the search for its bound may stop.

    Raises `ScheduleConflict` or `StrategyError` for a strategy that contradicts itself or does not fit, `SpaceError`
    for a placement outside the space.  A strategy that exceeds the memory limit gives no plan.
    """
    graph, machine = job.graph, job.machine
    carried = propagate(graph, machine, strategy)
    limit = job.limit or TimeLimit(Clock(job.time_limit_s))
    where = job.where or _fitting(fitting_space(graph, machine), graph, carried)
    check_sizes(graph, machine, where)
    planning = tables_in_time(graph, machine, where, None, job.memory_limit, limit, job.notify)
    limit.hold_back(plan_check_seconds(planning, limit), planning.problem)
    problem = planning.problem
    allowed = resolve(carried.strategy(machine), planning).allowed
    x = tuple(allowed[v][0] for v in range(len(problem.vertices)))
    with limit.phase("search"):
        best = solve(
            problem,
            progress=job.progress,
            threads=job.threads,
            clock=limit.clock.at_most(job.time_limit_s),
            gap=job.gap,
            engine=job.engine,
            brought=(x,),
        )
    if problem.limit is not None and problem.peak_of(x)[0] > problem.limit:
        return Planned(
            planning, Answer(Status.UNKNOWN, None, best.lower_bound, None, None, best.seconds), None
        ), carried
    cost = problem.cost_of(x)
    if cost >= FORBIDDEN:
        raise InputError("the schedule takes a tensor that lies on hosts, or is forbidden, to other devices")
    answer = certify(problem, x, cost, best)
    return Planned(planning, answer, bundle(planning, answer)), carried


def _fitting(where: Space, graph: Graph, carried: Propagated) -> Space:
    """The default space, with uneven splits if a schedule has some."""
    extents = {op.name: {a.name: a.extent for a in op.axes} for op in graph.operators}
    items = [(p, extents[name]) for name, p in carried.choices.operators]
    items += [(p, {str(k): n for k, n in enumerate(graph.tensor(name).shape)}) for name, p in carried.choices.copies]
    uneven = any(extent[axis] % prod(row) for p, extent in items for axis, row in zip(p.axes, p.matrix, strict=False))
    return space(f"{where.name},uneven") if uneven else where


def given_schedules(path: Path) -> Strategy:
    """A strategy file for a model.  Raises `StrategyError`."""
    settings = framework_settings(path)
    if settings is not None:
        raise StrategyError(
            str(path)[:200],
            f"are settings of {settings.flags.source}, which decide more than schedules",
            "audit judges them, plan --pipeline P:M plans them",
        )
    found = load_strategy(path)
    if isinstance(found, ChoiceList):
        raise StrategyError(
            str(path),
            "is a list of choices, which belongs to a selection problem",
            'write {"operator": {"axis": {"level": degree}}}',
        )
    return found


def render_given(carried: Propagated, operators: int) -> str:
    """What became of the given schedules, in a few lines."""
    reached = {name for name, _ in carried.origin if not name.startswith(COPY)}
    idle = [n for n in carried.replicated if not n.startswith(COPY)]
    lines = [
        (
            f"schedules given for {operators - len(reached | set(idle))} operators, carried to {len(reached)}; "
            f"{len(idle)} are replicated"
        )
    ]
    if idle:
        lines.append("  replicated: " + ", ".join(idle[:8]) + (", .." if len(idle) > 8 else ""))
    lines += [
        f"  no room for axis {axis!r} of {name!r}, which {origin!r} splits"
        for name, axis, origin in carried.dropped[:8]
    ]
    return join_lines(lines)

"""Plans a graph on a machine: build the selection problem, solve it, bundle the answer.

The default space is `complete` where its tables fit, else `two-per-level` (measured equal to `complete` in 39 of 39
pairs of model and machine); either way its name is part of the claim.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import lru_cache
from importlib import metadata
from itertools import chain
from platform import python_version
from typing import Final

from ...models.communication.choices import Choices, communications
from ...models.communication.resharding import analyse
from ...models.cost.limits import Budget, TooLarge, check_sizes
from ...models.cost.selection import Notify, Planning
from ...models.keywords import keywords_of
from ...models.layout.placement import Space, space
from ...models.machine.machine import Machine
from ...models.problem.claims import Infeasible
from ...models.program.graph import Graph, SameGraph
from ...proofs.plan.bundle import Moved, Plan
from ..selection.answer import Answer
from ..selection.model.clock import Clock, Overdue, Progress
from ..selection.question import Engine
from ..selection.relax_resources import relax_resources
from .first import first_plan
from .simple import simple_plans
from .tables import tables_in_time
from .time_limit import TimeLimit, plan_check_seconds

COMPLETE_UP_TO: Final = 64
"""Number of devices up to which the complete space is the default: of dense models its tables stay below about 10 M
entries.
"""

MOST_UNASKED: Final = 1 << 27
"""Entries of all tables in a space that nobody asked for: 1 GiB, of which searches keep up to four copies.  (Mixtral
8x7B on 8x8: 417 M in `complete`, 55 M in `two-per-level`.)
"""


@dataclass(frozen=True, eq=False)
class Planned:
    """`plan` is None when no solution was found or the problem is infeasible."""

    planning: Planning
    answer: Answer
    plan: Plan | None


def default_space(machine: Machine) -> Space:
    """`complete` for small machines, `two-per-level` beyond.

    >>> from shardproof.models.machine.machine import load_machine
    >>> default_space(load_machine("4x8")).name, default_space(load_machine("32x8")).name
    ('complete', 'two-per-level')
    """
    return space("complete" if machine.devices <= COMPLETE_UP_TO else "two-per-level")


def require_size(graph: Graph, machine: Machine, where: Space) -> Budget:
    """`models.cost.limits.check_sizes`, which looks at every movement, once for everybody who asks."""
    return _require_size(SameGraph(graph), machine, where)


@lru_cache(maxsize=4)
def _require_size(same: SameGraph, machine: Machine, where: Space) -> Budget:
    return check_sizes(same.graph, machine, where)


def fitting_space(graph: Graph, machine: Machine) -> Space:
    """The default space, or the widest that is narrower and small enough to be planned and checked
    (`models.cost.limits`) within `MOST_UNASKED`.
    """
    default = default_space(machine)
    for where in dict.fromkeys((default, space("two-per-level"))):
        with suppress(TooLarge):
            if require_size(graph, machine, where).entries <= MOST_UNASKED:
                return where
    narrow = space("one-per-level")
    require_size(graph, machine, narrow)
    return narrow


@dataclass(frozen=True, eq=False)
class PlacementJob:
    """A graph on a machine, and how its placements are searched.  `where`: None for the default space; `memory_limit`:
    bytes per device; `time_limit_s`: for tables and search; `limit`: that of a whole command (`time_limit`), of which
    this is a part; the others as in `selection.question`.
    """

    graph: Graph
    machine: Machine
    where: Space | None = None
    memory_limit: int | None = None
    _: KW_ONLY
    engine: Engine = "native"
    time_limit_s: float | None = None
    gap: Fraction = Fraction(0)
    threads: int = 1
    progress: Progress | None = None
    notify: Notify | None = None
    limit: TimeLimit | None = None


@keywords_of(PlacementJob)
def plan_graph(job: PlacementJob) -> Planned:
    """`plan_job`, keyword by keyword."""
    return plan_job(job)


def plan_job(job: PlacementJob) -> Planned:
    """Best plan found, with its certificate.  A memory limit that does not bind costs nothing
    (`selection/relax_resources.py`).

    Errors are those of `models.cost.selection.build`; `TooLarge`, before anything is built, for what could not be
    checked.
    """
    graph, machine, where, memory, gap = job.graph, job.machine, job.where, job.memory_limit, job.gap
    limit = job.limit or TimeLimit(Clock(job.time_limit_s))
    clock = limit.clock.at_most(job.time_limit_s)
    default = default_space(machine) if where else fitting_space(graph, machine)
    require_size(graph, machine, where or default)
    first = None
    if where is None and job.engine == "native":
        first = first_plan(graph, machine, default, memory, limit, gap, job.threads, job.notify)
    planning = tables_in_time(
        graph, machine, where, default, memory, limit, job.notify, None if first is None else first.planning
    )
    known = () if first is None else first.lift_solutions(planning)
    limit.hold_back(plan_check_seconds(planning, limit), planning.problem)
    if first is not None and planning is first.planning and first.enough(gap, clock):
        answer = first.answer
        return Planned(planning, answer, bundle(planning, answer))
    try:
        with limit.phase("search"):
            answer = relax_resources(
                planning.problem,
                clock=clock,
                gap=gap,
                engine=job.engine,
                progress=job.progress,
                threads=job.threads,
                brought=chain(known, simple_plans(planning)),
            )
    except Overdue:
        if first is None or first.answer.certificate is None:
            raise
        planning, answer = first.planning, first.answer
    if answer.solution is None or answer.certificate is None:
        return Planned(planning, answer, None)
    return Planned(planning, answer, bundle(planning, answer, job.engine if answer.asked else "native"))


def bundle(planning: Planning, answer: Answer, engine: Engine = "native") -> Plan:
    """The plan of a solved problem.  Raises ValueError if there is no solution or no certificate."""
    if answer.solution is None or answer.certificate is None:
        raise ValueError("only a solved problem has a plan")
    choices = planning.choices(answer.solution)
    return Plan(
        planning.graph,
        planning.machine,
        planning.space.name,
        planning.problem.limit,
        choices,
        communication(planning.graph, planning.machine, choices),
        answer.certificate,
        versions(engine),
    )


def infeasible_plan(planned: Planned, engine: Engine = "native") -> Plan | None:
    """The file of a proof that nothing fits: a plan without choices (`docs/certificate-format/plans.md`); None where
    that is not proved.
    """
    certificate, p = planned.answer.certificate, planned.planning
    if certificate is None or not isinstance(certificate.claim, Infeasible):
        return None
    nothing = Choices((), ())
    return Plan(p.graph, p.machine, p.space.name, p.problem.limit, nothing, (), certificate, versions(engine))


def communication(graph: Graph, machine: Machine, choices: Choices) -> tuple[Moved, ...]:
    """Totals of every resharding the choices cause, in execution order."""
    known: dict[int, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
    out = []
    for m in communications(graph, machine.hierarchy, choices, machine):
        if id(m.plan) not in known:
            found = analyse(
                m.plan.source, m.plan.target, m.plan.chooser
            )  # its steps, a million between a thousand devices, are not needed for that
            known[id(m.plan)] = (found.collective, found.loads, found.phases)
        out.append(Moved(m.tensor, m.writer, m.reader, m.position, *known[id(m.plan)]))
    return tuple(out)


ENGINES: Final[dict[Engine, tuple[str, ...]]] = {
    "native": (),
    "ilp": ("highspy", "pulp"),
    "smt": ("z3-solver",),
    "cp-sat": ("ortools",),
}
"""Packages that take part beside NumPy and numba."""


def versions(engine: Engine = "native") -> tuple[tuple[str, str], ...]:
    """Versions of what took part in the search."""
    names = ("numba", "numpy", *ENGINES[engine])
    return (*((n, metadata.version(n)) for n in names), ("python", python_version()), ("shardproof", _own_version()))


def _own_version() -> str:
    try:
        return metadata.version("shardproof")
    except metadata.PackageNotFoundError:
        return "unknown"

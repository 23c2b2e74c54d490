"""Finds plans whose branches run on views: the plan without views first, then the problem with them from
there on.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ....models.cost.limits import check_sizes
from ....models.cost.selection import Notify, Planning, build
from ....models.layout.placement import Space
from ....models.machine.machine import Machine
from ....models.program.graph import Graph
from ....models.text import Inapplicable, InputError, NoAnswer, bytes_text
from ....models.views.regions import Region
from ....proofs.views.certificate import SubmeshCertificate
from ...selection.answer import Answer
from ...selection.model.clock import Clock, Progress
from ...selection.solve import solve
from ..simple import simple_plans
from .limited import fit_memory, holds
from .problem import Submeshes, SubmeshPlanning, build_submesh_problem
from .regions import branches_of, regions_of

REGIONS_SHARE = 0.4
"""Of the time: what branches take on views; divisions beyond are not in the claim."""
PLAIN_SHARE = 0.3
"""Of the time: the plan without views."""
FREE_SHARE = 0.6
"""Of what is left under a memory limit: the search whose bound is claimed, and whose plan may hold too much."""


@dataclass(frozen=True, eq=False)
class SubmeshAnswer:
    """`plain`: the answer about the graph on the whole machine."""

    planning: SubmeshPlanning
    answer: Answer
    plain: Answer

    def certificate(self, limit: int | None = None) -> SubmeshCertificate | None:
        """What is claimed; None where nothing was found.  Raises `NoAnswer` where it holds more than `limit` bytes on a
        device.
        """
        p = self.planning.planning
        if self.answer.solution is None or self.answer.certificate is None:
            return None
        choices = self.planning.choices(self.answer.solution)
        if limit is not None and (held := holds(self.planning, self.answer.solution)) > limit:
            raise NoAnswer(
                f"the fastest plan on submeshes holds {bytes_text(held)} on a device, the limit is "
                f"{bytes_text(limit)}, and none that fits was found"
            )
        return SubmeshCertificate(
            p.graph,
            p.machine,
            p.space.name,
            self.planning.regions,
            choices,
            self.answer.certificate,
            limit,
            self.planning.problem.limit is not None,
        )


def whole_machine(
    graph: Graph, machine: Machine, where: Space, memory_limit: int | None = None, notify: Notify | None = None
) -> Planning:
    """The problem without views, which `plan_submeshes` widens.  `memory_limit`: bytes of a device.  Raises
    `InputError` for what has no submeshes.
    """
    if any(t.host for t in graph.tensors):
        raise Inapplicable(f"{graph.name} has tensors on hosts, and submeshes none", "leave out --submeshes")
    check_sizes(graph, machine, where)
    return build(graph, machine, where, memory_limit, notify)


def plan_submeshes(
    base: Planning,
    *,
    clock: Clock,
    gap: Fraction = Fraction(0),
    threads: int = 1,
    progress: Progress | None = None,
    regions: tuple[Region, ...] | None = None,
) -> SubmeshAnswer:
    """The best plan with submeshes that was found.  `base`: the problem on the whole machine, with its limit;
    `regions`: those to be searched; None: what `regions_of` finds.  Raises `InputError` where there are none.
    """
    graph, memory_limit = base.graph, base.problem.limit
    until = clock.share(REGIONS_SHARE)
    views = Submeshes(base, until)
    try:
        found = regions_of(base, branches_of(graph), views, until.over) if regions is None else regions
        if not found:
            raise Inapplicable(
                f"{graph.name} has no branches that could run beside each other on parts of {base.machine.name!r}",
                "leave out --submeshes",
            )
        planning = build_submesh_problem(base, found, views)
    except Inapplicable:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None
    known = simple_plans(base)
    plain = solve(
        base.problem,
        clock=clock.share(PLAIN_SHARE),
        gap=gap,
        progress=progress,
        threads=threads,
        known=known,
        brought=known,
    )
    start = [] if plain.solution is None else [whole(planning, plain.solution)]
    free = clock if memory_limit is None else clock.share(FREE_SHARE)
    answer = solve(
        planning.problem, clock=free, gap=gap, progress=progress, threads=threads, known=start, brought=start
    )
    if memory_limit is not None and answer.solution is not None and holds(planning, answer.solution) > memory_limit:
        answer = fit_memory(planning, answer, memory_limit, clock, gap, threads) or answer
    return SubmeshAnswer(planning, answer, plain)


def whole(planning: SubmeshPlanning, x: tuple[int, ...]) -> tuple[int, ...]:
    """The solution that runs every region on the whole machine."""
    return (*x, *(0 for _ in range(len(planning.problem.vertices) - len(x))))

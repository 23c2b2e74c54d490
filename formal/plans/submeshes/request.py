"""Carries out requests for plans with submeshes: what the command line and the Python way in ask alike."""

from __future__ import annotations

from dataclasses import dataclass

from ....models.cost.selection import Notify
from ....models.program.graph import Graph
from ....models.sources.training import TrainingStep
from ....proofs.views.certificate import SubmeshCertificate
from ...selection.model.clock import Progress
from ..plan import fitting_space
from ..request import PlanRequest, program_of
from ..time_limit import TimeLimit
from .search import SubmeshAnswer, plan_submeshes, whole_machine

SEARCH_SHARE = 0.7
"""Share of the time limit for tables and search: the check makes all of them again."""


@dataclass(frozen=True, eq=False)
class SubmeshOutcome:
    """`graph`: what was asked about, the training `step` or the model; `certificate`: None where none was found."""

    graph: Graph
    step: TrainingStep | None
    found: SubmeshAnswer
    certificate: SubmeshCertificate | None


def carry_out_on_submeshes(
    request: PlanRequest, limit: TimeLimit, progress: Progress | None = None, notify: Notify | None = None
) -> SubmeshOutcome:
    """The best plan with submeshes that was found within `limit`."""
    graph, step = program_of(request)
    where = request.space or fitting_space(graph, request.machine)
    begun = limit.elapsed_s
    with limit.phase("search"):
        found = plan_submeshes(
            whole_machine(graph, request.machine, where, request.memory, notify),
            clock=limit.clock.at_most(None if limit.limit_s is None else SEARCH_SHARE * limit.limit_s),
            gap=request.gap,
            threads=request.threads,
            progress=progress,
        )
    limit.note_check(limit.elapsed_s - begun)  # most of it tables, which the check makes again
    return SubmeshOutcome(graph, step, found, found.certificate(request.memory))

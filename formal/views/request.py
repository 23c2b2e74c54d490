"""This module carries out requests for plans with views: what the command line and the Python way in ask alike."""

from __future__ import annotations

from dataclasses import dataclass

from ...models.cost.selection import Notify
from ...models.program.graph import Graph
from ...models.sources.training import TrainingStep
from ...models.text import InputError
from ...proofs.views.certificate import ViewsCertificate
from ..planning.plan import fitting_space
from ..planning.request import PlanRequest, program_of
from ..planning.time_limit import TimeLimit
from ..selection.model.clock import Progress
from .search import Viewed, plan_views

SEARCH_SHARE = 0.7
"""Share of the time limit for tables and search: the check makes all of them again."""


@dataclass(frozen=True, eq=False)
class ViewsOutcome:
    """`graph`: what was asked about, the training `step` or the model; `certificate`: None where none was found."""

    graph: Graph
    step: TrainingStep | None
    found: Viewed
    certificate: ViewsCertificate | None


def carry_out_on_views(
    request: PlanRequest, limit: TimeLimit, progress: Progress | None = None, notify: Notify | None = None
) -> ViewsOutcome:
    """The best plan with views that was found within `limit`.  Raises `InputError` for what such plans do not have."""
    if request.strategy is not None or request.recompute == "auto" or request.memory is not None:
        raise InputError(
            "plans with views have no memory limits, schedules or recomputation 'auto' yet: leave out memory, strategy "
            "and recompute 'auto'"
        )
    if request.micro_batch != "1":
        raise InputError("plans with views take the batch whole: leave out micro-batches")
    if request.engine != "native":
        raise InputError(f"views are searched natively: leave out the engine {request.engine!r}")
    graph, step = program_of(request)
    where = request.space or fitting_space(graph, request.machine)
    if where.vocabulary or request.vocabulary:
        raise InputError("views are parts of the machine that no vocabulary of a framework says: leave it out")
    with limit.phase("search"):
        found = plan_views(
            graph,
            request.machine,
            where,
            clock=limit.clock.at_most(None if limit.limit_s is None else SEARCH_SHARE * limit.limit_s),
            gap=request.gap,
            threads=request.threads,
            progress=progress,
            notify=notify,
        )
    return ViewsOutcome(graph, step, found, found.certificate())

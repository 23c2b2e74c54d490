"""What is asked of `plan --overlap`, carried out; the command line and Python come through here."""

from __future__ import annotations

from collections.abc import Callable

from ...models.cost.selection import Notify, Planning
from ..planning.plan import default_space
from ..planning.request import PlanRequest, asked_space, program_of
from ..planning.tables import tables_in_time
from ..planning.time_limit import TimeLimit, plan_check_seconds
from .search import Overlapped, Unfit, overlapped

CHECK_SHARE = 0.3
"""Of the time limit, kept for the checker."""


def carry_out_overlapped(
    request: PlanRequest,
    limit: TimeLimit,
    notify: Notify | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[Planning, Overlapped | Unfit | None]:
    """(the problem, an overlapped plan of it, or the proof that none fits, or None: neither was found in time)."""
    graph, machine = program_of(request)[0], request.machine
    where = asked_space(request, graph)
    planning = tables_in_time(graph, machine, where, default_space(machine), request.memory, limit, notify)
    limit.hold_back(plan_check_seconds(planning, limit), planning.problem)
    with limit.phase("search"):
        return planning, overlapped(planning, limit.clock.share(1 - CHECK_SHARE), request.gap, tell)

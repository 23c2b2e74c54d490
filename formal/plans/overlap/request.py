"""What is asked of `plan --overlap`, carried out; the command line and Python come through here."""

from __future__ import annotations

from collections.abc import Callable

from ....models.cost.selection import Notify, Planning
from ..plan import Planned, default_space, fitting_space, require_size
from ..request import PlanRequest, asked_space, program_of
from ..tables import tables_in_time
from ..time_limit import TimeLimit, plan_check_seconds
from .search import NothingFits, Overlapped, search_overlap

CHECK_SHARE = 0.3
"""Of a limit of work, left out: the check comes on top.  Of a limit of time what the check takes is held back."""


def carry_out_overlapped(
    request: PlanRequest,
    limit: TimeLimit,
    notify: Notify | None = None,
    tell: Callable[[str], None] | None = None,
    alone: Planned | None = None,
) -> tuple[Planning, Overlapped | NothingFits | None]:
    """(the problem, an overlapped plan of it, or the proof that none fits, or None: neither was found in time).
    `alone`: a plan of placements alone of the same request, whose tables and answer are a beginning.

    Raises `TooLarge`, before anything is built, for what could not be checked.
    """
    graph, machine = program_of(request)[0], request.machine
    where = asked_space(request, graph)
    if alone is None:
        default = default_space(machine) if where else fitting_space(graph, machine)
        require_size(graph, machine, where or default)
        planning = tables_in_time(graph, machine, where, default, request.memory, limit, notify)
    else:
        planning = alone.planning
    limit.hold_back(plan_check_seconds(planning, limit), planning.problem)
    with limit.phase("search"):
        within = limit.clock.share(1 - CHECK_SHARE if limit.clock.counts else 1)
        return planning, search_overlap(planning, within, request.gap, tell, None if alone is None else alone.answer)

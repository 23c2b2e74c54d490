"""Builds the tables of a plan within the time of a command: over the default space, or over the largest
smaller one whose tables and check fit.
"""

from __future__ import annotations

from typing import Final

from ...models.cost.selection import Notify, Planning, build
from ...models.layout.placement import Space, space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ..selection.model.clock import Overdue
from .time_limit import AGAIN, SOON_S, TimeLimit, TooSlow

TABLES_SHARE: Final = 0.7
"""Of all the time, what the tables of a default space and their check may take; then a smaller space is tried."""

PART: Final = 100
"""Steps of work of a vertex, edge or table that is looked at; an entry that is priced is one."""

SMALLER: Final = ("complete", "two-per-level", "one-per-level")
"""Default spaces, largest first."""


def tables_in_time(
    graph: Graph,
    machine: Machine,
    where: Space | None,
    default: Space | None,
    memory: int | None,
    limit: TimeLimit,
    notify: Notify | None,
    smallest: Planning | None = None,
) -> Planning:
    """The problem over `where`; without one over the default space, or over the largest smaller one whose tables
    and check fit into the time.  `smallest`: that of the smallest space, if it is known.
    """
    names = (
        [where.name] if where is not None else [] if default is None else list(SMALLER[SMALLER.index(default.name) :])
    )
    with limit.phase("tables"):
        for name in names[:-1]:
            guard = _Guard(limit, notify)
            begun = limit.clock.seconds()
            try:
                planning = build(graph, machine, space(name), memory, guard)
            except Overdue:
                if smallest is None:
                    raise
                return smallest
            except TooSlow:
                smaller = names[names.index(name) + 1]
                limit.announce(
                    f"the tables of the space {name!r} do not fit into the time limit; the space is {smaller!r} "
                    f"(--space {name} insists)"
                )
                continue
            break
        else:
            last = where or space(names[-1])
            if smallest is not None and smallest.space == last:
                return smallest
            begun = limit.clock.seconds()
            try:
                planning = build(graph, machine, last, memory, _Guard(limit, notify, last=True))
            except Overdue:
                if smallest is None:
                    raise
                return smallest
    limit.tables_s = limit.clock.seconds() - begun
    return planning


def tables_or_none(
    graph: Graph, machine: Machine, where: Space, memory: int | None, limit: TimeLimit, notify: Notify | None
) -> Planning:
    """The problem over a space that nothing smaller can stand for; `TooSlow` where its tables end later than everything
    has to.
    """
    begun = limit.clock.seconds()
    with limit.phase("tables"):
        try:
            planning = build(graph, machine, where, memory, _Guard(limit, notify, whole=True))
        except TooSlow:
            raise TooSlow(
                f"the tables of the space {where.name!r} do not fit into the time limit: raise --time-limit, or "
                f"--space {where.name} insists"
            ) from None
    limit.tables_s = limit.clock.seconds() - begun
    return planning


def late_tables(gone_s: float, tables_s: float, check_s: float, limit: TimeLimit) -> str:
    """What is said when the last tables that may be built will not be ready in time.

    >>> from ..selection.model.clock import Clock
    >>> from .time_limit import TimeLimit
    >>> print(late_tables(131.2, 1.4, 1.8, TimeLimit(Clock(120.0), checks=True)))
    131 s of the time limit of 120 s were over before the tables, which take about 1.4 s and their check 1.8 s
    """
    words = "" if not limit.checks else f" and their check {_about(check_s)}"
    kind = "work" if limit.clock.counts else "time"
    return (
        f"{_about(gone_s)} of the {kind} limit of {_about(limit.clock.limit_s or 0.0)} were "
        f"over before the tables, which take about {_about(tables_s)}{words}"
    )


def _about(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


class WorkCounter:
    """Counts the work of tables while they are built."""

    def __init__(self, limit: TimeLimit, notify: Notify | None) -> None:
        self.limit, self.notify, self.done = limit, notify, 0

    def __call__(self, done: int, total: int) -> None:
        if self.notify is not None:
            self.notify(done, total)
        self.limit.clock.charge(PART + max(0, done - self.done))
        self.done = done


class _Guard(WorkCounter):
    """Ends the building of tables that will not fit; of the `last` ones, which are needed whatever they take, it says
    so.  `whole`: they may take all the time, as they are not built again by a check.
    """

    def __init__(self, limit: TimeLimit, notify: Notify | None, last: bool = False, whole: bool = False) -> None:
        super().__init__(limit, notify)
        self.last = last
        self.begun = limit.clock.seconds()
        self.priced_from: float | None = None
        self.again = 1 + AGAIN if limit.checks and not whole else 1.0
        self.room = (1.0 if whole else TABLES_SHARE) * (limit.room - self.begun)
        self.said = False

    def __call__(self, done: int, total: int) -> None:
        super().__call__(done, total)
        now = self.limit.clock.seconds()
        expected = now - self.begun
        if total:
            if self.priced_from is None:
                self.priced_from = now
            elif done and now - self.priced_from > SOON_S:
                expected += (now - self.priced_from) * (total - done) / done
        again = self.again
        if self.last:
            if not self.said and expected * again > self.limit.room - self.begun:
                self.said = True
                self.limit.announce(late_tables(self.begun, expected, expected * (again - 1), self.limit))
        elif expected * again > self.room or self.limit.clock.over():
            raise TooSlow

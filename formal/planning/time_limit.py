"""This module says what `--time-limit S` means, and how it is kept.

    S              tables and search, from the first line of the command on, in seconds of the wall
    after it       writing and our own check of what was written; S ends earlier where these need it, so that everything
                   ends within 1.1 S + 10 s
    the check      ends there too, without a verdict: what was found is then written, said to be unchecked, and the
                   command that checks it is named (exit 5); it is not begun where it could not end by far
    tables         the default space gives way to a smaller one when its tables and their check do not fit; a space that
                   was asked for stays
    compiling      of kernels, which only the first commands in a new environment do, is not counted and said apart: up
                   to some 20 s of the processor for one command
    announced      a smaller space, and an end that will come later than that, on stderr

How long the check takes is estimated from what it goes through, by rates that were measured, times how much slower than
the processor the wall has been so far (other programs on the machine).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ...models.cost.selection import Notify, Planning, build
from ...models.layout.placement import Space, space
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.text import NoAnswer
from ..compiling import compiled_s, monotonic
from ..selection.model.clock import Clock

BEYOND: Final = 0.1
BEYOND_S: Final = 10.0
"""How much later than the limit the end may come: a share of it, and seconds."""

END_S: Final = 8.0
"""Seconds for what is in no estimate: starting Python, assembling a certificate, records that a proof has more than one
of, remarks, ending.  (Training steps of 5,000 to 12,000 parts: 3 to 8 s.)"""

SAFE: Final = 1.3
"""Estimates of checks are taken so many times: eleven checks took 0.6 to 1.3 times what was estimated."""

AGAIN: Final = 1.3
"""The check builds the tables again, and counts placements first."""

PART_S: Final = 0.6e-3
"""Seconds per vertex and edge of a plan: its entries, its movement, its memory rows in the check, and making it.
(Eleven models on 16 to 128 devices: 0.3 to 0.8 ms.)"""

STRUCTURE_S: Final = 0.4e-3
"""Seconds more per distinct table and device: steps of its movements.  (The same, and two layers of BERT-Large on
32 to 1,024 devices: 0.2 to 0.8 ms.)
"""

NUMBER_PART_S: Final = 0.03e-3
"""Seconds of the check per vertex and edge of a certificate."""

ENTRY_S: Final = 3e-9
"""Seconds per entry of every edge: two passes of a record, one of them with both minima.  (The same: 3 s for 535
million, half of them repeated.)
"""

MESSAGE_S: Final = 2e-7
"""Seconds per row and column of every edge's table: messages are compressed, read again and hashed.  (6 million of
them: 1.2 s.)
"""

SEARCH_SHARE: Final = 0.1
"""Of the limit, what the search gets however long the check takes: a plan without any is seldom worth a check."""

HOPELESS: Final = 1.5
"""A check that is estimated to take so many times what is left for it is not begun."""

SLACK_S: Final = 1e-6
"""Rounding of sums of seconds."""

MOST_LOAD: Final = 8.0
"""So much slower than the processor the wall is thought to be at most: a process also waits for others of ours."""

WRITING_S: Final = 2.0
"""Seconds for writing what was not checked, and saying so."""

TABLES_SHARE: Final = 0.7
"""Of all the time, what the tables of a default space and their check may take; then a smaller space is tried."""

SOON_S: Final = 1.0
"""Seconds of pricing before its rate is believed."""

SHOWN_S: Final = 0.1
"""Seconds of compiling that are said."""

PART: Final = 100
"""Steps of work of a vertex, edge or table that is looked at; an entry that is priced is one."""

SMALLER: Final = ("complete", "two-per-level", "one-per-level")
"""Default spaces, largest first."""

Announce = Callable[[str], None]


class TooSlow(NoAnswer):
    """Tables do not fit into the time; where no smaller space is left, the text says what to do."""


@dataclass(eq=False)
class TimeLimit:
    """The time of one command: its clock, what the phases have taken, and what is announced.  `checks`: a check
    follows, for which time is held back.
    """

    clock: Clock
    checks: bool = False
    announce: Announce = lambda text: None
    phases: dict[str, float] = field(default_factory=dict)
    work: dict[str, int] = field(default_factory=dict)
    """Steps of work of the phases; about as many where several threads count."""
    load: float = 1.0
    """Seconds of the wall per second of the processor while tables were built, the largest so far."""
    tables_s: float = 0.0
    """Seconds for the last tables."""
    check_s: float = 0.0
    """Seconds that the check of what is found was estimated to take."""
    begun: bool | None = None
    """Whether that check was begun, once it is its turn: not where it cannot end in time by far."""

    def __post_init__(self) -> None:
        self.limit_s = self.clock.wall.limit_s if self.clock.counts else self.clock.limit_s
        self._processor, self._compiled_s, self._begun = time.process_time(), compiled_s(), monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the wall since the start, without those in which kernels were compiled."""
        return self.clock.wall.seconds()

    @property
    def processor_s(self) -> float:
        """Seconds of the processor since the start, kernels compiled among them."""
        return time.process_time() - self._processor

    @property
    def compiled_s(self) -> float:
        """Seconds in which kernels were compiled since the start; the clock stood still."""
        return compiled_s() - self._compiled_s

    @property
    def room(self) -> float:
        """Seconds from the start of the clock to the latest end; counted ones are for tables and search alone."""
        if self.clock.counts:
            return float("inf") if self.clock.limit_s is None else self.clock.limit_s
        return float("inf") if self.limit_s is None else (1 + BEYOND) * self.limit_s + BEYOND_S

    def late(self) -> bool:
        """Whether a check has to end without a verdict.  Where work is counted, only a limit of seconds beside it
        says so.
        """
        if self.limit_s is None:
            return False
        left = (1 + BEYOND) * self.limit_s + BEYOND_S - self._slowness() * WRITING_S - self.elapsed_s
        if self.begun is None:
            self.begun = not self._hopeless(left)
        return not self.begun or left < 0

    def _slowness(self) -> float:
        """Seconds of the wall per second of the processor, where there is something to measure."""
        wall, processor = monotonic() - self._begun, self.processor_s
        return self.load if wall < SOON_S else max(self.load, min(MOST_LOAD, wall / max(processor, wall / MOST_LOAD)))

    def _hopeless(self, left: float) -> bool:
        return self.check_s / SAFE > HOPELESS * left

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as a phase."""
        wall, processor, steps = monotonic(), time.process_time(), self.clock.meter.steps
        try:
            yield
        finally:
            wall, processor = monotonic() - wall, time.process_time() - processor
            self.phases[name] = self.phases.get(name, 0.0) + wall
            self.work[name] = self.work.get(name, 0) + self.clock.meter.steps - steps
            if name == "tables" and wall > SOON_S / 10:
                self.load = max(self.load, wall / max(processor, 0.1 * wall))

    def counted(self, notify: Notify | None) -> Notify:
        """`notify`, with the work of tables counted."""
        return _Counted(self, notify)

    def hold_back(self, check_s: float) -> None:
        """Let the clock end so early that a check of `check_s` seconds still ends in time; announce it if it cannot,
        and do without where it cannot by far.  Where steps are counted, nothing is held back: what is estimated by
        seconds would decide the answer.
        """
        if self.limit_s is None or not self.checks or self.clock.counts:
            return
        ends = self.load * END_S
        least = min(self.limit_s, self.clock.seconds() + SEARCH_SHARE * self.limit_s)
        end = max(self.room - check_s - ends, least)
        self.check_s, left = check_s, max(0.0, self.room - end)
        if check_s + ends > left + SLACK_S:
            self.announce(
                f"the check will take about {check_s:.0f} s, and the time limit leaves {left:.0f} s: what is not "
                f"confirmed by then is left to you"
            )
        if self._hopeless(left):
            end = max(least, min(self.limit_s, self.room - ends))
        if self.clock.limit_s is not None:  # an interrupt may have ended it
            self.clock.limit_s = max(0.0, min(self.clock.limit_s, end))

    def words(self) -> str:
        """Seconds so far, and of every phase."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.phases.items())
        own = f"{self.elapsed_s:.1f} s" + (f" ({parts})" if parts else "")
        own += f", {self.processor_s:.1f} s of the processor"
        if self.clock.counts:
            own += f", {self.clock.meter.steps} steps of work"
        compiling = self.compiled_s
        return own if compiling < SHOWN_S else f"{own}, and {compiling:.1f} s compiling kernels, once"

    def rounded(self) -> dict[str, float]:
        """The phases for people and programs."""
        said = {name: round(seconds, 3) for name, seconds in self.phases.items()}
        return said if (compiling := self.compiled_s) < SHOWN_S else {**said, "compiling": round(compiling, 3)}


def plan_check_seconds(planning: Planning, limit: TimeLimit) -> float:
    """About how long the check of a plan takes: tables again, entries and movements (those of equal structures
    once), and the certificate.
    """
    problem = planning.problem
    parts, distinct = len(problem.vertices) + len(problem.edges), len(problem.tables)
    entries = PART_S * parts + STRUCTURE_S * distinct * planning.machine.devices
    return SAFE * (AGAIN * limit.tables_s + limit.load * entries) + check_seconds(problem, limit)


def check_seconds(problem: SelectionProblem, limit: TimeLimit) -> float:
    """About how long the check of a certificate takes."""
    parts = len(problem.vertices) + len(problem.edges)
    entries = sum(problem.tables[e.table].size for e in problem.edges)
    messages = sum(sum(problem.tables[e.table].shape) for e in problem.edges)
    return SAFE * limit.load * (NUMBER_PART_S * parts + ENTRY_S * entries + MESSAGE_S * messages)


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
            planning = build(graph, machine, last, memory, _Guard(limit, notify, last=True))
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


class _Counted:
    """Counts the work of tables while they are built."""

    def __init__(self, limit: TimeLimit, notify: Notify | None) -> None:
        self.limit, self.notify, self.done = limit, notify, 0

    def __call__(self, done: int, total: int) -> None:
        if self.notify is not None:
            self.notify(done, total)
        self.limit.clock.charge(PART + max(0, done - self.done))
        self.done = done


class _Guard(_Counted):
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

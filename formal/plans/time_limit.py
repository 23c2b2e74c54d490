"""What `--time-limit S` means, and how it is kept.

    S              tables and search, from the start of the process on, in wall-clock seconds
    after it       writing and our own check of what was written; S ends earlier where these need it, so that everything
                   ends within 1.1 S + 10 s
    given up       what is still under way when only the end would fit (`Overdue`): what looks at no clock, and what
                   ends only as a whole; the best answer known without it counts, and without any there is none
    the check      ends there too, without a verdict: what was found is then written, said to be unchecked, and the
                   command that checks it is named (exit 5); it is not begun where it could not end by far
    tables         the default space gives way to a smaller one when its tables and their check do not fit; a space that
                   was asked for stays
    compiling      of kernels, which only the first commands in a new environment do, is not counted and said apart: up
                   to some 20 s of the processor for one command
    announced      a smaller space, and an end that will come later than that, on stderr

How long check and end take is estimated from what they go through, by rates that were measured, times how much slower
than the processor the wall has been so far (other programs on the machine).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...models.problem.selection_problem import SelectionProblem
from ...models.terminal.ticks import ticking
from ...models.text import NoAnswer
from ..compiling import compiled_s, monotonic
from ..selection.model.clock import Clock, Overdue

if TYPE_CHECKING:
    from ...models.cost.selection import Planning

BEYOND: Final = 0.1
BEYOND_S: Final = 10.0
"""How much later than the limit the end may come: a share of it, and seconds."""

END_S: Final = 2.5
"""Seconds of the processor for what is in no estimate: assembling a certificate, records that a proof has more than one
of, writing, ending."""

END_PART_S: Final = 0.15e-3
"""Seconds of the processor per vertex and edge between the search and the check: which reshardings there are, and
what is written.  (BERT-Large, a mixture of experts, Llama-3 8B with Adam: 0.11 to 0.14 ms.)
"""

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

AGAIN_ENTRIES: Final = 4.5
"""Processor seconds that a check takes for a problem of a pipeline, in those for its tables: they are built again,
every distinct entry is computed by other ways, and leaves are compared.  (Seventeen problems of a Llama-3 8B on eight
devices: 4.2.)
"""

PART_SLACK: Final = 0.25
"""Of its limit, what a part of a command may take beyond it to end as a whole, before it is given up."""

MOST_LOAD: Final = 8.0
"""So much slower than the processor the wall is thought to be at most: a process also waits for others of ours."""

WRITING_S: Final = 4.0
"""Seconds for writing what was not checked, and saying so; on a busy machine at most `WRITING_SHARE` of what comes
after the limit, or nothing small would be checked under a short limit."""

WRITING_SHARE: Final = 0.5

AGAIN_S: Final = 2.0
"""Seconds of the processor from one giving up to the next, in which an answer is made without what was given up."""

LOOK_S: Final = 0.02
"""Seconds between two looks of a check at the clocks: one costs 10 to 40 us, and a small certificate asks ten thousand
times.
"""

SEARCHING: Final = ("tables", "search")
"""Phases in which there is something to give up."""

BEFORE: Final = "before"
"""What is under way before the first phase: programs are read and made."""

SOON_S: Final = 1.0
"""Seconds of pricing before its rate is believed."""

SHOWN_S: Final = 0.1
"""Seconds of compiling that are said."""

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
    """Wall-clock seconds per second of the processor while tables were built, the largest so far."""
    tables_s: float = 0.0
    """Seconds for the last tables."""
    check_s: float = 0.0
    """Seconds that the check of what is found was estimated to take."""
    begun: bool | None = None
    """Whether that check was begun, once it is its turn: not where it cannot end in time by far."""
    known_s: float = 0.0
    """Seconds that the check of an answer that is known already takes: parts of a command are given up for it."""
    whole: TimeLimit | None = None
    """The limit that this is a part of, which has the check of what is found."""
    gone_s: float = 0.0
    """Wall-clock seconds that were over before."""

    def __post_init__(self) -> None:
        self.limit_s = self.clock.wall.limit_s if self.clock.counts else self.clock.limit_s
        self._processor, self._compiled_s, self._begun = _processor_s(), compiled_s(), monotonic() - self.gone_s
        self._processor -= min(self._processor, self.gone_s)
        self._end_s = END_S
        self._under_way, self._next_s, self._looked = BEFORE, 0.0, float("-inf")
        self._part: TimeLimit | None = None
        self._announced = False

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds since the start, without those in which kernels were compiled."""
        return (self.clock.wall if self.whole is None else self.clock).seconds()

    @property
    def processor_s(self) -> float:
        """Seconds of the processor since the start, kernels compiled and other processes' among them."""
        return _processor_s() - self._processor

    @property
    def compiled_s(self) -> float:
        """Seconds in which kernels were compiled since the start; the clock stood still."""
        return compiled_s() - self._compiled_s

    @property
    def room(self) -> float:
        """Seconds from the start of the clock to the latest end; counted ones are for tables and search alone, and so
        are those of a part.
        """
        if self.clock.counts:
            return float("inf") if self.clock.limit_s is None else self.clock.limit_s
        return self._latest_s if self.whole is None or self.limit_s is None else self.limit_s

    @property
    def _latest_s(self) -> float:
        if self.limit_s is None:
            return float("inf")
        if self.whole is not None:
            return (1 + PART_SLACK) * self.limit_s + self.slowness() * AGAIN_S
        return (1 + BEYOND) * self.limit_s + BEYOND_S

    @property
    def left_for_check_s(self) -> float:
        """Seconds of the wall that a check may take; infinity where nothing limits it."""
        if self.limit_s is None or self.clock.counts:
            return float("inf")
        return max(0.0, self._latest_s - self.elapsed_s - self.ends_s)

    @property
    def ends_s(self) -> float:
        """Wall-clock seconds that follow tables and search, but for the check."""
        return 0.0 if self.whole is not None else self.slowness() * self._end_s

    @property
    def _left_s(self) -> float:
        """Wall-clock seconds until there is only time to write and to say what was found."""
        beyond = BEYOND * (self.limit_s or 0.0) + BEYOND_S
        return self._latest_s - self.elapsed_s - min(self.slowness() * WRITING_S, WRITING_SHARE * beyond)

    def rest(self, seconds: float) -> Clock:
        """A clock over `seconds` for what is said beside the answer, or until the latest end."""
        return self.clock.beside(max(0.0, min(seconds, self._left_s)))

    def is_over(self) -> bool:
        """Whether there is only time to say what was found."""
        return self._left_s < 0

    def part(self, seconds: float | None) -> TimeLimit:
        """The limit of a part of a command, over as many seconds of what is left.  What it finds is checked with all
        the rest; where it is overdue it alone is given up, until the next part or `settle`.
        """
        made = TimeLimit(self.clock.at_most(seconds), self.checks, self.announce, self.phases, self.work, self.load)
        made.whole, made.limit_s = self, None if made.clock.counts else made.clock.limit_s
        self._part = made
        return made

    def settle(self) -> None:
        """There is an answer, or there will be none: nothing is given up any more."""
        self._under_way, self._part = "", None

    @contextmanager
    def enforce(self) -> Iterator[None]:
        """Give up what is under way when it is overdue, whether it looks at a clock or not."""
        if self.limit_s is None:
            yield
            return
        with ticking(self.look):
            yield

    def look(self) -> None:
        """Raise `Overdue` where only the end of the command would fit into the time: in tables and searches, and before
        them; again only after a while, in which an answer is made without what was given up.
        """
        of, now = self if self._part is None else self._part, self.elapsed_s
        late = of.elapsed_s >= of._latest_s - of.ends_s or now >= self._latest_s - self.ends_s - self.known_s
        if not late or now < self._next_s or of._under_way not in (BEFORE, *SEARCHING):
            return
        self._next_s = now + max(self.ends_s, self.slowness() * AGAIN_S)
        raise Overdue(
            f"the time limit of {self.limit_s or 0.0:g} s was over before there was an answer: raise --time-limit, or "
            f"ask for less (a smaller --space, --effort quick)"
        )

    def late(self) -> bool:
        """Whether a check has to end without a verdict.  Where work is counted, only a limit of seconds beside it
        says so.
        """
        if self.limit_s is None:
            return False
        now = self.elapsed_s
        if self.begun and now < self._looked + LOOK_S:
            return False
        self._looked, left = now, self._left_s
        if self.begun is None:
            self.begun = not self._hopeless(left)
        return not self.begun or left < 0

    def slowness(self) -> float:
        """Wall-clock seconds per second of the processor, where there is something to measure."""
        if self.whole is not None:
            return self.whole.slowness()
        wall, processor = monotonic() - self._begun, self.processor_s
        return self.load if wall < SOON_S else max(self.load, min(MOST_LOAD, wall / max(processor, wall / MOST_LOAD)))

    def _hopeless(self, left: float) -> bool:
        return self.check_s / SAFE > HOPELESS * left

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as a phase."""
        wall, processor, steps = monotonic(), _processor_s(), self.clock.meter.steps
        outer = "" if self._under_way == BEFORE else self._under_way
        self._under_way = name
        try:
            yield
        finally:
            self._under_way = outer
            wall, processor = monotonic() - wall, _processor_s() - processor
            self.phases[name] = self.phases.get(name, 0.0) + wall
            self.work[name] = self.work.get(name, 0) + self.clock.meter.steps - steps
            if name == "tables" and wall > SOON_S / 10:
                self.load = max(self.load, wall / max(processor, 0.1 * wall))

    def expect(self, problem: SelectionProblem) -> None:
        """Keep time for making a file of a plan of this problem."""
        self._end_s = max(self._end_s, END_S + END_PART_S * (len(problem.vertices) + len(problem.edges)))

    def hold_back(self, check_s: float, problem: SelectionProblem | None = None) -> None:
        """Let the clock end so early that a check of `check_s` seconds still ends in time; announce it if it cannot,
        and do without where it cannot by far.  Where steps are counted, nothing is held back: what is estimated by
        seconds would decide the answer.  `problem`: that of a plan, which grows until it is a file.  Of a part: the
        whole holds back what the longest of its plans takes; which others are checked too is decided at the end.
        """
        if problem is not None:
            self.expect(problem)
        if self.whole is not None:  # one check of one plan at least follows all parts
            self.check_s = max(self.check_s, check_s)
            if not self.clock.counts:
                self.whole.hold_back(max(self.whole.check_s, check_s), problem)
            return
        if self.limit_s is None or not self.checks or self.clock.counts:
            return
        ends = self.ends_s
        least = min(self.limit_s, self.clock.seconds() + SEARCH_SHARE * self.limit_s)
        end = max(self.room - check_s - ends, least)
        self.check_s, left = check_s, max(0.0, self.room - end)
        if check_s + ends > left + SLACK_S and not self._announced:
            self._announced = True
            self.announce(
                f"the check will take about {check_s:.0f} s, and the time limit leaves {left:.0f} s: what is not "
                f"confirmed by then is left to you"
            )
        if self._hopeless(left):
            end = max(least, min(self.limit_s, self.room - ends))
        if self.clock.limit_s is not None:  # an interrupt may have ended it
            self.clock.limit_s = max(0.0, min(self.clock.limit_s, end))

    def note_check(self, check_s: float) -> None:
        """What the check of what a part found may take, where nothing said so before the search."""
        if self.whole is not None:
            self.check_s = max(self.check_s, check_s)

    def words(self) -> str:
        """Seconds so far, and of every phase."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.phases.items())
        own = f"{self.elapsed_s:.1f} s" + (f" ({parts})" if parts else "")
        own += f", {self.processor_s:.1f} s of the processor"
        if self.clock.counts:
            own += f", {self.clock.meter.steps} steps of work"
        compiling = self.compiled_s
        return own if compiling < SHOWN_S else f"{own}, and {compiling:.1f} s compiling kernels, once"

    def to_json(self) -> dict[str, object]:
        """What was spent, for `--json`: seconds by the clock and of the processor, by phase, and steps of work."""
        return {
            "seconds": round(self.elapsed_s, 3),
            "processor_seconds": round(self.processor_s, 3),
            "phases": self.phase_seconds(),
            "work": self.work,
        }

    def phase_seconds(self) -> dict[str, float]:
        """The phases for people and programs."""
        said = {name: round(seconds, 3) for name, seconds in self.phases.items()}
        return said if (compiling := self.compiled_s) < SHOWN_S else {**said, "compiling": round(compiling, 3)}


def _processor_s() -> float:
    """Seconds of the processor of this process, and of those that it has waited for."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def problem_check_s(tables_s: float) -> float:
    """Processor seconds that the check of a problem of a pipeline takes, whose tables took `tables_s` of them."""
    return AGAIN_ENTRIES * tables_s


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

"""The scheduling problem: when each task starts on the streams that it takes.

    task t        takes `time` units on every one of its streams at once, without interruption
    stream        runs one task at a time; a device has several (compute, one per kind of link)
    precedence    start(after) >= start(before) + time(before) + lag
    holding       `amount` on a device from the start of `first` (None: from the beginning) to the end of the latest
                  task of `last` (none: to the end of the schedule); a device holds at most its limit at any moment
    objective     the makespan, the end of the last task

Moments are half-open, so that what is freed at a moment can be taken at the same one.  All times are integers of
1/`scale` of the unit named by `unit`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..text import InputError

MOST_TASKS = 1 << 20
MOST_TIME = 1 << 40
"""Times, lags and amounts stay far below 2**63 when they are added up over all tasks."""


@dataclass(frozen=True)
class Stream:
    """What runs one task at a time: `kind` (compute, a link, ..) of a device."""

    device: int
    kind: str


@dataclass(frozen=True)
class Task:
    """`time` units on all of `streams` (numbers of streams; a collective takes several devices')."""

    name: str
    time: int
    streams: tuple[int, ...]


@dataclass(frozen=True)
class Precedence:
    """`after` starts at least `lag` units after the end of `before`."""

    before: int
    after: int
    lag: int = 0


@dataclass(frozen=True)
class Holding:
    """`amount` of a device's memory from the start of `first` to the end of the latest of `last`."""

    device: int
    amount: int
    first: int | None
    last: tuple[int, ...]


@dataclass(frozen=True)
class ScheduleProblem:
    """Tasks, streams and what binds them; `limits[d]` is the memory of device d (None: unlimited).

    >>> p = ScheduleProblem("two", (Stream(0, "compute"),), (Task("a", 2, (0,)), Task("b", 3, (0,))), (), (), (None,))
    >>> p.check().horizon
    5
    """

    name: str
    streams: tuple[Stream, ...]
    tasks: tuple[Task, ...]
    precedences: tuple[Precedence, ...]
    holdings: tuple[Holding, ...]
    limits: tuple[int | None, ...]
    unit: str = "unit"
    scale: int = 1

    @property
    def horizon(self) -> int:
        """A makespan that one task after another never exceeds."""
        return sum(t.time for t in self.tasks) + sum(p.lag for p in self.precedences)

    def check(self) -> ScheduleProblem:
        """Self, if all references exist and all numbers are in range; `InputError` names the first that is not."""
        if not 1 <= len(self.tasks) <= MOST_TASKS:
            raise InputError(f"schedule {self.name!r}: has {len(self.tasks)} tasks, must have 1 to {MOST_TASKS}")
        for k, s in enumerate(self.streams):
            _within(s.device, len(self.limits), f"stream {k}: device")
        for k, t in enumerate(self.tasks):
            _within(t.time, MOST_TIME, f"task {k} ({t.name}): time")
            if len(set(t.streams)) != len(t.streams):
                raise InputError(f"task {k} ({t.name}): takes a stream twice")
            for s_number in t.streams:
                _within(s_number, len(self.streams), f"task {k} ({t.name}): stream")
        for k, p in enumerate(self.precedences):
            _within(p.before, len(self.tasks), f"precedence {k}: task")
            _within(p.after, len(self.tasks), f"precedence {k}: task")
            _within(p.lag, MOST_TIME, f"precedence {k}: lag")
        for k, h in enumerate(self.holdings):
            _within(h.device, len(self.limits), f"holding {k}: device")
            _within(h.amount, 1 << 52, f"holding {k}: amount")
            for task in (*h.last, *(() if h.first is None else (h.first,))):
                _within(task, len(self.tasks), f"holding {k}: task")
        for d, limit in enumerate(self.limits):
            if limit is not None:
                _within(limit, 1 << 60, f"device {d}: limit")
        return self


def _within(value: int, end: int, what: str) -> None:
    if not 0 <= value < end:
        raise InputError(f"{what} is {value}, must be in 0..{end - 1}")

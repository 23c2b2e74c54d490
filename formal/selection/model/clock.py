"""Limits of time and of work, and reports of progress: the only place of the solver that looks at a
clock.  Neither enters a certificate.

One clock is made where a command begins and handed down; every phase gets a part of it (`share`, `at_most`), and a part
is over when the whole is.  So a limit counts from the first line on, in wall-clock seconds but those in which kernels
are compiled (`formal.compiling`), and ending the whole (Ctrl-C) ends whatever is at work.

A limit of work counts steps instead, the same on every machine however busy, so that equal input and equal limit give
equal bytes.  Loops that ask a clock whether it is over charge what they are about to do:

    LOOK steps      every question, for what a turn of a loop does apart from the rest
    1 step          a thousand entries of tables that are read, or one number that a compiled loop works on: about a
                    microsecond
    STEPS           of them are one second of this clock: constants that are written in seconds, and shares of a limit,
                    mean counted seconds then

With both limits a clock counts steps, and is over when either has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from ....models.text import NoAnswer
from ...compiling import monotonic

STEPS: Final = 1_000_000
"""Steps of work that count as one second."""

LOOK: Final = 20
"""Steps of a question: a turn of a loop in Python takes some microseconds beside what it charges."""

DEFAULT_S: Final = 300.0
"""Seconds of a command that is given no limit."""

ENTRIES: Final = 1_000
"""Entries of tables that are read in a step."""


class Progress(Protocol):
    """Receives the state of a running solver: a stage in words and the bounds known so far, in units of the problem."""

    def update(self, stage: str, lower: int | None, upper: int | None) -> None: ...


class Quiet:
    """Progress that says nothing."""

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """Do nothing."""


NODE: Final = 1_000
"""Steps of work of a node of HiGHS: a node takes about a millisecond."""

RESOURCES: Final = 5
"""Units of z3 in a step of work: 15,000 of them were seen to take 3 ms."""


@dataclass(frozen=True)
class Allowance:
    """What a solver in another process may take: wall-clock seconds (None: any number), and steps of work where work
    is counted.
    """

    seconds: float | None
    steps: int | None = None

    @property
    def nodes(self) -> int | None:
        """The steps as nodes of the tree of HiGHS (`mip_max_nodes`); its linear programs have no limit then."""
        return None if self.steps is None else self.steps // NODE

    @property
    def resources(self) -> int | None:
        """The steps in z3's own units (`rlimit`)."""
        return None if self.steps is None else min(RESOURCES * self.steps, (1 << 32) - 1)


ANY: Final = Allowance(None)
"""As much as it takes."""


class Overdue(NoAnswer):
    """The time is over by so much that whatever is under way is given up; raised in the midst of it
    (`formal.plans.time_limit`).  Who has an answer without it catches it.
    """


class Meter:
    """Steps of work done under one clock and its parts."""

    def __init__(self) -> None:
        self.steps = 0

    def seconds(self) -> float:
        """The steps as seconds of a clock that counts them."""
        return self.steps / STEPS


class Clock:
    """Seconds since construction, and whether the limit (None: no limit) has passed.

    `work`: steps until it is over; its seconds are then counted ones, and `limit_s` ends it beside that.  `whole`: the
    clock that this one is a part of.  `now`: seconds of a clock that never goes back (tests bring their own).
    `gone_s`: seconds that were over before.

    >>> counted = Clock(work=3 * STEPS)
    >>> counted.charge(2 * STEPS)
    >>> counted.seconds(), counted.remaining_s(), counted.over()
    (2.0, 1.0, False)
    """

    def __init__(
        self,
        limit_s: float | None = None,
        *,
        work: int | None = None,
        whole: Clock | None = None,
        now: Callable[[], float] | None = None,
        gone_s: float = 0.0,
    ) -> None:
        self.meter: Meter = Meter() if whole is None else whole.meter
        self.counts: bool = work is not None or (whole is not None and whole.counts)
        if work is not None:
            whole = Clock(limit_s, now=now, gone_s=gone_s)
            whole.meter = self.meter
            now, limit_s = self.meter.seconds, work / STEPS
        self._now: Callable[[], float] = now if now is not None else monotonic if whole is None else whole._now
        self._start = self._now() - (0.0 if work is not None else gone_s)
        self._whole = whole
        self.limit_s = limit_s

    @property
    def wall(self) -> Clock:
        """The outermost clock, which is the one of the wall where steps are counted too."""
        return self if self._whole is None else self._whole.wall

    @property
    def outermost(self) -> Clock:
        """The clock that this one is the innermost part of, in the same measure: that of the whole command.

        >>> Clock(60.0).share(0.5).share(0.1).outermost.limit_s, Clock(work=3 * STEPS).share(0.5).outermost.limit_s
        (60.0, 3.0)
        """
        whole = self._whole
        return self if whole is None or whole.counts != self.counts else whole.outermost

    def charge(self, steps: int) -> None:
        """Count so many steps of work."""
        self.meter.steps += steps

    def read(self, entries: int) -> None:
        """Count the work of reading so many entries of tables."""
        self.meter.steps += entries // ENTRIES + 1

    def seconds(self) -> float:
        """Seconds since the start."""
        return self._now() - self._start

    def remaining_s(self) -> float:
        """Seconds until the limit, of this clock or of the whole; infinity without one."""
        own = float("inf") if self.limit_s is None else self.limit_s - self.seconds()
        return own if self._whole is None else min(own, self._whole.remaining_s())

    def allowance(self) -> Allowance:
        """All that is left, for a solver in another process.  What it may take counts as taken.

        >>> Clock(8.0, work=3000).share(0.5).allowance().steps, Clock().allowance()
        (1500, Allowance(seconds=None, steps=None))
        """
        wall, left = (self.wall if self.counts else self).remaining_s(), max(0.0, self.remaining_s())
        seconds = None if wall == float("inf") else max(0.0, wall)
        return Allowance(seconds, int(left * STEPS) if self.counts else None)

    def share(self, part: float) -> Clock:
        """A clock over `part` of the limit of this one, at most what is left.

        >>> Clock(8.0).share(0.25).limit_s, Clock().share(0.25).limit_s
        (2.0, None)
        """
        return Clock(
            None if self.limit_s is None else max(0.0, min(self.remaining_s(), part * self.limit_s)), whole=self
        )

    def at_most(self, seconds: float | None) -> Clock:
        """A clock over `seconds` (None: any number of them), at most what is left.

        >>> whole = Clock()
        >>> part = whole.at_most(60.0)
        >>> part.share(0.5).stop()
        >>> part.over(), whole.over()
        (True, True)
        """
        left = self.remaining_s()
        known = [t for t in (seconds, None if left == float("inf") else left) if t is not None]
        return Clock(max(0.0, min(known)) if known else None, whole=self)

    def beside(self, seconds: float) -> Clock:
        """A clock over `seconds` that goes on when this one is over: for what an answer cannot do without."""
        found = Clock(seconds, whole=Clock() if self.counts else None, now=self._now)
        found.meter, found.counts = self.meter, self.counts
        return found

    def stop(self) -> None:
        """Let the limit pass now, of the whole too."""
        self.limit_s = 0.0
        if self._whole is not None:
            self._whole.stop()

    def over(self) -> bool:
        """True when the limit has passed.  The question itself is work: a loop that asks gets to its end."""
        self.meter.steps += LOOK
        return self.remaining_s() <= 0.0


def budget(
    time_limit_s: float | Literal["default"] | None,
    work_limit: int | None,
    default_s: float | None = DEFAULT_S,
    gone_s: float = 0.0,
) -> Clock:
    """The clock of what was asked for: seconds, steps, or both; "default": the default seconds, none beside steps.
    `gone_s`: seconds that were over before.

    >>> clocks = budget("default", None), budget("default", 2_000_000), budget(8.0, 2_000_000), budget(None, None)
    >>> [(c.limit_s, c.wall.limit_s) for c in clocks]
    [(300.0, 300.0), (2.0, None), (2.0, 8.0), (None, None)]
    """
    seconds = (default_s if work_limit is None else None) if time_limit_s == "default" else time_limit_s
    return Clock(seconds, work=work_limit, gone_s=gone_s)

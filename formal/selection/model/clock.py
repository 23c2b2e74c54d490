"""This module keeps time limits and reports progress: the only place of the solver that looks at a clock.  Times
never enter a certificate.

One clock is made where a command begins and handed down; every phase gets a part of it (`share`, `at_most`), and a part
is over when the whole is.  So a limit counts from the first line on, in seconds of the wall but those in which kernels
are compiled (`formal.compiling`), and ending the whole (Ctrl-C) ends whatever is at work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...compiling import monotonic


class Progress(Protocol):
    """Receives the state of a running solver: a stage in words and the bounds known so far, in units of the problem."""

    def update(self, stage: str, lower: int | None, upper: int | None) -> None: ...


class Quiet:
    """Progress that says nothing."""

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """Do nothing."""


class Clock:
    """Seconds since construction, and whether the limit (None: no limit) has passed.

    `whole`: the clock that this one is a part of.  `now`: seconds of a clock that never goes back (tests bring their
    own).
    """

    def __init__(
        self, limit_s: float | None = None, *, whole: Clock | None = None, now: Callable[[], float] | None = None
    ) -> None:
        self._now: Callable[[], float] = now if now is not None else monotonic if whole is None else whole._now
        self._start = self._now()
        self._whole = whole
        self.limit_s = limit_s

    def seconds(self) -> float:
        """Seconds since the start."""
        return self._now() - self._start

    def left(self) -> float:
        """Seconds until the limit, of this clock or of the whole; infinity without one."""
        own = float("inf") if self.limit_s is None else self.limit_s - self.seconds()
        return own if self._whole is None else min(own, self._whole.left())

    def share(self, part: float) -> Clock:
        """A clock over `part` of the limit of this one, at most what is left.

        >>> Clock(8.0).share(0.25).limit_s, Clock().share(0.25).limit_s
        (2.0, None)
        """
        return Clock(None if self.limit_s is None else max(0.0, min(self.left(), part * self.limit_s)), whole=self)

    def at_most(self, seconds: float | None) -> Clock:
        """A clock over `seconds` (None: any number of them), at most what is left.

        >>> whole = Clock()
        >>> part = whole.at_most(60.0)
        >>> part.share(0.5).stop()
        >>> part.over(), whole.over()
        (True, True)
        """
        left = self.left()
        known = [t for t in (seconds, None if left == float("inf") else left) if t is not None]
        return Clock(max(0.0, min(known)) if known else None, whole=self)

    def beside(self, seconds: float) -> Clock:
        """A clock over `seconds` that goes on when this one is over: for what an answer cannot do without."""
        return Clock(seconds, now=self._now)

    def stop(self) -> None:
        """Let the limit pass now, of the whole too."""
        self.limit_s = 0.0
        if self._whole is not None:
            self._whole.stop()

    def over(self) -> bool:
        """True when the limit has passed."""
        return self.left() <= 0.0

"""Time limits and progress: the only place of the solver that looks at a clock.  Times never enter a certificate."""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    """Receives the state of a running solver: a stage in words and the bounds known so far, in units of the problem."""

    def update(self, stage: str, lower: int | None, upper: int | None) -> None: ...


class Quiet:
    """Progress that says nothing."""

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """Do nothing."""


class Clock:
    """Seconds since construction, and whether the limit (None: no limit) has passed."""

    def __init__(self, limit_s: float | None = None) -> None:
        self._start = time.monotonic()
        self.limit_s = limit_s

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Seconds until the limit; infinity without one."""
        return float("inf") if self.limit_s is None else self.limit_s - self.seconds()

    def share(self, part: float) -> Clock:
        """A clock over `part` of the limit of this one, at most what is left.

        >>> Clock(8.0).share(0.25).limit_s, Clock().share(0.25).limit_s
        (2.0, None)
        """
        return Clock(None if self.limit_s is None else max(0.0, min(self.left(), part * self.limit_s)))

    def stop(self) -> None:
        """Let the limit pass now."""
        self.limit_s = 0.0

    def over(self) -> bool:
        """True when the limit has passed."""
        return self.left() <= 0.0

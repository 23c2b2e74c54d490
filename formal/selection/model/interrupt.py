"""Lets Ctrl-C, or the SIGTERM of a job scheduler and of `timeout`, end the limit of a search instead of the
search.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from .clock import Clock

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Both mean: come to an end."""

_INTERRUPTIBLE: list[Clock] = []
"""The clock that a signal stops, if any."""


@contextmanager
def interruptible(clock: Clock, notice: str = "") -> Iterator[None]:
    """The first signal ends the limit: the best answer so far is returned.  A second one, of either kind, interrupts
    as Ctrl-C does.

    The outermost one counts: inside another nothing is done, nor for a signal that is ignored, nor for a SIGTERM that
    somebody else waits for.
    """
    taken = {s: signal.getsignal(s) for s in SIGNALS}
    taken = {s: h for s, h in taken.items() if h in (signal.SIG_DFL, signal.default_int_handler) or s == signal.SIGINT}
    taken = {s: h for s, h in taken.items() if h is not signal.SIG_IGN}
    if threading.current_thread() is not threading.main_thread() or _INTERRUPTIBLE or not taken:
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        clock.stop()
        for s in taken:
            signal.signal(s, signal.default_int_handler)
        if notice:
            os.write(2, notice.encode())  # a handler must not enter a stream that it may have interrupted

    for s in taken:
        signal.signal(s, stop)
    _INTERRUPTIBLE.append(clock)
    try:
        yield
    finally:
        _INTERRUPTIBLE.pop()
        for s, before in taken.items():
            signal.signal(s, signal.default_int_handler if before is None else before)

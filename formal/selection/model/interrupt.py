"""This module lets Ctrl-C end the time limit of a search instead of the search."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .clock import Clock

_INTERRUPTIBLE: list[Clock] = []
"""The clock that Ctrl-C stops, if any."""


@contextmanager
def interruptible(clock: Clock, notice: str = "") -> Iterator[None]:
    """Ctrl-C ends the time limit: the best answer so far is returned.  A second one interrupts as usual.

    The outermost one counts: inside another nothing is done, nor where Ctrl-C is ignored.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or _INTERRUPTIBLE or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        clock.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if notice:
            os.write(2, notice.encode())  # a handler must not enter a stream that it may have interrupted

    before = signal.signal(signal.SIGINT, stop)
    _INTERRUPTIBLE.append(clock)
    try:
        yield
    finally:
        _INTERRUPTIBLE.pop()
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)

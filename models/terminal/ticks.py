"""This module asks a question several times a second whatever the main thread is doing: for what has to end in time
although not every loop looks at a clock.

The timer of the process (`SIGALRM`) interrupts Python between two of its steps, as Ctrl-C does; what the question
raises comes out of the work that was under way, which must be thrown away then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EVERY_S: Final = 0.25
"""Seconds between two questions."""


@contextmanager
def ticking(look: Callable[[], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Call `look` every so many seconds in the main thread; what it raises ends what is inside.  One inside another
    asks alone until it is left.  Nothing happens in another thread, where there is no such timer, or where somebody
    else uses it.

    >>> asked = []
    >>> with ticking(lambda: asked.append(1), 60.0):
    ...     signal.raise_signal(signal.SIGALRM)
    >>> asked
    [1]
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.getsignal(signal.SIGALRM)
    ours = getattr(before, "ticks", False)
    if not ours and before not in (signal.SIG_DFL, signal.SIG_IGN):
        yield
        return
    over = False

    def tick(number: int, frame: FrameType | None) -> None:
        if not over:
            look()

    tick.ticks = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, tick)
    outer = signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        over = True  # before anything else: a tick on the way out would leave its handler behind
        signal.setitimer(signal.ITIMER_REAL, *((outer[1], outer[1]) if ours else (0.0, 0.0)))
        signal.signal(signal.SIGALRM, before)

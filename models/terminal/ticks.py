"""Asks a question several times a second whatever the main thread is doing: for what has to end in time
although not every loop looks at a clock.

The timer of the process (`SIGALRM`) asks.  What the question raises comes out of the next line of our own code that is
executed, and not out of the signal's handler: compiled code that is interrupted there loses an exception or turns it
into another one.  What was under way must be thrown away then.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, Final

EVERY_S: Final = 0.25
"""Seconds between two questions."""

_ROOT: Final = str(Path(__file__).resolve().parents[2])


@contextmanager
def ticking(look: Callable[[], None], every_s: float = EVERY_S, root: str = _ROOT) -> Iterator[None]:
    """Call `look` every so many seconds in the main thread; what it raises ends what is inside, in a file below `root`.
    One inside another asks alone until it is left.  Nothing happens in another thread, where there is no such timer,
    or where somebody else uses it, or traces the program (a debugger).

    >>> with ticking(lambda: None, 60.0):
    ...     print("what may take long")
    what may take long
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.getsignal(signal.SIGALRM)
    ours = getattr(before, "ticks", False)
    if sys.gettrace() is not None or not (ours or before in (signal.SIG_DFL, signal.SIG_IGN)):
        yield
        return
    ring = _Ring(look, root)

    def tick(number: int, frame: FrameType | None) -> None:
        ring.tick(frame)

    tick.ticks = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, tick)
    outer = signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        ring.silence()  # before anything else: a tick on the way out would leave its handler behind
        signal.setitimer(signal.ITIMER_REAL, *((outer[1], outer[1]) if ours else (0.0, 0.0)))
        signal.signal(signal.SIGALRM, before)


class _Ring:
    """What was raised by the question, until a line of our own code is reached."""

    def __init__(self, look: Callable[[], None], root: str) -> None:
        self.look, self.root = look, root
        self.raised: BaseException | None = None
        self.line = 0
        self.over = False

    def tick(self, frame: FrameType | None) -> None:
        """Ask, unless an answer is on its way."""
        if self.over or self.raised is not None:
            return
        try:
            self.look()
        except Exception as error:  # noqa: BLE001, it is raised again
            while frame is not None and not self.own(frame):
                frame = frame.f_back
            if frame is not None:
                self.raised, self.line, frame.f_trace = error, _line(frame), self.trace
                sys.settrace(self.trace)

    def own(self, frame: FrameType) -> bool:
        """Whether a line of that frame may raise."""
        name = frame.f_code.co_filename
        return name.startswith(self.root) and name != __file__ and ".venv" not in name

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[[FrameType, str, Any], Any] | None:
        """Called by Python at every new call, and at every line of a frame that was under way.

        A step back to an earlier line may be the end of a `with`, which has to be left as if nothing were; a generator
        may be called to be closed, by whoever loses its exceptions.
        """
        made = event == "call" and frame.f_code.co_flags & CO_GENERATOR
        if self.raised is None or event not in ("call", "line") or made or not self.own(frame):
            return None
        if event == "line" and _line(frame) <= self.line:
            self.line = _line(frame)
            return self.trace
        error = self.raised
        self.silence(over=False)
        raise error

    def silence(self, over: bool = True) -> None:
        """Raise nothing any more; `over`: and ask nothing."""
        self.over = over
        if self.raised is not None:
            self.raised = None
            sys.settrace(None)


def _line(frame: FrameType) -> int:
    """The line of a frame; 0 between lines, where Python knows of none."""
    line: int | None = frame.f_lineno
    return 0 if line is None else line

"""What every verb of the command line shares: exit codes, the one way out for text, one JSON object,
and progress that only people see.

Results go to stdout, progress to stderr: on a terminal after two seconds, elsewhere a line a minute.  Exit code 1 is
never used, so that a Python traceback stays distinguishable.

Text for people holds names and titles out of files that anybody may have written.  All of it leaves through `say`,
which writes whatever cannot be printed as an escape: a line end or a terminal's control sequence in a title cannot
forge a verdict (`tests/test_terminal.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from ..text import escape_text, join_lines, seconds_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Exit(IntEnum):
    """Exit codes of the command line contract."""

    DONE = 0
    USAGE = 2
    BAD_INPUT = 3
    UNDECIDED = 5
    INTERNAL = 6
    REFUTED = 10
    INFEASIBLE = 20


BEGUN = "shardproof.begun"
"""Where the context of a command line keeps the moment (`time.monotonic`) at which its process began."""

SEVERITY = (Exit.DONE, Exit.UNDECIDED, Exit.REFUTED, Exit.BAD_INPUT)
"""Of several files the worst decides: 3, 10, 5, 0."""


def worst(codes: list[Exit]) -> Exit:
    """The code that decides for several files.

    >>> worst([Exit.DONE, Exit.REFUTED, Exit.UNDECIDED]).name
    'REFUTED'
    """
    return max(codes, key=SEVERITY.index)


_RESULTS: list[TextIO] = []
"""Where results go while a command runs: the stdout that it began with."""


@contextmanager
def results_apart() -> Iterator[None]:
    """Stdout is for results, `emit` and `say`.  What solvers, frontends and the user's own files print there, from C
    too, goes to stderr: a banner in front of a JSON object would make it none.
    """
    outer = sys.stdout
    outer.flush()
    try:
        descriptor: int | None = outer.fileno()
    except (OSError, ValueError):  # a stream of a test, or of a program that we are part of: it has no descriptor
        descriptor = None
    with ExitStack() as stack:
        if descriptor == 1:
            kept = os.dup(1)
            os.dup2(2, 1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            results: TextIO = os.fdopen(kept, "w", encoding=outer.encoding, errors=outer.errors, closefd=False)
            stack.callback(results.flush)
        else:
            results = outer
        _RESULTS.append(results)
        stack.callback(_RESULTS.pop)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


def _results() -> TextIO:
    return _RESULTS[-1] if _RESULTS else sys.stdout


def emit(document: dict[str, object]) -> None:
    """Write one JSON object to stdout, on a line, at once."""
    stream = _results()
    stream.write(
        json.dumps(document, sort_keys=True).replace("\x7f", "\\u007f") + "\n"
    )  # ASCII; JSON leaves one control character as it is
    stream.flush()


def say(*lines: str, err: bool = False) -> None:
    """Write lines (or blocks made by `join_lines`) to stdout or stderr, escaped: the only way out for text that may
    come from a file.
    """
    stream = sys.stderr if err else _results()
    encoding = stream.encoding or "utf-8"
    for line in lines:
        stream.write(join_lines([line]).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def report_error(message: str, code: int, as_json: bool, notes: Sequence[str] = ()) -> int:
    """Say what went wrong, with --json as an object too; the exit code."""
    say(f"error: {message}", *(f"    {note}" for note in notes), err=True)
    if as_json:
        emit({"error": message, "exit": int(code)} | ({"notes": list(notes)} if notes else {}))
    return code


MANY = 10_000
"""Parts from which progress is told in percent."""


EVERY_S = 60.0
"""Seconds between two lines of progress where stderr is no terminal."""


def picoseconds_text(units: int) -> str:
    """What a plan costs, for people."""
    return seconds_text(units, 10**12)


class Watch:
    """Progress on stderr: shows itself after two seconds on a terminal, and disappears when done; elsewhere a line a
    minute.

    Serves as the solver's progress (`update`; `cost_text`: how costs are said) and as a counter (`count`).
    """

    def __init__(self, label: str, cost_text: Callable[[int], str] = picoseconds_text) -> None:
        self.label, self.cost_text = label, cost_text
        self.start = self.told = time.monotonic()
        self.visible = sys.stderr.isatty()
        self.bar: Bar | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _show(self, text: str, done: int | None, total: int | None) -> None:
        if not self.visible:
            self._tell(text)
            return
        if time.monotonic() - self.start < 2:
            return
        text = escape_text(text)
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.task = self.bar.add_task(text, total=None)
            self.bar.start()
        if self.task is not None:
            self.bar.update(self.task, description=text, completed=done, total=total)

    def _tell(self, text: str) -> None:
        """Without a terminal: a line now and then, so that a log shows that something happens."""
        now = time.monotonic()
        if now - self.told >= EVERY_S:
            self.told = now
            say(f"{text} ({now - self.start:.0f} s, {time.process_time():.0f} s of the processor so far)", err=True)

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """A solver's stage with the bounds known so far."""
        bounds = [self.cost_text(b) if b is not None else "?" for b in (lower, upper)]
        self._show(f"{self.label}: {stage}  bound {bounds[0]}  best {bounds[1]}", None, None)

    def count(self, done: int, total: int) -> None:
        """`done` of `total` parts; 0 of 0 while nobody knows how many there are."""
        text = "" if not total else f" {done / total:.0%}" if total > MANY else f" {done}/{total}"
        self._show(self.label + text, done, total or None)

"""What every verb of the command line shares: exit codes, the one way out for text, one JSON object, and progress that only people see.

Results go to stdout, progress to stderr and only on a terminal, after two seconds.  Exit code 1 is never used, so that a
Python traceback stays distinguishable.  Source: DESIGN.md section 4.

Text for people holds names and titles out of files that anybody may have written.  All of it leaves through `say`, which writes whatever
cannot be printed as an escape: a line end or a terminal's control sequence in a title cannot forge a verdict (`tests/test_terminal.py`).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, Self

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


SEVERITY = (Exit.DONE, Exit.UNDECIDED, Exit.REFUTED, Exit.BAD_INPUT)
"""Of several files the worst decides: 3, 10, 5, 0."""


class InputError(ValueError):
    """Bad or unsupported input; exit 3.  The message names the place and the next step."""


def worst(codes: list[Exit]) -> Exit:
    """The code that decides for several files.

    >>> worst([Exit.DONE, Exit.REFUTED, Exit.UNDECIDED]).name
    'REFUTED'
    """
    return max(codes, key=SEVERITY.index)


def emit(document: dict[str, object]) -> None:
    """Write exactly one JSON object to stdout."""
    sys.stdout.write(json.dumps(document, sort_keys=True).replace("\x7f", "\\u007f") + "\n")  # ASCII; JSON leaves one control character as it is


def escaped(text: str) -> str:
    """`text` on one line, whatever a terminal would not print as a character (controls, line ends, directions of writing) as an escape.

    >>> escaped("a\\x1b[1A\\nproved"), escaped("Größe 漢")
    ('a\\\\x1b[1A\\\\nproved', 'Größe 漢')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known word that is nearest, or nothing.

    >>> did_you_mean("localhots", ["localhost", "summit"]), did_you_mean("x", ["localhost"])
    ("; did you mean 'localhost'?", '')
    """
    near = get_close_matches(word[:100], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class Lines(str):
    """Several lines as one text, each escaped already.  Made by `joined` only; whatever str does to it gives a plain str again."""

    __slots__ = ()


def joined(lines: Iterable[str]) -> Lines:
    """Lines, or blocks of them, as one text; what stands in a line stays in it."""
    return Lines("\n".join(line if isinstance(line, Lines) else escaped(line) for line in lines))


def say(*lines: str, err: bool = False) -> None:
    """Write lines (or blocks made by `joined`) to stdout or stderr, escaped: the only way out for text that may come from a file."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    for line in lines:
        stream.write(joined([line]).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def seconds_text(units: int, scale: int) -> str:
    """A cost in units of 1/scale seconds, for people.

    >>> seconds_text(1178773800, 10**12), seconds_text(1500, 10**12)
    ('1.179 ms', '1.5 ns')
    """
    value = Fraction(units, scale)
    for factor, unit in ((1, "s"), (1000, "ms"), (10**6, "us"), (10**9, "ns"), (10**12, "ps")):
        if abs(value) * factor >= 1 or unit == "ps":
            return f"{float(value * factor):.4g} {unit}"
    raise AssertionError("unreachable")


def bytes_text(n: int) -> str:
    """Bytes for people.

    >>> bytes_text(80 << 30)
    '80 GiB'
    """
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n >= 1 << shift:
            return f"{n / (1 << shift):.4g} {unit}"
    return f"{n} B"


def parse_bytes(text: str) -> int:
    """`80GiB`, `2e9`, `500 MB` as bytes.  Raises `InputError`.

    >>> parse_bytes("80GiB") == 80 << 30, parse_bytes("1.5kB")
    (True, 1500)
    """
    match = re.fullmatch(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][0-9]{1,2})?)\s*([KMGT]?i?B?|k?B?)\s*", text, re.ASCII)
    if match is None:
        raise InputError(f"{text[:60]!r} is not an amount of memory; write for example 80GiB or 500MB")
    unit = match[2].removesuffix("B")
    factor = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}.get(unit)
    if factor is None:
        raise InputError(f"{text!r}: unknown unit {match[2]!r}; use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")
    return int(Fraction(match[1]) * factor)


def parse_fraction(text: str, what: str) -> Fraction:
    """`0.01`, `1%`, `1/100` as a fraction.  Raises `InputError`.

    >>> parse_fraction("1%", "--gap"), parse_fraction("0.5", "--gap")
    (Fraction(1, 100), Fraction(1, 2))
    """
    body, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        if not re.fullmatch(r"[+-]?[0-9./]{1,40}(?:[eE][+-]?[0-9]{1,2})?", body, re.ASCII):  # 1e999999999 would be an integer of gigabytes
            raise ValueError
        value = Fraction(body) / percent
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{what} {text[:60]!r} is not a number; write for example 0.01 or 1%") from None
    if value < 0:
        raise InputError(f"{what} must not be negative")
    return value


MANY = 10_000
"""Parts from which progress is told in percent."""


class Watch:
    """Progress on stderr: shows itself after two seconds, only on a terminal, and disappears when done.

    Serves as the solver's progress (`update`) and as a counter (`count`).
    """

    def __init__(self, label: str, scale: int = 10**12) -> None:
        self.label, self.scale = label, scale
        self.start = time.monotonic()
        self.visible = sys.stderr.isatty()
        self.bar: Bar | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _show(self, text: str, done: int | None, total: int | None) -> None:
        if not self.visible or time.monotonic() - self.start < 2:
            return
        text = escaped(text)
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), TimeElapsedColumn(), console=Console(stderr=True), transient=True
            )
            self.task = self.bar.add_task(text, total=None)
            self.bar.start()
        if self.task is not None:
            self.bar.update(self.task, description=text, completed=done, total=total)

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """A solver's stage with the bounds known so far."""
        bounds = [seconds_text(b, self.scale) if b is not None else "?" for b in (lower, upper)]
        self._show(f"{self.label}: {stage}  bound {bounds[0]}  best {bounds[1]}", None, None)

    def count(self, done: int, total: int) -> None:
        """`done` of `total` parts; 0 of 0 while nobody knows how many there are."""
        text = "" if not total else f" {done / total:.0%}" if total > MANY else f" {done}/{total}"
        self._show(self.label + text, done, total or None)

"""Writes numbers and foreign text as people read them, and reads the amounts that people write.

Names and titles out of files may have been written by anybody: `escape_text` keeps every line end and control sequence
visible, and `join_lines` makes blocks whose parts are escaped already.  Nothing here prints; `console.say` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fractions import Fraction
from typing import Final


class NoAnswer(Exception):
    """The time given does not suffice for any answer; the text says what to do."""


class InputError(ValueError):
    """Bad or unsupported input; exit 3.  The message names the place and the next step."""


class Inapplicable(InputError):
    """What was asked has nothing to work on: `fact` says why, `advice` what to change if it was asked for by name."""

    def __init__(self, fact: str, advice: str) -> None:
        super().__init__(f"{fact}; {advice}")
        self.fact = fact


def escape_text(text: str) -> str:
    """`text` on one line, whatever a terminal would not print as a character (controls, line ends, directions of
    writing) as an escape.

    >>> escape_text("a\\x1b[1A\\nproved"), escape_text("Größe 漢")
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
    """Several lines as one text, each escaped already.  Made by `join_lines` only; whatever str does to it gives a
    plain str again.
    """

    __slots__ = ()


def join_lines(lines: Iterable[str]) -> Lines:
    """Lines, or blocks of them, as one text; what stands in a line stays in it."""
    return Lines("\n".join(line if isinstance(line, Lines) else escape_text(line) for line in lines))


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


LEAST_BARE_BYTES: Final = 1 << 20
"""A memory of fewer bytes is small enough to ask whether its unit was forgotten."""

_AMOUNT: Final = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][0-9]{1,2})?)\s*([A-Za-z]{0,12})\s*", re.ASCII)
_FACTORS: Final = {
    **{p: 1000**k for k, p in enumerate(("", "k", "m", "g", "t", "p"))},
    **{f"{p}i": 1024**k for k, p in enumerate(("k", "m", "g", "t", "p"), start=1)},
}
_LONG: Final = {
    f"{long}byte{s}": short
    for long, short in (("", ""), ("kilo", "k"), ("mega", "m"), ("giga", "g"), ("tera", "t"), ("kibi", "ki"),
                        ("mebi", "mi"), ("gibi", "gi"), ("tebi", "ti"))
    for s in ("", "s")
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """`80GiB`, `2e9`, `500 MB`, `80gb`, `80 g` as bytes; the unit in any case, but `Gb`, which is read as bits.
    Raises `InputError`.

    >>> parse_bytes("80GiB") == 80 << 30, parse_bytes("1.5kB"), parse_bytes("80gb") == parse_bytes("80 G") == 80 * 10**9
    (True, 1500, True)
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise InputError(f"{text[:60]!r} is not an amount of memory; write for example 80GiB or 500MB")
    number, unit = match.groups()
    prefix = unit[:-1]
    if unit.endswith("b") and prefix and (prefix[0].isupper() or prefix.endswith("I")):
        raise InputError(
            f"{text[:60]!r}: {unit} is read as bits; write {number}{prefix[:1].upper()}{prefix[1:].lower()}B for bytes"
        )
    small = unit.lower()
    factor = _FACTORS.get(_LONG.get(small, small.removesuffix("b")))
    if factor is None:
        near = did_you_mean(unit, ("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"))
        raise InputError(f"{text[:60]!r}: unknown unit {unit!r}{near}; use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")
    return int(Fraction(number) * factor)


def parse_memory(amount: str | int) -> int:
    """Memory of a device in bytes: as `parse_bytes`, but a bare number below 1 MiB asks back, since 80 is meant as
    80 GiB.  Raises `InputError`.

    >>> parse_memory("80GiB") == parse_memory(80 << 30), parse_memory("80 B")
    (True, 80)
    """
    text = str(amount)
    size = parse_bytes(text)
    if not 1 <= size <= 1 << 60:
        raise InputError(f"{text[:60]} is not between 1 byte and 2**60 bytes")
    if size < LEAST_BARE_BYTES and not text.strip()[-1].isalpha():
        said = text.strip()[:60]
        raise InputError(f"{said} is {said} bytes: write {said}GiB or {said}MB, or '{said}B' if bytes are meant")
    return size


def parse_fraction(text: str, what: str) -> Fraction:
    """`0.01`, `1%`, `1/100` as a fraction.  Raises `InputError`.

    >>> parse_fraction("1%", "--gap"), parse_fraction("0.5", "--gap")
    (Fraction(1, 100), Fraction(1, 2))
    """
    text = text.strip()
    body, percent = (text[:-1].rstrip(), 100) if text.endswith("%") else (text, 1)
    try:
        if not re.fullmatch(
            r"[+-]?[0-9./]{1,40}(?:[eE][+-]?[0-9]{1,2})?", body, re.ASCII
        ):  # 1e999999999 would be an integer of gigabytes
            raise ValueError
        value = Fraction(body) / percent
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{what} {text[:60]!r} is not a number; write for example 0.01 or 1%") from None
    if value < 0:
        raise InputError(f"{what} must not be negative")
    return value

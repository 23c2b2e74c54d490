"""Canonical JSON, and a typed reader for JSON that may be hostile.

Canonical text: keys sorted, separators `,` and `:`, ASCII, no floats.  Two equal values have one text, so texts can be
hashed.

Reading accepts exactly what writing produces, value by value: `1e3` is a float in Python, `true` is an `int`, `NaN`
parses; none of them passes for an integer here.  Every failure is a `ContainerError` that names the place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, cast

from ...models.files.json_text import JsonError, parse_json

Json = None | bool | int | str | list["Json"] | dict[str, "Json"]

INT64: Final = (-(1 << 63), (1 << 63) - 1)
WIDE: Final = (-(1 << 512), 1 << 512)
"""Range of integers that need not fit an array (costs, denominators, multipliers): generous, but not a memory
attack.
"""


NO_ROOM: Final = "its check needs more memory than this process gets; nothing is said about what it claims"
"""Where memory ended: what may as well be sound is not called malformed."""


class ContainerError(ValueError):
    """A file that is malformed or not ours.  `place` names the part, such as `member 'x.json', field claim.cost`."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


def canonical(value: object) -> bytes:
    """Canonical text of a JSON value without floats; `ContainerError` for anything else.

    >>> canonical({"b": [1, None], "a": "\\u00e9"})
    b'{"a":"\\\\u00e9","b":[1,null]}'
    """
    _refuse_floats(value)
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode(
            "ascii"
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ContainerError("value to be written", f"is not canonical JSON: {error}") from None


def parse(data: bytes, place: str) -> Reader:
    """Parse JSON text; floats and whatever `models.files.json_text` refuses are `ContainerError`s."""

    try:
        return Reader(cast("Json", parse_json(data, floats=False)), place)
    except JsonError as error:
        raise ContainerError(place, f"is not JSON: {str(error)[:120]}") from None


@dataclass(frozen=True)
class Reader:
    """One JSON value and the place where it stands.  Every method checks type and range, or raises `ContainerError`."""

    value: Json
    place: str

    def fail(self, message: str) -> NoReturn:
        raise ContainerError(self.place, message)

    def fields(self, *names: str, optional: tuple[str, ...] = ()) -> Reader:
        """Self, if it is an object with exactly the fields `names` (and perhaps `optional` ones)."""
        if not isinstance(self.value, dict):
            self.fail("must be an object")
        for name in names:
            if name not in self.value:
                self.fail(f"field {name!r} is missing")
        for name in self.value:
            if name not in names and name not in optional:
                self.fail(f"unknown field {name[:40]!r}")
        return self

    def has(self, name: str) -> bool:
        return isinstance(self.value, dict) and name in self.value

    def __getitem__(self, name: str) -> Reader:
        if not isinstance(self.value, dict) or name not in self.value:
            self.fail(f"field {name!r} is missing")
        return Reader(self.value[name], f"{self.place}.{name}")

    def is_null(self) -> bool:
        return self.value is None

    def integer(self, low: int = WIDE[0], high: int = WIDE[1]) -> int:
        """An exact integer in low..high; not a bool."""
        if type(self.value) is not int:
            self.fail(f"must be an integer, not {_short(self.value)}")
        if not low <= self.value <= high:
            self.fail("integer is out of range")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if type(self.value) is not bool:
            self.fail(f"must be true or false, not {_short(self.value)}")
        return self.value

    def text(self, longest: int = 10_000) -> str:
        if type(self.value) is not str:
            self.fail(f"must be a text, not {_short(self.value)}")
        if len(self.value) > longest:
            self.fail(f"text is longer than {longest}")
        return self.value

    def items(self, most: int = 1 << 22) -> Iterator[Reader]:
        """The elements of a list of at most `most` elements."""
        return (Reader(item, f"{self.place}[{i}]") for i, item in enumerate(self._list(most)))

    def parts(self, size: int) -> tuple[Reader, ...]:
        """The elements of a list of exactly `size`."""
        found = tuple(self.items())
        if len(found) != size:
            self.fail(f"must have {size} parts")
        return found

    def integers(self, low: int = INT64[0], high: int = INT64[1], most: int = 1 << 26) -> list[int]:
        """A list of exact integers in low..high."""
        out: list[int] = []
        for i, item in enumerate(self._list(most)):
            if type(item) is not int or not low <= item <= high:
                self.fail(f"element {i} must be an integer in {low}..{high}, not {_short(item)}")
            out.append(item)
        return out

    def texts(self, most: int = 1 << 16) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items(most))

    def _list(self, most: int) -> list[Json]:
        if type(self.value) is not list:
            self.fail(f"must be a list, not {_short(self.value)}")
        if len(self.value) > most:
            self.fail(f"list has {len(self.value)} elements, more than {most}")
        return self.value


def _short(value: object) -> str:
    if isinstance(value, list | dict):
        return type(value).__name__
    try:
        return repr(value)[:40]
    except ValueError:  # an integer of too many digits
        return "a very large integer"


def _refuse_floats(value: object) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            raise ContainerError("value to be written", f"float {item!r} in canonical JSON")
        if isinstance(item, dict):
            if not all(type(key) is str for key in item):
                raise ContainerError("value to be written", "an object key is not a text")
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)

"""Defines tensors, the values of a program, and the errors that name a place in one.

A tensor dimension is one *digit*: importers split and merge flat axes into digits (1024 = 16 heads x 64) so that
reshapes disappear.  `source_shape` keeps the shape the user knows; row-major, the two are views of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

from .contents import Contents


class GraphError(ValueError):
    """A graph that is not well formed; `place` names the operator or tensor.  `notation`: the operator in index
    notation, a note that stands below the message.
    """

    def __init__(self, place: str, message: str, notation: str = "") -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message, self.notation = place, message, notation
        if notation:
            self.add_note(notation)


class UnsupportedOperators(ValueError):
    """A model uses operators we cannot represent.  `missing` maps operator kind -> places, all listed at once;
    `nearest` some kinds -> how to write them otherwise.
    """

    def __init__(
        self,
        missing: dict[str, list[str]],
        hint: str = "supported operators: 'shardproof import --list-ops'",
        nearest: Mapping[str, str] | None = None,
    ) -> None:
        parts = [
            f"{kind} ({len(at)}: {', '.join(at[:4])}{', ..' if len(at) > 4 else ''})"
            + (f", nearest: {nearest[kind]}" if nearest and nearest.get(kind) else "")
            for kind, at in sorted(missing.items())
        ]
        super().__init__(f"unsupported operators: {'; '.join(parts)}; {hint}")
        self.missing = missing


class Role(Enum):
    """What a tensor is to the program."""

    INPUT = "input"
    PARAMETER = "parameter"
    VALUE = "value"


STATED: Final = "constant."
"""How importers begin the name of an input whose contents the program states: `contents`, where they are known."""

ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Element type -> bytes of an element."""


@dataclass(frozen=True)
class Tensor:
    """`shape` in digits, element type `dtype` (a key of `ELEMENT_BYTES`).  `contents`: of an input that is a constant
    of the program.  `frozen`: a parameter that no training step changes.  `host`: a value that lies in the memory of
    each device's host: no byte of a device's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = Role.VALUE
    source_shape: tuple[int, ...] | None = None
    contents: Contents | None = None
    frozen: bool = False
    host: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of a device's memory per element."""
        return 0 if self.host else ELEMENT_BYTES[self.dtype]

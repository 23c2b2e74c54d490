"""What integers are in element types, and how numbers are written as attributes: floats, but for whole numbers
from 2 to the 53 on, which floats do not tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

INTEGERS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "uint8": (0, 255),
        **{f"int{n}": (-(1 << n - 1), (1 << n - 1) - 1) for n in (8, 16, 32, 64)},
    }
)
"""The least and the greatest whole number of an integer element type."""

DIGITS: Final[Mapping[str, int]] = MappingProxyType({"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53})
"""Up to 2 to how many a floating-point type has every whole number."""


def as_real(x: bool | float) -> int | float:
    """A number as a float, where floats tell it from its neighbours.

    >>> as_real(3), as_real(2**53), as_real(2**53 + 1)
    (3.0, 9007199254740992, 9007199254740993)
    """
    return x if isinstance(x, int) and abs(x) >= 1 << 53 else float(x)


def wrap_number(x: float, dtype: str) -> float:
    """A number in an element type: a whole one wraps around in an integer type, every other stays.

    >>> wrap_number(300, "int8"), wrap_number(-1.0, "uint8"), wrap_number(0.5, "int8"), wrap_number(300.0, "float32")
    (44.0, 255.0, 0.5, 300.0)
    """
    if dtype not in INTEGERS or not (isinstance(x, int) or x.is_integer()):
        return x
    low, high = INTEGERS[dtype]
    return as_real((int(x) - low) % (high - low + 1) + low)

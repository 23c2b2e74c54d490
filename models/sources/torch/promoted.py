"""Puts operands into the element types in which PyTorch computes, known as type promotion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..building.exact import DIGITS, INTEGERS, as_real, wrap_number
from ..building.flat import pointwise
from ..building.intervals import exactly, inside
from .context import Argument, Context, Node, Ref


def cast(c: Context, node: Node, value: Ref, dtype: str) -> Ref | None:
    """The operand in the element type of the result; None if it has it, or is shown to hold integers that fit there.

    PyTorch takes real numbers to narrow integers by way of wide ones, which wrap around."""
    have = c.dtypes[value]
    if have == dtype or (have in INTEGERS and dtype in INTEGERS and inside(c.within(value), dtype)):
        return None
    tensor, shape = c.operand(value)
    if dtype in ("int8", "uint8", "int16") and have in DIGITS and not inside(c.within(value), dtype):
        tensor = pointwise(c, node, "whole", "cast", [(tensor, shape)], "int64", dtype="int64")
    made = Ref(f"{node.name}/{dtype}", len(c.values))
    c.values[made] = pointwise(c, node, "cast", "cast", [(tensor, shape)], dtype, dtype=dtype)
    c.shapes[made], c.dtypes[made] = shape, dtype
    return made


def as_compared(c: Context, node: Node, values: Sequence[Ref]) -> list[Ref]:
    """Operands of a comparison: integers that meet real numbers, in their element type where it rounds them."""
    real = max((c.dtypes[v] for v in values if c.dtypes[v] in DIGITS), key=DIGITS.__getitem__, default="")
    whole = [v for v in values if real and c.dtypes[v] in INTEGERS and not exactly(c.within(v), real)]
    return [(cast(c, node, v, real) or v) if v in whole else v for v in values]


def compared_number(c: Context, node: Node, x: Ref, other: Argument, number: float) -> tuple[Ref, float]:
    """What is compared with the number that all of `other` is.  A whole number that integers are compared with is in
    their element type, if it is no tensor with dimensions; real ones and integers are in a floating-point type, which
    rounds them.
    """
    kind = c.dtypes[other] if isinstance(other, Ref) else "float32" if isinstance(other, float) else "int64"
    if c.dtypes[x] not in INTEGERS or kind == "bool":
        return x, number
    if kind in DIGITS:
        if not np.isfinite(number) or exactly((number - 1, number + 1), kind) or exactly(c.within(x), kind):
            return x, number
        return cast(c, node, x, kind) or x, float(np.float32(number)) if kind == "float32" else number
    weak = not isinstance(other, Ref) or (not c.shapes[other] and bool(c.shapes[x]))
    return x, wrap_number(number, c.dtypes[x]) if weak else number


def product(x: float, y: float) -> float:
    """The product of two numbers, of whole ones exactly."""
    whole = float(x).is_integer() and float(y).is_integer()
    return as_real(int(x) * int(y)) if whole else x * y

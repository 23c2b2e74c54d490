"""Stores numbers of 16 bits: how they are stored, and how a float32 is rounded to one.

    bfloat16      the upper half of a float32, kept as its bits in uint16 (NumPy has no bfloat16, and no tensor of a
                  graph is uint16); rounding adds half of the last place that is kept, to even
    float16       NumPy's own, which rounds to nearest, to even, and makes infinities of what is too large

An operator on such blocks computes in float32 and rounds its result once (`stored`); a sum of parts that travel is
rounded after every addition, as NCCL's is.  Widening is exact.  Source: IEEE 754-2019, section 4.3.1.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import numpy as np

from ...models.program.index import Combine
from .blocks import Array
from .blocks import combine_arrays as combine_exactly

_STORED: Final = {"bfloat16": "uint16"}
_HALF: Final = ("uint16", "float16")


def stored_type(dtype: str) -> str:
    """The NumPy type that holds a tensor of type `dtype`.

    >>> stored_type("bfloat16"), stored_type("float16"), stored_type("bool")
    ('uint16', 'float16', 'bool')
    """
    return _STORED.get(dtype, dtype)


def is_half(array: Array) -> bool:
    """Whether an array holds numbers of 16 bits."""
    return array.dtype.name in _HALF


def widen(xp: ModuleType, array: Array) -> Array:
    """The numbers of a stored block in float32 where they have 16 bits, else the block itself.

    >>> widen(np, np.array([0x3F80, 0xC000], dtype=np.uint16)).tolist()
    [1.0, -2.0]
    """
    if array.dtype.name == "uint16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32) if array.dtype.name == "float16" else array


def round_to(xp: ModuleType, array: Array, dtype: str) -> Array:
    """Numbers as a block of a tensor of type `dtype`, rounded to nearest, ties to even; what is no real is left alone.

    >>> round_to(np, np.array([1.0, 1.00390625, 1.01171875, np.inf]), "bfloat16").tolist()
    [16256, 16256, 16258, 32640]
    """
    if array.dtype.kind != "f" and not is_half(array):
        return array
    if array.dtype.name == stored_type(dtype):
        return array
    if not dtype.startswith(("float", "bfloat")):
        return array
    wide = widen(xp, array)
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # too large for float16: infinite, as everywhere
            return wide.astype(dtype)
    with np.errstate(over="ignore"):
        single = xp.asarray(wide.astype(np.float32), order="C")
    bits = single.view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # adding to the bits of a NaN could make it infinite
    return xp.where(xp.isnan(single), quiet, rounded).astype(np.uint16)  # type: ignore[no-any-return]


def combine_arrays(xp: ModuleType, left: Array, right: Array, combine: Combine) -> Array:
    """Elementwise combination of two partial results; of 16 bits, rounded."""
    if not is_half(left):
        return combine_exactly(xp, left, right, combine)
    dtype = "bfloat16" if left.dtype.name == "uint16" else "float16"
    return round_to(xp, combine_exactly(xp, widen(xp, left), widen(xp, right), combine), dtype)

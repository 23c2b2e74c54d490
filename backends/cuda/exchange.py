"""The ends of an exchange on a GPU: all boxes for one partner, or from one, in a single launch of
`boxes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from types import ModuleType

from ..kernels import Array
from .boxes import Box, aligned_width, generate, table
from .kernel import Kernel, KernelTextError

Run = Callable[[Kernel, Sequence[Array]], None]


def pack(xp: ModuleType, run: Run, array: Array, boxes: Sequence[Box]) -> Array:
    """`boxes` of `array`, relative to its corner, one after another in a flat buffer.  Raises `KernelTextError` if
    it has no kernel.
    """
    buffer: Array = xp.empty((sum(prod(hi - lo for lo, hi in b) for b in boxes),), dtype=array.dtype)
    _move(xp, run, "pack", array, buffer, boxes)
    return buffer


def unpack(xp: ModuleType, run: Run, buffer: Array, array: Array, boxes: Sequence[Box]) -> None:
    """The flat `buffer` into `boxes` of `array`.  Raises `KernelTextError` if it has no kernel; nothing is written
    then.
    """
    _move(xp, run, "unpack", array, buffer, boxes)


def _move(xp: ModuleType, run: Run, direction: str, array: Array, buffer: Array, boxes: Sequence[Box]) -> None:
    if not array.flags.c_contiguous or not buffer.flags.c_contiguous:
        raise KernelTextError(f"{direction}: an array is not in C order")
    rows = table(array.shape, boxes)
    dtype = str(array.dtype)
    largest = max((prod(hi - lo for lo, hi in b) for b in boxes), default=0)
    kernel = generate(direction, dtype, array.shape, len(boxes), largest, aligned_width(dtype, array.shape, rows))
    run(kernel, (xp.asarray(rows), array, buffer))

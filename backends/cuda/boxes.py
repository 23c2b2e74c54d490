"""Generates pack and unpack: boxes of a dense array to one flat buffer and back, the ends of an exchange.

    pack     buffer[start_b + position of p in box b, row-major]  =  array[p]          for every box b, every point p of
             it
    unpack   the same assignment from right to left

The boxes are a table given at launch (int64, one row per box: start in the buffer, offset of the corner in the array,
extents), so one kernel serves every plan of a tensor, and its text is written once; blockIdx.y is the box.
`aligned_width` says whether all boxes can move 16 bytes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from .kernel import MOST_BLOCKS, REALS, VECTORS, Kernel, KernelTextError, dense, unique_name

Box = tuple[tuple[int, int], ...]
Table = npt.NDArray[np.int64]

_BLOCK = 256


def table(shape: Sequence[int], boxes: Sequence[Box]) -> Table:
    """Rows of the module docstring, buffers in the order of the boxes: int64, shape (boxes, 2 + dimensions).

    >>> table((4, 6), [((0, 2), (1, 3)), ((3, 4), (0, 6))]).tolist()
    [[0, 1, 2, 2], [4, 18, 1, 6]]
    """
    strides, rows, start = dense(shape), [], 0
    for box in boxes:
        if any(not 0 <= lo <= hi <= n for (lo, hi), n in zip(box, shape, strict=True)):
            raise ValueError(f"{box} is not inside an array of shape {tuple(shape)}")
        extents = [hi - lo for lo, hi in box]
        rows.append([start, sum(lo * s for (lo, _), s in zip(box, strides, strict=True)), *extents])
        start += prod(extents)
    return np.array(rows, dtype=np.int64).reshape(len(boxes), 2 + len(shape))


def aligned_width(dtype: str, shape: Sequence[int], boxes: Table) -> int:
    """4 or 2 if every row of every box starts and ends at a multiple of 16 bytes, in the array and in the buffer;
    else 1.
    """
    width = VECTORS[REALS[dtype]][1] if dtype in REALS else 1
    inner = np.concatenate([boxes[:, 0], boxes[:, 1], boxes[:, -1], np.array(dense(shape)[:-1], dtype=np.int64)])
    return width if len(shape) and not (inner % width).any() else 1


@lru_cache(maxsize=4096)
def generate(direction: str, dtype: str, shape: tuple[int, ...], boxes: int, largest: int, width: int = 1) -> Kernel:
    """The kernel for `boxes` boxes, the largest of `largest` elements, of a dense array.

    `direction`: pack or unpack.  Arguments: table, array, buffer; the last two change places as source and destination.
    Raises `KernelTextError` for an element type that has no CUDA name, no dimension, or nothing to move.
    """
    if dtype not in REALS or not shape or boxes == 0 or largest == 0:
        raise KernelTextError(f"{direction} of {boxes} boxes of {dtype} of shape {tuple(shape)} has no kernel")
    real = REALS[dtype]
    kind = real if width == 1 else VECTORS[real][0]
    rank, strides = len(shape), dense(shape)
    lines = ["const long long* row = table + (long long)blockIdx.y * " + f"{2 + rank};"]
    lines += [
        f"const long long e{k} = row[{2 + k}]{f' / {width}' if k == rank - 1 and width > 1 else ''};"
        for k in range(rank)
    ]
    lines += [f"const long long n = {' * '.join(f'e{k}' for k in range(rank))};"]
    lines += [
        (
            f"for (long long i = (long long)blockIdx.x * {_BLOCK} + threadIdx.x; i < n; i += (long long)gridDim.x * "
            f"{_BLOCK}) {{"
        ),
        "long long r = i;",
    ]
    for k in reversed(range(1, rank)):
        lines.append(f"const long long c{k} = r % e{k}; r /= e{k};")
    lines.append("const long long c0 = r;")
    place = " + ".join(f"c{k} * {s * width if k == rank - 1 else s}LL" for k, s in enumerate(strides))
    array, buffer = f"array + row[1] + {place}", f"buffer + row[0] + i * {width}"
    constant = {"pack": (array, buffer), "unpack": (buffer, array)}[direction]
    lines += [f"*reinterpret_cast<{kind}*>({constant[1]}) = *reinterpret_cast<const {kind}*>({constant[0]});", "}"]
    first, second = ("const ", "") if direction == "pack" else ("", "const ")
    body = "\n    ".join(lines)
    parameters = (
        f"const long long* __restrict__ table, {first}{real}* __restrict__ array, {second}{real}* __restrict__ buffer"
    )
    name, text = unique_name(
        direction, f'extern "C" __global__ void __launch_bounds__({_BLOCK}) NAME({parameters}) {{\n    {body}\n}}\n'
    )
    across = min(MOST_BLOCKS, -(-largest // (width * _BLOCK)))
    if boxes > MOST_BLOCKS:
        raise KernelTextError(f"{boxes} boxes are more than the {MOST_BLOCKS} that a grid has rows")
    return Kernel(name, text, ("long long", real, real), (across, boxes), _BLOCK, width)

"""Operand blocks, and the one primitive all kernels share: an affine access as a strided view.

For an iteration box B and an access  t[i_1(a), .., i_n(a)],  the array

    V[a - low(B)] = t[i_1(a), .., i_n(a)]      (a in B; `fill` where an index leaves the tensor)

has one dimension per *axis* of the access.  Every index is `sum coef * axis + offset`, so V is the part of t that the
box touches, padded to the unclipped interval, seen through  stride(axis) = sum over dimensions of coef * stride(dim).
Windows, strides, dilations, diagonals, slices and transposes are all this one view: nothing is copied unless padding
is.

`xp` is the array module (numpy; cupy offers every function used here).  Kernels preserve the element type they get;
bfloat16 and float16 tensors are executed as float32 (`execution_dtype`), because NumPy has no bfloat16; in the types of
the graph they are stored in 16 bits (`half`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...models.program.index import Access, Axis, Combine

Array = npt.NDArray[np.float64]
"""An array of `xp`.  float64 stands for "numbers" to the type checker; the element type at run time is the caller's."""

Box = Mapping[str, tuple[int, int]]
"""Half-open interval of every iteration axis."""


class KernelError(RuntimeError):
    """A kernel cannot run; `place` names the operator (and operand)."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


class StatisticsReducer(Protocol):
    """Combines the local statistics of a normalise operator over the ranks that share its `over` axes."""

    def all_reduce(self, array: Array, combine: Combine) -> Array:
        """The combination of `array` over all ranks of the group; same shape and element type, C order."""

    def all_reduce_together(self, arrays: Sequence[Array], combine: Combine) -> list[Array]:
        """The combination of each, in as few messages as they allow."""


@dataclass(frozen=True)
class Block:
    """A part of a tensor: `array[p - origin]` is element `p`; it holds at least what the iteration box touches.

    An operand that is touched nowhere may be any empty array.
    """

    array: Array
    origin: tuple[int, ...]

    @property
    def end(self) -> tuple[int, ...]:
        """One past the last element, per dimension."""
        return tuple(o + n for o, n in zip(self.origin, self.array.shape, strict=True))


_EXECUTED_AS = {"bfloat16": "float32", "float16": "float32"}


def execution_dtype(dtype: str) -> str:
    """The NumPy element type in which a tensor of type `dtype` is executed.

    >>> execution_dtype("bfloat16"), execution_dtype("int64")
    ('float32', 'int64')
    """
    return _EXECUTED_AS.get(dtype, dtype)


def neutral(dtype: np.dtype[np.generic], combine: Combine) -> float | int | bool:
    """The value that changes nothing under `combine`: 0, -inf or +inf (the end of the range for integers)."""
    if combine is Combine.SUM:
        return 0
    low = combine is Combine.MAX
    if dtype.kind == "b":
        return not low
    if dtype.kind in "iu":
        info = np.iinfo(np.dtype(dtype.name))
        return int(info.min if low else info.max)
    return -np.inf if low else np.inf


def lengths(box: Box, axes: Sequence[str]) -> tuple[int, ...]:
    """Number of points of each axis in the box; an inverted interval counts as empty."""
    return tuple([hi - lo if hi > lo else 0 for lo, hi in [box[a] for a in axes]])


def cover(
    xp: ModuleType, block: Block, low: Sequence[int], high: Sequence[int], shape: Sequence[int], fill: float, place: str
) -> Array:
    """Elements [low, high) of a tensor of shape `shape`; `fill` outside the tensor.  A view unless there is padding.

    Raises `KernelError` if the block lacks an element.
    """
    source, target, inside, padded = [], [], True, False
    for k, (a, b, n, origin, end) in enumerate(zip(low, high, shape, block.origin, block.end, strict=True)):
        first, last = max(a, 0), min(b, n)
        inside = inside and first < last
        padded = padded or first != a or last != b
        if first < last and (first < origin or last > end):
            raise KernelError(place, f"dimension {k} needs [{first}, {last}), the block holds [{origin}, {end})")
        source.append(slice(first - origin, last - origin))
        target.append(slice(first - a, last - a))
    if inside and not padded:
        return block.array[tuple(source)]
    shape_of_all = tuple(b - a for a, b in zip(low, high, strict=True))
    if not inside:
        return xp.full(shape_of_all, fill, dtype=block.array.dtype)  # type: ignore[no-any-return]
    out: Array = xp.empty(shape_of_all, dtype=block.array.dtype)
    out[tuple(target)] = block.array[tuple(source)]
    for k, (kept, n) in enumerate(zip(target, shape_of_all, strict=True)):  # the margins only: most is copied
        for margin in (slice(0, kept.start), slice(kept.stop, n)):
            if margin.start < margin.stop:
                out[(*target[:k], margin)] = fill
    return out


def view(
    xp: ModuleType,
    block: Block,
    access: Access,
    box: dict[str, tuple[int, int]],
    shape: Sequence[int],
    fill: float,
    place: str,
) -> Array:
    """The array V of the module docstring: one dimension per axis, in the order of `access.axes`.  Never write to it.

    `shape` is the shape of the whole tensor.  Raises `KernelError` for indices that are read whole, or a short block.

    >>> import numpy
    >>> from ...models.program.index import Affine, access
    >>> rows = access("t", Affine.axis("y").plus("k").shift(-1))
    >>> view(numpy, Block(numpy.arange(4.0), (0,)), rows, {"y": (0, 2), "k": (0, 3)}, (4,), 0, "example")
    array([[0., 0., 1.],
           [0., 1., 2.]])
    """
    axes = access.axes
    size = lengths(box, axes)
    if access.is_plain and 0 not in size:
        ends = zip((box[a] for a in axes), block.origin, block.array.shape, shape, strict=True)
        cut = tuple(
            slice(lo - at, hi - at) if at <= lo and hi <= min(at + n, end) else None for (lo, hi), at, n, end in ends
        )
        if None not in cut:
            return block.array[cut]
    if any(i.whole for i in access.index):
        raise KernelError(place, f"reads a dimension of {access.tensor!r} whole; only a reshaping copy may do that")
    if 0 in size:
        return xp.zeros(size, dtype=block.array.dtype)  # type: ignore[no-any-return]
    spans = [i.unclipped_interval(box) for i in access.index]
    part = cover(xp, block, [s[0] for s in spans], [s[1] for s in spans], shape, fill, place)
    strides = dict.fromkeys(axes, 0)
    for index, step in zip(access.index, part.strides, strict=True):
        for name, coef in index.terms:
            strides[name] += coef * step
    return xp.lib.stride_tricks.as_strided(part, size, tuple(strides[a] for a in axes))  # type: ignore[no-any-return]


def align(array: Array, have: Sequence[str], want: Sequence[str]) -> Array:
    """Reorder the dimensions of `array` (axes `have`) to the order of `want`, with length 1 for axes it lacks."""
    order = [have.index(a) for a in want if a in have]
    moved = array.transpose(order)
    return moved[tuple(slice(None) if a in have else None for a in want)]


def spread(xp: ModuleType, array: Array, shape: tuple[int, ...]) -> Array:
    """`array` broadcast to `shape`, in C order.  (`ascontiguousarray` would turn a 0-dimensional array into a
    vector.)
    """
    return xp.asarray(array if array.shape == shape else xp.broadcast_to(array, shape), order="C")  # type: ignore[no-any-return]


def fold(xp: ModuleType, array: Array, dims: tuple[int, ...], combine: Combine, keepdims: bool = False) -> Array:
    """Combine over `dims`; the neutral element where nothing is combined (cupy's max has no `initial`)."""
    if not dims:
        return array
    if any(array.shape[d] == 0 for d in dims):
        kept = tuple(1 if d in dims else n for d, n in enumerate(array.shape) if keepdims or d not in dims)
        return xp.full(kept, neutral(array.dtype, combine), dtype=array.dtype)  # type: ignore[no-any-return]
    match combine:
        case Combine.SUM:
            # dtype: NumPy would widen small integers, and kernels keep the element type
            return xp.sum(array, axis=dims, keepdims=keepdims, dtype=array.dtype)  # type: ignore[no-any-return]
        case Combine.MAX:
            return xp.max(array, axis=dims, keepdims=keepdims)  # type: ignore[no-any-return]
        case Combine.MIN:
            return xp.min(array, axis=dims, keepdims=keepdims)  # type: ignore[no-any-return]


def combine_arrays(xp: ModuleType, left: Array, right: Array, combine: Combine) -> Array:
    """Elementwise combination of two partial results."""
    match combine:
        case Combine.SUM:
            return xp.add(left, right)  # type: ignore[no-any-return]
        case Combine.MAX:
            return xp.maximum(left, right)  # type: ignore[no-any-return]
        case Combine.MIN:
            return xp.minimum(left, right)  # type: ignore[no-any-return]


def full_box(axes: Sequence[Axis]) -> dict[str, tuple[int, int]]:
    """The whole iteration space."""
    return {a.name: (0, a.extent) for a in axes}

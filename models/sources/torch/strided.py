"""Translates as_strided: a tensor seen through other strides of its memory.

    y[i] = memory[offset + sum_k i_k stride_k]

PyTorch says how the operand lies in memory: its strides, which order its dimensions.  The memory is then the operand,
permuted into that order and flattened, and the result an affine access to it; where the strides of the result are those
of a dense tensor they only permute.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...program.index import Access, Affine, Axis
from ..building.flat import Unsupported, letters, reorder
from .context import Context, Handler, Node


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The dimensions from the slowest to the fastest, if the tensor fills its memory without gaps; those of extent 1
    come first.

    >>> dense_order((2, 5, 1, 1), (5, 1, 7, 7)), dense_order((2, 3), (4, 1))
    ([2, 3, 0, 1], None)
    """
    long = sorted((k for k, n in enumerate(shape) if n > 1), key=lambda k: -strides[k])
    step = 1
    for k in reversed(long):
        if strides[k] != step:
            return None
        step *= shape[k]
    return [k for k, n in enumerate(shape) if n == 1] + long


def as_strided(c: Context, node: Node) -> None:
    """as_strided of a tensor that fills its memory."""
    x, shape = c.operand(node.ref("self"))
    size, strides = node.integers("size") or (), node.integers("stride") or ()
    own, first = node.integers("self_strides"), node.integer("self_offset", 0)
    order, offset = None if own is None else dense_order(shape, own), node.integer("storage_offset", first) - first
    if order is None or offset < 0:
        raise Unsupported("an operand with gaps in its memory, or computed strides")
    if prod(shape) <= offset + sum((n - 1) * s for n, s in zip(size, strides, strict=True)):
        raise Unsupported("memory outside of its operand")
    if shape:
        x = x if order == sorted(order) else reorder(c, node, "memory", x, order)
    places = dense_order(size, strides)
    if places is not None and prod(size) == prod(shape):
        x = c.view(node, "size", x, tuple(size[k] for k in places) or (1,))
        back = [places.index(k) for k in range(len(size))]
        c.put(node, x if back == sorted(back) else reorder(c, node, "", x, back))
        return
    flat = c.view(node, "flat", x, (prod(shape),))
    names = letters(len(size)) or ["n"]
    axes = [Axis(a, n) for a, n in zip(names, size or (1,), strict=True)]
    steps = [(a, s) for a, s, n in zip(names, strides, size, strict=False) if s > 0 and n > 1]
    c.put(node, c.operator(node, "", "copy", axes, [Access(flat, (Affine(tuple(steps), offset),))], names))


HANDLERS: dict[str, Handler] = {"as_strided": as_strided}

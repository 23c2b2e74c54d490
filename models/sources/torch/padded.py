"""Translates core ATen operators that read elements at places known beforehand: padding by content,
windows, diagonals, folds.

reflection_pad, replication_pad   rows at given positions, one dimension after another
unfold                            rows at  step * place + tap, or a view where windows do not overlap
diagonal                          every (n + 1)-th element of rows of n
col2im (fold)                     out[s (l + j) + r] += columns[s j + r, l]:  shifted parts of a copy add up
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ...program.index import Access, Affine, Axis
from ..building.flat import Unsupported, lookup, part_of, reorder
from .context import Constant, Context, Handler, Node, Ref, dimension


def _rows(c: Context, node: Node, part: str, tensor: str, dim: int, places: Constant) -> str:
    """Elements of a dimension at given places, whose shape takes its place."""
    at = Ref(f"{node.name}/places{dim}")
    c.constants[at], c.shapes[at], c.dtypes[at] = places, places.shape, "int64"
    return lookup(c, node, part, (tensor, c.g.tensors[tensor].shape), dim, c.operand(at))


def pad_by_content(c: Context, node: Node) -> None:
    """reflection_pad and replication_pad in one to three dimensions; pairs count from the last dimension."""
    tensor = c.tensor(node.ref("self"))
    pads, rank = node.integers("padding") or (), len(c.g.tensors[tensor].shape)
    for i in range(len(pads) // 2):
        k, (before, after) = rank - 1 - i, pads[2 * i : 2 * i + 2]
        n = c.g.tensors[tensor].shape[k]
        places = np.arange(-before, n + after)
        if before == after == 0:
            continue
        if "reflection" in node.kind:
            places = (n - 1) - abs((n - 1) - abs(places))
        tensor = _rows(c, node, f"pad{k}", tensor, k, np.clip(places, 0, n - 1))
    c.put(node, tensor)


def unfold(c: Context, node: Node) -> None:
    """unfold(dim, size, step): a window for every step, its elements in a new last dimension."""
    tensor, shape = c.operand(node.ref("self"))
    k = dimension(node, node.integer("dimension", 0), len(shape))
    size, step, count = node.integer("size", 1), node.integer("step", 1), node.shape[k]
    if size == step:
        kept = [*shape[:k], count * size, *shape[k + 1 :]]
        cut = tensor if tuple(kept) == tuple(shape) else part_of(c, node, "cut", tensor, kept, {k: (1, 0)})
        y = c.view(node, "windows", cut, [*shape[:k], count, size, *shape[k + 1 :]])
    else:
        y = _rows(c, node, "windows", tensor, k, step * np.arange(count)[:, None] + np.arange(size))
    last = len(shape)
    order = [*range(k + 1), *range(k + 2, last + 1), k + 1]
    c.put(node, y if order == list(range(last + 1)) else reorder(c, node, "", y, order))


def diagonal(c: Context, node: Node) -> None:
    """diagonal of two dimensions, at an offset; it becomes the last dimension."""
    tensor, shape = c.operand(node.ref("self"))
    a, b = (dimension(node, node.integer(k, d), len(shape)) for k, d in (("dim1", 0), ("dim2", 1)))
    offset, count, n = node.integer("offset", 0), node.shape[-1], shape[b]
    rest = [k for k in range(len(shape)) if k not in (a, b)]
    order = [*rest, a, b]
    y = tensor if order == list(range(len(shape))) else reorder(c, node, "order", tensor, order)
    y = c.view(node, "flat", y, [*node.shape[:-1], shape[a] * n])
    start = offset if offset >= 0 else -offset * n
    c.put(node, part_of(c, node, "", y, node.shape, {len(rest): (n + 1, start)}) if count else y)


def fold(c: Context, node: Node) -> None:
    """col2im: columns[b, c kernel, places] added up where their windows lie; not dilated."""
    tensor, shape = c.operand(node.ref("self"))
    kernel, strides, pads = (node.integers(k) or () for k in ("kernel_size", "stride", "padding"))
    size = node.integers("output_size") or ()
    if any(d != 1 for d in node.integers("dilation") or ()) or len(shape) != 3:
        raise Unsupported("dilation, or no batch")
    batch, channels = shape[0], node.shape[1]
    places = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(size, pads, kernel, strides, strict=True)]
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    split = [batch, channels, *kernel, *places]
    y = c.view(node, "split", tensor, split)
    full = [j * s for j, s in zip(taps, strides, strict=True)]
    if full != list(kernel):
        y = part_of(c, node, "taps", y, [batch, channels, *full, *places], {2: (1, 0), 3: (1, 0)})
    (p, q), (s, t), (j, i) = places, strides, taps
    y = c.view(node, "digits", y, [batch, channels, j, s, i, t, p, q])
    names = ["b", "c", "y", "ky", "x", "kx"]
    extents = [batch, channels, p + j - 1, s, q + i - 1, t]
    reads = [
        Access(
            y,
            (
                *map(Affine.axis, ("b", "c")),
                *(Affine((), u), Affine.axis("ky"), Affine((), v), Affine.axis("kx")),
                *(Affine.axis("y").shift(-u), Affine.axis("x").shift(-v)),
            ),
        )
        for u, v in product(range(j), range(i))
    ]
    axes = [Axis(a, n) for a, n in zip(names, extents, strict=True)]
    z = c.operator(node, "sum", "copy", axes, reads, names)
    z = c.view(node, "merge", z, [batch, channels, extents[2] * s, extents[4] * t])
    if c.g.tensors[z].shape != node.shape or any(pads):
        z = part_of(c, node, "crop", z, node.shape, {2: (1, pads[0]), 3: (1, pads[1])})
    c.put(node, z)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
        + ("replication_pad1d", "replication_pad2d", "replication_pad3d"),
        pad_by_content,
    ),
    "unfold": unfold,
    "diagonal": diagonal,
    "col2im": fold,
}

"""Translates core ATen operators that move elements: views, permutations, expansion, slices, concatenation,
padding, positions.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...program.index import Access, Affine, Axis
from ...program.operators import Value
from ..building.flat import Unsupported, concatenate, letters, lookup, part_of, reorder
from .context import Context, Handler, Node, Ref, dimension
from .pointwise import elementwise, spread
from .promoted import cast


def view(c: Context, node: Node) -> None:
    """view, reshape, unsqueeze, squeeze: the same elements in row-major order."""
    c.put(node, c.view(node, "", c.tensor(node.ref("self")), node.shape or (1,)))


def permute(c: Context, node: Node) -> None:
    """permute."""
    tensor, shape = c.operand(node.ref("self"))
    dims = [dimension(node, d, len(shape)) for d in node.integers("dims") or ()]
    c.put(node, tensor if dims == sorted(dims) else reorder(c, node, "", tensor, dims))


def transpose(c: Context, node: Node) -> None:
    """transpose and t: two dimensions change places."""
    tensor, shape = c.operand(node.ref("self"))
    order = list(range(len(shape)))
    if len(shape) > 1:
        a, b = (dimension(node, node.integer(k, d), len(shape)) for k, d in (("dim0", 0), ("dim1", 1)))
        order[a], order[b] = b, a
    c.put(node, tensor if order == sorted(order) else reorder(c, node, "", tensor, order))


def expand(c: Context, node: Node) -> None:
    """expand: dimensions of extent 1 are repeated."""
    x = node.ref("self")
    if c.shapes[x] == node.shape:
        c.alias(node, x)
        return
    c.put(node, spread(c, node, *c.operand(x)))


def repeat(c: Context, node: Node) -> None:
    """repeat: an expansion of new dimensions before the old ones, flattened."""
    tensor, shape = c.operand(node.ref("self"))
    times = node.integers("repeats") or ()
    padded = (1,) * (len(times) - len(shape)) + shape
    names = [x for k in range(len(times)) for x in (f"r{k}", f"i{k}")]
    extents = {**{f"r{k}": n for k, n in enumerate(times)}, **{f"i{k}": n for k, n in enumerate(padded)}}
    first = len(times) - len(shape)
    reads = Access(tensor, tuple(Affine.axis(f"i{first + k}") for k in range(len(shape))) or (Affine(),))
    y = c.operator(node, "", "copy", [Axis(a, extents[a]) for a in names], [reads], names)
    c.put(node, c.view(node, "merge", y, node.shape))


def slice_(c: Context, node: Node) -> None:
    """slice with constant bounds and a positive step."""
    tensor, shape = c.operand(node.ref("self"))
    k = dimension(node, node.integer("dim", 0), len(shape))
    n, step = shape[k], node.integer("step", 1)
    start = node.integer("start", 0)
    low = min(max(start + n if start < 0 else start, 0), n)
    _cut(c, node, tensor, shape, k, step, low)


def _cut(
    c: Context, node: Node, tensor: str, shape: tuple[int, ...], k: int, step: int, low: int, result: int = 0
) -> None:
    extents = node.shapes[result]
    if extents == shape:
        c.put(node, tensor, result)
        return
    c.put(
        node,
        part_of(c, node, f"part{result}" if len(node.shapes) > 1 else "", tensor, extents, {k: (step, low)}),
        result,
    )


def select(c: Context, node: Node) -> None:
    """select: one index of a dimension, which disappears."""
    tensor, shape = c.operand(node.ref("self"))
    k = dimension(node, node.integer("dim", 0), len(shape))
    at = node.integer("index", 0)
    names = letters(len(node.shape)) or ["n"]
    rest = iter(names)
    index = [Affine((), at % shape[k]) if d == k else Affine.axis(next(rest)) for d in range(len(shape))]
    axes = [Axis(a, n) for a, n in zip(names, node.shape or (1,), strict=True)]
    c.put(node, c.operator(node, "", "copy", axes, [Access(tensor, tuple(index))], names))


def split_tensor(c: Context, node: Node) -> None:
    """split_with_sizes, split, chunk: parts along one dimension."""
    tensor, shape = c.operand(node.ref("self"))
    k, start = dimension(node, node.integer("dim", 0), len(shape)), 0
    for i, s in enumerate(node.shapes):
        if Ref(node.name, i) in c.read and prod(s) != 0:
            _cut(c, node, tensor, shape, k, 1, start, i)
        start += s[k]


def unbind(c: Context, node: Node) -> None:
    """unbind: every index of a dimension."""
    tensor, shape = c.operand(node.ref("self"))
    k = dimension(node, node.integer("dim", 0), len(shape))
    for i, s in enumerate(node.shapes):
        if Ref(node.name, i) in c.read:
            names = letters(len(s)) or ["n"]
            rest = iter(names)
            index = [Affine((), i) if d == k else Affine.axis(next(rest)) for d in range(len(shape))]
            axes = [Axis(a, n) for a, n in zip(names, s or (1,), strict=True)]
            c.put(node, c.operator(node, f"part{i}", "copy", axes, [Access(tensor, tuple(index))], names), i)


def cat(c: Context, node: Node) -> None:
    """cat (operands without elements are left out) and stack (through dimensions of extent 1)."""
    values = [r for r in node.refs("tensors") if prod(c.shapes[r]) != 0]
    k = dimension(node, node.integer("dim", 0), len(node.shape))
    tensors = [c.tensor(r) for r in values]
    if node.kind.startswith("aten.stack"):
        single = tuple(1 if d == k else n for d, n in enumerate(node.shape))
        tensors = [c.view(node, "unsqueeze", t, single) for t in tensors]
    c.put(node, tensors[0] if len(tensors) == 1 else concatenate(c, node, "", tensors, k))


def pad(c: Context, node: Node) -> None:
    """constant_pad_nd; pairs count from the last dimension; negative padding crops.  Outside a copy is 0, and another
    value is filled in there."""
    tensor, shape = c.operand(node.ref("self"))
    value, pads = node.number("value", 0.0), node.integers("pad") or ()
    index = {len(shape) - 1 - i: (1, -pads[2 * i]) for i in range(len(pads) // 2) if pads[2 * i] or pads[2 * i + 1]}
    if not index:
        c.put(node, tensor)
        return
    filled = value != 0.0 and any(n > 0 for n in pads)
    y = part_of(c, node, "part" if filled else "", tensor, node.shape, index)
    if not filled:
        c.put(node, y)
        return
    inside = np.ones((1,) * len(shape), bool)
    for k, (_, offset) in index.items():
        place = np.arange(node.shape[k]) + offset
        here = (place >= 0) & (place < shape[k])
        inside = inside & here.reshape([-1 if d == k else 1 for d in range(len(shape))])
    mask, padded = Ref(f"{node.name}/inside"), Ref(f"{node.name}/part")
    c.constants[mask] = np.broadcast_to(inside, node.shape)
    c.values[padded] = y
    for ref, dtype in ((mask, "bool"), (padded, node.dtype)):
        c.shapes[ref], c.dtypes[ref] = node.shape, dtype
    elementwise(c, node, "mask_fill", [padded, mask], value=value)


def arange(c: Context, node: Node) -> None:
    """arange too large to be folded: start + step * position."""
    start, step = node.number("start", 0.0), node.number("step", 1.0)
    attributes: dict[str, Value] = {"along": "n", "start": start, "step": step}
    c.put(node, c.operator(node, "", "iota", [Axis("n", node.shape[0])], [], ["n"], attributes, node.dtype))


def roll(c: Context, node: Node) -> None:
    """roll along given dimensions: two slices that change places, one dimension after another."""
    tensor, shape = c.operand(node.ref("self"))
    shifts, dims = node.integers("shifts") or (), node.integers("dims") or ()
    if len(shifts) != len(dims):
        raise Unsupported("no dimensions (a roll of the flattened tensor)")
    names = letters(len(shape))
    for s, d in zip(shifts, dims, strict=True):
        k = dimension(node, d, len(shape))
        n = shape[k]
        move = s % n
        if move == 0:
            continue
        axes = [Axis(a, e) for a, e in zip(names, shape, strict=True)]
        reads = [
            Access(
                tensor, tuple(Affine.axis(a).shift(offset) if i == k else Affine.axis(a) for i, a in enumerate(names))
            )
            for offset in (-move, n - move)
        ]
        tensor = c.operator(node, "", "copy", axes, reads, names)
    c.put(node, tensor)


def flip_dimension(c: Context, node: Node, part: str, tensor: str, dim: int) -> str:
    """One dimension counted backwards: of two elements each is the other one, so both shifts are added; of more, rows
    are read at falling positions (an index of index notation does not fall).
    """
    shape = c.g.tensors[tensor].shape
    n = shape[dim]
    if n == 1:
        return tensor
    if n == 2:
        names = letters(len(shape))
        axes = [Axis(a, e) for a, e in zip(names, shape, strict=True)]
        reads = [
            Access(tensor, tuple(Affine.axis(a).shift(d) if k == dim else Affine.axis(a) for k, a in enumerate(names)))
            for d in (1, -1)
        ]
        return c.operator(node, part, "copy", axes, reads, names)
    falling = Ref(f"{node.name}/falling{n}")
    c.constants[falling] = np.arange(n)[::-1]
    c.shapes[falling], c.dtypes[falling] = (n,), "int64"
    return lookup(c, node, part, (tensor, shape), dim, c.operand(falling))


def flip(c: Context, node: Node) -> None:
    """flip of dimensions."""
    tensor, shape = c.operand(node.ref("self"))
    for k in sorted({dimension(node, d, len(shape)) for d in node.integers("dims") or ()}):
        tensor = flip_dimension(c, node, "", tensor, k)
    c.put(node, tensor)


def slice_scatter(c: Context, node: Node) -> None:
    """slice_scatter and select_scatter: a part along one dimension replaced, so what is before, the new part, what is
    after.
    """
    (tensor, shape), source = c.operand(node.ref("self")), node.ref("src")
    k = dimension(node, node.integer("dim", 0), len(shape))
    n = shape[k]
    if node.kind.startswith("aten.select"):
        low = node.integer("index", 0) % n
        high = low + 1
        middle = c.view(node, "unsqueeze", c.tensor(source), [*shape[:k], 1, *shape[k + 1 :]])
    else:
        if node.integer("step", 1) != 1:
            _interleaved(c, node, tensor, shape, k)
            return
        start, end = node.integer("start", 0), node.integer("end", n)
        low = min(max(start + n if start < 0 else start, 0), n)
        high = max(low, min(end + n if end < 0 else end, n))
        middle = tensor if high == low else c.tensor(cast(c, node, source, node.dtype) or source)
    parts = [
        part_of(c, node, part, tensor, [*shape[:k], b - a, *shape[k + 1 :]], {k: (1, a)}) if part else middle
        for part, a, b in (("before", 0, low), ("", low, high), ("after", high, n))
        if b > a
    ]
    c.put(node, parts[0] if len(parts) == 1 else concatenate(c, node, "", parts, k))


def _interleaved(c: Context, node: Node, tensor: str, shape: tuple[int, ...], k: int) -> None:
    """Every step-th element of a whole dimension replaced: one index of the inner digit of (n / step, step)."""
    n, step = shape[k], node.integer("step", 1)
    start, end = node.integer("start", 0), min(node.integer("end", n), n)
    if n % step or not 0 <= start < step or -(-(end - start) // step) != n // step:
        raise Unsupported(f"step {step} over a part of a dimension, or one that it does not divide")
    source = node.ref("src")
    new = c.tensor(cast(c, node, source, node.dtype) or source)
    whole = c.view(node, "digits", tensor, (*shape[:k], n // step, step, *shape[k + 1 :]))
    single = [*shape[:k], n // step, 1, *shape[k + 1 :]]
    parts = []
    for part, a, b in (("before", 0, start), ("", start, start + 1), ("after", start + 1, step)):
        if part and b > a:
            parts.append(part_of(c, node, part, whole, [*single[: k + 1], b - a, *single[k + 2 :]], {k + 1: (1, a)}))
        elif not part:
            parts.append(c.view(node, "written", new, single))
    c.put(node, c.view(node, "merge", concatenate(c, node, "", parts, k + 1), shape))


def without_elements(c: Context, node: Node) -> bool:
    """Whether no result has an element; those that have none are known, and only their shapes count (cat, pad)."""
    for k, (s, dtype) in enumerate(zip(node.shapes, node.dtypes, strict=True)):
        if prod(s) == 0:
            c.constants[Ref(node.name, k)] = np.empty(s, "float32" if dtype == "bfloat16" else dtype)
    return all(prod(s) == 0 for s in node.shapes)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "view_copy", "_reshape_copy", "flatten"), view
    ),
    "permute": permute,
    **dict.fromkeys(("transpose", "t"), transpose),
    "expand": expand,
    "repeat": repeat,
    "slice": slice_,
    "select": select,
    **dict.fromkeys(("split_with_sizes", "split", "chunk"), split_tensor),
    "unbind": unbind,
    **dict.fromkeys(("cat", "stack"), cat),
    "constant_pad_nd": pad,
    "arange": arange,
    "roll": roll,
    "flip": flip,
    **dict.fromkeys(("slice_scatter", "select_scatter"), slice_scatter),
}

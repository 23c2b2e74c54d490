"""Translates ONNX operators that move elements: views (reshape, flatten, squeeze, unsqueeze), transpose,
concat, split, slice, pad.

A reshape's target is a constant of the file, so it holds the file's own batch.  Under another batch the target follows
the batch only if that is unambiguous: the operand carries the batch in its first dimension (its shape differs there,
and only there, from the shape under the file's own batch), and so does the target (`-1`, `0`, or the file's own batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..building.flat import Unsupported, concatenate, part_of, reorder
from .context import Constant, Context, Handler, Node, OnnxError, position


def reshape(c: Context, node: Node) -> None:
    """Reshape to a constant shape (see the module docstring for the batch)."""
    target = c.integer_list(node, "shape", 1)
    if target is None:
        raise OnnxError(f"node {node.name!r}", "lacks the target shape")
    own = None if c.reference is None else c.reference[node.inputs[0]]
    shape = c.shape(node.inputs[0])
    zero = not node.integer("allowzero", 0)
    follows = len(node.inputs) > 1 and node.inputs[1] in c.folded  # computed from shapes: knows our batch already
    if own is None or own == shape or follows:
        new = _resolve(node, target, shape, zero)
    else:
        new = _follow_batch(c, node, target, own, shape, zero)
    c.result(node, c.view(node, "", c.tensor(node.inputs[0]), new))


def _resolve(node: Node, target: Sequence[int], shape: Sequence[int], zero: bool) -> list[int]:
    """0 copies a dimension (unless `allowzero`), -1 takes what is left."""
    place = f"node {node.name!r}"
    if (
        any(n == 0 and zero and k >= len(shape) for k, n in enumerate(target))
        or list(target).count(-1) > 1
        or min(target, default=1) < -1
    ):
        raise OnnxError(place, f"cannot reshape {tuple(shape)} to {list(target)}")
    new = [shape[k] if n == 0 and zero else n for k, n in enumerate(target)]
    if -1 in new:
        rest = prod(n for n in new if n != -1)
        if rest == 0 or prod(shape) % rest:
            raise OnnxError(place, f"cannot reshape {tuple(shape)} to {list(target)}")
        new[new.index(-1)] = prod(shape) // rest
    if prod(new) != prod(shape):
        raise OnnxError(place, f"cannot reshape {tuple(shape)} to {list(target)}")
    return new


def _follow_batch(
    c: Context, node: Node, target: Sequence[int], own: Sequence[int], shape: Sequence[int], zero: bool
) -> list[int]:
    """The target under our batch, from the shapes `own` and `shape` of the operand under the file's batch and ours."""
    place = f"node {node.name!r}"
    old, new = c.own_batch or 1, c.batch or 1
    under_own = _resolve(node, target, own, zero)
    carried = own[0] * new == shape[0] * old and tuple(own[1:]) == tuple(shape[1:])
    explicit = bool(target) and target[0] in (-1, 0)
    if not carried or not under_own or not (under_own[0] == old or (explicit and under_own[0] % old == 0)):
        raise OnnxError(
            place,
            f"reshape of {tuple(own)} to {under_own} does not tell where the batch {old} goes, so it cannot "
            f"become {new}; "
            "import with the file's own batch, or export the model with this batch",
        )
    return [under_own[0] // old * new, *under_own[1:]]


def flatten(c: Context, node: Node) -> None:
    """Flatten to a matrix: dimensions before and from `axis`."""
    shape = c.shape(node.inputs[0])
    axis = node.integer("axis", 1)
    axis = len(shape) if axis == len(shape) else position(axis, len(shape), f"node {node.name!r}")
    c.result(node, c.view(node, "", c.tensor(node.inputs[0]), (prod(shape[:axis]), prod(shape[axis:]))))


def squeeze(c: Context, node: Node) -> None:
    """Squeeze: drop dimensions of extent 1."""
    shape, given = c.shape(node.inputs[0]), c.integer_list(node, "axes", 1)
    place = f"node {node.name!r}"
    axes = (
        [k for k, n in enumerate(shape) if n == 1] if given is None else [position(a, len(shape), place) for a in given]
    )
    if c.reference is not None and given is None:
        axes = [k for k, n in enumerate(c.reference[node.inputs[0]]) if n == 1]
    if any(shape[k] != 1 for k in axes):
        raise OnnxError(place, f"cannot squeeze dimensions {axes} of {shape}")
    new = [n for k, n in enumerate(shape) if k not in axes]
    if not new:
        raise Unsupported("a scalar result")
    c.result(node, c.view(node, "", c.tensor(node.inputs[0]), new))


def unsqueeze(c: Context, node: Node) -> None:
    """Unsqueeze: insert dimensions of extent 1 (`axes` count in the result)."""
    shape, given = c.shape(node.inputs[0]), c.integer_list(node, "axes", 1)
    rank = len(shape) + len(given or ())
    axes = {position(a, rank, f"node {node.name!r}") for a in given or ()}
    rest = iter(shape)
    c.result(node, c.view(node, "", c.tensor(node.inputs[0]), [1 if k in axes else next(rest) for k in range(rank)]))


def transpose(c: Context, node: Node) -> None:
    """Transpose by `perm` (reversed without it)."""
    perm = node.integers("perm") or tuple(range(len(c.shape(node.inputs[0]))))[::-1]
    c.result(node, reorder(c, node, "", c.tensor(node.inputs[0]), perm))


def concat(c: Context, node: Node) -> None:
    """Concat: the sum of the inputs, each shifted to its place."""
    k = position(node.integer("axis", 1), len(c.shape(node.inputs[0])), f"node {node.name!r}")
    c.result(node, concatenate(c, node, "", [c.tensor(v) for v in node.inputs], k))


def split_tensor(c: Context, node: Node) -> None:
    """Split along one dimension, equally or by given sizes."""
    shape = c.shape(node.inputs[0])
    k = position(node.integer("axis", 0), len(shape), f"node {node.name!r}")
    count = len(node.outputs)
    size = -(-shape[k] // count)
    sizes = c.integer_list(node, "split", 1) or tuple(min(size, shape[k] - i * size) for i in range(count))
    if len(sizes) != count or sum(sizes) != shape[k] or min(sizes) < 1:
        raise OnnxError(f"node {node.name!r}", f"cannot split {shape[k]} into {list(sizes)}")
    start = 0
    for i, n in enumerate(sizes):
        extents = [*shape[:k], n, *shape[k + 1 :]]
        c.result(
            node,
            part_of(c, node, f"part{i}" if count > 1 else "", c.tensor(node.inputs[0]), extents, {k: (1, start)}),
            i,
        )
        start += n


def slice_(c: Context, node: Node) -> None:
    """Slice with constant bounds and positive steps."""
    shape, place = c.shape(node.inputs[0]), f"node {node.name!r}"
    starts, ends = c.integer_list(node, "starts", 1), c.integer_list(node, "ends", 2)
    if starts is None or ends is None or len(starts) != len(ends):
        raise OnnxError(place, "needs equally many starts and ends")
    axes = [position(a, len(shape), place) for a in c.integer_list(node, "axes", 3) or range(len(starts))]
    steps = c.integers(node, 4, "steps") if node.has(4) else (1,) * len(starts)
    extents, index = list(shape), {}
    for k, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            raise Unsupported(f"steps={step}")
        n = shape[k]
        low, high = (min(max(p + n if p < 0 else p, 0), n) for p in (start, end))
        if c.reference is not None and c.reference[node.inputs[0]][k] != n and (low, high, step) != (0, n, 1):
            raise OnnxError(place, f"slices dimension {k}, which carries the batch; import with the file's own batch")
        if high <= low:
            raise OnnxError(place, f"takes nothing of dimension {k} of {shape}")
        extents[k], index[k] = -(-(high - low) // step), (step, low)
    c.result(node, part_of(c, node, "", c.tensor(node.inputs[0]), extents, index))


def pad(c: Context, node: Node) -> None:
    """Pad with zeros; negative padding crops."""
    shape = c.shape(node.inputs[0])
    if (mode := node.text("mode", "constant")) != "constant":
        raise Unsupported(f"mode={mode}")
    filler = c.constant_of(node.inputs[2]) if node.has(2) else None
    if node.number("value", 0.0) != 0.0 or (node.has(2) and (filler is None or filler.item() != 0)):
        raise Unsupported("a value other than 0")
    pads = c.integer_list(node, "pads", 1) or ()
    axes = [
        position(a, len(shape), f"node {node.name!r}")
        for a in (c.integers(node, 3, "axes") if node.has(3) else range(len(shape)))
    ]
    if len(pads) != 2 * len(axes):
        raise OnnxError(f"node {node.name!r}", f"needs {2 * len(axes)} paddings, has {list(pads)}")
    extents, index = list(shape), {}
    for i, k in enumerate(axes):
        before, after = pads[i], pads[len(axes) + i]
        extents[k] += before + after
        if before or after:
            index[k] = (1, -before)
    if min(extents) < 1:
        raise OnnxError(f"node {node.name!r}", f"crops {shape} to {extents}")
    c.result(node, part_of(c, node, "", c.tensor(node.inputs[0]), extents, index))


def constant(c: Context, node: Node) -> None:
    """Constant and ConstantOfShape: known when small, else a parameter (light models make their weights so)."""
    value = node.attributes.get("value")
    array: Constant | None = value if isinstance(value, np.ndarray) else None
    if node.kind == "Constant":
        for key in ("value_int", "value_ints", "value_float", "value_floats"):
            if key in node.attributes:
                array = np.array(node.attributes[key], np.int64 if "int" in key else np.float32)
        if array is None:
            raise Unsupported("a value that is not a number")
        c.constants[node.outputs[0]] = array
        return
    shape = node.integers("shape") or c.integers(node, 0, "shape")
    dtype = "float32" if array is None else array.dtype.name
    if prod(shape) <= 64 and dtype.startswith("int"):
        c.constants[node.outputs[0]] = np.full(shape, 0 if array is None else array.reshape(-1)[0])
        return
    c.values[node.outputs[0]] = c.g.parameter(
        c.unique(node.outputs[0], own=True), shape or (1,), dtype, None if shape else ()
    )


HANDLERS: dict[str, Handler] = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Concat": concat,
    "Split": split_tensor,
    "Slice": slice_,
    "Pad": pad,
    "Constant": constant,
    "ConstantOfShape": constant,
    "ConstantFill": constant,
}

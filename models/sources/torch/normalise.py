"""Translates core ATen operators along dimensions: softmax, normalisations, reductions, running sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...program.index import Access, Affine, Axis
from ...program.operators import Value
from ..building.flat import Folding, Unsupported, letters, normalise, pointwise, reduce_dimensions, scale_of_mean
from .context import Context, Handler, Node, Ref, TorchError, dimension
from .ordered import extreme_position
from .pointwise import short_kind
from .promoted import cast


def softmax(c: Context, node: Node) -> None:
    """_softmax and _log_softmax over one dimension."""
    x = node.ref("self")
    tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
    over = dimension(node, node.integer("dim", -1), len(shape))
    c.put(
        node,
        normalise(
            c,
            node,
            "",
            "softmax" if short_kind(node).strip("_") == "softmax" else "log_softmax",
            [(tensor, shape)],
            [over],
        ),
    )


def layer_norm(c: Context, node: Node) -> None:
    """native_layer_norm over the last dimensions; its statistics are not kept."""
    c.require_unused(node, 1)
    x, shape = c.operand(node.ref("input"))
    inputs = [(x, shape), *(c.operand(r) for k in ("weight", "bias") if (r := node.optional(k)) is not None)]
    if node.optional("weight") is None and node.optional("bias") is not None:
        raise Unsupported("a bias without weight")
    count = len(node.integers("normalized_shape") or ())
    over = range(len(shape) - count, len(shape))
    c.put(node, normalise(c, node, "", "layer_norm", inputs, over, epsilon=node.number("eps", 1e-5)))


def group_norm(c: Context, node: Node) -> None:
    """native_group_norm: layer normalisation over the channels of a group and the image, then a scale and shift per
    channel.
    """
    c.require_unused(node, 1)
    x, shape = c.operand(node.ref("input"))
    groups = node.integer("group", 1)
    (batch, channels, *spatial) = shape
    split = c.view(node, "split", x, (batch, groups, channels // groups, *spatial))
    inner = (batch, groups, channels // groups, *spatial)
    y = normalise(c, node, "", "layer_norm", [(split, inner)], range(2, len(inner)), epsilon=node.number("eps", 1e-5))
    y = c.view(node, "merge", y, shape)
    for key, function in (("weight", "multiply"), ("bias", "add")):
        stored = node.optional(key)
        if stored is not None:
            y = _per_channel(c, node, key, function, y, c.tensor(stored), shape)
    c.put(node, y)


def _per_channel(c: Context, node: Node, part: str, function: str, x: str, stored: str, shape: Sequence[int]) -> str:
    names = letters(len(shape))
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    reads = [Access(x, tuple(map(Affine.axis, names))), Access(stored, (Affine.axis(names[1]),))]
    return c.operator(node, part, function, axes, reads, names)


def batch_norm(c: Context, node: Node) -> None:
    """Batch normalisation: by stored statistics (inference), or by those of the batch (training)."""
    c.require_unused(node, 1)
    x, shape = c.operand(node.ref("input"))
    names, epsilon = letters(len(shape)), node.number("eps", 1e-5)
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    trained = bool(node.integer("training", 0)) if "training" in node.arguments else "no_training" not in node.kind
    reads = [Access(x, tuple(map(Affine.axis, names)))]
    stored = ["weight", "bias"] if trained else ["weight", "bias", "running_mean", "running_var"]
    if trained and node.optional("weight") is None and node.optional("bias") is None:
        stored = []
    reads += [Access(_of_channels(c, node, k, shape[1]), (Affine.axis(names[1]),)) for k in stored]
    attributes: dict[str, Value] = {"epsilon": epsilon}
    if trained:
        attributes["over"] = tuple(a for k, a in enumerate(names) if k != 1)
    c.put(node, c.operator(node, "", "layer_norm" if trained else "batch_norm", axes, reads, names, attributes))


def _of_channels(c: Context, node: Node, key: str, channels: int) -> str:
    """A weight, bias or statistic per channel; a layer without weight has ones there, one without bias zeros."""
    given = node.optional(key)
    if given is None and key not in ("weight", "bias"):
        raise Unsupported(f"no {key}")
    if given is None:
        given = Ref(f"{node.name}/{key}")
        c.constants[given] = np.full((channels,), float(key == "weight"))
        c.shapes[given], c.dtypes[given] = (channels,), node.dtype
    return c.tensor(given)


def reduction(c: Context, node: Node) -> None:
    """sum, mean, amax, amin, any, max, min over given dimensions, or all."""
    kind, x = short_kind(node), node.ref("self")
    if kind in ("max", "min") and Ref(node.name, 1) in c.read:
        extreme_position(c, node, dimension(node, node.integer("dim", 0), len(c.shapes[x])), kind == "max", 1)
    function = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min", "any": "max", "max": "max", "min": "min"}[
        kind
    ]
    if kind == "any" and c.dtypes[x] != "bool":
        raise Unsupported(f"element type {c.dtypes[x]}")
    promoted = x if function != "sum" else cast(c, node, x, node.dtype) or x
    tensor, shape = c.operand(promoted)
    dims = sorted({dimension(node, k, len(shape)) for k in node.integers("dim") or range(len(shape))})
    if not shape or not dims:
        c.put(node, tensor)
        return
    scale = scale_of_mean(shape, dims) if kind == "mean" else 1.0
    more: dict[str, Value] = {"first" if "dim" in node.arguments else "nan": 1} if kind in ("max", "min") else {}
    y = reduce_dimensions(
        c, node, "", tensor, shape, dims, Folding(function, scale, bool(node.integer("keepdim", 0))), **more
    )
    c.put(node, c.view(node, "scalar", y, (1,)) if not node.shape else y)


def variance(c: Context, node: Node) -> None:
    """var, the mean square distance from the mean; std, its root, whose gradient is 0 at 0."""
    x, shape = c.operand(node.ref("self"))
    dims = sorted({dimension(node, k, len(shape)) for k in node.integers("dim") or range(len(shape))})
    count = prod(shape[k] for k in dims)
    free = node.number("correction", 1.0) if "correction" in node.arguments else float(node.integer("unbiased", 1))
    if count - free <= 0:
        raise TorchError(
            f"node {node.name!r}", f"the variance of {count} elements with correction {free:g} does not exist"
        )
    kept = tuple(1 if k in dims else n for k, n in enumerate(shape))
    mean = reduce_dimensions(c, node, "mean", x, shape, dims, Folding("sum", 1.0 / count, True))
    centred = pointwise(c, node, "centred", "subtract", [(x, shape), (mean, kept)])
    square = pointwise(c, node, "square", "power", [(centred, shape)], None, exponent=2.0)
    kind = short_kind(node)
    part = "" if kind == "var" else "variance"
    how = Folding("sum", 1.0 / (count - free), bool(node.integer("keepdim", 0)))
    y = reduce_dimensions(c, node, part, square, shape, dims, how)
    y = c.view(node, "scalar", y, (1,)) if not node.shape else y
    if kind != "var":
        y = pointwise(c, node, "", "sqrt", [(y, c.g.tensors[y].shape)], None, flat=1)
    c.put(node, y)


def cumulative(c: Context, node: Node) -> None:
    """cumsum along one dimension."""
    x = node.ref("self")
    tensor, shape = c.operand(x if c.dtypes[x] == "bool" else cast(c, node, x, node.dtype) or x)
    over = [dimension(node, node.integer("dim", 0), len(shape))]
    if x in c.counted:
        c.counted[Ref(node.name)] = c.counted[x]
    c.put(node, normalise(c, node, "", "cumulative_sum", [(tensor, shape)], over, node.dtype))


HANDLERS: dict[str, Handler] = {
    "_softmax": softmax,
    "_log_softmax": softmax,
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    **dict.fromkeys(
        (
            "_native_batch_norm_legit_no_training",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "native_batch_norm",
            "_batch_norm_with_update_functional",
        ),
        batch_norm,
    ),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "any", "max", "min"), reduction),
    **dict.fromkeys(("var", "std"), variance),
    "cumsum": cumulative,
}

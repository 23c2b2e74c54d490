"""Core ATen operators that are a few operators here: activations of two branches, windows of a dimension, norms.

elu(x)      scale relu(x) + alpha scale (exp(a min(x, 0)) - 1)
expm1(x)    exp(x) - 1
unfold      rows read at  step * place + tap, or a view where windows do not overlap
"""

from __future__ import annotations

from math import inf

import numpy as np

from ..building.flat import gathered, part_of, permuted, pointwise
from .context import Context, Handler, Node, Ref, dimension
from .pointwise import cast


def elu(c: Context, node: Node) -> None:
    """elu with alpha, scale and input_scale (celu and selu become it)."""
    x = node.ref("self")
    tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
    alpha, scale, steep = (node.number(k, 1.0) for k in ("alpha", "scale", "input_scale"))
    up = pointwise(c, node, "relu", "relu", [(tensor, shape)])
    down = pointwise(c, node, "low", "clip", [(tensor, shape)], low=-inf, high=0.0)
    if steep != 1.0:
        down = pointwise(c, node, "steep", "scale", [(down, shape)], scale=steep)
    down = pointwise(c, node, "exp", "exp", [(down, shape)])
    down = pointwise(c, node, "shift", "shift", [(down, shape)], shift=-1.0)
    if alpha * scale != 1.0:
        down = pointwise(c, node, "alpha", "scale", [(down, shape)], scale=alpha * scale)
    if scale != 1.0:
        up = pointwise(c, node, "scale", "scale", [(up, shape)], scale=scale)
    c.put(node, pointwise(c, node, "", "add", [(up, shape), (down, shape)]))


def less_one(c: Context, node: Node) -> None:
    """expm1: exp(x) - 1."""
    x = node.ref("self")
    tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
    grown = pointwise(c, node, "exp", "exp", [(tensor, shape)])
    c.put(node, pointwise(c, node, "", "shift", [(grown, shape)], shift=-1.0))


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
        at = Ref(f"{node.name}/places")
        c.constants[at] = step * np.arange(count)[:, None] + np.arange(size)
        c.shapes[at], c.dtypes[at] = (count, size), "int64"
        y = gathered(c, node, "windows", (tensor, shape), k, c.operand(at))
    last = len(shape)
    order = [*range(k + 1), *range(k + 2, last + 1), k + 1]
    c.put(node, y if order == list(range(last + 1)) else permuted(c, node, "", y, order))


HANDLERS: dict[str, Handler] = {"elu": elu, "expm1": less_one, "unfold": unfold}

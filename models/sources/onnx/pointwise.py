"""Translates ONNX operators that work element by element, or normalise: activations, arithmetic,
batch_norm, softmax, layer_norm, LRN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import FUNCTIONS, Value
from ..building.flat import (
    Folding,
    Unsupported,
    broadcast,
    letters,
    normalise,
    pointwise,
    reduce_dimensions,
    scale_of_mean,
)
from .context import Context, Handler, Node, position

SIMPLE = {
    "Relu": "relu",
    "Neg": "negate",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Exp": "exp",
    "Erf": "erf",
    "Sqrt": "sqrt",
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Sum": "sum_inputs",
}
"""ONNX operator -> our function, the same mathematics."""


def operand(c: Context, value: str) -> tuple[str, tuple[int, ...]]:
    """Tensor and shape of a value."""
    return c.tensor(value), c.shape(value)


def simple(c: Context, node: Node) -> None:
    """A row of `SIMPLE`; multiplication by or division by a constant scalar is `scale`."""
    if node.kind == "Div" and not c.dtype(node.inputs[0]).startswith(("float", "bfloat")):
        raise Unsupported("whole numbers, whose quotients are cut towards zero")
    for i, scalar in enumerate(c.constant_of(v) if c.shape(v) == () else None for v in node.inputs):
        factor = None if scalar is None or scalar.dtype.kind != "f" or len(node.inputs) != 2 else float(scalar.item())
        other = node.inputs[1 - i] if len(node.inputs) == 2 else ""
        if (
            factor is not None
            and c.shape(other) != ()
            and (node.kind == "Mul" or (node.kind == "Div" and i == 1 and factor != 0))
        ):
            scale = factor if node.kind == "Mul" else 1.0 / factor
            c.result(node, pointwise(c, node, "", "scale", [operand(c, other)], scale=scale))
            return
    c.result(node, pointwise(c, node, "", SIMPLE[node.kind], [operand(c, v) for v in node.inputs]))


def identity(c: Context, node: Node) -> None:
    """Identity, and Dropout at inference: nothing is computed."""
    c.require_unused(node, 1)
    c.result(node, c.tensor(node.inputs[0]))


def clip(c: Context, node: Node) -> None:
    """Clip; without upper limit and with lower limit 0 it is relu."""
    bounds = [-inf, inf]
    for i, key in enumerate(("min", "max")):
        if key in node.attributes:
            bounds[i] = node.number(key, 0.0)
        elif node.has(i + 1):
            found = c.constant_of(node.inputs[i + 1])
            if found is None:
                raise Unsupported(f"computed {key}")
            bounds[i] = float(found.item())
    x = operand(c, node.inputs[0])
    low, high = (b if abs(b) < 3.4e38 else (inf if b > 0 else -inf) for b in bounds)
    if (low, high) == (-inf, inf):
        c.result(node, x[0])
    elif (low, high) == (0.0, inf):
        c.result(node, pointwise(c, node, "", "relu", [x]))
    elif "clip" in FUNCTIONS and max(abs(low), abs(high)) < inf:
        c.result(node, pointwise(c, node, "", "clip", [x], low=low, high=high))
    else:
        raise Unsupported(f"limits {low:g} and {high:g}")


def gelu(c: Context, node: Node) -> None:
    """Gelu, exact or by tanh."""
    how: dict[str, Value] = {} if node.text("approximate", "none") == "none" else {"approximate": "tanh"}
    c.result(node, pointwise(c, node, "", "gelu", [operand(c, node.inputs[0])], None, **how))


def batch_norm(c: Context, node: Node) -> None:
    """BatchNormalization at inference: statistics per channel are stored."""
    c.require_unused(node, 1)
    if node.integer("training_mode", 0):
        raise Unsupported("training_mode=1")
    if not node.integer("spatial", 1):
        raise Unsupported("spatial=0")
    shape = c.shape(node.inputs[0])
    names = letters(len(shape))
    stored = [Access(c.tensor(v), (Affine.axis(names[1]),)) for v in node.inputs[1:5]]
    x = broadcast(c.tensor(node.inputs[0]), shape, names, shape)
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    c.result(
        node, c.operator(node, "", "batch_norm", axes, [x, *stored], names, {"epsilon": node.number("epsilon", 1e-5)})
    )


def softmax(c: Context, node: Node) -> None:
    """Softmax: over one axis; before operator set 13 over all dimensions from `axis` on."""
    x = operand(c, node.inputs[0])
    rank = len(x[1])
    first = position(node.integer("axis", -1 if c.opset >= 13 else 1), rank, f"node {node.name!r}")
    over = range(first, rank if c.opset < 13 else first + 1)
    c.result(node, normalise(c, node, "", "softmax", [x], over))


def layer_norm(c: Context, node: Node) -> None:
    """LayerNormalization over all dimensions from `axis` on."""
    c.require_unused(node, 1)
    inputs = [operand(c, v) for k, v in enumerate(node.inputs) if node.has(k)]
    rank = len(inputs[0][1])
    first = position(node.integer("axis", -1), rank, f"node {node.name!r}")
    c.result(
        node, normalise(c, node, "", "layer_norm", inputs, range(first, rank), epsilon=node.number("epsilon", 1e-5))
    )


def local_response(c: Context, node: Node) -> None:
    """LRN: x[c] / (bias + alpha/size * sum over taps of x[c + tap - (size-1)/2]^2)^beta, taps over channels."""
    shape, size = c.shape(node.inputs[0]), node.integer("size", 1)
    names = letters(len(shape))
    index = [Affine.axis(a) for a in names]
    index[1] = index[1].plus("tap").shift(-((size - 1) // 2))
    axes = [*(Axis(a, n) for a, n in zip(names, shape, strict=True)), Axis("tap", size, Combine.SUM, False)]
    attributes: dict[str, Value] = {
        "size": size,
        "axis": names[1],
        "alpha": node.number("alpha", 1e-4),
        "beta": node.number("beta", 0.75),
        "bias": node.number("bias", 1.0),
    }
    x = Access(c.tensor(node.inputs[0]), tuple(index))
    c.result(node, c.operator(node, "", "local_response", axes, [x], names, attributes))


def reduction(c: Context, node: Node, axes: Sequence[int], function: str, mean: bool, keep: bool) -> None:
    """Reduce the dimensions `axes`; `mean` divides the sum by their number of elements."""
    tensor, shape = operand(c, node.inputs[0])
    scale = scale_of_mean(shape, axes) if mean else 1.0
    c.result(node, reduce_dimensions(c, node, "", tensor, shape, axes, Folding(function, scale, keep)))


def global_pool(c: Context, node: Node) -> None:
    """GlobalAveragePool and GlobalMaxPool: over all spatial dimensions, which stay with extent 1."""
    rank, average = len(c.shape(node.inputs[0])), node.kind == "GlobalAveragePool"
    reduction(c, node, range(2, rank), "sum" if average else "max", average, keep=True)


def reduce(c: Context, node: Node) -> None:
    """ReduceSum, ReduceMean, ReduceMax, ReduceMin."""
    rank, given = len(c.shape(node.inputs[0])), c.integer_list(node, "axes", 1)
    if not given and node.integer("noop_with_empty_axes", 0):
        c.result(node, c.tensor(node.inputs[0]))
        return
    axes = [position(a, rank, f"node {node.name!r}") for a in given or range(rank)]
    if len(axes) == rank and not node.integer("keepdims", 1):
        raise Unsupported("a scalar result")
    if node.kind == "ReduceMean" and not c.dtype(node.inputs[0]).startswith(("float", "bfloat")):
        raise Unsupported("whole numbers, whose mean is cut towards zero")
    function = {"ReduceSum": "sum", "ReduceMean": "sum", "ReduceMax": "max", "ReduceMin": "min"}[node.kind]
    reduction(c, node, axes, function, node.kind == "ReduceMean", bool(node.integer("keepdims", 1)))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(SIMPLE, simple),
    "Identity": identity,
    "Dropout": identity,
    "Clip": clip,
    "Gelu": gelu,
    "BatchNormalization": batch_norm,
    "Softmax": softmax,
    "LayerNormalization": layer_norm,
    "LRN": local_response,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"), reduce),
}

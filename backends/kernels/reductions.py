"""Computes reductions, normalisations and windows.

reduce          out = combine over the reduction axes; `sum` times attribute scale (a sum of parts stays linear in it)
softmax         m = MAX over `over`,  s = SUM exp(x - m),  y = exp(x - m) / s
layer_norm      mu = SUM x / n,  v = SUM (x - mu)^2 / n,  y = (x - mu) / sqrt(v + epsilon) [* gamma [+ beta]]
                n is the full extent of the `over` axes; each statistic is all-reduced where the box holds part of them
log_softmax     y = x - m - log s;      rms_norm   y = x / sqrt(SUM x^2 / n + epsilon) [* gamma]
top_k_mask      true at the k largest elements along `over`, of equal ones those with the lower index  (routing of
                experts)
argsort         y[r] = position of the r-th smallest element along `over` (attribute descending = 1: largest), equal
                ones by position
cumulative_sum  y[i] = sum over j <= i of x[j] along `over`; attribute exclusive = 1: over j < i
max_pool        max over the taps inside the tensor (-inf if there is none)
average_pool    sum over the taps / their number; count_include_pad = 0: / the number of taps inside the tensor
local_response  y = x / (bias + alpha / size * SUM over taps x^2)^beta,  taps over channels (AlexNet, section 3.3; ONNX
                LRN)

A rank with an empty share of an `over` axis takes part in every all-reduce with neutral elements: the others wait for
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from types import ModuleType

from ...models.program.graph import Graph
from ...models.program.index import Access, Affine, Combine
from ...models.program.operators import Operator
from .blocks import (
    Array,
    Block,
    KernelError,
    align,
    execution_dtype,
    fold,
    lengths,
    neutral,
    spread,
    view,
)
from .elementwise import in_type_of, number
from .moments import centres, moments_of
from .task import Task

_COMBINES = {"sum": Combine.SUM, "max": Combine.MAX, "min": Combine.MIN}


def _operand(
    xp: ModuleType,
    op: Operator,
    graph: Graph,
    box: dict[str, tuple[int, int]],
    operands: Sequence[Block],
    j: int,
    fill: float,
) -> Array:
    access = op.inputs[j]
    return view(
        xp, operands[j], access, box, graph.tensor(access.tensor).shape, fill, f"operator {op.name!r}, input {j}"
    )


def reduce(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    """sum, max or min over the reduction axes of the box; neutral elements where that part is empty."""
    combine = _COMBINES[op.function]
    out, shape = op.output.axes, lengths(box, op.output.axes)
    dtype = operands[0].array.dtype
    reduced = [a.name for a in op.reduction_axes]
    if 0 in lengths(box, reduced):
        return xp.full(shape, neutral(dtype, combine), dtype=dtype)  # type: ignore[no-any-return]
    axes = op.inputs[0].axes
    array = _operand(xp, op, graph, box, operands, 0, neutral(dtype, combine))
    array = fold(xp, array, tuple(d for d, a in enumerate(axes) if a in reduced), combine)
    result = align(array, [a for a in axes if a not in reduced], out)
    if combine is Combine.SUM:
        factor = prod(lengths(box, [a for a in reduced if a not in axes])) * number(op, "scale", 1.0)
        if factor != 1.0:
            result = (result * in_type_of(result, factor)).astype(dtype)
    return spread(xp, result, shape)


def normalise(t: Task) -> Array:
    """A row of the table above.  Calls `collectives` once per statistic, on arrays with the `over` axes at length 1;
    not for moments that are kept.
    """
    xp, op, shape, collectives = t.xp, t.op, t.shape, t.collectives
    if not op.spec.statistics:
        return _along(xp, op, t.graph, t.box, t.operands, t.whole)
    moments = t.moments
    if not t.whole and collectives is None and moments is None:
        if 0 in shape:  # a rank outside of the view that the operator runs on
            return xp.zeros(shape, dtype=t.operands[0].array.dtype)  # type: ignore[no-any-return]
        raise KernelError(t.place, f"the box holds part of {', '.join(op.over)}: a reducer of statistics is needed")
    dims = tuple(op.output.axes.index(a) for a in op.over)
    x = xp.broadcast_to(t.operand(0), shape)

    def statistic(array: Array, combine: Combine) -> Array:
        local = fold(xp, array, dims, combine, keepdims=True)
        return local if collectives is None else collectives.all_reduce(spread(xp, local, local.shape), combine)

    if op.function in ("softmax", "log_softmax"):
        centred = x - statistic(x, Combine.MAX)
        e = xp.exp(centred)
        s = statistic(e, Combine.SUM)
        return spread(xp, e / s if op.function == "softmax" else centred - xp.log(s), shape)
    if moments is None:
        n, epsilon = prod(op.axis(a).extent for a in op.over), number(op, "epsilon", 1e-5)
        moments, centred = moments_of(xp, x, lambda a: statistic(a, Combine.SUM), n, epsilon, centres(op.function))
        t.keep(moments)
    else:
        centred = x if moments.mean is None else x - moments.mean
    gains = [t.operand(j) for j in range(1, len(op.inputs))]
    folded = bool(gains) and all(gains[0].shape[d] == 1 for d in dims)  # of channels: one pass over x less
    y = centred * (moments.inverse * gains.pop(0) if folded else moments.inverse)
    for gain, operation in zip(gains, (xp.multiply, xp.add)[folded:]):
        y = operation(y, gain, out=y) if gain.dtype == y.dtype else operation(y, gain)
    return spread(xp, y, shape)


def _along(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block], whole: bool
) -> Array:
    """top_k_mask, argsort and cumulative_sum.  Raises `KernelError` if the box holds part of the axis."""
    place, out, shape = f"operator {op.name!r}", op.output.axes, lengths(box, op.output.axes)
    if len(op.over) != 1:
        raise KernelError(place, f"{op.function} goes along one axis, not {len(op.over)}")
    if 0 in shape:
        return xp.zeros(shape, dtype=execution_dtype(graph.tensor(op.output.tensor).dtype))  # type: ignore[no-any-return]
    if not whole:
        raise KernelError(place, f"axis {op.over[0]!r} must not be split")
    dim = out.index(op.over[0])
    x = xp.broadcast_to(align(_operand(xp, op, graph, box, operands, 0, 0), op.inputs[0].axes, out), shape)
    if op.function == "argsort":
        positions = argsort(xp, x, dim, bool(number(op, "descending", 0)))
        return spread(xp, positions.astype(graph.tensor(op.output.tensor).dtype), shape)
    if op.function == "cumulative_sum":
        dtype = execution_dtype(graph.tensor(op.output.tensor).dtype) if x.dtype.kind == "b" else x.dtype
        total = xp.cumsum(x, axis=dim, dtype=dtype)
        return spread(xp, total - x if number(op, "exclusive", 0) else total, shape)
    # rank of an element: how many stand before it; a stable descending order puts equal ones in index order
    order = argsort(xp, x, dim, True) if x.dtype.kind in "iu" else xp.argsort(-x, axis=dim, kind="stable")
    rank = xp.argsort(order, axis=dim, kind="stable")
    return spread(xp, rank < number(op, "k", 1), shape)


def argsort(xp: ModuleType, x: Array, dim: int, descending: bool) -> Array:
    """Positions in stable ascending or descending order along a dimension; NaN counts as the greatest.

    >>> import numpy
    >>> argsort(numpy, numpy.array([2, 3, 3, 1]), 0, True).tolist()
    [1, 2, 0, 3]
    """
    if not descending:
        return xp.argsort(x, axis=dim, kind="stable")  # type: ignore[no-any-return]
    turned = xp.argsort(xp.flip(x, dim), axis=dim, kind="stable")  # no sign is changed: numbers may have no opposite
    return x.shape[dim] - 1 - xp.flip(turned, dim)  # type: ignore[no-any-return]


def window(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    """max_pool, average_pool, local_response.  Raises `KernelError` if the box holds part of a window."""
    taps = [a.name for a in op.reduction_axes]
    out, shape = op.output.axes, lengths(box, op.output.axes)
    dtype = operands[0].array.dtype
    if 0 in shape:  # taps, too, are empty on a rank outside of the view that the operator runs on
        return xp.zeros(shape, dtype=dtype)  # type: ignore[no-any-return]
    for a in op.reduction_axes:
        if box[a.name] != (0, a.extent):
            raise KernelError(f"operator {op.name!r}", f"tap axis {a.name!r} must not be split")
    combine = Combine.MAX if op.function == "max_pool" else Combine.SUM
    axes = op.inputs[0].axes
    if any(t not in axes for t in taps):
        raise KernelError(f"operator {op.name!r}", f"every tap axis must occur in the window, {taps} do not all")
    x = align(_operand(xp, op, graph, box, operands, 0, neutral(dtype, combine)), axes, (*taps, *out))
    squares = op.function == "local_response"
    total = None
    for tap in product(*(range(n) for n in x.shape[: len(taps)])):  # a few whole-array operations beat many short rows
        value = x[tap] * x[tap] if squares else x[tap]
        total = value if total is None else xp.maximum(total, value) if combine is Combine.MAX else total + value
    result: Array = x[()] if total is None else total
    if op.function == "average_pool":
        result = (result / _divisor(xp, op, graph, box)).astype(dtype)
    elif squares:
        centre = Access(op.inputs[0].tensor, tuple(_without(i, taps) for i in op.inputs[0].index))
        own = view(xp, operands[0], centre, box, graph.tensor(centre.tensor).shape, 0, f"operator {op.name!r}, input 0")
        scale = number(op, "alpha", 1e-4) / number(op, "size", prod(op.axis(t).extent for t in taps))
        result = align(own, centre.axes, out) / (number(op, "bias", 1.0) + scale * result) ** number(op, "beta", 0.75)
    return spread(xp, result, shape)


def _without(index: Affine, taps: Sequence[str]) -> Affine:
    """The index of the window's centre: the element that the output element normalises."""
    kept = tuple((a, c) for a, c in index.terms if a not in taps)
    return index if len(kept) == len(index.terms) else Affine(kept)


def _divisor(xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]]) -> Array:
    """Number of taps that count, per output element (length 1 along axes it does not depend on)."""
    taps, out = [a.name for a in op.reduction_axes], op.output.axes
    if number(op, "count_include_pad", 0) != 0:
        return xp.full((1,) * len(out), prod(a.extent for a in op.reduction_axes))  # type: ignore[no-any-return]
    inside: Array = xp.ones((1,) * (len(taps) + len(out)), dtype=bool)
    order = (*taps, *out)
    for index, extent in zip(op.inputs[0].index, graph.tensor(op.inputs[0].tensor).shape, strict=True):
        if any(a in taps for a, _ in index.terms):
            ones = Block(xp.ones((extent,), dtype=bool), (0,))
            one_dim = Access(op.inputs[0].tensor, (index,))
            inside = inside * align(view(xp, ones, one_dim, box, (extent,), 0, op.name), one_dim.axes, order)
    return xp.maximum(xp.sum(inside, axis=tuple(range(len(taps)))), 1)  # type: ignore[no-any-return]

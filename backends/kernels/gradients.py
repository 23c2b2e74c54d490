"""Computes gradients that are no maps: contractions with reversed taps or strides, normalisations, windows,
scatters, copies.

With g the incoming gradient, sums over `over` (all-reduced where the box holds part of them), n their full extent:

    product_sum             sum_j A_j B_j
    softmax_gradient        y (g - SUM g y)                     log_softmax_gradient   g - exp(y) SUM g
    layer_norm_gradient     h = g gamma, x^ = (x - SUM x / n) / s, s^2 = SUM (x - mean)^2 / n + epsilon:
                            (h - SUM h / n - x^ SUM h x^ / n) / s
    rms_norm_gradient       x^ = x / s, s^2 = SUM x^2 / n + epsilon:   (h - x^ SUM h x^ / n) / s
    extreme_gradient        g [x = y] / SUM [x = y];  attribute nan = 1: NaN is equal to NaN
    reverse_cumulative_sum  SUM over j >= i of g[j];  exclusive = 1: j > i
    embedding_gradient      SUM [ids = v] g

Windows: `gradient_windows`.  Attention: `attention`.

copy_gradient: element o of g goes to index  terms o + offset  of the dimensions `at`, all others straight through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Final

from ...models.program.index import Combine
from .attention import ATTENTION_GRADIENTS
from .blocks import Array, KernelError, align, fold, lengths, spread
from .contract import contract
from .elementwise import number
from .gradient_windows import average_pool_gradient, local_response_gradient, max_pool_gradient, strided_gradient
from .moments import centres, moments_of
from .scatter import scatter
from .task import Task

# --- contractions
# ------------------------------------------------------------------------------------------------------


def _product_sum(t: Task) -> Array:
    total: Array | None = None
    for j in range(0, len(t.op.inputs), 2):
        pair = replace(t.op, function="product", inputs=t.op.inputs[j : j + 2])
        part = contract(t.xp, pair, t.graph, t.box, t.operands[j : j + 2])
        total = part if total is None else total + part
    if total is None:
        raise KernelError(t.place, "product_sum needs inputs")
    return total


# --- normalisations
# ----------------------------------------------------------------------------------------------------


def _statistics(t: Task) -> Callable[[Array], Array]:
    """The sum over the `over` axes, all-reduced where the box holds part of them; axes are kept at length 1."""
    sums = _several_statistics(t)
    return lambda array: sums([array])[0]


def _several_statistics(t: Task) -> Callable[[list[Array]], list[Array]]:
    """`_statistics` of several arrays at once: they travel together."""
    out = t.op.output.axes
    dims = tuple(out.index(a) for a in t.op.over)
    if not t.whole and not t.idle and t.collectives is None:
        raise KernelError(t.place, f"the box holds part of {', '.join(t.op.over)}: a reducer of statistics is needed")

    def totals(arrays: list[Array]) -> list[Array]:
        local = [fold(t.xp, t.xp.broadcast_to(a, t.shape), dims, Combine.SUM, keepdims=True) for a in arrays]
        if t.collectives is None:
            return local
        return t.collectives.all_reduce_together([spread(t.xp, a, a.shape) for a in local], Combine.SUM)

    return totals


def _softmax(t: Task) -> Array:
    total, g, y = _statistics(t), t.operand(0), t.operand(1)
    return y * (g - total(g * y))


def _log_softmax(t: Task) -> Array:
    total, g, y = _statistics(t), t.operand(0), t.operand(1)
    return g - t.xp.exp(y) * total(g)  # type: ignore[no-any-return]


def _norm(t: Task) -> Array:
    total, g, x = _statistics(t), t.operand(0), t.xp.broadcast_to(t.operand(1), t.shape)
    n, centring = prod(t.op.axis(a).extent for a in t.op.over), centres(t.op.function)
    moments = t.moments
    if moments is None:
        moments, centred = moments_of(t.xp, x, total, n, number(t.op, "epsilon", 1e-5), centring)
        t.keep(moments)
    else:
        centred = x if moments.mean is None else x - moments.mean
    inverse, normal = moments.inverse, centred * moments.inverse
    weight = t.operand(2) if len(t.op.inputs) > 2 else None
    over = [t.op.output.axes.index(a) for a in t.op.over]
    if weight is not None and all(weight.shape[d] == 1 for d in over):  # constant in the sums
        inverse = inverse * weight
    elif weight is not None:
        g = g * weight
    sums = [s / n for s in _several_statistics(t)([g, g * normal] if centring else [g * normal])]
    normal *= -sums[-1]
    normal += g - sums[0] if centring else g
    normal *= inverse
    return normal


def _extreme(t: Task) -> Array:
    total, g, x, y = _statistics(t), t.operand(0), t.operand(1), t.operand(2)
    hit = x == y
    if t.op.attribute("nan", 0):
        hit |= t.xp.isnan(x) & t.xp.isnan(y)
    hit = t.xp.broadcast_to(hit, t.shape).astype(g.dtype)
    return g * hit / total(hit)  # type: ignore[no-any-return]


def _reverse_cumulative(t: Task) -> Array:
    if 0 in t.shape:
        return t.xp.zeros(t.shape, dtype=t.operands[0].array.dtype)  # type: ignore[no-any-return]
    if len(t.op.over) != 1 or t.box[t.op.over[0]] != (0, t.op.axis(t.op.over[0]).extent):
        raise KernelError(t.place, "goes along one axis, which must not be split")
    dim = t.op.output.axes.index(t.op.over[0])
    g = t.xp.broadcast_to(t.operand(0), t.shape)
    back = tuple(slice(None, None, -1) if d == dim else slice(None) for d in range(g.ndim))
    total = t.xp.cumsum(g[back], axis=dim, dtype=g.dtype)[back]
    return total - g if number(t.op, "exclusive", 0) else total  # type: ignore[no-any-return]


# --- copies
# --------------------------------------------------------------------------------------------------


def _copy(t: Task) -> Array:
    at, source, offset, terms = (t.integers(n) for n in ("at", "from", "offset", "terms"))
    a, out_axes = t.op.inputs[0], t.op.output.axes
    result: Array = t.xp.zeros(t.shape, dtype=t.operands[0].array.dtype)
    if 0 in lengths(t.box, [x.name for x in t.op.axes]):
        return result
    names = [i.terms[0][0] if i.terms else f"from {d}" for d, i in enumerate(a.index)]
    g = t.part(0)
    summed = [x.name for x in t.op.reduction_axes]
    g = fold(t.xp, g, tuple(d for d, n in enumerate(names) if n in summed), Combine.SUM)
    names = [n for n in names if n not in summed]
    shape = t.graph.tensor(a.tensor).shape
    axes = [f"from {d}" for d in source]
    straight = [n for d, n in enumerate(out_axes) if d not in at]
    moved = align(g, names, (*axes, *straight))
    for point in product(*(range(shape[d]) for d in source)):
        where: list[int | slice] = [slice(None)] * len(out_axes)
        inside = True
        for row, d in enumerate(at):
            position = offset[row] + sum(terms[row * len(source) + c] * p for c, p in enumerate(point))
            where[d] = position
            inside = inside and 0 <= position < t.shape[d]
        if inside:
            result[tuple(where)] += moved[point]
    return result


GRADIENTS: Final = MappingProxyType[str, Callable[[Task], Array]](
    {
        "product_sum": _product_sum,
        "strided_gradient": strided_gradient,
        "softmax_gradient": _softmax,
        "log_softmax_gradient": _log_softmax,
        "layer_norm_gradient": _norm,
        "rms_norm_gradient": _norm,
        "extreme_gradient": _extreme,
        "reverse_cumulative_sum": _reverse_cumulative,
        "max_pool_gradient": max_pool_gradient,
        "average_pool_gradient": average_pool_gradient,
        "local_response_gradient": local_response_gradient,
        "embedding_gradient": scatter,
        "copy_gradient": _copy,
        **ATTENTION_GRADIENTS,
    }
)
"""Function -> kernel."""


def gradient(task: Task) -> Array:
    """The output block of a gradient function; see `dispatch.execute`."""
    return spread(task.xp, GRADIENTS[task.op.function](task), task.shape)

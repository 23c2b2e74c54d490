"""Translates convolutions and pools of StableHLO, as sums and maxima over sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..numpy.array import TracedArray
from ..numpy.recorder import TraceError
from .ir import Op, body, combined_by, dialect, integer, integers, pairs
from .operators import Array, Machine, Value, apply, summed_in, uniform


def pad_array(x: Array, width: list[tuple[int, int]], value: float = 0.0) -> Array:
    """Elements around an array; `value` other than 0 where a constant mask says that there was none."""
    if not any(a or b for a, b in width):
        return x
    wide = np.pad(x, width)
    if value == 0 or not isinstance(x, TracedArray):
        return wide if value == 0 else np.pad(x, width, constant_values=value)
    made: Array = np.where(np.pad(np.ones(x.shape, bool), width), wide, value)
    return made


def _seen(x: Array, dims: tuple[int, ...], sizes: list[int], strides: list[int], dilation: list[int]) -> Array:
    """Windows over the dimensions `dims`; taps are the last dimensions."""
    reach = [d * (n - 1) + 1 for n, d in zip(sizes, dilation, strict=True)]
    seen = sliding_window_view(x, tuple(reach), axis=dims)
    steps = [slice(None)] * x.ndim
    for d, s in zip(dims, strides, strict=True):
        steps[d] = slice(None, None, s)
    made: Array = seen[(*steps, *(slice(None, None, d) for d in dilation))]
    return made


def convolution(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Any layout, strides, padding, dilation of the kernel, groups of features.  A dilated input (a transposed
    convolution) and groups of the batch are refused.
    """
    d = dialect().ConvDimensionNumbers(op.attributes["dimension_numbers"])
    x, w = (summed_in(m, op, v) for v in operands)
    rank, groups = x.ndim - 2, integer(op, "feature_group_count")
    stride, dilation = (list(integers(op, n)) or [1] * rank for n in ("window_strides", "rhs_dilation"))
    if any(n != 1 for n in integers(op, "lhs_dilation")) or integer(op, "batch_group_count") != 1:
        raise TraceError(m.place, "a convolution of a dilated input, or with groups of the batch")
    if any(integers(op, "window_reversal")):
        raise TraceError(m.place, "a convolution with a reversed kernel")
    edges = pairs(op, "padding", rank)
    x = apply(np.transpose, x, (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions))
    w = apply(
        np.transpose,
        w,
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
    )
    x = pad_array(x, [(0, 0), (0, 0), *edges])
    seen = _seen(x, tuple(range(2, rank + 2)), list(w.shape[2:]), stride, dilation)
    place, taps = "yzt"[:rank], "klm"[:rank]
    if groups == 1:
        made = apply(np.einsum, f"bc{place}{taps},oc{taps}->bo{place}", seen, w)
    else:
        seen = apply(np.reshape, seen, (seen.shape[0], groups, -1, *seen.shape[2:])) if w.shape[1] > 1 else seen
        w = apply(np.reshape, w, (groups, w.shape[0] // groups, *w.shape[1:]))
        if seen.ndim == 2 * rank + 2:
            made = apply(np.einsum, f"bg{place}{taps},go{taps}->bgo{place}", seen, w[:, :, 0])
        else:
            made = apply(np.einsum, f"bgc{place}{taps},goc{taps}->bgo{place}", seen, w)
        made = apply(np.reshape, made, (made.shape[0], -1, *made.shape[3:]))
    to = [0] * x.ndim
    for k, at in enumerate((d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions)):
        to[at] = k
    return [Value(apply(np.transpose, made, to))]


def neutral(how: str, dtype: np.dtype[np.generic]) -> float:
    """What leaves every number as it is: of add, maximum, minimum, and, or.

    >>> neutral("maximum", np.dtype("int8")), neutral("minimum", np.dtype("float32"))
    (-128, inf)
    """
    if how in ("maximum", "minimum"):
        if dtype.kind in "iu":
            ends = np.iinfo(dtype)  # type: ignore[type-var]
            return int(ends.min if how == "maximum" else ends.max)
        return (how == "minimum") if dtype == bool else -np.inf if how == "maximum" else np.inf
    return 1 if how == "and" else 0


_WINDOWS: Final[Mapping[str, Callable[..., object]]] = {
    "stablehlo.add": np.sum,
    "stablehlo.maximum": np.max,
    "stablehlo.minimum": np.min,
}


def reduce_window(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Sums, maxima and minima over windows."""
    how = combined_by(op)
    x, start = operands[0].array, uniform(operands[1].array)
    sizes, strides, dilation, base = (
        integers(op, n) or (1,) * x.ndim
        for n in ("window_dimensions", "window_strides", "window_dilations", "base_dilations")
    )
    if how is None or how not in _WINDOWS or len(operands) != 2:
        raise TraceError(
            m.place,
            f"windows combined by a region of {', '.join(body(op)) or 'nothing'}; read are sums, maxima and minima",
        )
    if any(n != 1 for n in base):
        raise TraceError(m.place, "windows over a dilated input")
    nothing = neutral(how.rpartition(".")[2], x.dtype)
    if start is None or start.item() != nothing:
        raise TraceError(m.place, "windows that start from something else than nothing")
    edges = pairs(op, "padding", x.ndim)
    if any(n < 0 for pair in edges for n in pair):
        raise TraceError(m.place, "windows over a cut input (negative padding)")
    dims = tuple(k for k, n in enumerate(sizes) if n != 1 or strides[k] != 1)
    x = pad_array(x, edges, nothing)
    seen = _seen(x, dims, [sizes[k] for k in dims], [strides[k] for k in dims], [dilation[k] for k in dims])
    taps = tuple(range(x.ndim, x.ndim + len(dims)))
    return [Value(apply(_WINDOWS[how], seen, axis=taps))]

"""Translates NumPy functions that compute: contractions, reductions, choices, and new arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ..building.exact import as_real
from . import contract
from .array import TracedArray
from .elementwise import cast, elementwise, number, shapes, view_of
from .gather import positions, take
from .recorder import Recorder, TraceError, place
from .reductions import axes_of, cumulative, mean, reduce_view
from .shapes import ravel
from .table import as_traced, common, new, translates
from .ufuncs import ufunc
from .views import broadcast
from .write import assign, checked_shape

# --- contractions
# -------------------------------------------------------------------------------------------------------


@translates(np.einsum)
def _einsum(recorder: Recorder, subscripts: object, *operands: object, optimize: object = False) -> TracedArray:
    if not isinstance(subscripts, str):
        raise TraceError(place(), "np.einsum is supported with a text of subscripts")
    return new(recorder, contract.einsum(recorder, subscripts, common(recorder, operands)))


@translates(np.dot, method="dot")
def _dot(recorder: Recorder, a: object, b: object) -> TracedArray:
    left, right = common(recorder, [a, b])
    if not left.shape or not right.shape:
        return new(recorder, elementwise(recorder, "multiply", "dot", [left, right], recorder.dtype(left)))
    return new(recorder, contract.dot(recorder, left, right))


@translates(np.vdot)
def _vdot(recorder: Recorder, a: object, b: object) -> TracedArray:
    return new(recorder, contract.dot(recorder, *common(recorder, [ravel(recorder, a), ravel(recorder, b)])))


@translates(np.inner)
def _inner(recorder: Recorder, a: object, b: object) -> TracedArray:
    left, right = common(recorder, [a, b])
    return new(recorder, contract.tensordot(recorder, left, right, [len(left.shape) - 1], [len(right.shape) - 1]))


@translates(np.outer)
def _outer(recorder: Recorder, a: object, b: object) -> TracedArray:
    return new(recorder, contract.outer(recorder, *common(recorder, [a, b])))


@translates(np.tensordot)
def _tensordot(recorder: Recorder, a: object, b: object, axes: object = 2) -> TracedArray:
    left, right = common(recorder, [a, b])
    if isinstance(axes, int):
        pairs: tuple[Sequence[int], Sequence[int]] = (range(len(left.shape) - axes, len(left.shape)), range(axes))
    elif isinstance(axes, (tuple, list)) and len(axes) == 2:
        first, second = (x if isinstance(x, (tuple, list)) else [x] for x in axes)
        pairs = [d % len(left.shape) for d in first], [d % len(right.shape) for d in second]
    else:
        raise TraceError(place(), f"np.tensordot: axes {axes!r}")
    return new(recorder, contract.tensordot(recorder, left, right, *pairs))


@translates(np.trace, method="trace")
def _trace(recorder: Recorder, a: object) -> TracedArray:
    view = view_of(recorder, a)
    if len(view.shape) != 2 or view.shape[0] != view.shape[1]:
        raise TraceError(place(), f"np.trace of an array of shape {view.shape}; a square matrix is supported")
    dtype = np.trace(np.ones((1, 1), recorder.dtype(view))).dtype
    return new(recorder, contract.einsum(recorder, "ii->", [cast(recorder, view, dtype)]))


# --- reductions
# ---------------------------------------------------------------------------------------------------------


def _reduction(f: np.ufunc, *functions: Callable[..., object], method: str) -> None:
    def translation(
        recorder: Recorder,
        a: object,
        axis: object = None,
        dtype: object = None,
        out: object = None,
        keepdims: bool = False,
    ) -> object:
        options = {
            "axis": axis,
            "keepdims": keepdims,
            **({} if dtype is None else {"dtype": dtype}),
            **({} if out is None else {"out": (out,)}),
        }
        return ufunc(recorder, f, "reduce", [a], options)

    translates(*functions, method=method)(translation)


_reduction(np.add, np.sum, method="sum")
_reduction(np.maximum, np.max, np.amax, method="max")
_reduction(np.minimum, np.min, np.amin, method="min")
_reduction(np.logical_or, np.any, method="any")
_reduction(np.logical_and, np.all, method="all")


@translates(np.mean, method="mean")
def _mean(recorder: Recorder, a: object, axis: object = None, keepdims: bool = False) -> TracedArray:
    view = view_of(recorder, a)
    return new(recorder, mean(recorder, view, axes_of(axis, len(view.shape)), keepdims))


@translates(np.var, method="var")
def _var(recorder: Recorder, a: object, axis: object = None, ddof: int = 0, keepdims: bool = False) -> TracedArray:
    view = view_of(recorder, a)
    dims = axes_of(axis, len(view.shape))
    centred = as_traced(recorder, a) - new(recorder, mean(recorder, view, dims, True))
    square = view_of(recorder, centred * centred)
    return new(
        recorder,
        reduce_view(recorder, np.add, square, dims, keepdims, 1.0 / (prod(view.shape[d] for d in dims) - ddof), "var"),
    )


@translates(np.std, method="std")
def _std(recorder: Recorder, a: object, axis: object = None, ddof: int = 0, keepdims: bool = False) -> object:
    return np.sqrt(_var(recorder, a, axis, ddof, keepdims))


@translates(np.cumsum, method="cumsum")
def _cumsum(recorder: Recorder, a: object, axis: object = None) -> TracedArray:
    source = ravel(recorder, a) if axis is None else a
    return new(recorder, cumulative(recorder, source, int(str(axis or 0))))


# --- choosing
# ------------------------------------------------------------------------------------------------------------


@translates(np.take, method="take")
def _take(recorder: Recorder, a: object, indices: object, axis: object = None) -> TracedArray:
    source = view_of(recorder, ravel(recorder, a) if axis is None else a)
    dim = axes_of(0 if axis is None else axis, len(source.shape))[0]
    if number(indices) is not None:
        return as_traced(recorder, new(recorder, source))[(slice(None),) * dim + (int(str(indices)),)]
    return new(recorder, take(recorder, source, positions(recorder, indices, source.shape[dim]), dim))


@translates(np.where)
def _where(recorder: Recorder, condition: object, x: object = None, y: object = None) -> TracedArray:
    if x is None or y is None:
        raise TraceError(place(), "np.where with one argument has a data-dependent shape")
    mask = view_of(recorder, condition)
    typed = [v.dtype if isinstance(v, TracedArray) else v if number(v) is not None else np.asarray(v) for v in (x, y)]
    dtype = np.result_type(*typed)  # type: ignore[arg-type]
    for value, other, flip in ((y, x, False), (x, y, True)):
        c = number(value)
        if c is not None and number(other) is None:
            kept = cast(recorder, view_of(recorder, other), dtype)
            chosen = elementwise(recorder, "logical_not", "where", [mask], np.dtype(bool)) if flip else mask
            shape = shapes(recorder, [mask, kept])
            return new(
                recorder,
                elementwise(
                    recorder, "mask_fill", "where", [broadcast(kept, shape), chosen], dtype, {"value": as_real(c)}
                ),
            )
    views = [cast(recorder, view_of(recorder, v), dtype) for v in (x, y)]
    return new(recorder, elementwise(recorder, "where", "where", [mask, *views], dtype))


@translates(np.clip, method="clip")
def _clip(recorder: Recorder, a: object, a_min: object = None, a_max: object = None) -> object:
    low, high = number(a_min), number(a_max)
    array = as_traced(recorder, a)
    if array.dtype.kind == "f" and (a_min is None or low is not None) and (a_max is None or high is not None):
        bounds = {k: float(v) for k, v in (("low", low), ("high", high)) if v is not None}
        return new(recorder, elementwise(recorder, "clip", "clip", [array.view], array.dtype, bounds))
    out: object = array
    for f, bound in ((np.maximum, a_min), (np.minimum, a_max)):
        out = out if bound is None else f(out, bound)  # type: ignore[call-overload]
    return out


# --- new arrays
# ----------------------------------------------------------------------------------------------------------


def _filled(*functions: Callable[..., object], fill: float) -> None:
    def translation(recorder: Recorder, a: object, dtype: object = None, shape: object = None) -> TracedArray:
        return _full_like(recorder, a, fill, dtype, shape)

    translates(*functions)(translation)


@translates(np.full_like)
def _full_like(
    recorder: Recorder, a: object, fill_value: object, dtype: object = None, shape: object = None
) -> TracedArray:
    like = as_traced(recorder, a)
    kind = like.dtype if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]
    value = number(fill_value)
    goal = like.shape if shape is None else checked_shape(shape)
    if value is None:
        return new(recorder, broadcast(cast(recorder, view_of(recorder, fill_value), kind), goal))
    one = recorder.constant(np.full((1,), value, dtype=kind))
    return new(recorder, broadcast(one, goal) if goal else one.map_dimensions((), [((), 0)]))


_filled(np.zeros_like, np.empty_like, fill=0)
_filled(np.ones_like, fill=1)


@translates(np.copyto)
def _copyto(recorder: Recorder, dst: TracedArray, src: object) -> None:
    assign(dst, new(recorder, cast(recorder, view_of(recorder, src), dst.dtype)))


@translates(np.shape)
def _shape(recorder: Recorder, a: object) -> tuple[int, ...]:
    return as_traced(recorder, a).shape

"""Translates functions that move elements: views, reshapes, joins, padding, rolls, windows.

What is a view in NumPy is one here and costs no operator; joins and rolls are one `copy`, a reshape is an opaque copy
that `digits` removes where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...program.index import Access, Axis
from .array import METHODS, Reshaped, TracedArray
from .elementwise import cast, number, view_of
from .recorder import Recorder, TraceError, place
from .reductions import axes_of
from .table import as_traced, common, new, translates
from .views import View, broadcast, drop_dimensions, insert_dimensions, pad_view, transpose_view, windows
from .write import checked_shape, materialise

# --- shape
# ---------------------------------------------------------------------------------------------------------------


def reshape_view(recorder: Recorder, view: View, shape: Sequence[int]) -> View:
    """Row-major view; free when only dimensions of extent 1 come or go, else an opaque copy that `digits` removes
    where it can.
    """
    if [n for n in view.shape if n > 1] == [n for n in shape if n > 1]:
        thin = drop_dimensions(view, [d for d, n in enumerate(view.shape) if n == 1])
        return insert_dimensions(thin, [d for d, n in enumerate(shape) if n == 1])
    source = materialise(recorder, view)
    axes = [Axis(f"d{k}", n, None, False) for k, n in enumerate(shape)]
    everything = Access(source.tensor, tuple(i.everything() for i in source.index))
    return recorder.emit("copy", "reshape", axes, [everything], [a.name for a in axes], recorder.dtype(view))


def _reshape(recorder: Recorder, a: object, *shape: object, order: str = "C", copy: object = None) -> TracedArray:
    array = as_traced(recorder, a)
    sizes = list(checked_shape(shape[0] if len(shape) == 1 else shape))
    if order != "C":
        raise TraceError(place(), f"reshape in order {order!r} is not supported")
    if sizes.count(-1) == 1:
        rest = prod(n for n in sizes if n != -1)
        sizes[sizes.index(-1)] = array.size // rest if rest else 0
    if any(n < 0 for n in sizes) or prod(sizes) != array.size:
        raise TraceError(place(), f"cannot reshape an array of size {array.size} into shape {tuple(sizes)}")
    return TracedArray(recorder, Reshaped(array, sizes, reshape_view))


translates(np.reshape, method="reshape")(_reshape)


@translates(np.ravel, method="ravel")
def ravel(recorder: Recorder, a: object, order: str = "C") -> TracedArray:
    """`np.ravel`."""
    return _reshape(recorder, a, (-1,), order=order)


METHODS["flatten"] = lambda array: new(array.recorder, ravel(array.recorder, array).view)


@translates(np.transpose, method="transpose")
def _transpose(recorder: Recorder, a: object, *axes: object) -> TracedArray:
    array = as_traced(recorder, a)
    given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
    order = (
        [int(str(d)) % array.ndim for d in given] if isinstance(given, (tuple, list)) else list(range(array.ndim))[::-1]
    )
    if sorted(order) != list(range(array.ndim)):
        raise TraceError(place(), f"axes {given!r} do not fit an array of dimension {array.ndim}")
    return array.share(lambda view: transpose_view(view, order))


@translates(np.swapaxes, method="swapaxes")
def _swapaxes(recorder: Recorder, a: object, axis1: int, axis2: int) -> TracedArray:
    order = list(range(as_traced(recorder, a).ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return _transpose(recorder, a, order)


@translates(np.moveaxis)
def _moveaxis(recorder: Recorder, a: object, source: object, destination: object) -> TracedArray:
    rank = as_traced(recorder, a).ndim
    first, second = ([d % rank for d in checked_shape(x)] for x in (source, destination))
    order = [d for d in range(rank) if d not in first]
    for goal, start in sorted(zip(second, first, strict=True)):
        order.insert(goal, start)
    return _transpose(recorder, a, order)


@translates(np.expand_dims)
def _expand_dims(recorder: Recorder, a: object, axis: object) -> TracedArray:
    array = as_traced(recorder, a)
    listed = checked_shape(axis)
    rank = array.ndim + len(listed)
    return array.share(lambda view: insert_dimensions(view, [d % rank for d in listed]))


@translates(np.squeeze, method="squeeze")
def _squeeze(recorder: Recorder, a: object, axis: object = None) -> TracedArray:
    array = as_traced(recorder, a)
    dims = [d for d, n in enumerate(array.shape) if n == 1] if axis is None else list(axes_of(axis, array.ndim))
    if any(array.shape[d] != 1 for d in dims):
        raise TraceError(place(), f"cannot squeeze {axis!r} of an array of shape {array.shape}")
    return array.share(lambda view: drop_dimensions(view, dims))


@translates(np.broadcast_to)
def _broadcast_to(recorder: Recorder, a: object, shape: object) -> TracedArray:
    view, goal = view_of(recorder, a), checked_shape(shape)
    try:
        fits = np.broadcast_shapes(view.shape, goal) == goal
    except ValueError:
        fits = False
    if not fits:
        raise TraceError(place(), f"cannot broadcast shape {view.shape} to {goal}")
    return new(recorder, broadcast(view, goal))


@translates(np.copy, method="copy")
def _copy(recorder: Recorder, a: object) -> TracedArray:
    return new(recorder, view_of(recorder, a))


METHODS["astype"] = lambda array, dtype: new(array.recorder, cast(array.recorder, array.view, np.dtype(dtype)))


# --- joining, cutting, padding
# --------------------------------------------------------------------------------------------


@translates(np.concatenate)
def _concatenate(recorder: Recorder, arrays: Sequence[object], axis: object = 0) -> TracedArray:
    views = common(recorder, arrays)
    if axis is None:
        views, axis = [view_of(recorder, ravel(recorder, new(recorder, v))) for v in views], 0
    rank = len(views[0].shape)
    dim = axes_of(axis, rank)[0]
    if any(
        len(v.shape) != rank or v.shape[:dim] + v.shape[dim + 1 :] != views[0].shape[:dim] + views[0].shape[dim + 1 :]
        for v in views
    ):
        raise TraceError(
            place(), f"arrays of shapes {', '.join(str(v.shape) for v in views)} cannot be concatenated along {dim}"
        )
    total = sum(v.shape[dim] for v in views)
    shape = (*views[0].shape[:dim], total, *views[0].shape[dim + 1 :])
    names = [f"i{k}" for k in range(rank)]
    inputs, start = [], 0
    for v in views:
        # what lies beyond a piece must lie beyond its tensor, so that it adds nothing
        piece = v if v.covers(dim) and not v.taps else materialise(recorder, v)
        where = [(((d, 1),), -start if d == dim else 0) for d in range(rank)]
        inputs.append(piece.map_dimensions(shape, where).access(names))
        start += v.shape[dim]
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    return new(recorder, recorder.emit("copy", "concatenate", axes, inputs, names, recorder.dtype(views[0])))


@translates(np.stack)
def _stack(recorder: Recorder, arrays: Sequence[object], axis: int = 0) -> TracedArray:
    rank = as_traced(recorder, arrays[0]).ndim + 1
    return _concatenate(recorder, [_expand_dims(recorder, a, axis % rank) for a in arrays], axis % rank)


@translates(np.vstack)
def _vstack(recorder: Recorder, arrays: Sequence[object]) -> TracedArray:
    return _concatenate(
        recorder, [_expand_dims(recorder, a, 0) if as_traced(recorder, a).ndim == 1 else a for a in arrays], 0
    )


@translates(np.hstack)
def _hstack(recorder: Recorder, arrays: Sequence[object]) -> TracedArray:
    return _concatenate(recorder, arrays, 0 if as_traced(recorder, arrays[0]).ndim == 1 else 1)


@translates(np.array_split)
def _array_split(recorder: Recorder, a: object, sections: object, axis: int = 0) -> list[TracedArray]:
    n = as_traced(recorder, a).shape[axis]
    if not isinstance(sections, int):
        return _split(recorder, a, sections, axis)
    ends = [sum(n // sections + (j < n % sections) for j in range(k + 1)) for k in range(sections - 1)]
    return _split(recorder, a, ends, axis)


@translates(np.split)
def _split(recorder: Recorder, a: object, sections: object, axis: int = 0) -> list[TracedArray]:
    array = as_traced(recorder, a)
    dim = axis % array.ndim
    n = array.shape[dim]
    if isinstance(sections, int):
        if n % sections:
            raise TraceError(place(), f"an array of {n} cannot be split into {sections} equal parts")
        ends = [n // sections * (k + 1) for k in range(sections)]
    else:
        ends = [*checked_shape(sections), n]
    return [array[(slice(None),) * dim + (slice(lo, hi),)] for lo, hi in zip([0, *ends[:-1]], ends, strict=True)]


@translates(np.pad)
def _pad(
    recorder: Recorder, a: object, pad_width: object, mode: str = "constant", constant_values: object = 0
) -> TracedArray:
    array = as_traced(recorder, a)
    pairs = [(int(lo), int(hi)) for lo, hi in np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()]
    if mode != "constant" or number(constant_values) != 0:
        if mode == "constant" and number(constant_values) is not None:
            raise TraceError(
                place(), "np.pad with another value than 0 is not supported; add the value after padding x - value"
            )
        if mode in ("wrap", "edge"):
            return _pad_by_slices(recorder, array, pairs, mode)
        raise TraceError(place(), f"np.pad with mode {mode!r} is not supported; constant (0), wrap and edge are")
    view = array.view
    if any((lo or hi) and not view.covers(d) for d, (lo, hi) in enumerate(pairs)):
        view = materialise(recorder, view)
    return new(recorder, pad_view(view, [lo for lo, _ in pairs], [hi for _, hi in pairs]))


def _pad_by_slices(recorder: Recorder, array: TracedArray, pairs: Sequence[tuple[int, int]], mode: str) -> TracedArray:
    for d, (lo, hi) in enumerate(pairs):
        n, lead = array.shape[d], (slice(None),) * d
        if mode == "wrap" and max(lo, hi) > n:
            raise TraceError(place(), f"np.pad: {max(lo, hi)} wrapped elements of a dimension of {n}")
        if mode == "edge":
            first, last = ([array[(*lead, slice(i, i + 1))]] * count for i, count in ((0, lo), (n - 1, hi)))
            parts = [*first, array, *last]
        else:
            parts = [
                *([array[(*lead, slice(n - lo, n))]] if lo else []),
                array,
                *([array[(*lead, slice(0, hi))]] if hi else []),
            ]
        array = _concatenate(recorder, parts, d) if len(parts) > 1 else array
    return array


@translates(np.roll)
def _roll(recorder: Recorder, a: object, shift: object, axis: object = None) -> TracedArray:
    array = as_traced(recorder, a)
    if axis is None:
        return _reshape(recorder, _roll(recorder, ravel(recorder, a), shift, 0), array.shape)
    shifts, dims = checked_shape(shift), [d % array.ndim for d in checked_shape(axis)]
    for s, d in zip(np.broadcast_to(np.asarray(shifts), len(dims)).tolist(), dims, strict=True):
        n = array.shape[d]
        if s % n:
            array = _rolled(recorder, array.view, s % n, d)
    return array


def _rolled(recorder: Recorder, view: View, shift: int, dim: int) -> TracedArray:
    """out[i] = x[i - s] where that is inside, plus x[i + n - s] where that is."""
    if not view.covers(dim) or view.has_padding:
        view = materialise(recorder, view)
    names = [f"i{k}" for k in range(len(view.shape))]
    inputs = [
        view.map_dimensions(
            view.shape, [(((d, 1),), offset if d == dim else 0) for d in range(len(view.shape))]
        ).access(names)
        for offset in (-shift, view.shape[dim] - shift)
    ]
    axes = [Axis(a, n) for a, n in zip(names, view.shape, strict=True)]
    return new(recorder, recorder.emit("copy", "roll", axes, inputs, names, recorder.dtype(view)))


@translates(np.lib.stride_tricks.sliding_window_view)
def _windows(recorder: Recorder, x: object, window_shape: object, axis: object = None) -> TracedArray:
    array = as_traced(recorder, x)
    sizes = checked_shape(window_shape)
    dims = list(range(array.ndim)) if axis is None else [d % array.ndim for d in checked_shape(axis)]
    if len(sizes) != len(dims) or any(not 0 < s <= array.shape[d] for s, d in zip(sizes, dims, strict=True)):
        raise TraceError(place(), f"windows of shape {sizes} do not fit an array of shape {array.shape}")
    return array.share(lambda view: windows(view, dims, sizes))

"""Translates writes: in-place updates and assignments to a part of an array, as new tensors.

    x[...] = v, np.add(x, y, out=x), x += y      the buffer of x holds the new value
    x[a:b, c] = v                                 update:  the value inside the box, the old elements outside

What else looks at the buffer sees the write, as in NumPy.  Writes with a step, through a reshape or at positions that
depend on data are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...program.index import Axis
from .array import Buffer, TracedArray
from .recorder import Recorder, TraceError, place
from .views import Terms, View, broadcast


def materialise(recorder: Recorder, view: View, base: str = "copy") -> View:
    """The array as a tensor of its own."""
    if view.identity:
        return view
    names = [f"i{k}" for k in range(len(view.shape))]
    axes = [Axis(a, n) for a, n in zip(names, view.shape, strict=True)]
    return recorder.emit("copy", base, axes, [view.access(names)], names, recorder.dtype(view))


def assign(target: TracedArray, value: TracedArray) -> None:
    """`target[...] = value`; element types are equal.  Raises `TraceError` for shapes that do not fit and writes
    that are not static.
    """
    cell, recorder = target.cell, target.recorder
    if not isinstance(cell, Buffer):
        raise TraceError(
            place(), "a write through a reshaped array is not supported; write to the array before it is reshaped"
        )
    try:
        fits = tuple(np.broadcast_shapes(target.shape, value.shape)) == target.shape
    except ValueError:
        fits = False
    if not fits:
        raise TraceError(
            place(), f"could not broadcast an array of shape {value.shape} into one of shape {target.shape}"
        )
    region = target.region
    new = broadcast(value.view, target.shape)
    if region.identity:
        cell.value = new
        return
    start, places = _region(region)
    old = cell.value
    value_view = value.view
    lead = len(target.shape) - len(value_view.shape)
    if not all(n == 1 or value_view.covers(d) for d, n in enumerate(value_view.shape)):
        value_view = materialise(recorder, value_view)
    where: list[Terms] = []
    for d, n in enumerate(value_view.shape):
        k = places[lead + d]
        where.append(((), 0) if k is None or n < target.shape[lead + d] or n == 1 else (((k, 1),), -start[k]))
    shape = old.shape
    inside = value_view.map_dimensions(shape, where)
    names = [f"i{k}" for k in range(len(shape))]
    stop = [start[k] + 1 for k in range(len(shape))]
    for d, k in enumerate(places):
        if k is not None:
            stop[k] = start[k] + target.shape[d]
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    cell.value = recorder.emit(
        "update",
        "update",
        axes,
        [old.access(names), inside.access(names)],
        names,
        target.dtype,
        {"start": tuple(start), "stop": tuple(stop), "positional": tuple(names)},
    )


def _region(region: View) -> tuple[list[int], list[int | None]]:
    """First index per buffer dimension, and the buffer dimension of every dimension of the region (None: a new
    axis).
    """
    start: list[int] = []
    places: list[int | None] = [None] * len(region.shape)
    for k, index in enumerate(region.index):
        if len(index.terms) > 1 or any(c != 1 or places[int(name)] is not None for name, c in index.terms):
            raise TraceError(place(), "a write with a step, or through a window or a diagonal, is not supported")
        start.append(index.offset)
        for name, _ in index.terms:
            places[int(name)] = k
    return start, places


def checked_shape(shape: object) -> tuple[int, ...]:
    """A shape as NumPy functions take it."""
    listed: Sequence[object] = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(int(str(n)) for n in listed)

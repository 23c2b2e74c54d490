"""Translates operands of traced calls, and maps over the shape that they broadcast to: what every traced
function is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Final

import numpy as np

from ...program.index import Axis
from ...program.operators import Value
from .array import TracedArray
from .recorder import Recorder, TraceError, place
from .views import View, broadcast

Number = bool | int | float

LOGICAL: Final = frozenset({np.logical_and, np.logical_or, np.bitwise_and, np.bitwise_or, np.logical_not, np.invert})
"""Ufuncs of truth values, whatever the type of their operands."""


def number(x: object) -> Number | None:
    """A Python number, or the only element of a NumPy scalar or 0-dimensional array; else None."""
    if isinstance(x, (bool, int, float)):
        return nan if isnan(x) else x
    if isinstance(x, (np.generic, np.ndarray)) and x.ndim == 0 and x.dtype.kind in "biuf":
        value: Number = x.item()
        return nan if isnan(value) else value  # one object, so that graphs that hold it can be equal
    return None


def view_of(recorder: Recorder, x: object) -> View:
    """The view of any operand; arrays and numbers that are not traced become constants."""
    if isinstance(x, TracedArray):
        if x.recorder is not recorder:
            raise TraceError(place(), "two arrays of different traces meet")
        return x.view
    return recorder.constant(np.asarray(x))


def shapes(recorder: Recorder, views: Sequence[View]) -> tuple[int, ...]:
    """The shape that NumPy broadcasts to; `TraceError` if it refuses."""
    try:
        return tuple(np.broadcast_shapes(*[v.shape for v in views]))
    except ValueError as error:
        raise TraceError(place(), str(error)) from None


def cast(recorder: Recorder, view: View, dtype: np.dtype[np.generic]) -> View:
    """The elements as another type."""
    if recorder.dtype(view) == dtype:
        return view
    return elementwise(recorder, "cast", "cast", [view], dtype, {"dtype": dtype.name})


def elementwise(
    recorder: Recorder,
    function: str,
    base: str,
    views: Sequence[View],
    dtype: np.dtype[np.generic],
    attributes: Mapping[str, Value] | None = None,
) -> View:
    """A map over the broadcast shape, axes i0, i1, .."""
    shape = shapes(recorder, views)
    names = [f"i{k}" for k in range(len(shape))]
    inputs = [broadcast(v, shape).access(names) for v in views]
    return recorder.emit(
        function, base, [Axis(a, n) for a, n in zip(names, shape, strict=True)], inputs, names, dtype, attributes
    )

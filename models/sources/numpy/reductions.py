"""Translates reductions of traced arrays: sums, extremes, means, running sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final

import numpy as np

from ...program.index import Axis, Combine
from ...program.operators import Value
from .elementwise import LOGICAL, cast, view_of
from .recorder import Recorder, TraceError, place
from .views import View, insert_dimensions
from .write import materialise

REDUCE: Final[Mapping[np.ufunc, tuple[str, Combine]]] = MappingProxyType(
    {
        np.add: ("sum", Combine.SUM),
        np.maximum: ("max", Combine.MAX),
        np.minimum: ("min", Combine.MIN),
        np.logical_or: ("max", Combine.MAX),
        np.logical_and: ("min", Combine.MIN),
    }
)
"""Ufunc -> function, and how it combines."""


def axes_of(axis: object, rank: int) -> tuple[int, ...]:
    """Dimensions that a reduction runs over, ascending; None: all."""
    if axis is None:
        return tuple(range(rank))
    listed = axis if isinstance(axis, (tuple, list)) else (axis,)
    try:
        dims = [int(d) for d in listed]
        found = sorted({range(rank)[d] for d in dims})
    except (IndexError, TypeError, ValueError):
        raise TraceError(place(), f"axis {axis!r} is out of bounds for an array of dimension {rank}") from None
    return tuple(found)


def ufunc_reduce(
    recorder: Recorder, function: np.ufunc, inputs: Sequence[object], options: Mapping[str, object]
) -> View:
    """`reduce` of a ufunc, with its options."""
    rest = dict(options)
    view = view_of(recorder, inputs[0])
    dims = axes_of(rest.pop("axis", inputs[1] if len(inputs) > 1 else 0), len(view.shape))
    keepdims = bool(rest.pop("keepdims", False))
    rest.pop("initial", None) if rest.get("initial") is np._NoValue else None
    if rest:
        raise TraceError(place(), f"np.{function.__name__}.reduce with {', '.join(rest)} is not supported")
    logical = function in LOGICAL
    dtype = np.dtype(bool) if logical else np.asarray(function.reduce(np.ones(1, dtype=recorder.dtype(view)))).dtype
    return reduce_view(recorder, function, cast(recorder, view, dtype), dims, keepdims)


def reduce_view(
    recorder: Recorder,
    function: np.ufunc,
    view: View,
    dims: Sequence[int],
    keepdims: bool,
    scale: float = 1.0,
    base: str = "",
) -> View:
    """Sum, maximum or minimum over `dims`; axes i0, i1, .. are the operand's dimensions."""
    name, combine = REDUCE[function]
    if combine is not Combine.SUM and view.has_padding:
        view = materialise(recorder, view)  # beyond a tensor lies the neutral element, beyond a padded array zeros
    names = [f"i{k}" for k in range(len(view.shape))]
    axes = [
        Axis(a, n, combine if k in dims else None, not (k in dims and k in view.taps))
        for k, (a, n) in enumerate(zip(names, view.shape, strict=True))
    ]
    kept = [a.name for a in axes if a.combine is None]
    attributes: dict[str, Value] = {} if scale == 1.0 else {"scale": scale}
    out = view
    if dims:
        out = recorder.emit(
            name,
            base or name,
            [a for a in axes if a.combine is None] + [a for a in axes if a.combine],
            [view.access(names)],
            kept,
            recorder.dtype(view),
            attributes,
        )
    return insert_dimensions(out, dims) if keepdims and dims else out


def mean(recorder: Recorder, view: View, dims: Sequence[int], keepdims: bool) -> View:
    """Sum times 1/n."""
    dtype = recorder.dtype(view) if recorder.dtype(view).kind == "f" else np.dtype("float64")
    return reduce_view(
        recorder, np.add, cast(recorder, view, dtype), dims, keepdims, 1.0 / prod(view.shape[d] for d in dims), "mean"
    )


def cumulative(recorder: Recorder, x: object, axis: int) -> View:
    """Running sums along one axis, which is never split."""
    view = view_of(recorder, x)
    view = cast(recorder, view, np.cumsum(np.ones(1, recorder.dtype(view))).dtype)
    dim = range(len(view.shape))[axis]
    names = [f"i{k}" for k in range(len(view.shape))]
    axes = [Axis(a, n, None, k != dim) for k, (a, n) in enumerate(zip(names, view.shape, strict=True))]
    return recorder.emit(
        "cumulative_sum", "cumsum", axes, [view.access(names)], names, recorder.dtype(view), {"over": (names[dim],)}
    )

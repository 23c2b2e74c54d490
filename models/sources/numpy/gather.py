"""Translates gathers: rows of an array picked by an array of integers, as the `embedding` operator.

    take            out[.., o, ..] = x[.., ids[o], ..]
    add.reduceat    out[i] = sum of x[j] over start_i <= j < start_(i+1): a bag of rows per result; the positions must
                    be constants of the program, and are padded to the longest segment with -1, which picks nothing;
                    equal segments are a sum over  step * i + k  instead

Which rows a rank reads depends on the numbers in `ids`, so the index set of x is the whole gathered dimension
(over-approximated, thesis section 4.7), unless that dimension is split: then every rank contributes its rows and the
parts are summed.  Indices of traced arrays count from the end where they are negative, as in NumPy:  ids mod n.  What
lies outside of -n .. n - 1 raises in NumPy, and is undefined here.
"""

from __future__ import annotations

import numpy as np

from ...program.index import Axis, Combine
from .array import TracedArray
from .elementwise import cast, elementwise
from .recorder import Recorder, TraceError, place
from .views import Terms, View, plain
from .write import materialise


def positions(recorder: Recorder, ids: object, extent: int) -> View:
    """Indices as a view; constant ones are tested, and negative ones made positive."""
    if isinstance(ids, TracedArray):
        if ids.dtype.kind not in "iu":
            raise TraceError(
                place(),
                f"an index array of type {ids.dtype.name}; selection by a condition has a data-dependent shape, "
                f"use np.where",
            )
        return _wrapped(recorder, ids, extent)
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise TraceError(place(), f"an index array of type {array.dtype.name}; indices must be integers")
    if array.size and (int(array.min()) < -extent or int(array.max()) >= extent):
        raise TraceError(place(), f"index {int(array.max())} is out of bounds for a dimension of {extent}")
    return recorder.constant(np.where(array < 0, array + extent, array))


def _wrapped(recorder: Recorder, ids: TracedArray, extent: int) -> View:
    """Indices that may be negative, counted from the front."""
    if ids.dtype.kind == "u":
        return ids.view
    wide = ids.dtype if extent <= np.iinfo(ids.dtype).max else np.dtype("int64")  # type: ignore[type-var]
    given = cast(recorder, ids.view, wide)
    return elementwise(recorder, "remainder", "wrap", [given], wide, {"value": extent})


def take(recorder: Recorder, table: View, ids: View, dim: int, base: str = "take") -> View:
    """Rows of dimension `dim`; the dimensions of the indices stand in its place."""
    before, after = [f"i{k}" for k in range(dim)], [f"i{k}" for k in range(dim + 1, len(table.shape))]
    picked = [f"j{k}" for k in range(len(ids.shape))]
    out = [*before, *picked, *after]
    if ids.has_padding:
        ids = materialise(recorder, ids)
    axes = [Axis(a, n) for a, n in zip(out, (*table.shape[:dim], *ids.shape, *table.shape[dim + 1 :]), strict=True)]
    axes.append(Axis("rows", table.shape[dim], Combine.SUM))
    inputs = [table.access([*before, "rows", *after]), ids.access(picked)]
    return recorder.emit("embedding", base, axes, inputs, out, recorder.dtype(table), {"rows": "rows"})


def reduceat(recorder: Recorder, x: object, indices: object, axis: int = 0) -> View:
    """`np.add.reduceat` along the first dimension of a vector or matrix, positions constant."""
    if isinstance(indices, TracedArray) or not isinstance(x, TracedArray):
        raise TraceError(
            place(),
            "the positions of np.add.reduceat must be constants of the program: the segments are its static structure",
        )
    if axis != 0:
        raise TraceError(place(), "np.add.reduceat is supported along axis 0")
    table = cast(recorder, x.view, np.add.reduceat(np.ones(1, x.dtype), [0]).dtype)
    start = np.asarray(indices, dtype=np.int64)
    extent = table.shape[0]
    stop = np.append(start[1:], extent)
    stop = np.where(stop > start, stop, start + 1)  # NumPy: an empty segment gives the element itself
    longest = int((stop - start).max())
    steps = np.diff(start)
    if start.size > 1 and bool((steps == steps[0]).all()) and steps[0] > 0 and bool((stop - start == longest).all()):
        # equal segments at equal distances are affine: their index sets are exact
        places: list[Terms] = [
            (((0, int(steps[0])), (1, 1)), int(start[0])),
            *(plain(k + 1) for k in range(1, len(table.shape))),
        ]
        pieces = table.map_dimensions((start.size, longest, *table.shape[1:]), places, [1])
        names = ["i0", "bag", *(f"i{k}" for k in range(1, len(table.shape)))]
        made = [Axis(a, n, Combine.SUM if a == "bag" else None) for a, n in zip(names, pieces.shape, strict=True)]
        kept = [a for a in names if a != "bag"]
        return recorder.emit("sum", "reduceat", made, [pieces.access(names)], kept, recorder.dtype(table))
    ids = start[:, None] + np.arange(longest)
    bags = recorder.constant(np.where(ids < stop[:, None], ids, -1))
    rest = [f"i{k}" for k in range(1, len(table.shape))]
    axes = [
        Axis("i0", start.size),
        *(Axis(a, n) for a, n in zip(rest, table.shape[1:], strict=True)),
        Axis("bag", longest, Combine.SUM),
        Axis("rows", extent, Combine.SUM),
    ]
    inputs = [table.access(["rows", *rest]), bags.access(["i0", "bag"])]
    return recorder.emit("embedding", "reduceat", axes, inputs, ["i0", *rest], recorder.dtype(table), {"rows": "rows"})

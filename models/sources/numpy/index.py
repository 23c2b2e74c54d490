"""Translates indexing: basic slices are views on the same buffer, one array of integers is a gather.

x[i], x[a:b:s], x[..., None]     a view, no operator (steps must be positive; a negative step is a gather at constant
                                 positions)
x[ids], x[:, ids]                a gather (`gather`)
x[key] = v                       an update (`write`)
"""

from __future__ import annotations

import operator

import numpy as np

from .array import METHODS, TracedArray
from .elementwise import cast, number, view_of
from .gather import positions, take
from .recorder import TraceError, place
from .views import Terms, View, constant
from .write import assign


def expand_ellipsis(key: object, rank: int) -> list[object]:
    """The parts of a key with the ellipsis written out; one part per dimension, and None for new axes."""
    parts = list(key) if isinstance(key, tuple) else [key]
    dots = [n for n, p in enumerate(parts) if p is Ellipsis]
    used = sum(p is not None and p is not Ellipsis for p in parts)
    if len(dots) > 1 or used > rank:
        raise TraceError(
            place(),
            f"too many indices for an array of dimension {rank}"
            if used > rank
            else "an index can only have one ellipsis",
        )
    fill: list[object] = [slice(None)] * (rank - used)
    return [*parts[: dots[0]], *fill, *parts[dots[0] + 1 :]] if dots else [*parts, *fill]


def is_basic(part: object) -> bool:
    """Whether a part of a key is a slice, an integer or a new axis."""
    if part is None or isinstance(part, slice):
        return True
    if isinstance(part, (bool, np.bool_, TracedArray)):
        return False
    try:
        operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(part, np.ndarray)


def slice_view(view: View, parts: list[object]) -> View:
    """Basic indexing.  Raises `TraceError` for indices out of bounds and empty slices."""
    shape: list[int] = []
    where: list[Terms] = []
    dim = 0
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        n = view.shape[dim]
        if isinstance(part, slice):
            start, stop, step = part.indices(n)
            length = len(range(start, stop, step))
            if length == 0 or step < 0:
                raise TraceError(
                    place(),
                    f"slice {part} of a dimension of {n} is empty; empty arrays are not supported"
                    if length == 0
                    else "negative step",
                )
            where.append((((len(shape), step),), start))
            shape.append(length)
        else:
            i = operator.index(part)  # type: ignore[arg-type]
            if not -n <= i < n:
                raise TraceError(place(), f"index {i} is out of bounds for a dimension of {n}")
            where.append(constant(i % n))
        dim += 1
    return view.map_dimensions(shape, where)


def get(array: TracedArray, key: object) -> TracedArray:
    """`array[key]`."""
    parts = expand_ellipsis(key, array.ndim)
    dims: list[int] = []
    for part in parts:
        dims.append(-1 if part is None else sum(d >= 0 for d in dims))
    arrays = [n for n, p in enumerate(parts) if not is_basic(p)]
    advanced = [n for n, p in enumerate(parts) if p is not None and not isinstance(p, slice)]
    if arrays and advanced != list(range(advanced[0], advanced[-1] + 1)):
        raise TraceError(
            place(), "an index array and an integer with a slice between them is not supported; index in two steps"
        )
    if len(arrays) == 1 and dims[arrays[0]] >= 0:
        parts[arrays[0]] = _as_slice(parts[arrays[0]], array.shape[dims[arrays[0]]])
    special: list[tuple[int, object]] = []
    for n, part in enumerate(parts):
        extent = array.shape[dims[n]] if dims[n] >= 0 else 1
        if isinstance(part, slice) and part.step is not None and part.step < 0:
            special.append((n, np.arange(extent)[part]))
        elif not is_basic(part):
            special.append((n, part))
    if not special:
        part = array.share(lambda view: slice_view(view, parts))
        counted = key if isinstance(key, tuple) else (key,)
        # one element is a scalar, a copy; `x[.., 0]` is an array without dimensions, a view
        return (
            TracedArray.result(array.recorder, part.view)
            if not part.shape and not any(p is Ellipsis for p in counted)
            else part
        )
    if len(special) > 1:
        raise TraceError(
            place(),
            "more than one index array is not supported; gather along one dimension after the other with np.take",
        )
    at, ids = special[0]
    rest = [*parts[:at], slice(None), *parts[at + 1 :]]
    base = slice_view(array.view, rest)
    dim = sum(p is None or isinstance(p, slice) for p in rest[:at])
    if isinstance(ids, (list, tuple)):
        ids = np.asarray(ids)
    return TracedArray.of(
        array.recorder, take(array.recorder, base, positions(array.recorder, ids, base.shape[dim]), dim)
    )


def _as_slice(part: object, extent: int) -> object:
    """Constant positions at equal steps forward are a slice: a view, and exact index sets."""
    if isinstance(part, (list, np.ndarray)):
        ids = np.asarray(part)
        if ids.ndim == 1 and ids.dtype.kind in "iu" and ids.size > 1 and 0 <= int(ids[0]) and int(ids[-1]) < extent:
            steps = np.diff(ids.astype(np.int64))
            if steps[0] > 0 and bool((steps == steps[0]).all()):
                return slice(int(ids[0]), int(ids[-1]) + 1, int(steps[0]))
    return part


def assign_at(array: TracedArray, key: object, value: object) -> None:
    """`array[key] = value`."""
    parts = expand_ellipsis(key, array.ndim)
    if not all(is_basic(p) for p in parts) or any(
        isinstance(p, slice) and p.step is not None and p.step < 0 for p in parts
    ):
        raise TraceError(
            place(),
            "a write at an array of positions is not supported; write to slices, or build the result with np.where",
        )
    target = array.share(lambda view: slice_view(view, parts))
    plain = value if number(value) is None else np.asarray(value).astype(array.dtype)
    new = cast(array.recorder, view_of(array.recorder, plain), array.dtype)
    assign(target, TracedArray.of(array.recorder, new))


METHODS["__getitem__"] = get
METHODS["__setitem__"] = assign_at

"""Loops over the entries of rows, `for j in dace.map[p[i]:p[i + 1]]`: bounds that the data say.

The entries e of all rows lie one behind the other, and the loop runs over all of them at once:

    row[e]  =  (how many of p are at most e)  -  1        counted at every p, then summed from the left
    y[i]    ->  y[row[e]]                                 what belongs to the row: a gather
    b[i] += v[e]   ->   sum over e with row[e] = i        a scatter; splitting e leaves partial sums

p ascends, as the pointers of a sparse matrix do: where it does not, Python's loop runs over other entries, and nothing
is claimed, as for an index that is out of bounds.  Entries in front of p[0] and behind the last are of no row.

Source: thesis on automatic partitioning of array programs, section 8.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...program.graph import Role
from ...program.index import Access, Affine, Axis, Combine
from .array import TracedArray
from .elementwise import elementwise
from .maps import ROW_OF, Loop, LoopIndex
from .recorder import Recorder, TraceError, place
from .reductions import cumulative
from .views import View
from .write import materialise

_SHAPE = "the bounds of a map are data: of that kind, neighbours of one array are supported, p[i]:p[i + 1] over all i"


def row_of(low: object, high: object, step: object) -> tuple[Loop, object]:
    """The loop over rows, and the array whose neighbouring elements are the bounds.  Raises `TraceError` for others."""
    first, second = (getattr(b, "origin", None) for b in (low, high))
    if step != 1 or first is None or second is None or len(first.parts) != 1 or len(second.parts) != 1:
        raise TraceError(place(), _SHAPE)
    at, behind = first.parts[0], second.parts[0]
    if not (isinstance(at, LoopIndex) and isinstance(behind, LoopIndex)) or first.array.cell is not second.array.cell:
        raise TraceError(place(), _SHAPE)
    if len(at.terms) != 1 or at.offset or behind.terms != at.terms or behind.offset != 1:
        raise TraceError(place(), _SHAPE)
    ((loop, coef),) = at.terms
    if (loop.start, loop.step, coef) != (0, 1, 1) or first.array.shape != (loop.extent + 1,):
        raise TraceError(place(), _SHAPE)
    if first.array.dtype.kind not in "iu":
        raise TraceError(place(), f"the bounds of a map are of type {first.array.dtype.name}, not integers")
    return loop, TracedArray.of(first.array.recorder, first.array.view)


def rows_of_entries(recorder: Recorder, entries: Loop) -> View:
    """The row of every entry: -1 in front of the first, the number of rows behind the last."""
    assert entries.rows is not None
    pointers = entries.rows[1]
    assert isinstance(pointers, TracedArray)
    if entries not in recorder.rows:
        starts = materialise(recorder, pointers.view)
        if recorder.tensors[starts.tensor].role is not Role.VALUE:
            recorder.pointers[starts.tensor] = entries.extent
        recorder.notes.append(f"{place()}: rows begin where an array says, which must ascend")
        one = recorder.constant(np.ones(pointers.shape, np.int64))
        at = scatter(recorder, "begins", one, starts, [Axis("e", entries.extent)], ["p"], 0)
        count = cumulative(recorder, TracedArray.of(recorder, at), 0)
        minus = recorder.constant(np.full((1,), -1, np.int64))
        recorder.rows[entries] = elementwise(recorder, "add", "row", [count, minus], np.dtype("int64"))
    return recorder.rows[entries]


def sum_by_rows(recorder: Recorder, values: View, at: int, entries: Loop) -> View:
    """Sums of the entries of every row; dimension `at` of the values runs over entries, of the result over rows."""
    assert entries.rows is not None
    owner = entries.rows[0]
    names = ["e" if d == at else f"i{d}" for d in range(len(values.shape))]
    axes = [Axis("r", owner.extent) if d == at else Axis(a, values.shape[d]) for d, a in enumerate(names)]
    rows = rows_of_entries(recorder, entries)
    return scatter(recorder, "rows", values, rows, axes, names, at, "r")


def scatter(
    recorder: Recorder,
    base: str,
    values: View,
    ids: View,
    axes: Sequence[Axis],
    names: Sequence[str],
    at: int,
    rows: str = "e",
) -> View:
    """`values[.., e, ..]` summed where `ids[e]` says; `names`: axes of the values, the one at `at` is summed."""
    summed = Axis(names[at], values.shape[at], Combine.SUM)
    inputs = [values.access(names), Access(ids.tensor, (Affine.axis(names[at]),))]
    out = [a.name for a in axes]
    return recorder.emit("scatter_add", base, [*axes, summed], inputs, out, recorder.dtype(values), {"rows": rows})


ROW_OF.append(row_of)

"""Computes scatters: values that go where their ids point, added up or the extreme kept; so do parts of the
ids combine.

    embedding_gradient, scatter_add     out[v, j] = SUM  over b with ids[b] = v of x[b, j]
    scatter_max, scatter_min            out[v, j] = MAX (MIN) of the same, the neutral element where nothing goes

Ids outside the rows of the box go nowhere, nor do those equal to the attribute `padding`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...models.program.index import Combine
from .blocks import Array, KernelError, align, lengths, neutral, view
from .elementwise import number
from .task import Task

_HOW: Final = {"scatter_max": ("maximum", Combine.MAX), "scatter_min": ("minimum", Combine.MIN)}


def scatter(t: Task) -> Array:
    """The rows of the box.  Raises `KernelError` if the row axis does not index the result only."""
    rows, out = t.op.rows, t.op.output.axes
    x_access, ids_access = t.op.inputs
    dtype = t.operands[0].array.dtype
    ufunc, combine = _HOW.get(t.op.function, ("add", Combine.SUM))
    nothing = neutral(dtype, combine)
    result: Array = t.xp.full(t.shape, nothing, dtype=dtype)
    if 0 in lengths(t.box, [a.name for a in t.op.axes]):
        return result
    if rows not in out or rows in x_access.axes or rows in ids_access.axes:
        raise KernelError(t.place, f"row axis {rows!r} must index the result only")
    order = [a.name for a in t.op.axes if a.name != rows]
    shape = lengths(t.box, order)
    tensors = [t.graph.tensor(a.tensor).shape for a in t.op.inputs]
    x, ids = (
        t.xp.broadcast_to(
            align(view(t.xp, t.operands[j], a, t.box, tensors[j], 0, f"{t.place}, input {j}"), a.axes, order), shape
        )
        for j, a in enumerate(t.op.inputs)
    )
    low, high = t.box[rows]
    here = (ids >= low) & (ids < high)
    if "padding" in dict(t.op.attributes):
        here &= ids != number(t.op, "padding", -1)
    if t.xp is np and len(order) == len(out) == 1 and ufunc == "add" and dtype == np.float64:
        # one index and sums of float64: the same additions in the same order, in a loop of its own
        kept = (ids, x) if here.all() else (ids[here], x[here])
        return np.bincount(kept[0] - low if low else kept[0], kept[1], high - low)  # type: ignore[return-value]
    local = t.xp.where(here, ids - low, 0)
    index = tuple(
        local if a == rows else t.xp.broadcast_to(align(t.xp.arange(lengths(t.box, [a])[0]), (a,), order), shape)
        for a in out
    )
    values = t.xp.where(here, x, t.xp.asarray(nothing, dtype=dtype))
    getattr(t.xp, ufunc).at(result, index, values)
    return result

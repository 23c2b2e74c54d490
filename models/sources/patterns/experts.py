"""Recognises experts picked one by one: a matrix per point, picked from a stack of matrices by data, times
the point's vector.

    y[s, n] = sum_k x[s, k] w[ids[s], n, k]        product of x and an embedding of w        -> grouped_product

The picked matrices, one for every point, are never made.
"""

from __future__ import annotations

from dataclasses import replace

from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import Operator
from .view import View


def picked_matrices(view: View, op: Operator) -> Operator | None:
    """A product of a vector per point with a matrix per point that an embedding picked for it alone."""
    if op.function != "product" or len(op.inputs) != 2 or op.attributes:
        return None
    for j, a in enumerate(op.inputs):
        pick = view.writer.get(a.tensor)
        if pick is None or pick.function != "embedding" or view.readers[a.tensor] != [op.name]:
            continue
        if a.tensor in view.graph.outputs or len(pick.reduction_axes) != 1 or pick.rows not in pick.inputs[0].axes:
            continue
        found = _grouped(view, op, pick, j)
        if found is not None:
            return found
    return None


def _grouped(view: View, op: Operator, pick: Operator, position: int) -> Operator | None:
    read, (table, ids) = op.inputs[position], pick.inputs
    at = {out.single: i for out, i in zip(pick.output.index, read.index, strict=True)}  # axis of the pick -> index here
    vector = op.inputs[1 - position]
    matrix = [at[i.single] for i in table.index if i.single != pick.rows and i.single in at]
    points = [at[i.single] for i in ids.index if i.single in at]
    every = [*matrix, *points]
    if len(matrix) + 1 != len(table.index) or len(points) != len(ids.index) or any(i.single is None for i in every):
        return None
    shape = view.graph.tensor(read.tensor).shape
    if any(i.single is None or op.axis(i.single).extent != n for i, n in zip(read.index, shape, strict=True)):
        return None
    names = {str(i.single) for i in matrix if op.axis(str(i.single)).extent > 1}
    summed = {a.name for a in op.reduction_axes}
    per_point = {str(i.single) for i in points} & set(vector.axes)
    if not (names & summed and names - summed and per_point) or {str(i.single) for i in points} & summed:
        return None
    rows = "e" if all(a.name != "e" for a in op.axes) else "e'"
    stack = tuple(Affine.axis(rows) if i.single == pick.rows else at[i.single] for i in table.index)
    chosen = Access(ids.tensor, tuple(at[i.single] for i in ids.index))
    groups = Axis(rows, pick.axis(pick.rows).extent, Combine.SUM, pick.axis(pick.rows).splittable)
    return replace(
        op,
        function="grouped_product",
        axes=(*op.axes, groups),
        inputs=(vector, Access(table.tensor, stack), chosen),
        attributes=(("rows", rows),),
    )

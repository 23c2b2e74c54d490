"""Computes operators that move elements: gather and layout.

embedding   out[o] = sum over v of table[v, ..] * [ids[..] = v]: ids outside the local part of the row axis contribute
            zero, so that parts add up; further reduction axes (bags) are summed too.  A table whose rows are all the
            same need not name the row axis.
copy        out[o] = sum of the inputs at their indices, zero where an index leaves its tensor: transpose, concat,
            slice, pad, expand.  Per input only the part of the box that is in range is touched; parts that make up
            the box, as of a concat, are put beside each other.
iota        out[o] = start + step * o[along], no input
random      out[o] = the number of the row-major index of o (`models.program.random_numbers`), no input
copy with attribute `reshape` (an opaque view): the dimensions marked `whole` are read row-major into the output axes
that
            do not occur in the access, in output order:  out[kept, rest] = x[kept, unflatten(flatten(rest))].
            Other dimensions must be single axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from types import ModuleType
from typing import Final

import numpy as np

from ...models.program.graph import Graph
from ...models.program.index import Access
from ...models.program.operators import Operator
from ...models.program.random_numbers import draw_numbers
from .blocks import Array, Block, KernelError, align, cover, execution_dtype, lengths, spread, view
from .elementwise import number

_PARTS: Final = 64
"""Inputs of a copy that are compared two by two."""


def gather(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    """Rows of a table, the row axis possibly split."""
    table_access, ids_access = op.inputs
    rows, out = str(op.attribute("rows", "")), op.output.axes
    bags = [a.name for a in op.reduction_axes if a.name != rows]
    order = (*out, *bags)
    shape, dtype = lengths(box, out), operands[0].array.dtype
    if 0 in lengths(box, [a.name for a in op.axes]):
        return xp.zeros(shape, dtype=dtype)  # type: ignore[no-any-return]
    if rows in ids_access.axes:
        raise KernelError(f"operator {op.name!r}", f"row axis {rows!r} must index the table and not the ids")
    place = f"operator {op.name!r}, input"
    table = view(xp, operands[0], table_access, box, graph.tensor(table_access.tensor).shape, 0, f"{place} 0")
    ids = view(xp, operands[1], ids_access, box, graph.tensor(ids_access.tensor).shape, 0, f"{place} 1")
    ids = align(ids, ids_access.axes, order)
    low, high = box[rows]
    here = (ids >= low) & (ids < high)
    all_here = xp is np and bool(here.all())  # on a GPU the answer would wait for all kernels before
    local = ids - low if all_here else xp.where(here, ids - low, 0)
    index = tuple(
        local if a == rows else align(xp.arange(table.shape[d]), (a,), order) for d, a in enumerate(table_access.axes)
    )
    picked = table[index] if all_here else xp.where(here, table[index], xp.zeros((), dtype=dtype))
    picked = xp.broadcast_to(picked, lengths(box, order))
    if bags:
        picked = xp.sum(picked, axis=tuple(range(len(out), len(order))), dtype=dtype)
    return spread(xp, picked, shape)


def copy(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    """Sum of the inputs that are in range."""
    if any(i.whole for a in op.inputs for i in a.index):
        return _reshape(xp, op, graph, box, operands)
    out_axes, dtype = op.output.axes, xp.result_type(*[b.array for b in operands])
    shape, nothing = lengths(box, out_axes), -0.0 if dtype.kind == "f" else 0
    read = [_in_range(a, box, graph.tensor(a.tensor).shape) for a in op.inputs]
    if len(op.inputs) == 1 and _exact(op.inputs[0]) and lengths(read[0], out_axes) == shape and 0 not in shape:
        place = f"operator {op.name!r}, input 0"  # a slice, or a transposition: nothing to add up
        seen = view(xp, operands[0], op.inputs[0], box, graph.tensor(op.inputs[0].tensor).shape, nothing, place)
        return xp.array(xp.broadcast_to(align(seen, op.inputs[0].axes, out_axes), shape), order="C")  # type: ignore[no-any-return]
    tiled = all(map(_exact, op.inputs)) and _tile(out_axes, read, shape)
    filled = tiled or any(
        _exact(a) and lengths(part, out_axes) == shape for a, part in zip(op.inputs, read, strict=True)
    )
    # -0 + x is x for every x, of either sign
    out: Array = xp.empty(shape, dtype=dtype) if tiled else xp.full(shape, nothing, dtype=dtype)
    reached = None if filled or dtype.kind != "f" else xp.zeros(shape, dtype=bool)
    for j, (access, block, part) in enumerate(zip(op.inputs, operands, read, strict=True)):
        source, place = graph.tensor(access.tensor).shape, f"operator {op.name!r}, input {j}"
        if 0 in lengths(part, out_axes):
            continue
        values = view(xp, block, access, part, source, nothing, place)
        where = tuple(slice(part[a][0] - box[a][0], part[a][1] - box[a][0]) for a in out_axes)
        if tiled:
            out[where] = align(values, access.axes, out_axes)
        else:
            out[where] += align(values, access.axes, out_axes)
        if reached is None:
            continue
        if _exact(access):
            reached[where] = True
        else:
            there = Block(xp.ones(block.array.shape, dtype=bool), block.origin)
            reached[where] |= align(view(xp, there, access, part, source, 0, place), access.axes, out_axes)
    return out if reached is None else xp.where(reached, out, xp.zeros((), dtype=dtype))  # what nothing reaches is 0


def _tile(axes: Sequence[str], parts: Sequence[dict[str, tuple[int, int]]], shape: tuple[int, ...]) -> bool:
    """Whether boxes inside one of this shape are apart from each other and fill it.

    >>> halves = [{"i": (0, 2), "j": (0, 4)}, {"i": (2, 5), "j": (0, 4)}]
    >>> _tile("ij", halves, (5, 4)), _tile("ij", halves[:1], (5, 4)), _tile("ij", [*halves, halves[0]], (5, 4))
    (True, False, False)
    """
    full = [p for p in parts if 0 not in lengths(p, axes)]
    if len(full) > _PARTS or sum(prod(lengths(p, axes)) for p in full) != prod(shape):
        return False
    return all(any(p[a][1] <= q[a][0] or q[a][1] <= p[a][0] for a in axes) for p, q in combinations(full, 2))


def _exact(access: Access) -> bool:
    """Whether the range of a box says which of its points lie inside."""
    return all(len(i.terms) <= 1 for i in access.index)


def iota(xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]]) -> Array:
    """Positions along one axis, in the element type of the result."""
    out, along = op.output.axes, str(op.attribute("along", ""))
    if along not in out:
        raise KernelError(f"operator {op.name!r}", f"attribute along must name an axis of the result, not {along!r}")
    start, step = number(op, "start", 0), number(op, "step", 1)
    dtype = execution_dtype(graph.tensor(op.output.tensor).dtype)
    if dtype.startswith(("int", "uint")) and float(start).is_integer() and float(step).is_integer():
        start, step = int(start), int(step)
    values = start + step * xp.arange(*box[along]) if step else xp.full(box[along][1] - box[along][0], start)
    return spread(xp, align(values.astype(dtype), (along,), out), lengths(box, out))


def random(xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]]) -> Array:
    """Numbers of the elements of the box, by their places in the whole array."""
    out = op.output.axes
    place = xp.zeros((1,) * len(out), dtype="int64")
    for name in out:
        place = place * op.axis(name).extent + align(xp.arange(*box[name], dtype="int64"), (name,), out)
    numbers = draw_numbers(
        xp, str(op.attribute("distribution", "")), int(number(op, "seed", 0)), int(number(op, "draw", 0)), place
    )
    return spread(xp, numbers.astype(execution_dtype(graph.tensor(op.output.tensor).dtype)), lengths(box, out))


def _in_range(access: Access, box: dict[str, tuple[int, int]], shape: Sequence[int]) -> dict[str, tuple[int, int]]:
    """The box without the points at which a one-axis index leaves the tensor (they would only add zeros)."""
    part = dict(box)
    for index, extent in zip(access.index, shape, strict=True):
        if len(index.terms) == 1:
            ((name, coef),) = index.terms
            low, high = part[name]
            part[name] = max(low, -(index.offset // coef)), min(high, (extent - 1 - index.offset) // coef + 1)
    return part


def _reshape(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    place = f"operator {op.name!r}"
    if len(op.inputs) != 1:
        raise KernelError(place, "an opaque view has exactly one input")
    access, out = op.inputs[0], op.output.axes
    shape = graph.tensor(access.tensor).shape
    if any(not i.whole and i.single is None for i in access.index):
        raise KernelError(place, "the dimensions of an opaque view are single axes or whole")
    kept = [i.single for i in access.index if i.single is not None]
    rest = [a for a in out if a not in kept]
    whole = [n for i, n in zip(access.index, shape, strict=True) if i.whole]
    extents = [op.axis(a).extent for a in rest]
    if prod(whole) != prod(extents):
        raise KernelError(place, f"cannot view {whole} as {extents}")
    if 0 in lengths(box, out):
        return xp.zeros(lengths(box, out), dtype=operands[0].array.dtype)  # type: ignore[no-any-return]
    spans = [i.interval(box, n) for i, n in zip(access.index, shape, strict=True)]
    part = cover(xp, operands[0], [s[0] for s in spans], [s[1] for s in spans], shape, 0, f"{place}, input 0")
    order = [k for k, i in enumerate(access.index) if not i.whole] + [k for k, i in enumerate(access.index) if i.whole]
    seen = xp.ascontiguousarray(part.transpose(order)).reshape((*lengths(box, kept), *extents))
    cut = seen[(*(slice(None) for _ in kept), *(slice(*box[a]) for a in rest))]
    return spread(xp, align(cut, [*kept, *rest], out), lengths(box, out))

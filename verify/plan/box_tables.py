"""Recomputes boxes under all placements of an operator or a copy at once: the definitions of
`verify/plan/boxes.py` over arrays, one row per placement.

    matrices      (placements, rows, levels): the axes' rows, then replication
    blocks        (placements, devices, axes, 2): `axis_blocks` of every matrix
    boxes         (layouts, devices, dimensions, 2): those that differ, and which one every placement has

No code of `models/layout/layout`.  What is read of an operator is its `Shape`, which has no names: equal shapes have
equal boxes and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.program.graph import Graph
from ...models.program.index import Affine
from ...models.program.operators import FUNCTIONS, Function, NodeKind, Operator
from .attention_forms import attention_axes
from .bands import Bounds, attribute_axes, bounds_of
from .boxes import Digit, open_digits
from .epilogues import finishing
from .measured import product_of
from .turns import turns_of

CHUNK = 1 << 20
"""Cells (placements x devices x axes) worked on at a time."""


@dataclass(frozen=True)
class Map:
    """One dimension of an operand: `terms` (row of the matrix, coefficient), offset, and whether all of it is
    touched.
    """

    terms: tuple[tuple[int, int], ...]
    offset: int
    whole: bool


@dataclass(frozen=True)
class Operand:
    """A tensor of `shape`, touched at one map per dimension; `open`: rows whose sums are left open in it."""

    maps: tuple[Map, ...]
    shape: tuple[int, ...]
    open: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shape:
    """An operator without names; axes are rows of the matrix.  `sizes`: element bytes of the inputs, then of the
    output; `order`: rows in the order of a profile's extents; `rows`: the row axis of a gather, a scatter or a
    grouped product; `peak`: the element type it computes in; `groups`: over how many groups the points of a grouped
    product are spread evenly, else 0; `counts`: of points, by group, where they are known.
    Of attention, `inner`: rows inside a pair of query and key, `band`: the rows of
    query and key, and what a query sees of the keys; `profiled`: whether a profile may hold its times.
    `finish`: operations per element of the result; `product`: rows of batch, rows, columns and sum of a matrix product.
    `attended`: of attention whether it is a gradient, and its rows and keys.
    Of a scan, `inner`: axes that are no rows, `turning`: rows and bytes that its body moves for each, `launches`.
    """

    function: str
    dtype: str
    extents: tuple[int, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    over: tuple[int, ...]
    rows: int | None
    flops: int
    peak: str
    groups: int = 0
    inner: tuple[int, ...] = ()
    band: tuple[int, int, Bounds] | None = None
    profiled: bool = True
    finish: int = 0
    product: tuple[tuple[int, ...], ...] = ()
    turning: tuple[tuple[tuple[int, ...], int], ...] = ()
    launches: int = 1
    attended: tuple[bool, tuple[int, ...], tuple[int, ...]] | None = None
    counts: tuple[int, ...] = ()

    @property
    def spec(self) -> Function:
        return FUNCTIONS[self.function]


def shape_of(op: Operator, graph: Graph, axes: Sequence[str]) -> Shape:
    """The shape of an operator whose placements have these rows."""
    row = {name: i for i, name in enumerate(axes)}
    extent = {a.name: a.extent for a in op.axes}
    summed = tuple(row[a.name] for a in op.axes if a.combine is not None)

    def operand(index: tuple[Affine, ...], tensor: str, reduced: tuple[int, ...]) -> Operand:
        return Operand(
            tuple(Map(tuple((row[n], c) for n, c in i.terms), i.offset, i.whole) for i in index),
            graph.tensor(tensor).shape,
            tuple(sorted(reduced)),
        )

    written = tuple(row[i.terms[0][0]] for i in op.output.index)
    name = str(op.attribute("rows", ""))
    rows = row[name] if op.kind in (NodeKind.GATHER, NodeKind.SCATTER, NodeKind.GROUPED) else None
    load = op.attribute("load", "even") if op.kind is NodeKind.GROUPED else ""
    attention, bounds = op.kind is NodeKind.ATTENTION, bounds_of(op)
    over = tuple(sorted(row[n] for n in op.over)) if attention or op.kind is NodeKind.NORMALISE else ()
    inside = tuple(row[n] for role in ("feature", "value_feature", "packed") for n in attribute_axes(op, role))
    (query, key) = (row[n] for role in ("query", "key") for n in attribute_axes(op, role)) if bounds else (0, 0)
    loop, factors = turns_of(op), str(op.attribute("arithmetic", ""))
    if loop:
        inside = tuple(i for i, n in enumerate(axes) if n not in op.output.axes[:-1])
    product, seen = product_of(op), attention_axes(op)
    return Shape(
        op.function,
        graph.tensor(op.output.tensor).dtype,
        tuple(extent[n] for n in axes),
        tuple(operand(a.index, a.tensor, ()) for a in op.inputs),
        operand(op.output.index, op.output.tensor, summed),
        tuple(graph.tensor(a.tensor).element_bytes for a in (*op.inputs, op.output)),
        (*written, *summed),
        over,
        rows,
        loop.flops if loop else graph.flops_per_point(op),
        factors or graph.tensor((op.inputs[0] if attention else op.output).tensor).dtype,
        extent[name] if load == "even" else 0,
        inside,
        (query, key, bounds) if bounds else None,
        not bounds and not factors and not loop and not isinstance(load, tuple),
        finishing(op),
        () if product is None else tuple(tuple(row[n] for n in part) for part in product.parts),
        tuple((tuple(row[n] for n in along), size) for along, size in loop.moved) if loop else (),
        loop.launches if loop else 1,
        (seen.backward, tuple(row[n] for n in seen.rows), tuple(row[n] for n in seen.keys)) if seen else None,
        tuple(int(n) for n in load) if isinstance(load, tuple) else (),
    )


def copy_operand(shape: tuple[int, ...], axes: Sequence[str]) -> Operand:
    """A tensor's copy: its dimensions, called by their numbers, are the rows."""
    return Operand(tuple(Map(((axes.index(str(k)), 1),), 0, False) for k in range(len(shape))), shape)


def parts(matrices: Ints, devices: int, width: int) -> Iterator[slice]:
    """Placements in parts of at most `CHUNK` cells of `width` numbers."""
    step = max(1, CHUNK // (devices * max(1, width)))
    return (slice(first, first + step) for first in range(0, matrices.shape[0], step))


def blocks(extents: tuple[int, ...], matrices: Ints, hierarchy: tuple[int, ...]) -> Ints:
    """The block of every axis on every device under every placement.

    >>> blocks((5,), np.array([[[4], [1]]]), (4,))[0, :, 0].tolist()
    [[0, 2], [2, 4], [4, 5], [0, 0]]
    """
    count, rows = matrices.shape[:2]
    rank = np.zeros((count, len(extents), 1), dtype=np.int64)
    for j, size in enumerate(hierarchy):
        digits = np.empty((count, rows, size), dtype=np.int64)
        rest = np.broadcast_to(np.arange(size), (count, size))
        for i in reversed(range(rows)):  # the last row varies fastest
            rest, digits[:, i] = np.divmod(rest, matrices[:, i, j, None])
        mine = digits[:, : len(extents)]
        rank = (rank[:, :, :, None] * matrices[:, : len(extents), j, None, None] + mine[:, :, None, :]).reshape(
            count, len(extents), prod(hierarchy[: j + 1])
        )
    extent = np.array(extents, dtype=np.int64)[None, :]
    size_of = -(-extent // matrices[:, : len(extents)].prod(axis=2))
    low = rank * size_of[:, :, None]
    high = np.minimum(low + size_of[:, :, None], extent[:, :, None])
    out = np.stack([low, high], axis=3).transpose(0, 2, 1, 3)
    out[out[..., 0] >= out[..., 1]] = 0
    return np.ascontiguousarray(out)


def operand_boxes(operand: Operand, block: Ints) -> Ints:
    """Boxes of an operand: (placements, devices, dimensions, 2)."""
    out = np.zeros((*block.shape[:2], len(operand.shape), 2), dtype=np.int64)
    for k, (map_, extent) in enumerate(zip(operand.maps, operand.shape, strict=True)):
        low = np.full(block.shape[:2], map_.offset, dtype=np.int64)
        high, empty = low + 1, np.zeros(low.shape, dtype=bool)
        for row, coef in map_.terms:
            low += coef * block[:, :, row, 0]
            high += coef * (block[:, :, row, 1] - 1)
            empty |= block[:, :, row, 0] >= block[:, :, row, 1]
        if map_.whole:
            low[:], high[:] = 0, extent
        low, high = np.maximum(low, 0), np.minimum(high, extent)
        empty |= low >= high
        out[..., k, 0], out[..., k, 1] = np.where(empty, 0, low), np.where(empty, 0, high)
    return out


def volumes(boxes: Ints) -> Ints:
    """Elements of every box: the last two dimensions are (dimensions, ends)."""
    return np.asarray((boxes[..., 1] - boxes[..., 0]).prod(axis=-1, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Layouts:
    """The distinct layouts of an operand: `boxes` (layouts, devices, dimensions, 2), `open` digits of each, `of` every
    placement its number.

    `hulls`: what `verify/plan/entry_tables.py` has found out about subtrees of so many devices.
    """

    hierarchy: tuple[int, ...]
    boxes: Ints
    open: tuple[tuple[Digit, ...], ...]
    of: Ints
    hulls: dict[int, tuple[Ints, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]] = field(default_factory=dict)

    @property
    def largest(self) -> Ints:
        """Elements of the largest box of every layout."""
        return np.asarray(volumes(self.boxes).max(axis=1))


def layouts(operand: Operand, extents: tuple[int, ...], matrices: Ints, hierarchy: tuple[int, ...]) -> Layouts:
    """The layouts of an operand under all placements."""
    seen: dict[tuple[bytes, tuple[Digit, ...]], int] = {}
    kept: list[Ints] = []
    of = np.empty(matrices.shape[0], dtype=np.int64)
    digits = _open(operand.open, matrices)
    for part in parts(matrices, prod(hierarchy), max(len(extents), len(operand.shape))):
        boxes = operand_boxes(operand, blocks(extents, matrices[part], hierarchy))
        for number, box, open_ in zip(range(part.start, part.stop), boxes, digits[part], strict=False):
            key = (box.tobytes(), open_)
            if key not in seen:
                seen[key] = len(kept)
                kept.append(box.copy())
            of[number] = seen[key]
    return Layouts(hierarchy, np.stack(kept), tuple(open_ for _, open_ in seen), of)


def _open(rows: tuple[int, ...], matrices: Ints) -> list[tuple[Digit, ...]]:
    """Open digits under every placement; they depend on the first open row and those behind it."""
    if not rows:
        return [()] * matrices.shape[0]
    known: dict[bytes, tuple[Digit, ...]] = {}
    out = []
    for matrix in np.ascontiguousarray(matrices[:, rows[0] :]):
        key = matrix.tobytes()
        if key not in known:
            known[key] = open_digits(tuple(map(tuple, matrix.tolist())), [r - rows[0] for r in rows])
        out.append(known[key])
    return out

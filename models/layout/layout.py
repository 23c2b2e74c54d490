"""Layouts: where every element of a tensor is, device by device.

A layout gives each device a box of the tensor (one interval per dimension) and names the *open digits*: digits of the
device number along which the device holds only a partial result of a reduction.  Two layouts are equal when these
tables are equal.  A partial tensor has open digits, a replica has none, so they are never equal.

    coordinate of device r at level j :  c_j(r),  row-major over H
    digit of a row with degree x, stride s at level j :  (c_j // s) % x
    rank of an axis: its digits over all levels as one mixed-radix number, outermost level most significant
    block of rank r of D on an axis of extent n:  [r c, min(n, (r+1) c)),  c = ceil(n / D)

`LayoutSet` holds the layouts of one operand under all placements of a space at once, factored by dimension:
`dims[k]` lists the distinct interval tables of dimension k, `codes` names one per layout and dimension.

Source: thesis on automatic partitioning of array programs, chapter 3 (rank tiling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ..problem.rows import distinct_rows
from ..problem.selection_problem import Ints
from ..program.index import Access, Affine, Axis, Combine


@dataclass(frozen=True, order=True)
class OpenDigit:
    """A prime digit of the device number along which results are partial: at `level`, with `stride` inside the
    level.
    """

    level: int
    stride: int
    prime: int


OpenDigits = tuple[OpenDigit, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """`boxes`: int64, shape (devices, dimensions, 2), half-open.  `open`: ascending level, descending stride.

    `coupled`: one axis runs through two dimensions (a diagonal), so that boxes of several devices are no grid of
    intervals.
    """

    hierarchy: tuple[int, ...]
    shape: tuple[int, ...]
    boxes: Ints
    open: OpenDigits = ()
    combine: Combine | None = None
    coupled: bool = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self.hierarchy == other.hierarchy
            and self.shape == other.shape
            and self.open == other.open
            and self.combine == other.combine
            and np.array_equal(self.boxes, other.boxes)
        )

    __hash__ = None  # type: ignore[assignment]

    def box(self, device: int) -> tuple[tuple[int, int], ...]:
        """Intervals of one device."""
        return tuple((lo, hi) for lo, hi in self.boxes[device].tolist())

    def volumes(self) -> Ints:
        """Elements of every device's box: shape (devices,)."""
        return np.asarray((self.boxes[:, :, 1] - self.boxes[:, :, 0]).prod(axis=1))


@lru_cache(maxsize=64)
def coordinates(hierarchy: tuple[int, ...]) -> Ints:
    """Level coordinates of every device: shape (devices, levels).

    >>> coordinates((2, 2)).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    grid = np.indices(hierarchy, dtype=np.int64).reshape(len(hierarchy), -1)
    return np.ascontiguousarray(grid.T)


def subtrees_below(hierarchy: tuple[int, ...]) -> list[int]:
    """Devices below one subtree of every level.

    >>> subtrees_below((4, 8))
    [8, 1]
    """
    return [prod(hierarchy[i + 1 :]) for i in range(len(hierarchy))]


def strides(placements: Ints) -> Ints:
    """Stride of every row at every level, same shape as the placements (K, rows, levels)."""
    below = np.ones_like(placements)
    below[:, :-1, :] = np.cumprod(placements[:, :0:-1, :], axis=1)[:, ::-1, :]
    return below


def ranks(degree: Sequence[int], stride: Sequence[int], hierarchy: tuple[int, ...]) -> Ints:
    """Rank of every device along one axis, given its degree and stride at each level: shape (devices,)."""
    at = coordinates(hierarchy)
    rank = np.zeros(at.shape[0], dtype=np.int64)
    for j, (x, s) in enumerate(zip(degree, stride, strict=True)):
        rank = rank * x + (at[:, j] // s) % x
    return rank


def blocks(extent: int, degree: Sequence[int], stride: Sequence[int], hierarchy: tuple[int, ...]) -> Ints:
    """Block of the axis on every device: shape (devices, 2), half-open, (0, 0)-normalised when empty.

    >>> blocks(5, (4,), (1,), (4,)).tolist()
    [[0, 2], [2, 4], [4, 5], [0, 0]]
    """
    total = prod(degree)
    size = -(-extent // total)
    rank = ranks(degree, stride, hierarchy)
    low = np.minimum(rank * size, extent)
    high = np.minimum(low + size, extent)
    out = np.stack([low, high], axis=1)
    out[low >= high] = 0
    return out


@dataclass(frozen=True, eq=False)
class AxisTables:
    """Blocks of every axis under every placement, factored: `tables[i]` (distinct, devices, 2), `codes[:, i]` picks
    one.
    """

    hierarchy: tuple[int, ...]
    axes: tuple[Axis, ...]
    placements: Ints
    tables: tuple[Ints, ...]
    codes: Ints


def axis_tables(axes: tuple[Axis, ...], placements: Ints, hierarchy: tuple[int, ...]) -> AxisTables:
    """Blocks of the axes (rows of the placements, in order) on every device."""
    below = strides(placements)
    tables, codes = [], np.empty((placements.shape[0], len(axes)), dtype=np.int64)
    for i, axis in enumerate(axes):
        degree = placements[:, i, :]
        key = np.concatenate([degree, np.where(degree > 1, below[:, i, :], 1)], axis=1)
        distinct, inverse = distinct_rows(key)
        levels = len(hierarchy)
        tables.append(
            np.stack([blocks(axis.extent, k[:levels].tolist(), k[levels:].tolist(), hierarchy) for k in distinct])
        )
        codes[:, i] = inverse
    return AxisTables(hierarchy, axes, placements, tuple(tables), codes)


@dataclass(frozen=True, eq=False)
class LayoutSet:
    """Distinct layouts of one operand over all placements of an operator.

    `dims[k]`: (n_k, devices, 2); `codes`: (layouts, dimensions); `signature`: (layouts,) index into `signatures`
    (open digits); `of_choice`: (K,) layout of every placement.
    """

    hierarchy: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[Ints, ...]
    codes: Ints
    signatures: tuple[OpenDigits, ...]
    signature: Ints
    of_choice: Ints
    combine: Combine | None = None
    coupled: bool = False

    def __len__(self) -> int:
        return int(self.codes.shape[0])

    def layout(self, i: int) -> Layout:
        """The i-th distinct layout, spelled out."""
        devices = prod(self.hierarchy)
        boxes = np.zeros((devices, len(self.shape), 2), dtype=np.int64)
        for k, table in enumerate(self.dims):
            boxes[:, k, :] = table[self.codes[i, k]]
        digits = self.signatures[int(self.signature[i])]
        return Layout(self.hierarchy, self.shape, boxes, digits, self.combine if digits else None, self.coupled)

    def volumes(self) -> Ints:
        """Largest box volume over the devices, per layout: shape (layouts,)."""
        worst = np.empty(len(self), dtype=np.int64)
        step = max(1, (1 << 20) // max(1, prod(self.hierarchy)))
        for start in range(0, len(self), step):
            part = self.codes[start : start + step]
            volume = np.ones((part.shape[0], prod(self.hierarchy)), dtype=np.int64)
            for k, table in enumerate(self.dims):
                volume *= (table[..., 1] - table[..., 0])[part[:, k]]
            worst[start : start + step] = volume.max(axis=1, initial=0)
        return worst


def intervals(access: Access, shape: tuple[int, ...], tables: AxisTables) -> tuple[tuple[Ints, ...], Ints]:
    """Interval tables of an operand: (dims, codes) as in `LayoutSet`, one code row per placement."""
    position = {a.name: i for i, a in enumerate(tables.axes)}
    dims: list[Ints] = []
    codes = np.zeros((tables.placements.shape[0], len(shape)), dtype=np.int64)
    devices = prod(tables.hierarchy)
    for k, index in enumerate(access.index):
        involved = sorted({position[a] for a, _ in index.terms})
        if involved:
            distinct, inverse = distinct_rows(tables.codes[:, involved])
        else:
            distinct, inverse = np.zeros((1, 0), dtype=np.int64), np.zeros(codes.shape[0], dtype=np.int64)
        low = np.full((distinct.shape[0], devices), index.offset, dtype=np.int64)
        high = low + 1
        empty = np.zeros(low.shape, dtype=bool)
        for name, coef in index.terms:
            i = position[name]
            block = tables.tables[i][distinct[:, involved.index(i)]]
            low += coef * block[..., 0]
            high += coef * (block[..., 1] - 1)
            empty |= block[..., 0] >= block[..., 1]
        low, high = np.maximum(low, 0), np.minimum(high, shape[k])
        if index.whole:
            low, high = np.zeros_like(low), np.full_like(high, shape[k])
        empty |= low >= high
        table = np.stack([low, high], axis=2)
        table[empty] = 0
        unique, back = _unique_rows(table)
        dims.append(unique)
        codes[:, k] = back[inverse]
    return tuple(dims), codes


def _unique_rows(table: Ints) -> tuple[Ints, Ints]:
    seen: dict[bytes, int] = {}
    back = np.empty(table.shape[0], dtype=np.int64)
    keep: list[int] = []
    for i, row in enumerate(table):
        key = row.tobytes()
        if key not in seen:
            seen[key] = len(keep)
            keep.append(i)
        back[i] = seen[key]
    return np.ascontiguousarray(table[keep]), back


def layout_set(access: Access, shape: tuple[int, ...], tables: AxisTables, reduced: Sequence[str] = ()) -> LayoutSet:
    """Layouts of one operand under all placements.  `reduced`: reduction axes left open (for an output)."""
    dims, codes = intervals(access, shape, tables)
    signatures, signature = _signatures(tables, reduced)
    key = np.concatenate([codes, signature[:, None]], axis=1)
    distinct, inverse = distinct_rows(key)
    combine = next((a.combine for a in tables.axes if a.name in reduced), None)
    return LayoutSet(
        tables.hierarchy,
        shape,
        dims,
        np.ascontiguousarray(distinct[:, :-1]),
        signatures,
        np.ascontiguousarray(distinct[:, -1]),
        inverse,
        combine,
        is_coupled(access),
    )


def is_coupled(access: Access) -> bool:
    """Whether one axis runs through two dimensions of the operand.

    >>> from ..program.index import access
    >>> is_coupled(access("t", "i", "j")), is_coupled(access("t", "i", "i"))
    (False, True)
    """
    names = [name for index in access.index if not index.whole for name in dict.fromkeys(a for a, _ in index.terms)]
    return len(set(names)) < len(names)


@lru_cache(maxsize=4096)
def _axis_block(extent: int, degree: tuple[int, ...], stride: tuple[int, ...], hierarchy: tuple[int, ...]) -> Ints:
    """`blocks`, shared by all operands that split an axis of this extent in this way; read-only."""
    out = blocks(extent, degree, stride, hierarchy)
    out.flags.writeable = False
    return out


def operand_layout(
    access: Access,
    shape: tuple[int, ...],
    axes: Sequence[Axis],
    matrix: Sequence[Sequence[int]],
    hierarchy: tuple[int, ...],
    reduced: Sequence[str] = (),
) -> Layout:
    """Layout of one operand under one placement: what `layout_set` gives for it, without the tables of a whole space.

    `axes`: the rows of `matrix` (which has a last row of replication).  `reduced`: reduction axes left open (for an
    output).
    """
    levels = range(len(hierarchy))
    below = [[prod(row[j] for row in matrix[i + 1 :]) for j in levels] for i in range(len(axes))]
    block = {
        a.name: _axis_block(
            a.extent, tuple(row), tuple(s if x > 1 else 1 for s, x in zip(strides_, row, strict=True)), hierarchy
        )
        for a, row, strides_ in zip(axes, matrix, below, strict=False)
    }
    boxes = np.zeros((prod(hierarchy), len(shape), 2), dtype=np.int64)
    for k, index in enumerate(access.index):
        _interval(index, shape[k], block, boxes[:, k, :])
    digits = [
        d
        for a, row, strides_ in zip(axes, matrix, below, strict=False)
        if a.name in reduced
        for j in levels
        if row[j] > 1
        for d in prime_digits(j, row[j], strides_[j])
    ]
    combine = next((a.combine for a in axes if a.name in reduced), None) if digits else None
    return Layout(
        hierarchy, shape, boxes, tuple(sorted(digits, key=lambda d: (d.level, -d.stride))), combine, is_coupled(access)
    )


def _interval(index: Affine, extent: int, block: dict[str, Ints], out: Ints) -> None:
    """Interval of one dimension on every device, written to `out` (zeros before): shape (devices, 2)."""
    if index.whole and not index.terms:
        out[:, 1] = extent
        return
    if len(index.terms) == 1 and not index.whole:
        ((name, coef),) = index.terms
        table = block[name]
        low, high = table[:, 0], table[:, 1]
        empty = low >= high
        if coef != 1 or index.offset:
            low, high = coef * low + index.offset, coef * (high - 1) + (index.offset + 1)
    else:
        low = np.full(out.shape[0], index.offset, dtype=np.int64)
        high, empty = low + 1, np.zeros(out.shape[0], dtype=bool)
        for name, coef in index.terms:
            table = block[name]
            low = low + coef * table[:, 0]
            high = high + coef * (table[:, 1] - 1)
            empty |= table[:, 0] >= table[:, 1]
        if index.whole:
            low, high = np.zeros_like(low), np.full_like(high, extent)
    np.maximum(low, 0, out=out[:, 0])
    np.minimum(high, extent, out=out[:, 1])
    out[empty | (out[:, 0] >= out[:, 1])] = 0


def prime_digits(level: int, degree: int, stride: int) -> list[OpenDigit]:
    """The digit of one row at one level as prime digits, most significant first.

    >>> [(d.stride, d.prime) for d in prime_digits(0, 12, 2)]
    [(12, 2), (6, 2), (2, 3)]
    """
    out, p = [], 2
    rest = degree
    while rest > 1:
        if rest % p == 0:
            rest //= p
            out.append(OpenDigit(level, stride * rest, p))
        else:
            p += 1
    return out


def _signatures(tables: AxisTables, reduced: Sequence[str]) -> tuple[tuple[OpenDigits, ...], Ints]:
    rows = [i for i, a in enumerate(tables.axes) if a.name in reduced]
    count = tables.placements.shape[0]
    if not rows:
        return ((),), np.zeros(count, dtype=np.int64)
    degree = tables.placements[:, rows, :].reshape(count, -1)
    below = strides(tables.placements)[:, rows, :].reshape(count, -1)
    key = np.concatenate([degree, np.where(degree > 1, below, 1)], axis=1)
    distinct, inverse = distinct_rows(key)
    levels, width = len(tables.hierarchy), degree.shape[1]
    seen: dict[OpenDigits, int] = {}
    number = np.empty(distinct.shape[0], dtype=np.int64)
    for n, row in enumerate(distinct):
        digits: list[OpenDigit] = []
        for c in range(width):
            digits.extend(prime_digits(c % levels, int(row[c]), int(row[width + c])))
        ordered = tuple(sorted(digits, key=lambda d: (d.level, -d.stride)))
        number[n] = seen.setdefault(ordered, len(seen))
    return tuple(seen), number[inverse]

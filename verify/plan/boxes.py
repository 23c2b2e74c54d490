"""Recomputes boxes of the devices, straight from the definition, with no code of `models/layout/layout`.

    device number        row-major over the hierarchy H = [h_0 .. h_L]; coordinate c_j at level j, 0 <= c_j < h_j
    digits               c_j is a mixed-radix number with one digit per row of the placement matrix X, radix X[i][j],
                         first row most significant (the replication row, last, varies fastest)
    rank of axis i       its digits over all levels as one mixed-radix number, outermost level most significant
    block r of D of n    { x : r c <= x < min(n, (r + 1) c) },   c = ceil(n / D)
    operand dimension    { sum coef * x_a + offset : x_a in the block of a }, cut to the extent; its hull is an interval
    open digits          the digits of the reduction rows, each split into primes: along them results are partial

An empty set is the interval (0, 0).  A box is one interval per dimension; it is empty if one of them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...models.layout.placement import Placement
from ...models.program.graph import Graph
from ...models.program.index import Affine
from ...models.program.operators import Operator

Interval = tuple[int, int]
Box = tuple[Interval, ...]
Matrix = tuple[tuple[int, ...], ...]
Ends = NDArray[np.int64]
"""Half-open boxes of all devices: shape (devices, dimensions, 2)."""


class TooFine(ValueError):
    """Boxes that cut a tensor into more cells than are counted."""


MOST_CELLS = 1 << 26
"""Cells of the grid of end points of some boxes, of eight bytes each."""


@dataclass(frozen=True)
class Digit:
    """A prime digit of the device number: (coordinate at `level` // `stride`) % `prime`."""

    level: int
    stride: int
    prime: int

    def value(self, device: int, hierarchy: tuple[int, ...]) -> int:
        """Value of this digit of a device.

        >>> [Digit(1, 2, 2).value(d, (2, 4)) for d in range(8)]
        [0, 0, 1, 1, 0, 0, 1, 1]
        """
        coordinate = device // prod(hierarchy[self.level + 1 :]) % hierarchy[self.level]
        return coordinate // self.stride % self.prime

    def device_at_zero(self, device: int, hierarchy: tuple[int, ...]) -> int:
        """The device that differs only in this digit, which is 0."""
        return device - self.value(device, hierarchy) * self.stride * prod(hierarchy[self.level + 1 :])

    def zeroed_all(self, hierarchy: tuple[int, ...]) -> NDArray[np.int64]:
        """`device_at_zero` of every device.

        >>> Digit(1, 2, 2).zeroed_all((2, 4)).tolist()
        [0, 1, 0, 1, 4, 5, 4, 5]
        """
        device, weight = np.arange(prod(hierarchy)), self.stride * prod(hierarchy[self.level + 1 :])
        return (
            device
            - device // prod(hierarchy[self.level + 1 :]) % hierarchy[self.level] // self.stride % self.prime * weight
        )


@dataclass(frozen=True, eq=False)
class DeviceBoxes:
    """Who holds what of one tensor: a box per device, partial along `open` (outermost level first, descending
    stride).
    """

    hierarchy: tuple[int, ...]
    shape: tuple[int, ...]
    ends: Ends
    open: tuple[Digit, ...] = ()

    @staticmethod
    def of(
        hierarchy: tuple[int, ...], shape: tuple[int, ...], boxes: Sequence[Box], open_: tuple[Digit, ...] = ()
    ) -> DeviceBoxes:
        """From one box per device."""
        return DeviceBoxes(hierarchy, shape, np.array(boxes, dtype=np.int64).reshape(len(boxes), len(shape), 2), open_)

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """One box per device."""
        return boxes_of(self.ends)

    @cached_property
    def largest(self) -> int:
        """Elements of the largest box."""
        lengths = self.ends[:, :, 1] - self.ends[:, :, 0]
        return max(volume(box) for box in boxes_of(np.stack([0 * lengths, lengths], axis=2)[distinct(lengths)]))

    @cached_property
    def _content(self) -> tuple[object, ...]:
        return self.hierarchy, self.shape, self.ends.tobytes(), self.open

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceBoxes) and bool(self._content == other._content)

    def __hash__(self) -> int:
        return hash(self._content)


def boxes_of(ends: Ends) -> tuple[Box, ...]:
    """One box per row.

    >>> boxes_of(np.array([[[0, 2]], [[2, 4]]]))
    (((0, 2),), ((2, 4),))
    """
    return tuple(tuple((low, high) for low, high in box) for box in ends.tolist())


def distinct(rows: NDArray[np.int64]) -> list[int]:
    """Numbers of the first rows of their kind.

    >>> distinct(np.array([[1, 2], [3, 4], [1, 2]]))
    [0, 1]
    """
    flat = np.ascontiguousarray(rows).reshape(rows.shape[0], -1)
    if (flat == flat[:1]).all():
        return [0]
    seen: dict[bytes, int] = {}
    for i, row in enumerate(flat):
        seen.setdefault(row.tobytes(), i)
    return list(seen.values())


def volume(box: Box) -> int:
    """Number of elements.

    >>> volume(((0, 3), (2, 4))), volume(())
    (6, 1)
    """
    return prod(max(0, high - low) for low, high in box)


def all_inside(inner: Ends, outer: Ends) -> bool:
    """Every device's box of `inner` is in its box of `outer`, or empty."""
    within = np.asarray(((outer[..., 0] <= inner[..., 0]) & (inner[..., 1] <= outer[..., 1])).all(axis=1))
    return bool((within | (inner[..., 0] >= inner[..., 1]).any(axis=1)).all())


def below(wanted: Ends, held: Ends, size: int) -> Iterable[tuple[list[Box], list[Box]]]:
    """What is wanted and what is held there, for every run of `size` devices: runs that differ by where they lie only
    are given once.

    What is held outside the hull of what is wanted is left out, and the hull's corner is the origin: `difference` stays
    what it is.

    >>> quarters = np.array([[[0, 1]], [[1, 2]], [[2, 3]], [[3, 4]]])
    >>> list(below(quarters, quarters[::-1], 1))
    [([((0, 1),)], [((0, 0),)])]
    """
    runs, dimensions = wanted.shape[0] // size, wanted.shape[1]
    want, have = (ends.reshape(runs, size, dimensions, 2) for ends in (wanted, held))
    empty = np.asarray((want[..., 0] >= want[..., 1]).any(axis=2))[..., None]
    low = np.where(empty, np.iinfo(np.int64).max, want[..., 0]).min(axis=1, keepdims=True)
    high = np.where(empty, -1, want[..., 1]).max(axis=1, keepdims=True)
    low = np.where(high < 0, 0, low)  # nothing is wanted: everything is left out
    both = []
    for ends in (want, have):
        first, last = np.maximum(ends[..., 0], low), np.minimum(ends[..., 1], high)
        gone = np.asarray((first >= last).any(axis=2))[..., None]
        both.append(np.stack([np.where(gone, 0, first - low), np.where(gone, 0, last - low)], axis=3))
    for run in distinct(np.concatenate(both, axis=1)):
        yield list(boxes_of(both[0][run])), list(boxes_of(both[1][run]))


def inside(inner: Box, outer: Box) -> bool:
    """Every element of `inner` is in `outer`."""
    return all(a <= x and y <= b for (x, y), (a, b) in zip(inner, outer, strict=True)) or volume(inner) == 0


def difference(wanted: Sequence[Box], held: Sequence[Box]) -> int:
    """Number of elements in the union of `wanted` and not in the union of `held`.

    >>> difference([((0, 4),), ((2, 6),)], [((5, 9),)])
    5
    """
    want, have = ([b for b in dict.fromkeys(boxes) if volume(b)] for boxes in (wanted, held))
    if not want:
        return 0
    if len(want) == 1:
        around = [tuple((max(a, x), min(b, y)) for (a, b), (x, y) in zip(want[0], h, strict=True)) for h in have]
        have = [h for h in dict.fromkeys(around) if volume(h)]
        if len(have) < 2:
            return volume(want[0]) - sum(volume(h) for h in have)
    cuts = [sorted({end for b in (*want, *have) for end in b[k]}) for k in range(len(want[0]))]
    places = [{end: i for i, end in enumerate(c)} for c in cuts]
    if prod(len(c) - 1 for c in cuts) > MOST_CELLS:
        raise TooFine(f"{len(want)} and {len(have)} boxes cut a tensor into more than {MOST_CELLS} cells")
    missing = np.asarray(
        np.zeros([len(c) - 1 for c in cuts], dtype=np.int64)
    )  # 1 or 0 per cell of the grid of end points
    for boxes, value in ((want, 1), (have, 0)):
        for b in boxes:
            missing[tuple(slice(p[low], p[high]) for p, (low, high) in zip(places, b, strict=True))] = value
    reach = prod(c[-1] - c[0] for c in cuts)
    if reach >= 1 << 62:
        raise TooFine(f"boxes that reach around {reach} elements cannot be counted in 64 bits")
    for c in reversed(cuts):  # cells times their sizes, one dimension after the other
        sizes = np.array([high - low for low, high in pairwise(c)], dtype=np.int64)
        missing = np.asarray(missing @ sizes)
    return int(missing)


@lru_cache(maxsize=4096)
def axis_ranks(matrix: Matrix, hierarchy: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    """Per row of the matrix, the rank of every device.

    >>> [r.tolist() for r in axis_ranks(((2,), (2,)), (4,))]
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    device = np.arange(prod(hierarchy))
    ranks = [np.zeros_like(device) for _ in matrix]
    for j, size in enumerate(hierarchy):
        coordinate = device // prod(hierarchy[j + 1 :]) % size
        for i in reversed(range(len(matrix))):
            coordinate, digit = np.divmod(coordinate, matrix[i][j])
            ranks[i] = ranks[i] * matrix[i][j] + digit
    return tuple(ranks)


def blocks_of(extent: int, degree: int) -> list[Interval]:
    """The blocks of an axis.

    >>> blocks_of(5, 4)
    [(0, 2), (2, 4), (4, 5), (0, 0)]
    """
    size = -(-extent // degree)
    return [(r * size, min(extent, (r + 1) * size)) if r * size < extent else (0, 0) for r in range(degree)]


def axis_blocks(extents: tuple[int, ...], matrix: Matrix, hierarchy: tuple[int, ...]) -> Ends:
    """Per device, the block of every axis; rows of the matrix: the axes, then replication.

    >>> boxes_of(axis_blocks((5,), ((4,), (1,)), (4,)))
    (((0, 2),), ((2, 4),), ((4, 5),), ((0, 0),))
    """
    out = np.zeros((prod(hierarchy), len(extents), 2), dtype=np.int64)
    for i, (extent, ranks) in enumerate(zip(extents, axis_ranks(matrix, hierarchy), strict=False)):
        out[:, i] = np.array(blocks_of(extent, prod(matrix[i])), dtype=np.int64)[ranks]
    return out


def reached_interval(index: Affine, blocks: Sequence[Interval], extent: int) -> Interval:
    """Interval of a dimension of `extent` that `index` reaches when its terms' axes range over `blocks`.

    >>> reached_interval(Affine.axis("y", 2).plus("k").shift(-1), [(0, 4), (0, 3)], 224)
    (0, 8)
    """
    if any(low >= high for low, high in blocks):
        return (0, 0)
    if index.whole:
        return (0, extent)
    first = index.offset + sum(coef * low for (_, coef), (low, _) in zip(index.terms, blocks, strict=True))
    last = index.offset + sum(coef * (high - 1) for (_, coef), (_, high) in zip(index.terms, blocks, strict=True))
    low, high = max(first, 0), min(last + 1, extent)
    return (low, high) if low < high else (0, 0)


@lru_cache(maxsize=512)
def _held(
    axes: tuple[tuple[str, int], ...],
    matrix: Matrix,
    hierarchy: tuple[int, ...],
    index: tuple[Affine, ...],
    shape: tuple[int, ...],
    reduced: tuple[str, ...],
) -> DeviceBoxes:
    position = {name: i for i, (name, _) in enumerate(axes)}
    blocks = [blocks_of(n, prod(row)) for (_, n), row in zip(axes, matrix, strict=False)]
    ranks = axis_ranks(matrix, hierarchy)
    ends = np.zeros((prod(hierarchy), len(shape), 2), dtype=np.int64)
    for k, (map_, extent) in enumerate(zip(index, shape, strict=True)):
        mine = [position[axis] for axis, _ in map_.terms]
        together = np.zeros(prod(hierarchy), dtype=np.int64)  # the ranks of the axes involved as one number
        for i in mine:
            together = together * len(blocks[i]) + ranks[i]
        _, first, which = np.unique(together, return_index=True, return_inverse=True)
        reached = [reached_interval(map_, [blocks[i][int(ranks[i][d])] for i in mine], extent) for d in first]
        ends[:, k] = np.array(reached, dtype=np.int64)[which.reshape(-1)]
    return DeviceBoxes(hierarchy, shape, ends, open_digits(matrix, [position[name] for name in reduced]))


def open_digits(matrix: Matrix, rows: Sequence[int]) -> tuple[Digit, ...]:
    """The digits of some rows of a matrix as primes, outermost level first, then most significant first.

    >>> open_digits(((6,), (2,)), [0])
    (Digit(level=0, stride=6, prime=2), Digit(level=0, stride=2, prime=3))
    """
    found = []
    for i in rows:
        for level, degree in enumerate(matrix[i]):
            stride = prod(row[level] for row in matrix[i + 1 :])
            rest = degree
            for prime in primes(degree):  # the smallest prime is the most significant digit
                rest //= prime
                found.append(Digit(level, stride * rest, prime))
    return tuple(sorted(found, key=lambda d: (d.level, -d.stride)))


def primes(n: int) -> list[int]:
    """Prime factors, ascending.

    >>> primes(12)
    [2, 2, 3]
    """
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            out.append(p)
            n //= p
        p += 1
    return out


def read_by(op: Operator, position: int, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> DeviceBoxes:
    """What every device reads of input `position` of an operator."""
    a = op.inputs[position]
    return _held(_axes(op, placement), placement.matrix, hierarchy, a.index, graph.tensor(a.tensor).shape, ())


def written_by(op: Operator, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> DeviceBoxes:
    """What every device writes of the output, partial along the digits of the reduction axes."""
    a = op.output
    reduced = tuple(x.name for x in op.axes if x.combine is not None)
    return _held(_axes(op, placement), placement.matrix, hierarchy, a.index, graph.tensor(a.tensor).shape, reduced)


def copy_of(tensor: str, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> DeviceBoxes:
    """What every device holds of a tensor's copy; the axes of the placement are the numbers of the dimensions."""
    shape = graph.tensor(tensor).shape
    axes = tuple((name, shape[int(name)]) for name in placement.axes)
    return _held(axes, placement.matrix, hierarchy, tuple(Affine.axis(str(k)) for k in range(len(shape))), shape, ())


def _axes(op: Operator, placement: Placement) -> tuple[tuple[str, int], ...]:
    extent = {a.name: a.extent for a in op.axes}
    return tuple((name, extent[name]) for name in placement.axes)

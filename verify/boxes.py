"""Boxes of the devices, straight from the definition, with no code of `models/layout`.

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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ..models.graph import Graph
from ..models.index import Affine
from ..models.operators import Operator
from ..models.placement import Placement

Interval = tuple[int, int]
Box = tuple[Interval, ...]
Matrix = tuple[tuple[int, ...], ...]


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

    def zeroed(self, device: int, hierarchy: tuple[int, ...]) -> int:
        """The device that differs only in this digit, which is 0."""
        return device - self.value(device, hierarchy) * self.stride * prod(hierarchy[self.level + 1 :])


@dataclass(frozen=True)
class Held:
    """Who holds what of one tensor: a box per device, partial along `open` (outermost level first, descending stride)."""

    hierarchy: tuple[int, ...]
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    open: tuple[Digit, ...] = ()

    @property
    def largest(self) -> int:
        """Elements of the largest box."""
        return max(volume(b) for b in set(self.boxes))


def volume(box: Box) -> int:
    """Number of elements.

    >>> volume(((0, 3), (2, 4))), volume(())
    (6, 1)
    """
    return prod(max(0, high - low) for low, high in box)


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
    missing = np.zeros([len(c) - 1 for c in cuts], dtype=bool)  # one truth value per cell of the grid of end points
    for boxes, value in ((want, True), (have, False)):
        for b in boxes:
            missing[tuple(slice(p[low], p[high]) for p, (low, high) in zip(places, b, strict=True))] = value
    sizes = [np.diff(np.array(c, dtype=object)) for c in cuts]
    return sum(prod(int(s[i]) for s, i in zip(sizes, cell, strict=True)) for cell in zip(*(w.tolist() for w in np.nonzero(missing)), strict=True))


@lru_cache(maxsize=512)
def axis_blocks(extents: tuple[int, ...], matrix: Matrix, hierarchy: tuple[int, ...]) -> tuple[tuple[Interval, ...], ...]:
    """Per device, the block of every axis; rows of the matrix: the axes, then replication.

    >>> axis_blocks((5,), ((4,), (1,)), (4,))
    (((0, 2),), ((2, 4),), ((4, 5),), ((0, 0),))
    """
    digits = []  # per level, row and coordinate: the digit
    for j, size in enumerate(hierarchy):
        rows: list[list[int]] = [[] for _ in matrix]
        for c in range(size):
            for i in reversed(range(len(matrix))):
                c, digit = divmod(c, matrix[i][j])
                rows[i].append(digit)
        digits.append(rows)
    per_axis = []
    for i, extent in enumerate(extents):
        ranks = [0]
        for j in range(len(hierarchy)):
            ranks = [rank * matrix[i][j] + digit for rank in ranks for digit in digits[j][i]]
        degree = prod(matrix[i])
        size = -(-extent // degree)
        blocks = [(r * size, min(extent, (r + 1) * size)) for r in range(degree)]
        per_axis.append([blocks[r] if blocks[r][0] < blocks[r][1] else (0, 0) for r in ranks])
    return tuple(zip(*per_axis, strict=True)) if per_axis else ((),) * prod(hierarchy)


def touched(index: Affine, blocks: Sequence[Interval], extent: int) -> Interval:
    """Interval of a dimension of `extent` that `index` reaches when its terms' axes range over `blocks`.

    >>> touched(Affine.axis("y", 2).plus("k").shift(-1), [(0, 4), (0, 3)], 224)
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
    axes: tuple[tuple[str, int], ...], matrix: Matrix, hierarchy: tuple[int, ...], index: tuple[Affine, ...], shape: tuple[int, ...],
    reduced: tuple[str, ...],
) -> Held:
    position = {name: i for i, (name, _) in enumerate(axes)}
    all_blocks = axis_blocks(tuple(n for _, n in axes), matrix, hierarchy)
    dimensions = []
    for map_, extent in zip(index, shape, strict=True):
        mine = [position[axis] for axis, _ in map_.terms]
        involved = [tuple([blocks[i] for i in mine]) for blocks in all_blocks]
        known = {blocks: touched(map_, blocks, extent) for blocks in set(involved)}
        dimensions.append([known[blocks] for blocks in involved])
    boxes = tuple(zip(*dimensions, strict=True)) if dimensions else ((),) * prod(hierarchy)
    return Held(hierarchy, shape, boxes, open_digits(matrix, [position[name] for name in reduced]))


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


def read_by(op: Operator, position: int, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Held:
    """What every device reads of input `position` of an operator."""
    a = op.inputs[position]
    return _held(_axes(op, placement), placement.matrix, hierarchy, a.index, graph.tensor(a.tensor).shape, ())


def written_by(op: Operator, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Held:
    """What every device writes of the output, partial along the digits of the reduction axes."""
    a = op.output
    reduced = tuple(x.name for x in op.axes if x.combine is not None)
    return _held(_axes(op, placement), placement.matrix, hierarchy, a.index, graph.tensor(a.tensor).shape, reduced)


def copy_of(tensor: str, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Held:
    """What every device holds of a tensor's copy; the axes of the placement are the numbers of the dimensions."""
    shape = graph.tensor(tensor).shape
    axes = tuple((name, shape[int(name)]) for name in placement.axes)
    return _held(axes, placement.matrix, hierarchy, tuple(Affine.axis(str(k)) for k in range(len(shape))), shape, ())


def _axes(op: Operator, placement: Placement) -> tuple[tuple[str, int], ...]:
    extent = {a.name: a.extent for a in op.axes}
    return tuple((name, extent[name]) for name in placement.axes)

"""Which placements exist, and which block of an axis a device has under one.

X[i][j]   rows: the axes in class order, then replication; columns: the levels;  product of column j = size of level j
even      the degree of an axis (product of its row) divides its extent; uneven: is at most its extent
    whole     axes that must not be split have degree 1
digits    the coordinate of a device at level j is a mixed-radix number of the rows' digits, the first row's most
          significant
rank      the digits of one row over all levels as one number, the outermost level's most significant
block     of rank r of D on an axis of extent n:  [r c, min(n, (r + 1) c)),  c = ceil(n / D)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from .description import Index, Operator

Matrix = tuple[tuple[int, ...], ...]
Interval = tuple[int, int]
NOTHING: Interval = (0, 0)


def matrices(extents: Sequence[int], splittable: Sequence[bool], sizes: Sequence[int], space: str) -> list[Matrix]:
    """All placement matrices of a space such as `two-per-level,uneven`."""
    base, _, rest = space.partition(",")
    most = {"complete": len(extents) + 1, "two-per-level": 2, "one-per-level": 1}[base]
    columns = []
    for size in sizes:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        fitting = product(*([divisors] * len(extents)), divisors)
        columns.append([c for c in fitting if prod(c) == size and sum(d > 1 for d in c) <= most])
    found = []
    for chosen in product(*columns):
        rows = tuple(zip(*chosen, strict=True)) if chosen else ((),) * (len(extents) + 1)
        degrees = [prod(row) for row in rows[:-1]]
        fits = all(d <= n if rest == "uneven" else n % d == 0 for d, n in zip(degrees, extents, strict=True))
        if fits and all(d == 1 or free for d, free in zip(degrees, splittable, strict=True)):
            found.append(rows)
    return found


def coordinates(rank: int, sizes: Sequence[int]) -> list[int]:
    """Row-major coordinates of a device."""
    out = []
    for size in reversed(sizes):
        rank, c = divmod(rank, size)
        out.append(c)
    return out[::-1]


def device_rank(place: Sequence[int], sizes: Sequence[int]) -> int:
    """The device at these coordinates."""
    rank = 0
    for c, size in zip(place, sizes, strict=True):
        rank = rank * size + c
    return rank


def row_ranks(matrix: Matrix, sizes: Sequence[int], device: int) -> list[int]:
    """Rank of a device along every row of a placement."""
    ranks = [0] * len(matrix)
    for level, c in enumerate(coordinates(device, sizes)):
        for row in reversed(range(len(matrix))):
            c, digit = divmod(c, matrix[row][level])
            ranks[row] = ranks[row] * matrix[row][level] + digit
    return ranks


def block(extent: int, degree: int, rank: int) -> Interval:
    """The part of an axis that the device of this rank works on."""
    size = -(-extent // degree)
    low, high = rank * size, min(extent, (rank + 1) * size)
    return (low, high) if low < high else NOTHING


def iteration_boxes(
    op: Operator, order: Sequence[str], matrix: Matrix, sizes: Sequence[int]
) -> list[dict[str, Interval]]:
    """The block of every axis on every device."""
    out = []
    for device in range(prod(sizes)):
        ranks = row_ranks(matrix, sizes, device)
        out.append({a: block(op.axes[a].extent, prod(matrix[i]), ranks[i]) for i, a in enumerate(order)})
    return out


def touched(index: Index, extent: int, box: dict[str, Interval]) -> Interval:
    """The interval of a dimension that an iteration box touches."""
    if any(box[a] == NOTHING for a, _ in index.terms):
        return NOTHING
    if index.whole:
        return (0, extent)
    low = max(0, index.offset + sum(f * box[a][0] for a, f in index.terms))
    high = min(extent, index.offset + sum(f * (box[a][1] - 1) for a, f in index.terms) + 1)
    return (low, high) if low < high else NOTHING

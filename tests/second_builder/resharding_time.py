"""(L1), (L3), (L4): what it moves and takes to bring a tensor from one tiling into another.

    fetch   load_i = most elements, over the subtrees u of level i, that u needs and does not hold:  |B_u without A_u|
    phases  one per reduce-scatter and all-gather at their level, one for the fetch where its load is positive
    time    sum over levels of  element bytes * load / bandwidth + latency * phases

Sets of elements are sets of cells: along every dimension the ends of all intervals cut the extent into segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import prod

from .description import Machine
from .measured_time import phases_of_fetch
from .reduction_time import Moved, reduction
from .tilings import Box, Digit, Tiling, is_inside, without


@lru_cache(maxsize=1 << 15)
def redistribution(a: Tiling, b: Tiling, sizes: tuple[int, ...]) -> Moved:
    """Loads and phases per level from `a`, perhaps partial, to `b`, which is not."""
    inside = all(is_inside(y, x) for x, y in zip(a.boxes, b.boxes, strict=True))
    if not a.open:
        return ((0,) * len(sizes), (0,) * len(sizes), ()) if inside else fetch(a, b, sizes)
    if inside:
        replicated = [d for d in a.open if not changes(b, d, sizes)]
        return reduction(b.largest, a.open, replicated, sizes)
    combined, fetched = reduction(a.largest, a.open, a.open, sizes), fetch(a, b, sizes)
    return _sum(combined[0], fetched[0]), _sum(combined[1], fetched[1]), (*combined[2], *fetched[2])


def _sum(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def changes(tiling: Tiling, digit: Digit, sizes: Sequence[int]) -> bool:
    """Whether some device has another box than the device whose digit is 0."""
    return any(box != tiling.boxes[without(digit, device, sizes)] for device, box in enumerate(tiling.boxes))


def fetch(a: Tiling, b: Tiling, sizes: Sequence[int]) -> Moved:
    """(L1): every element enters every subtree that needs it and does not hold it once."""
    loads = []
    for level in range(len(sizes)):
        width = prod(sizes[level + 1 :])
        groups = [slice(first, first + width) for first in range(0, len(a.boxes), width)]
        loads.append(max(missing(a.boxes[u], b.boxes[u]) for u in groups))
    return tuple(loads), tuple(int(load > 0) for load in loads), phases_of_fetch(loads, a.largest, b.largest, sizes)


@lru_cache(maxsize=1 << 15)
def missing(held: tuple[Box, ...], needed: tuple[Box, ...]) -> int:
    """Elements of the union of `needed` that are not in the union of `held`."""
    cuts = [sorted({end for box in (*held, *needed) for end in box[k]}) for k in range(len(held[0]))]
    left = cells(needed, cuts) - cells(held, cuts)
    return sum(prod(ends[i + 1] - ends[i] for ends, i in zip(cuts, cell, strict=True)) for cell in left)


def cells(boxes: Iterable[Box], cuts: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    """Numbers of the cells in a union of boxes whose ends are among the cuts."""
    return {
        cell
        for box in set(boxes)
        for cell in product(
            *(range(ends.index(low), ends.index(high)) for ends, (low, high) in zip(cuts, box, strict=True))
        )
    }


def transfer_time(moved: Moved, element_bytes: int, machine: Machine) -> Fraction:
    """Seconds of loads and phases on the levels without a table of collectives."""
    levels = zip(moved[0], moved[1], machine.bandwidths, machine.latencies, machine.collectives, strict=True)
    return sum(
        (
            element_bytes * load / bandwidth + latency * phases
            for load, phases, bandwidth, latency, table in levels
            if not table
        ),
        Fraction(0),
    )


def rounded(seconds: Fraction, scale: int) -> int:
    """Units of 1/`scale` seconds, up."""
    return -(-seconds.numerator * scale // seconds.denominator)

"""Who computes and who writes what: every point of an iteration space once, every element of an output
by one owner or one declared sum.

Replicas are told apart by their digit of the replication row.  Among the ranks with the same one, by set arithmetic on
index sets:

    iteration space   the boxes of the ranks are disjoint and fill it: nothing is computed twice, so nothing is summed
                      twice
    output            ranks that differ in open digits only write the same box, a part of the sum each; boxes of other
                      ranks are disjoint; all of them together fill the tensor

No code of `models/layout/layout` is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from ...models.layout.placement import Placement
from ...models.program.graph import Graph
from ...models.program.operators import Operator
from .boxes import Box, DeviceBoxes, Matrix, axis_blocks, boxes_of, volume, written_by

MOST_CELLS = 1 << 24


def wrong_owner(op: Operator, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> str:
    """What is computed or written by no rank, or by two; empty if all is well."""
    extent = {a.name: a.extent for a in op.axes}
    extents = tuple(extent[name] for name in placement.axes)
    wrong = _iteration(extents, placement.matrix, hierarchy)
    if wrong:
        return f"iteration space of {op.name!r}: {wrong}"
    wrong = not_written(written_by(op, graph, placement, hierarchy), replicas(placement.matrix[-1], hierarchy))
    return f"output of {op.name!r}: {wrong}" if wrong else ""


def replicas(row: Sequence[int], hierarchy: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Per device its digits of the replication row, which vary fastest.

    >>> replicas((2,), (4,))
    ((0,), (1,), (0,), (1,))
    """
    out: list[tuple[int, ...]] = [()]
    for size, degree in zip(hierarchy, row, strict=True):
        out = [(*digits, c % degree) for digits in out for c in range(size)]
    return tuple(out)


@lru_cache(maxsize=4096)
def _iteration(extents: tuple[int, ...], matrix: Matrix, hierarchy: tuple[int, ...]) -> str:
    return not_covered(boxes_of(axis_blocks(extents, matrix, hierarchy)), replicas(matrix[-1], hierarchy), extents)


def not_covered(boxes: Sequence[Box], copies: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> str:
    """Why the boxes of every set of replicas do not partition the shape; empty if they do.

    >>> not_covered([((0, 2),), ((2, 4),)], [(0,), (0,)], (4,)), not_covered([((0, 2),), ((1, 4),)], [(0,), (0,)], (4,))
    ('', 'rank 1 has elements of ((1, 4),) that another rank has too')
    """
    for ranks in _alike(copies):
        wrong = _partition([boxes[d] for d in ranks], ranks, shape)
        if wrong:
            return wrong
    return ""


def not_written(held: DeviceBoxes, copies: Sequence[tuple[int, ...]]) -> str:
    """Why an output is not written once by every set of replicas; empty if it is."""
    for ranks in _alike(copies):
        sums: dict[int, int] = {}
        for d in ranks:
            leader = d
            for digit in held.open:
                leader = digit.device_at_zero(leader, held.hierarchy)
            first = sums.setdefault(leader, d)
            if held.boxes[d] != held.boxes[first]:
                return (
                    f"ranks {first} and {d} hold parts of one sum over different boxes, {held.boxes[first]} and "
                    f"{held.boxes[d]}"
                )
        wrong = _partition([held.boxes[d] for d in sums.values()], list(sums.values()), held.shape)
        if wrong:
            return wrong
    return ""


def _alike(copies: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The ranks of every set of replicas."""
    sets: dict[tuple[int, ...], list[int]] = {}
    for rank, copy in enumerate(copies):
        sets.setdefault(copy, []).append(rank)
    return list(sets.values())


def _partition(boxes: Sequence[Box], ranks: Sequence[int], shape: tuple[int, ...]) -> str:
    for box, rank in zip(boxes, ranks, strict=True):
        if any(not 0 <= low <= high <= n for (low, high), n in zip(box, shape, strict=True)):
            return f"rank {rank}: {box} is not inside {shape}"
    filled = [(box, rank) for box, rank in zip(boxes, ranks, strict=True) if volume(box)]
    total = sum(volume(box) for box, _ in filled)
    cuts = [sorted({end for box, _ in filled for end in box[k]}) for k in range(len(shape))]
    if prod(max(len(c) - 1, 1) for c in cuts) > MOST_CELLS:
        return f"{len(filled)} boxes, too finely cut to be checked"
    seen = np.zeros([max(len(c) - 1, 1) for c in cuts], dtype=bool)
    places = [{end: i for i, end in enumerate(c)} for c in cuts]
    for box, rank in filled:
        cells = tuple(slice(p[low], p[high]) for p, (low, high) in zip(places, box, strict=True))
        if seen[cells].any():
            return f"rank {rank} has elements of {box} that another rank has too"
        seen[cells] = True
    return "" if total == prod(shape) else f"{prod(shape) - total} of {prod(shape)} elements belong to no rank"

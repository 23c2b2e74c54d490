"""Takes the minimum over one axis of a sum of tables without building the sum: the step of bucket
elimination.

The sums of a few entries of axis 0 at a time fill a buffer that stays in the second cache, the longest axis innermost,
and minima run over axis 0, eight lanes wide.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints

CHUNK: Final = 1 << 16
"""Entries of the buffer for sums (512 KiB)."""


def align_axes(table: Ints, scope: tuple[int, ...], axes: tuple[int, ...]) -> Ints:
    """`table` over `scope` with the axes `axes`, of length 1 where it does not reach.

    >>> align_axes(np.zeros((2, 3)), (4, 1), (1, 7, 4)).shape
    (3, 1, 2)
    """
    order = [scope.index(w) for w in axes if w in scope]
    return table.transpose(order)[tuple([slice(None) if w in scope else None for w in axes])]


def least(parts: list[Ints], shape: tuple[int, ...], holes: bool = False) -> Ints:
    """The minimum over axis 0 of the sum of `parts`, each of which has all axes of `shape`, some of length 1.

    `holes`: entries may be FORBIDDEN; then no sum grows far beyond it.

    >>> least([np.array([[1], [2]]), np.array([[5, 9], [3, 9]])], (2, 2)).tolist()
    [5, 10]
    """
    parts = sorted(parts, key=_reach)
    if len(parts) == 1 or prod(shape) <= CHUNK or parts[0].dtype == object:  # blocks only serve sums
        total = parts[0]
        for part in parts[1:]:
            total = _plus(total, part, holes)
        return np.broadcast_to(np.minimum.reduce(total, axis=0), shape[1:])
    parts = [np.ascontiguousarray(p) for p in parts]
    rest = prod(shape[2:])
    rows = max(1, min(shape[1], CHUNK // rest))
    group = max(1, CHUNK // (rows * rest))
    out = np.empty(shape[1:], dtype=np.int64)
    buffer = np.empty((group, rows, *shape[2:]), dtype=np.int64)
    for a in range(0, shape[1], rows):
        b = min(shape[1], a + rows)
        cut = [p if p.shape[1] == 1 else p[:, a:b] for p in parts]
        best = out[a:b]
        for k in range(0, shape[0], group):
            m = min(shape[0], k + group)
            total = buffer[: m - k, : b - a]
            small = cut[0][k:m]
            for p in cut[1:-1]:
                small = _plus(small, p[k:m], holes)
            np.add(small, cut[-1][k:m], out=total)
            low = total[0] if m - k == 1 else np.minimum.reduce(total, axis=0)
            if k:
                np.minimum(best, low, out=best)
            else:
                best[...] = low
    return out


def _plus(a: Ints, b: Ints, holes: bool) -> Ints:
    return np.minimum(a + b, FORBIDDEN) if holes else a + b


def _reach(part: Ints) -> tuple[int, int]:
    """Tables of the last axes first, then small before large: broadcasting grows late, and in long runs."""
    leading = next((i for i, d in enumerate(part.shape[1:]) if d > 1), part.ndim)
    return -leading, part.size

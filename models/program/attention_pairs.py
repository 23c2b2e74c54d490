"""Pairs of query and key that a band leaves: the work of a masked attention on a box.

    count(queries [a, b), keys [c, d))  =  #{ (i, j) :  -behind <= j - i <= ahead }

With  T(n) = n (n + 1) / 2  for n > 0, else 0,  the pairs with  j - i <= m  are  H(m + 1 - c) - H(m + 1 - d),  where
H(k) = sum over i of max(0, i + k) = T(b - 1 + k) - T(a - 1 + k).  A band is the difference of two of them; one with
blocks, the sum over its blocks.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .attention import MOST_POSITIONS, band, inner

if TYPE_CHECKING:
    from .operators import Operator

Ints = npt.NDArray[np.int64]


def points(op: Operator) -> int:
    """Pairs of query and key of the whole operator, over all rows."""
    found, hidden = band(op), {*inner(op)}
    if found is None:
        return prod(a.extent for a in op.axes if a.name not in hidden)
    hidden |= {found.query, found.key}
    rows = prod(a.extent for a in op.axes if a.name not in hidden)
    queries, keys = (np.array([0, op.axis(n).extent]) for n in (found.query, found.key))
    return rows * int(count(queries, keys, found.behind, found.ahead, found.block))


def count(queries: Ints, keys: Ints, behind: int | None, ahead: int | None, block: int | None = None) -> Ints:
    """Pairs in boxes: `queries` and `keys` are half-open intervals in the last dimension, and broadcast otherwise.

    >>> count(np.array([2, 4]), np.array([0, 4]), None, 0).tolist()     # causal, the lower half of 4 x 4
    7
    >>> count(np.array([[0, 2], [2, 4]]), np.array([0, 4]), 1, 0).tolist()
    [3, 4]
    >>> count(np.array([0, 6]), np.array([0, 6]), None, 0, 4).tolist()
    13
    """
    if block is not None:
        total = np.zeros(np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1]), dtype=np.int64)
        for begin in range(0, int(min(queries.max(initial=0), keys.max(initial=0))), block):
            some, of = (np.asarray(ends.clip(begin, begin + block)) for ends in (queries, keys))
            total += count(some, of, behind, ahead)
        return total
    first, last = queries[..., 0], queries[..., 1]
    low, high = keys[..., 0], keys[..., 1]
    every = np.maximum(last - first, 0) * np.maximum(high - low, 0)
    most = every if ahead is None else _below(first, last, low, high, ahead)
    fewer = 0 if behind is None else _below(first, last, low, high, -behind - 1)
    return np.asarray(np.where(every > 0, np.maximum(most - fewer, 0), 0), dtype=np.int64)


def _below(first: Ints, last: Ints, low: Ints, high: Ints, most: int) -> Ints:
    """Pairs with key - query <= most."""
    most = min(max(most, -MOST_POSITIONS), MOST_POSITIONS)  # beyond, nothing changes

    def triangle(n: Ints) -> Ints:
        return np.where(n > 0, n * (n + 1) // 2, 0)

    def reach(k: Ints) -> Ints:
        return np.asarray(triangle(last - 1 + k) - triangle(first - 1 + k))

    return np.asarray(reach(most + 1 - low) - reach(most + 1 - high))

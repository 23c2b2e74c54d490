"""Rebuilds pairs of query and key that a band of attention leaves in a box, with no code of
`models/program/attention_pairs`.

    query i sees of the keys [c, d) of a box   n(i) = max(0, min(d, i + ahead + 1) - max(c, i - behind))

n is linear between the places where a minimum or maximum turns, i = c - ahead - 1, d - ahead - 1, c + behind, d +
behind, so a run of queries between two of them sees (first + last) / 2 keys on average.  Where only keys of the query's
own block are seen, blocks are counted one by one.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...models.program.operators import NodeKind, Operator

Bounds = tuple[int | None, int | None, int | None]
"""How far behind and ahead of a query its keys lie, and in blocks of which length; None: no bound."""
Interval = tuple[int, int]


def bounds_of(op: Operator) -> Bounds | None:
    """The band of an attention operator, if it has one."""
    given = dict(op.attributes)
    if op.kind is not NodeKind.ATTENTION or not {"behind", "ahead", "block"} & given.keys():
        return None
    behind, ahead, block = (v if isinstance(v := given.get(n), int) else None for n in ("behind", "ahead", "block"))
    return behind, ahead, block


def attribute_axes(op: Operator, attribute: str) -> tuple[str, ...]:
    """Axes that an attribute of an attention operator names."""
    value = op.attribute(attribute, ()) if op.kind is NodeKind.ATTENTION else ()
    return tuple(str(v) for v in value) if isinstance(value, tuple) else ()


@lru_cache(maxsize=1 << 14)
def pairs(queries: Interval, keys: Interval, bounds: Bounds) -> int:
    """Pairs of a box.

    >>> pairs((2, 4), (0, 4), (None, 0, None)), pairs((0, 4), (0, 4), (1, 0, None)), pairs((0, 6), (0, 6), (None, 0, 4))
    (7, 7, 13)
    """
    behind, ahead, block = bounds
    if block is not None:
        whole = (behind, ahead, None)
        return sum(
            pairs(_inside(queries, low, low + block), _inside(keys, low, low + block), whole)
            for low in range(queries[0] // block * block, queries[1], block)
        )
    (first, last), (low, high) = queries, keys

    def seen(query: int) -> int:
        begin = low if behind is None else max(low, query - behind)
        end = high if ahead is None else min(high, query + ahead + 1)
        return max(0, end - begin)

    turns = [n - ahead - 1 for n in keys if ahead is not None] + [n + behind for n in keys if behind is not None]
    cuts = sorted({first, last, *(n for n in turns if first < n < last)})
    return sum((b - a) * (seen(a) + seen(b - 1)) // 2 for a, b in pairwise(cuts) if a < b)


def _inside(interval: Interval, low: int, high: int) -> Interval:
    first, last = max(interval[0], low), min(interval[1], high)
    return (first, last) if first < last else (0, 0)


def pairs_of_boxes(queries: NDArray[np.int64], keys: NDArray[np.int64], bounds: Bounds) -> NDArray[np.int64]:
    """`pairs` of many boxes: the last dimension holds the ends."""
    ends = np.concatenate([queries, keys], axis=-1)
    distinct, which = np.unique(ends.reshape(-1, 4), axis=0, return_inverse=True)
    each = np.array([pairs((a, b), (c, d), bounds) for a, b, c, d in distinct.tolist()], dtype=np.int64)
    return each[which.reshape(-1)].reshape(ends.shape[:-1])

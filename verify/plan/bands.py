"""Pairs of query and key that a band of attention leaves in a box, query by query from the definition, with no code of
`models/program/attention_pairs`.

    query i sees the keys  i - behind <= j <= i + ahead;  of the keys [c, d) of a box
    min(d, i + ahead + 1) - max(c, i - behind),  or none
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...models.program.operators import NodeKind, Operator

Bounds = tuple[int | None, int | None]
"""How far behind and ahead of a query its keys lie; None: no bound."""


def bounds_of(op: Operator) -> Bounds | None:
    """The band of an attention operator, if it has one."""
    given = dict(op.attributes)
    if op.kind is not NodeKind.ATTENTION or not {"behind", "ahead"} & given.keys():
        return None
    behind, ahead = given.get("behind"), given.get("ahead")
    return behind if isinstance(behind, int) else None, ahead if isinstance(ahead, int) else None


def named(op: Operator, attribute: str) -> tuple[str, ...]:
    """Axes that an attribute of an attention operator names."""
    value = op.attribute(attribute, ()) if op.kind is NodeKind.ATTENTION else ()
    return tuple(str(v) for v in value) if isinstance(value, tuple) else ()


@lru_cache(maxsize=1 << 14)
def pairs(queries: tuple[int, int], keys: tuple[int, int], bounds: Bounds) -> int:
    """Pairs of a box.

    >>> pairs((2, 4), (0, 4), (None, 0)), pairs((0, 4), (0, 4), (1, 0))
    (7, 7)
    """
    behind, ahead = bounds
    place = np.arange(queries[0], queries[1], dtype=np.int64)
    first = np.full_like(place, keys[0]) if behind is None else np.maximum(keys[0], place - behind)
    last = np.full_like(place, keys[1]) if ahead is None else np.minimum(keys[1], place + ahead + 1)
    return int(np.maximum(last - first, 0).sum())


def pairs_of_boxes(queries: NDArray[np.int64], keys: NDArray[np.int64], bounds: Bounds) -> NDArray[np.int64]:
    """`pairs` of many boxes: the last dimension holds the ends."""
    ends = np.concatenate([queries, keys], axis=-1)
    distinct, which = np.unique(ends.reshape(-1, 4), axis=0, return_inverse=True)
    each = np.array([pairs((a, b), (c, d), bounds) for a, b, c, d in distinct.tolist()], dtype=np.int64)
    return each[which.reshape(-1)].reshape(ends.shape[:-1])

"""Whether a mask is a band: a query sees keys from so many behind to so many ahead of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...program.attention import MOST_BLOCKS

HIDDEN = -1e30
"""A number added to a score that hides the key: in single precision its share is exactly zero."""


@dataclass(frozen=True)
class Bounds:
    """Keys from `behind` to `ahead` of a query are seen, in its own block; None: no bound."""

    behind: int | None
    ahead: int | None
    block: int | None = None


def seen_by(mask: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_] | None:
    """Which keys a mask leaves: one of truth values as it is, one that is added if it holds nothing but 0 and numbers
    that hide; None for any other.

    >>> seen_by(np.array([[0.0, -np.inf]])).tolist()
    [[True, False]]
    """
    if mask.dtype.kind == "b":
        return np.asarray(mask, dtype=bool)
    if mask.dtype.kind != "f":
        return None
    seen, hidden = np.equal(mask, 0), np.less_equal(mask, HIDDEN)
    return np.asarray(seen) if bool(np.all(seen | hidden)) else None


def bounds_of(seen: npt.NDArray[np.bool_]) -> Bounds | None:
    """The band of a mask (queries, keys); None if it is none.

    >>> bounds_of(np.tri(3, 4, 1, dtype=bool)), bounds_of(np.eye(3, dtype=bool)[::-1])
    (Bounds(behind=None, ahead=1, block=None), None)
    >>> bounds_of(np.kron(np.eye(2, dtype=bool), np.tri(3, dtype=bool)))
    Bounds(behind=None, ahead=0, block=3)
    """
    return _band(seen) or _blocks(seen)


def _blocks(seen: npt.NDArray[np.bool_]) -> Bounds | None:
    """Equal bands in blocks of queries and keys along the diagonal."""
    rows, keys = seen.shape
    reach = np.flatnonzero(np.any(seen, axis=0) & ~seen[0])
    begins = [int(n) for n in np.flatnonzero(np.argmax(seen, axis=1) > 0)[:1]]
    for block in {*begins, *(int(n) for n in reach[:1])}:
        if not 1 < block < rows or rows > block * MOST_BLOCKS:
            continue
        first = _band(seen[:block, :block])
        if first is None:
            continue
        query, key = np.arange(rows)[:, None], np.arange(keys)[None, :]
        wanted = query // block == key // block
        if first.behind is not None:
            wanted &= key - query >= -first.behind
        if first.ahead is not None:
            wanted &= key - query <= first.ahead
        if bool(np.all(seen == wanted)):
            return Bounds(first.behind, first.ahead, block)
    return None


def _band(seen: npt.NDArray[np.bool_]) -> Bounds | None:
    """One band for all queries."""
    rows, keys = seen.shape
    count = np.count_nonzero(seen, axis=1)
    some = np.flatnonzero(count)
    if some.size == 0:
        return None
    first = np.argmax(seen, axis=1)
    last = keys - 1 - np.argmax(seen[:, ::-1], axis=1)
    behind, ahead = int(np.max(some - first[some])), int(np.max(last[some] - some))
    place = np.arange(rows)
    low, high = np.maximum(place - behind, 0), np.minimum(place + ahead, keys - 1)
    wanted = np.maximum(high - low + 1, 0)
    if not bool(np.all(count == wanted)) or not bool(np.all((first == low)[some] & (last == high)[some])):
        return None
    return Bounds(None if behind >= rows - 1 else behind, None if ahead >= keys - 1 else ahead)

"""Whether a mask is a band: every query sees the keys from so many behind it to so many ahead of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HIDDEN = -1e30
"""A number added to a score that hides the key: in single precision its share is exactly zero."""


@dataclass(frozen=True)
class Bounds:
    """Keys from `behind` to `ahead` of a query are seen; None: no bound."""

    behind: int | None
    ahead: int | None


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
    (Bounds(behind=None, ahead=1), None)
    """
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

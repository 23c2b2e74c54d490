"""Tells which of many arrays may have a part with a given element, so that not all are looked at for every one.

A part whose first element is x lies in an array only where that has an element so near x as rounding makes it; elements
of all arrays stand in one order, with the array of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .numbers import Array
from .parts import NEAR, greatest_of

MOST: Final = 1 << 20
"""Elements of an array that are put in order; a larger one may have any, as far as is known here."""
WIDE: Final = 1e6
"""The greatest element of an array that is put in order: beside masks of -1e30 all numbers are near."""


class Elements:
    """Elements of arrays by name.

    >>> import numpy as np
    >>> found = Elements({"a": np.array([1.0, 2.0]), "b": np.array([2.0, np.inf]), "c": np.array([3, 4])})
    >>> [found.having(np.array([x, 0])) for x in (2.0, 1.0 + 1e-9, 5.0, np.nan)]
    [['a', 'b'], ['a'], [], ['a', 'b', 'c']]
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.names = list(arrays)
        self.any = set[int]()
        near, values, owners = list[float](), list[NDArray[np.float64]](), list[NDArray[np.int64]]()
        for k, array in enumerate(arrays.values()):
            if array.size > MOST or (most := greatest_of(x := array.astype(np.float64).reshape(-1))) > WIDE:
                near.append(0.0)
                self.any.add(k)
                continue
            near.append(NEAR * most)
            values.append(np.unique(x[np.isfinite(x)]))
            owners.append(np.full(len(values[-1]), k))
        flat = np.concatenate([np.zeros(0), *values])
        order = np.argsort(flat, kind="stable")
        self.values, self.near = flat[order], np.asarray(near)
        self.owners = np.concatenate([np.zeros(0, np.int64), *owners])[order]
        self.reach = 2 * float(np.max(self.near, initial=0.0))  # sums are rounded

    def having(self, part: Array) -> list[str]:
        """Arrays of which this may be a part, by its first element, in their order."""
        if not part.size or not np.isfinite(first := float(part.reshape(-1)[0])):
            return self.names
        low = int(np.searchsorted(self.values, first - self.reach, "left"))
        high = int(np.searchsorted(self.values, first + self.reach, "right"))
        owners = self.owners[low:high]
        here = np.unique(owners[np.abs(self.values[low:high] - first) <= self.near[owners]])
        return [self.names[k] for k in sorted(self.any.union(int(k) for k in here))]

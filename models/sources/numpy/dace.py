"""The notation of the thesis for array programs: `@dace`, `dace.float64[M, N]`, `dace.map[0:M]`.

    from shardproof import dace

    @dace                                             or @dace.program
    def scaled(a: dace.float64[64, 8], s: dace.float64[8]):
        b = np.empty([64, 8])
        for i, j in dace.map[0:64, 0:8] @ ({"ranks": 4}, {}):
            b[i, j] = a[i, j] * s[j]
        return b

The function stays what it was and runs on NumPy arrays.  In a program that is marked so, `np.empty`, `np.zeros`, ..
make arrays that maps may write, and `np.random.rand`, .. draw numbers by a seed and the index (`containers`).  Unsigned
32-bit integers, which no graph has, are stored as int64, which holds them all.

Source: thesis on automatic partitioning of array programs, chapters 4 to 8; its notation is that of DaCe (Ben-Nun et
al., Stateful dataflow multigraphs, SC 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from .maps import MapMaker, ScheduleType, StorageType
from .program import MARKED, boolean, float32, float64, int32, int64

F = TypeVar("F", bound=Callable[..., object])


class Dace:
    """See the module docstring.

    >>> @dace
    ... def add(x: dace.float64[4, 6], y: dace.float64[6]):
    ...     return x + y
    >>> add(1, 2)
    3
    """

    float32, float64, int32, int64, bool = float32, float64, int32, int64, boolean
    uint32 = int64
    map: Final = MapMaker()
    ScheduleType = ScheduleType
    StorageType = StorageType

    def __call__(self, function: F) -> F:
        """Mark a function as a program."""
        setattr(function, MARKED, True)
        return function

    program = __call__


dace: Final = Dace()
"""What programs of the thesis call `dace`."""

"""Maps: loops whose turns may run in any order, `for i, j in dace.map[0:M, 0:N]:`, as the thesis writes programs.

Outside of a trace a map is the loop that it says.  In a trace its body runs once, for all turns together: `i` stands
for every value of the loop (`LoopIndex`), and what is read at `i` has an axis for it (`mapped`).

    map[M, N], map[0:M, 1:N:2]      bounds that the program knows
    map[p[i]:p[i + 1]]              inside a map over i: the entries of row i, which the numbers in p say (`segments`)
    map[..] @ {"ranks": 4}          a schedule: degrees of the loop per level of the machine; a tuple for several loops
    map[..] @ ScheduleType.X        where one rank computes: `run --backend` decides that, and it is said

Source: thesis on automatic partitioning of array programs, sections 5.1.1, 6.1 and 8.1.2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Final

import numpy as np

from .recorder import Recorder, TraceError, place

RUNNING: Final[ContextVar[Recorder | None]] = ContextVar("recorder", default=None)
"""The trace that runs now."""


AS_VALUE: Final[list[Callable[[LoopIndex], object]]] = []
ROW_OF: Final[list[Callable[[object, object, object], tuple[Loop, object]]]] = []
TURNS: Final[list[Callable[[Recorder], None]]] = []
"""Values of loop variables (`mapped`), the row whose entries bounds name (`segments`), and the test of what the turns
of a map did to each other (`map_access`): one function in each.
"""


class ScheduleType(Enum):
    """Where one rank runs a map."""

    Default = "default"
    Sequential = "sequential"
    CPU_Multicore = "cpu"
    GPU_Device = "gpu"


class StorageType(Enum):
    """Where one rank keeps an array."""

    Default = "default"
    CPU_Heap = "cpu"
    GPU_Global = "gpu"


@dataclass(eq=False)
class Loop:
    """A loop variable while its map runs: `start + step * d`, d below `extent`.  `rows`: of a loop over the entries of
    a row, the loop over rows and where rows begin; its extent is that of the first array that it indexes."""

    start: int
    step: int
    extent: int
    degrees: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[Loop, object] | None = None


@dataclass(frozen=True, eq=False)
class LoopIndex(np.lib.mixins.NDArrayOperatorsMixin):
    """Sums of multiples of loop variables and a number: an index, or a value."""

    recorder: Recorder
    terms: tuple[tuple[Loop, int], ...]
    offset: int = 0

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops that it runs with."""
        return tuple(loop for loop, _ in self.terms)

    def __add__(self, other: object) -> object:
        if isinstance(other, LoopIndex):
            terms = dict(self.terms)
            for loop, coef in other.terms:
                terms[loop] = terms.get(loop, 0) + coef
            kept = tuple((loop, c) for loop, c in terms.items() if c)
            return LoopIndex(self.recorder, kept, self.offset + other.offset)
        if type(other) is int:
            return LoopIndex(self.recorder, self.terms, self.offset + other)
        return self._value() + other  # type: ignore[operator]

    __radd__ = __add__

    def __sub__(self, other: object) -> object:
        if isinstance(other, LoopIndex):
            return self + other * -1
        return self + -other if type(other) is int else self._value() - other  # type: ignore[operator]

    def __mul__(self, other: object) -> object:
        if type(other) is int and other:
            return LoopIndex(self.recorder, tuple((loop, c * other) for loop, c in self.terms), self.offset * other)
        return self._value() * other  # type: ignore[operator]

    __rmul__ = __mul__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        values = [x._value() if isinstance(x, LoopIndex) else x for x in inputs]
        return getattr(ufunc, method)(*values, **options)

    def _value(self) -> object:
        return AS_VALUE[0](self)

    def __index__(self) -> int:
        raise TraceError(
            place(),
            "a loop variable indexes an array that is not traced; pass it as an argument, or make it inside a "
            "program marked @shardproof.dace",
        )

    def __bool__(self) -> bool:
        raise TraceError(place(), "a condition on a loop variable; the iterations of a map run together: use np.where")


@dataclass(frozen=True)
class Ranges:
    """The loops of a map: first, end, step each; `degrees` per loop."""

    bounds: tuple[tuple[object, object, object], ...]
    degrees: tuple[Mapping[str, int], ...]
    where: ScheduleType = ScheduleType.Default

    def __matmul__(self, schedule: object) -> Ranges:
        if isinstance(schedule, ScheduleType):
            return Ranges(self.bounds, self.degrees, schedule)
        listed = schedule if isinstance(schedule, tuple) else (schedule,)
        good = all(
            isinstance(d, dict) and all(isinstance(k, str) and type(n) is int and n > 0 for k, n in d.items())
            for d in listed
        )
        if not good or len(listed) != len(self.bounds):
            raise TraceError(
                place(),
                f"a schedule of a map over {len(self.bounds)} loops is a dictionary of levels and degrees for each, "
                f'such as {{"ranks": 4}}, or a ScheduleType',
            )
        return Ranges(self.bounds, listed, self.where)

    def __iter__(self) -> Iterator[object]:
        recorder = RUNNING.get()
        if recorder is None:
            turns = product(*(range(*(operator.index(b) for b in bound)) for bound in self.bounds))  # type: ignore[arg-type]
            yield from (turn[0] if len(self.bounds) == 1 else turn for turn in turns)
            return
        if self.where is not ScheduleType.Default:
            note(recorder, f"ScheduleType.{self.where.name} of a map")
        loops = [self._loop(recorder, k) for k in range(len(self.bounds))]
        recorder.loops.extend(loops)
        indices = tuple(LoopIndex(recorder, ((loop, 1),)) for loop in loops)
        yield indices[0] if len(indices) == 1 else indices
        if recorder.loops[-len(loops) :] != loops:
            raise TraceError(place(), "a map inside this one was left before its end (break)")
        del recorder.loops[-len(loops) :]
        if not recorder.loops:
            TURNS[0](recorder)
            recorder.touched.clear()

    def _loop(self, recorder: Recorder, k: int) -> Loop:
        low, high, step = self.bounds[k]
        if hasattr(low, "loops") and hasattr(high, "loops"):
            return Loop(0, 1, 0, self.degrees[k], ROW_OF[0](low, high, step))
        if any(hasattr(b, "loops") for b in (low, high, step)):
            raise TraceError(
                place(),
                "a bound of a map depends on another loop; loop over the whole range and choose with np.where, or "
                "write the rows of a sparse matrix as p[i]:p[i + 1]",
            )
        try:
            values = range(operator.index(low), operator.index(high), operator.index(step))  # type: ignore[arg-type]
        except TypeError:
            raise TraceError(place(), f"the bounds {low!r}:{high!r} of a map are not integers") from None
        if not values or values.step < 1:
            raise TraceError(place(), f"the map {low}:{high}:{step} has no iterations, or runs backwards")
        return Loop(values.start, values.step, len(values), self.degrees[k])


class MapMaker:
    """`map[M, N]`, `map[a:b]`, `map[a:b:s, c:d]`."""

    def __getitem__(self, key: object) -> Ranges:
        parts = key if isinstance(key, tuple) else (key,)
        bounds = tuple(
            (0 if p.start is None else p.start, p.stop, 1 if p.step is None else p.step)
            if isinstance(p, slice)
            else (0, p, 1)
            for p in parts
        )
        return Ranges(bounds, ({},) * len(bounds))


def note(recorder: Recorder, what: str) -> None:
    """Say once that something about the device of a rank is decided elsewhere."""
    words = f"{what}: which device computes is said by run --backend, not by the program"
    if words not in recorder.notes:
        recorder.notes.append(words)

"""Elements of arrays inside a map, for all its turns together: an array with one axis per loop before its own.

    A[i, j]        reads A as it lies, axes i, j                 A[i + 1, :]     axes i, and the row's own
    x[col[j]]      a gather (`gather`)                           np.exp(A[i, j]) elementwise over the loops
    b[i] = v       written in every turn at its own place        b[i] += v[i, j] summed over the loops that b lacks

Turns run in any order.  So statements of a body can run one after the other, each for all turns, as long as no turn
touches what another one writes; that is tested for every buffer that a map writes:

    all accesses of one map to it are at the same index         else one turn may read what another one writes
    a plain write is at an index with every loop in it          else many turns write one element
    what is summed over a loop is not read inside that loop     else a turn would see a part of the sum
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .array import TracedArray
from .contract import product
from .elementwise import number
from .gather import take
from .maps import AS_VALUE, Loop, LoopIndex
from .recorder import Recorder, TraceError, place
from .segments import rows_of_entries
from .table import common
from .views import View, plain

Signature = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Origin:
    """Where an element was read: the array and the parts of the key."""

    array: TracedArray
    parts: tuple[object, ...]


@dataclass(eq=False)
class Touch:
    """One access of a map to a buffer; `loops`: those that ran; `kept`: those that the index has."""

    signature: Signature
    loops: tuple[Loop, ...]
    kept: tuple[Loop, ...]
    at: str
    write: bool
    sums: bool = False


_ADD: Final[Callable[..., object]] = np.add
_SUBTRACT: Final[Callable[..., object]] = np.subtract
_NEGATIVE: Final[Callable[..., object]] = np.negative


class Mapped(np.lib.mixins.NDArrayOperatorsMixin):
    """See the module docstring.  `array`: dimensions of the loops, then the element's own."""

    __array_priority__ = 2000
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, array: TracedArray, loops: Sequence[Loop], origin: Origin | None = None, touch: Touch | None = None
    ) -> None:
        self.array, self.loops, self.origin, self.touch = array, tuple(loops), origin, touch
        self.added: Mapped | None = None

    @property
    def recorder(self) -> Recorder:
        """The trace."""
        return self.array.recorder

    @property
    def shape(self) -> tuple[int, ...]:
        """The element's own extents."""
        return self.array.shape[len(self.loops) :]

    @property
    def ndim(self) -> int:
        """The element's own dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type."""
        return self.array.dtype

    # --- what bodies of maps ask ------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        if options.get("out") is not None:
            raise TraceError(place(), f"np.{ufunc.__name__} with out= inside a map; write b[i] = .. instead")
        return self.array.record(lambda: self._call(ufunc, method, inputs, options))

    def _call(self, ufunc: np.ufunc, method: str, inputs: Sequence[object], options: dict[str, object]) -> object:
        if method == "__call__" and ufunc is np.matmul:
            return _matmul(self.recorder, inputs)
        if method == "reduce":
            axis = options.pop("axis", inputs[1] if len(inputs) > 1 else 0)
            reduce: Callable[..., object] = ufunc.reduce
            return self._reduce(lambda array, dims: reduce(array, axis=dims, **options), axis)
        if method != "__call__":
            raise TraceError(place(), f"np.{ufunc.__name__}.{method} of elements of a map is not supported")
        loops, arrays = align_values(self.recorder, inputs)
        return _made(self.recorder, loops, ufunc(*arrays, **options))

    def __array_function__(
        self, function: Callable[..., object], types: object, args: Sequence[object], options: dict[str, object]
    ) -> object:
        return self.array.record(lambda: self._function(function, args, options))

    def _function(self, function: Callable[..., object], args: Sequence[object], options: dict[str, object]) -> object:
        name = getattr(function, "__name__", str(function))
        if function is np.where and len(args) == 3:
            loops, arrays = align_values(self.recorder, args)
            return _made(self.recorder, loops, np.where(*arrays))  # type: ignore[call-overload]
        if function is np.dot and len(args) == 2:
            return _matmul(self.recorder, args)
        reductions: tuple[Callable[..., object], ...] = (np.sum, np.max, np.min, np.mean, np.amax, np.amin)
        if function in reductions and args and args[0] is self:
            axis = options.pop("axis", args[1] if len(args) > 1 else None)
            called: Callable[..., object] = function
            return self._reduce(lambda array, dims: called(array, axis=dims, **options), axis)
        raise TraceError(
            place(),
            f"np.{name} of elements of a map is not supported; call it on whole arrays outside of the map",
        )

    def _reduce(self, function: Callable[[TracedArray, tuple[int, ...]], object], axis: object) -> object:
        listed = range(self.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        try:
            dims = tuple(len(self.loops) + range(self.ndim)[int(str(d))] for d in listed)
        except (IndexError, ValueError):
            raise TraceError(place(), f"axis {axis!r} is out of bounds for an element of {self.ndim}") from None
        return _made(self.recorder, self.loops, function(self.array, dims))

    def sum(self, axis: object = None) -> object:
        """Over the element's own dimensions."""
        return np.sum(self, axis=axis)  # type: ignore[call-overload]

    def max(self, axis: object = None) -> object:
        """Over the element's own dimensions."""
        return np.max(self, axis=axis)  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> object:
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise TraceError(place(), f"{name} of an element of a map is not supported")
        raise AttributeError(f"elements of a map have no attribute {name!r}")

    def __getitem__(self, key: object) -> Mapped:
        origin = self._place_of(key)
        found: Mapped = origin.array[origin.parts]  # type: ignore[assignment]
        return found

    def __setitem__(self, key: object, value: object) -> None:
        origin = self._place_of(key)
        origin.array[origin.parts] = value

    def _place_of(self, key: object) -> Origin:
        """`A[i][j]` is `A[i, j]`."""
        given = list(key) if isinstance(key, tuple) else [key]
        if self.origin is None or any(p is None or p is Ellipsis for p in given):
            raise TraceError(place(), "a part of a value of a map is not supported; index the array itself")
        self.recorder.touched[:] = [t for t in self.recorder.touched if t[1] is not self.touch]
        parts: list[object] = []
        for part in self.origin.parts:
            if isinstance(part, slice) and given:
                if part != slice(None):
                    raise TraceError(place(), "a part of a slice inside a map; write both in one index")
                parts.append(given.pop(0))
            else:
                parts.append(part)
        if given:
            raise TraceError(place(), f"too many indices for an element of dimension {self.ndim}")
        return Origin(self.origin.array, tuple(parts))

    def __iadd__(self, other: object) -> object:  # type: ignore[misc]
        return self._update(_ADD(self, other), other)

    def __isub__(self, other: object) -> object:  # type: ignore[misc]
        return self._update(_SUBTRACT(self, other), _NEGATIVE(value_like(self.recorder, other)))

    def _update(self, whole: object, added: object) -> object:
        """`b[i] += v`: the write that follows sums v over the loops that b lacks."""
        if self.origin is None or not isinstance(whole, Mapped):
            return whole
        whole.origin, whole.added = self.origin, value_like(self.recorder, added)
        whole.touch = self.touch
        return whole

    def __bool__(self) -> bool:
        raise TraceError(place(), "a condition on the data of an array inside a map; use np.where")

    def __index__(self) -> int:
        raise TraceError(place(), "an index or a length depends on the data of an array")

    __float__ = __int__ = __index__

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        raise TraceError(place(), "elements of a map go into an array that is not traced; make that one with np.zeros "
                         "in a program marked @shardproof.dace, or with np.zeros_like(x, shape=..)")  # fmt: skip


def value_of(index: LoopIndex) -> Mapped:
    """A loop variable as a value: int64."""
    recorder = index.recorder
    terms = []
    for loop, coef in index.terms:
        at = np.arange(extent_of(loop), dtype=np.int64) * (coef * loop.step) + coef * loop.start
        terms.append(Mapped(TracedArray.of(recorder, recorder.constant(at)), (loop,)))
    total: object = terms[0]
    for term in (*terms[1:], *([index.offset] if index.offset else [])):
        total = _ADD(total, term)
    assert isinstance(total, Mapped)
    return total


def value_like(recorder: Recorder, x: object) -> Mapped:
    """Any operand of a body as elements of a map."""
    if isinstance(x, Mapped):
        return x
    if isinstance(x, LoopIndex):
        return value_of(x)
    if isinstance(x, TracedArray):
        return Mapped(x, ())
    return Mapped(TracedArray.of(recorder, recorder.constant(np.asarray(x))), ())


def align_values(recorder: Recorder, operands: Sequence[object]) -> tuple[tuple[Loop, ...], list[object]]:
    """The loops of all operands, and the operands with an axis for each (1 where they lack it) and dimensions of their
    own that broadcast.  Numbers stay.
    """
    given = [x if number(x) is not None else value_like(recorder, x) for x in operands]
    loops, values = common_loops(recorder, [v for v in given if isinstance(v, Mapped)])
    own = max((v.ndim for v in values), default=0)
    rest = iter(values)
    return loops, [laid_out(next(rest), loops, own) if isinstance(v, Mapped) else v for v in given]


def common_loops(recorder: Recorder, values: Sequence[Mapped]) -> tuple[tuple[Loop, ...], list[Mapped]]:
    """The loops of all values; in the entries of a row, what belongs to the row is read off them (`segments`)."""
    used = {loop for v in values for loop in v.loops}
    if lost := [loop for loop in used if loop not in recorder.loops]:
        raise TraceError(
            place(), f"a value of a map is used after the map has ended ({len(lost)} loops); write it into an array"
        )
    out = list(values)
    for entries in [s for s in used if s.rows is not None]:
        assert entries.rows is not None
        if any(entries.rows[0] in v.loops for v in out):
            out = [_by_entry(recorder, v, entries) for v in out]
            used.discard(entries.rows[0])
    return tuple(loop for loop in recorder.loops if isinstance(loop, Loop) and loop in used), out


def laid_out(v: Mapped, loops: Sequence[Loop], own: int) -> TracedArray:
    """The value with an axis for every loop, and `own` dimensions of its own, padded in front."""
    places = [plain(list(loops).index(loop)) for loop in v.loops]
    places += [plain(len(loops) + own - v.ndim + d) for d in range(v.ndim)]
    shape = [extent_of(loop) if loop in v.loops else 1 for loop in loops] + [1] * (own - v.ndim) + list(v.shape)
    return TracedArray.of(v.recorder, v.array.view.map_dimensions(shape, places))


def _by_entry(recorder: Recorder, v: Mapped, entries: Loop) -> Mapped:
    """A value per row as one per entry."""
    assert entries.rows is not None
    owner = entries.rows[0]
    if owner not in v.loops:
        return v
    if entries in v.loops:
        raise TraceError(place(), "a value has both a row and its entries; index it by one of them")
    picked = take(recorder, v.array.view, rows_of_entries(recorder, entries), v.loops.index(owner))
    return Mapped(TracedArray.of(recorder, picked), [entries if x is owner else x for x in v.loops])


def extent_of(loop: Loop) -> int:
    if loop.extent == 0:
        raise TraceError(place(), "the entries of a row index no array yet, so their number is not known")
    return loop.extent


def _made(recorder: Recorder, loops: tuple[Loop, ...], result: object) -> Mapped:
    if not isinstance(result, TracedArray):
        raise TraceError(place(), "a function inside a map gave no array")
    if recorder.made and recorder.made[-1].output.tensor == result.view.tensor and result.view.identity:
        axes = recorder.made[-1].output.axes
        schedule(recorder, result.view, {axes[d]: loop.degrees for d, loop in enumerate(loops) if d < len(axes)})
    return Mapped(result, loops)


def schedule(recorder: Recorder, view: View, degrees: Mapping[str, Mapping[str, int]]) -> None:
    """Take down what the program says about the loops of an operator that was just recorded."""
    if any(degrees.values()):
        recorder.degrees[view.tensor] = {axis: d for axis, d in degrees.items() if d}


def _matmul(recorder: Recorder, inputs: Sequence[object]) -> Mapped:
    """Products of rows, columns and matrices, for all turns together."""
    given = [value_like(recorder, x) for x in inputs]
    if any(not 0 < v.ndim < 3 for v in given):
        raise TraceError(place(), f"a product of elements of {given[0].ndim} and {given[1].ndim} dimensions in a map")
    loops, (a, b) = common_loops(recorder, given)
    names = [f"l{k}" for k in range(len(loops))]
    rows, columns = ["m"][: a.ndim - 1], ["n"][: b.ndim - 1]
    views = common(recorder, [laid_out(v, loops, v.ndim) for v in (a, b)])
    out = product(recorder, "matmul", views, [[*names, *rows, "k"], [*names, "k", *columns]], [*names, *rows, *columns])
    return _made(recorder, loops, TracedArray.result(recorder, out))


AS_VALUE.append(value_of)

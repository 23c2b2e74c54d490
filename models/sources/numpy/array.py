"""Traced arrays: they have a shape and an element type, no elements, and record what NumPy is asked
to do with them.

A basic slice or a transpose shares the buffer of its array, as in NumPy, so that a write through either is seen by
both:

    cell    the buffer: the view of a tensor that it holds now          (a write makes a new tensor: static single
            assignment)
    path    where the dimensions of this array lie in the buffer

Reading is `cell.value` seen through `path`.  A reshape is a cell of its own that follows the cell it came from; it
cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from .recorder import Recorder, TraceError, place
from .views import Terms, View, whole


class Cell(Protocol):
    """What a buffer holds."""

    @property
    def value(self) -> View:
        """The view of a tensor that it holds now."""


class Buffer:
    """A buffer that can be written."""

    def __init__(self, value: View) -> None:
        self.value = value


class Reshaped:
    """The row-major elements of another array in another shape; recorded again whenever that array has changed."""

    def __init__(
        self, source: TracedArray, shape: Sequence[int], reshape: Callable[[Recorder, View, Sequence[int]], View]
    ) -> None:
        self.source, self._shape, self._reshape = source, tuple(shape), reshape
        self._seen: View | None = None
        self._value: View | None = None

    @property
    def value(self) -> View:
        """The reshaped value of the source."""
        now = self.source.view
        if self._value is None or now != self._seen:
            self._seen, self._value = now, self._reshape(self.source.recorder, now, self._shape)
        return self._value


Handler = Callable[..., object]

METHODS: Final[dict[str, Handler]] = {}
"""Methods of arrays by name, filled by the modules that translate them: the function gets the array first."""

UFUNC: Final[list[Handler]] = []
FUNCTION: Final[list[Handler]] = []
"""The two protocols' translations; `trace` puts one function into each."""


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """See the module docstring.  Data-dependent Python (`if x:`, `float(x)`, `range(x)`) raises `TraceError`."""

    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recorder: Recorder, cell: Cell, seen: View | None = None) -> None:
        self.recorder, self.cell, self._seen = recorder, cell, seen
        self._shape = cell.value.shape if seen is None else seen.shape
        self.grad: TracedArray | None = None
        self.scalar = False

    @classmethod
    def of(cls, recorder: Recorder, view: View) -> TracedArray:
        """A new array with a buffer of its own."""
        return cls(recorder, Buffer(view))

    @classmethod
    def result(cls, recorder: Recorder, view: View) -> TracedArray:
        """What a NumPy function returns: an array, or a scalar, which no write changes (`s += 1` makes another one)."""
        array = cls.of(recorder, view)
        array.scalar = not view.shape
        return array

    @property
    def region(self) -> View:
        """This array as a view of its buffer."""
        return whole("buffer", self.cell.value.shape) if self._seen is None else self._seen

    @property
    def view(self) -> View:
        """Where the elements are now."""
        value, seen = self.cell.value, self._seen
        if seen is None:
            return value
        places: list[Terms] = [(tuple((int(name), c) for name, c in i.terms), i.offset) for i in seen.index]
        return value.map_dimensions(seen.shape, places, sorted(seen.taps))

    def share(self, change: Callable[[View], View]) -> TracedArray:
        """An array on the same buffer: `change` applied to what this one shows."""
        return TracedArray(self.recorder, self.cell, change(self.region))

    # --- what NumPy programs ask ------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self._shape, dtype=object))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type."""
        return self.recorder.dtype(self.cell.value)

    @property
    def T(self) -> TracedArray:
        """The transpose."""
        return self._method("transpose")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        if any(hasattr(x, "loops") for x in inputs):  # elements of a map know what to do
            return NotImplemented
        return self.record(lambda: UFUNC[0](self.recorder, ufunc, method, inputs, options))

    def __array_function__(
        self, function: Callable[..., object], types: object, args: Sequence[object], options: dict[str, object]
    ) -> object:
        if any(hasattr(x, "loops") for x in (*args, *options.values())):
            return NotImplemented
        return self.record(lambda: FUNCTION[0](self.recorder, function, args, options))

    def record(self, call: Callable[[], object]) -> object:
        """What a call returns; the operators that it makes are named by the statement that runs."""
        outermost, before = self.recorder.enter(), len(self.recorder.made)
        try:
            return call()
        finally:
            self.recorder.leave(outermost, before)

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name in METHODS and not name.startswith("__"):
            return lambda *args, **options: self.record(lambda: METHODS[name](self, *args, **options))
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise TraceError(place(), f"array.{name} is not supported; 'shardproof import --list-ops' lists what is")
        raise AttributeError(f"arrays have no attribute {name!r}")

    def _method(self, name: str, *args: object) -> TracedArray:
        out = self.record(lambda: METHODS[name](self, *args))
        if not isinstance(out, TracedArray):
            raise TraceError(place(), f"array.{name} gave no array")
        return out

    def __getitem__(self, key: object) -> TracedArray:
        """A part; inside a map, the elements of every turn (`mapped.Mapped`)."""
        found: TracedArray = self.record(lambda: METHODS["__getitem__"](self, key))  # type: ignore[assignment]
        return found

    def __setitem__(self, key: object, value: object) -> None:
        self.record(lambda: METHODS["__setitem__"](self, key, value))

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"traced array of shape {self._shape}, {self.dtype.name}"

    def _data(self, what: str) -> TraceError:
        return self._lost(
            f"{what} depends on the data of an array; a program must do the same whatever the numbers are"
        )

    def _lost(self, why: str) -> TraceError:
        """An error that ends the trace even where the program catches it."""
        error = TraceError(place(), why)
        self.recorder.escaped = self.recorder.escaped or error
        return error

    def __bool__(self) -> bool:
        raise self._data("a condition")

    def __float__(self) -> float:
        raise self._data("float()")

    def __int__(self) -> int:
        raise self._data("int()")

    def __index__(self) -> int:
        raise self._data("an index or a length")

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        raise self._lost(
            "a traced array goes into a NumPy array; make that one with np.zeros_like(x, shape=..) or write the "
            "result without it"
        )

"""What a program makes by itself while it is traced: arrays without contents, and random numbers.

    np.empty, zeros, ones, full        in a program marked `dace`: arrays that maps may write
    np.random.rand, random, uniform,   the operator `random`: numbers by a seed and the index of the element
      randn, standard_normal, normal   (`models.program.random_numbers`), the same whatever ranks compute them
    np.random.seed(k)                  the seed of the draws that follow; 0 without it

NumPy's own functions are replaced while such a program runs, for its own calls only: what libraries and other threads
call is theirs.  A program that runs outside of a trace gets NumPy's numbers; one that a graph is compared with, ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Final

import numpy as np

from ...program.index import Axis
from ...program.operators import Value
from ...program.random_numbers import draw_numbers
from .array import TracedArray
from .maps import RUNNING
from .recorder import Recorder, TraceError, place
from .views import broadcast
from .write import checked_shape

_OURS: Final = __name__.split(".models.")[0]
_ZOO: Final = f"{_OURS}.models.sources.zoo"
_MOST_SEED: Final = 1 << 53


class _Draws:
    """The seed and the number of the next draw of one run of a program."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder, self.seed, self.next = recorder, 0, 0

    def numbers(self, distribution: str, shape: Sequence[int]) -> object:
        """An array of numbers, traced in a trace."""
        draw, self.next = self.next, self.next + 1
        recorder = self.recorder
        if recorder is None:
            return draw_numbers(np, distribution, self.seed, draw, np.arange(prod(shape))).reshape(tuple(shape))
        names = [f"i{k}" for k in range(len(shape))] or ["i0"]
        axes = [Axis(a, n) for a, n in zip(names, shape or (1,), strict=True)]
        attributes: dict[str, Value] = {"distribution": distribution, "seed": self.seed, "draw": draw}
        if recorder.loops:
            raise TraceError(place(), "random numbers inside a map: draw one array for all iterations in front of it")
        view = recorder.emit("random", "random", axes, [], names, np.dtype("float64"), attributes)
        return TracedArray.result(recorder, view if shape else view.map_dimensions((), [((), 0)]))

    def start(self, seed: object) -> None:
        """`np.random.seed`."""
        if type(seed) is not int or not 0 <= seed < _MOST_SEED:
            raise TraceError(place(), f"np.random.seed({seed!r}): a seed is an integer from 0 to {_MOST_SEED - 1}")
        self.seed, self.next = seed, 0


_DRAWING: Final[ContextVar[_Draws | None]] = ContextVar("draws", default=None)


@contextmanager
def program_runs(recorder: Recorder | None, marked: bool) -> Iterator[None]:
    """While a program runs: in the trace of `recorder`, or on arrays with elements; `marked`: as a `dace` program."""
    running = RUNNING.set(recorder)
    drawing = _DRAWING.set(_Draws(recorder) if marked else None)
    kept = [(module, name, getattr(module, name)) for module, name, _ in _REPLACED] if marked else []
    try:
        for (module, name, new), (_, _, old) in zip(_REPLACED, kept, strict=False):
            setattr(module, name, _by_caller(old, new))
        yield
    finally:
        for module, name, old in kept:
            setattr(module, name, old)
        _DRAWING.reset(drawing)
        RUNNING.reset(running)


def _by_caller(old: Callable[..., object], new: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object, **options: object) -> object:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        library = f"{caller}.".startswith(("numpy.", f"{_OURS}.")) and not caller.startswith(_ZOO)
        return old(*args, **options) if library or _DRAWING.get() is None else new(old, *args, **options)

    call.__name__ = old.__name__
    return call


def _filled(value: float | None) -> Callable[..., object]:
    def make(old: Callable[..., object], shape: object, *args: object, **options: object) -> object:
        recorder = RUNNING.get()
        if recorder is None:
            return old(shape, *args, **options)
        fill, rest = (
            (value, args) if value is not None else (args[0], args[1:]) if args else (options["fill_value"], ())
        )
        unknown = {*options} - {"dtype", "fill_value"}
        if unknown or len(rest) > 1:
            raise TraceError(
                place(), f"np.{old.__name__} with {', '.join(sorted(unknown)) or 'an order'}: not supported"
            )
        kind = rest[0] if rest else options.get("dtype")
        one = np.full((1,), fill, dtype=float if kind is None and value is not None else kind)  # type: ignore[call-overload]
        goal = checked_shape(shape)
        view = recorder.constant(one)
        return TracedArray.of(recorder, broadcast(view, goal) if goal else view.map_dimensions((), [((), 0)]))

    return make


def _drawn(distribution: str, listed: bool) -> Callable[..., object]:
    """`listed`: extents are arguments (`rand`), else one argument is the shape."""

    def draw(old: Callable[..., object], *args: object, **options: object) -> object:
        size: object = args if listed else options.pop("size", args[0] if args else ())
        if options:
            raise TraceError(place(), f"np.random.{old.__name__} with {', '.join(options)} is not supported")
        return _numbers(distribution, size)

    return draw


def _moved(distribution: str, first: str, second: str, standard: tuple[float, float]) -> Callable[..., object]:
    """Two numbers and a shape: ends of an interval, or mean and deviation."""

    def draw(old: Callable[..., object], *args: object, **options: object) -> object:
        names = [first, second, "size"]
        given: dict[str, object] = dict(zip(names, args, strict=False)) | options
        if unknown := sorted({*given} - {*names}):
            raise TraceError(place(), f"np.random.{old.__name__} with {unknown[0]} is not supported")
        low, high = (given.get(n, s) for n, s in zip(names, standard, strict=False))
        if not all(isinstance(x, (int, float)) for x in (low, high)):
            raise TraceError(place(), f"np.random.{old.__name__}: {first} and {second} are numbers")
        numbers = _numbers(distribution, given.get("size") or ())
        scale = float(str(high)) - float(str(low)) if distribution == "uniform" else float(str(high))
        return numbers * scale + float(str(low))  # type: ignore[operator]

    return draw


def _numbers(distribution: str, size: object) -> object:
    draws = _DRAWING.get()
    assert draws is not None
    return draws.numbers(distribution, checked_shape(() if size is None else size))


def _seeded(old: Callable[..., object], seed: object = None) -> None:
    draws = _DRAWING.get()
    assert draws is not None
    draws.start(seed)


_REPLACED: Final[Sequence[tuple[object, str, Callable[..., object]]]] = (
    (np, "empty", _filled(0.0)),
    (np, "zeros", _filled(0.0)),
    (np, "ones", _filled(1.0)),
    (np, "full", _filled(None)),
    (np.random, "rand", _drawn("uniform", listed=True)),
    (np.random, "random", _drawn("uniform", listed=False)),
    (np.random, "random_sample", _drawn("uniform", listed=False)),
    (np.random, "uniform", _moved("uniform", "low", "high", (0.0, 1.0))),
    (np.random, "randn", _drawn("normal", listed=True)),
    (np.random, "standard_normal", _drawn("normal", listed=False)),
    (np.random, "normal", _moved("normal", "loc", "scale", (0.0, 1.0))),
    (np.random, "seed", _seeded),
)

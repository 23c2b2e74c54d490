"""The table of translated NumPy functions, and what all translations share.

A translation gets the recorder and the arguments of the call and returns traced arrays.  Arguments that it does not
name are unsupported when they are given: Python's own signature check says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np

from .array import METHODS, TracedArray
from .elementwise import cast, view_of
from .recorder import Recorder, TraceError, place
from .ufuncs import note_unsupported
from .views import View

Translation = Callable[..., object]
F = TypeVar("F", bound=Translation)
FUNCTIONS: Final[dict[Callable[..., object], Translation]] = {}
"""NumPy function -> translation."""


def translates(*functions: Callable[..., object], method: str = "") -> Callable[[F], F]:
    """Enter a translation into the table, and under `method` into the methods of arrays."""

    def enter(translation: F) -> F:
        for f in functions:
            FUNCTIONS[f] = translation
        if method:
            METHODS[method] = lambda array, *args, **options: translation(array.recorder, array, *args, **options)
        return translation

    return enter


def function(
    recorder: Recorder, called: Callable[..., object], args: Sequence[object], options: dict[str, object]
) -> object:
    """`__array_function__` of traced arrays."""
    name = f"{getattr(called, '__module__', 'numpy')}.{getattr(called, '__name__', called)}".replace("numpy", "np", 1)
    if called not in FUNCTIONS:
        return note_unsupported(recorder, name, called, args, options)
    given = {k: v for k, v in options.items() if v is not np._NoValue}
    try:
        return FUNCTIONS[called](recorder, *args, **given)
    except TypeError as error:
        if "argument" in str(error):
            raise TraceError(place(), f"{name}: {error}; this argument is not supported") from None
        raise


def as_traced(recorder: Recorder, x: object) -> TracedArray:
    """The operand as a traced array."""
    return x if isinstance(x, TracedArray) else TracedArray.of(recorder, view_of(recorder, x))


def new(recorder: Recorder, view: View) -> TracedArray:
    """An array of its own."""
    return TracedArray.result(recorder, view)


def common(recorder: Recorder, arrays: Sequence[object]) -> list[View]:
    """Operands in their common element type."""
    views = [view_of(recorder, x) for x in arrays]
    dtype = np.result_type(*[recorder.dtype(v) for v in views])
    return [cast(recorder, v, dtype) for v in views]

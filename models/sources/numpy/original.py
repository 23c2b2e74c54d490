"""Runs a NumPy program that was traced, on arrays with elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import numpy as np

from ..building.original import Original, Undefined, Values
from .containers import program_runs
from .parts import parts_of
from .program import MARKED, ArraySpec, arguments_of


def original_of(
    program: Callable[..., object], arguments: Mapping[str, ArraySpec | tuple[int, ...]] | None, state: tuple[str, ...]
) -> Original:
    """The program as NumPy runs it; `arguments` as of `trace`; `state`: the parameters that it writes in place.  What
    raises an exception with elements (an index outside, a method that arrays of NumPy lack) is undefined.
    """
    specs = arguments_of(program, arguments)

    def call_function(function: Callable[..., object], values: Mapping[str, Values]) -> tuple[Values, ...]:
        given = {
            n: np.array(values[n]).astype(s.dtype).reshape(s.shape) if n in values else np.zeros(s.shape, s.dtype)
            for n, s in specs.items()
        }
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with program_runs(None, hasattr(program, MARKED)):
                    returned = function(**given)
            except Exception as error:
                raise Undefined(f"{type(error).__name__}: {str(error)[:200]}") from error
        return (*_arrays(returned), *(given[n] for n in state))

    return Original(
        f"NumPy {np.__version__}",
        lambda values: call_function(program, values),
        parts=lambda: parts_of(program, specs, call_function),
        zeros=False,
        maps=hasattr(program, MARKED),
    )


def _arrays(returned: object) -> Iterator[Values]:
    if isinstance(returned, Mapping):
        yield from (a for v in returned.values() for a in _arrays(v))
    elif isinstance(returned, tuple | list):
        yield from (a for v in returned for a in _arrays(v))
    elif returned is not None:
        yield cast("Values", np.asarray(returned))

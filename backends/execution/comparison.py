"""What counts as the same result: the difference of two arrays, element by element.

    integers, truth values    equal or not
    reals                     largest |got - expected| over the elements that are finite in both, relative to 1 + the
                              largest finite |expected|
    inf, -inf, NaN            must stand at the same places: where one is and the other is not, the difference is
                              infinite

A NaN that one process gives too is the program's own result, and a run that gives it at the same place agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

import numpy as np

from ..kernels import Array

TOLERANCE: Final = {"float64": 1e-10, "float32": 1e-3, "float16": 5e-2, "bfloat16": 5e-2}
"""Largest difference that counts as equal, by the least precise real type that is computed in."""


def tolerance_of(types: Iterable[str]) -> float:
    """The tolerance for a run in these real types.

    >>> tolerance_of(["float64", "float32"]), tolerance_of([])
    (0.001, 1e-10)
    """
    return max((TOLERANCE.get(t, 0.0) for t in types), default=TOLERANCE["float64"])


def difference(got: Array, expected: Array) -> float:
    """See the module docstring; infinite for unlike shapes.

    >>> difference(np.array([np.nan, 1.0, np.inf]), np.array([np.nan, 1.0, np.inf]))
    0.0
    >>> difference(np.array([np.nan, 1.0]), np.array([1.0, np.nan])), difference(np.array([1j]), np.array([0j]))
    (inf, 1.0)
    """
    if got.shape != expected.shape:
        return inf
    if got.dtype.kind in "iub" and expected.dtype.kind in "iub":
        return (
            0.0
            if np.array_equal(got, expected)
            else max(1.0, float(np.max(np.abs(got.astype(np.float64) - expected.astype(np.float64)))))
        )
    here, there = _wide(got), _wide(expected)
    finite = np.isfinite(here) & np.isfinite(there)
    if not np.array_equal(here[~finite], there[~finite], equal_nan=True):
        return inf
    if not finite.any():
        return 0.0
    with np.errstate(over="ignore"):  # the largest numbers of both signs: infinitely far apart
        return float(np.max(np.abs(here[finite] - there[finite]))) / (1.0 + float(np.max(np.abs(there[finite]))))


def worst(got: Mapping[str, Array], expected: Mapping[str, Array], names: Iterable[str]) -> tuple[float, str]:
    """The largest difference and where it is."""
    return max(((difference(got[n], expected[n]), n) for n in names), default=(0.0, ""), key=lambda found: found[0])


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)

"""Draws the inputs on which both programs run beside those that are given.

drawn   real numbers of the normal distribution, whole ones between the least and the greatest of those given
large   those given, times a large number: exp overflows unless the greatest element is subtracted
small   drawn ones, times a small number: what is added to a divisor so that it is not 0, as Adam's, tells then
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from ...models.equality.program import RankProgram
from .numbers import Array, Numbers

LARGE: Final = 1000.0
SMALL: Final = 1e-4
MOST_DRAWN: Final = 1
"""Drawn inputs on which relations are looked for, beside those given."""
MORE_DRAWN: Final = 3
"""The same of small programs: an expert of few tokens often has none, and its sum is one of fewer groups then."""
SMALL_PROGRAM: Final = 1 << 19
"""Elements of all tensors of the one device up to which it is small: a run takes milliseconds."""


@dataclass(frozen=True)
class Inputs:
    """Arrays by number; `only_finite`: numbers of outputs are not compared; `kept`: relations are looked for."""

    arrays: dict[int, Array]
    only_finite: bool
    kept: bool


def vary(single: RankProgram, base: Mapping[int, Array], stay: Collection[int], seed: int) -> list[Inputs]:
    """Inputs to try after those given; what is in `stay` is as it is."""
    rng = np.random.default_rng(seed)
    many = MORE_DRAWN if sum(prod(t.shape) for t in single.tensors) <= SMALL_PROGRAM else MOST_DRAWN
    drawn, *more = (
        {n: (rng.standard_normal(a.shape) if is_real(a) else _drawn(a, rng)) for n, a in base.items()}
        for _ in range(many)
    )
    large = {n: (a.astype(np.float64) * LARGE if is_real(a) else a) for n, a in base.items()}
    small = {n: (a.astype(np.float64) * SMALL if is_real(a) else a) for n, a in drawn.items()}
    rows = [(drawn, False, True), (large, True, False), (small, False, False), *((m, False, True) for m in more)]
    return [
        Inputs(in_doubles({n: base[n] if n in stay else a for n, a in arrays.items()}), only_finite, kept)
        for arrays, only_finite, kept in rows
    ]


def in_doubles(arrays: Numbers) -> dict[int, Array]:
    """Real numbers in double precision."""
    return {n: a.astype(np.float64) if is_real(a) else a for n, a in arrays.items()}


def is_real(a: Array) -> bool:
    """Whether elements are real numbers."""
    return bool(np.issubdtype(a.dtype, np.floating))


def _drawn(a: Array, rng: np.random.Generator) -> Array:
    """Whole numbers between the least and the greatest of those that are given, of those themselves where some are
    negative: -100 may say that there is nothing, and -70 be out of range; truth values as they are.
    """
    if not a.size or a.dtype == bool:
        return a
    if bool(np.any(a.astype(np.int64) < 0)):
        return rng.choice(a.reshape(-1), a.shape)
    return rng.integers(int(a.astype(np.int64).min()), int(a.astype(np.int64).max()) + 1, size=a.shape).astype(a.dtype)

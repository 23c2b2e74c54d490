"""Fits the measured form of attention: least squares of log(predicted / measured), large misses less.

    unknowns    launch, pace, pair, row, wave, band > 0 of `models.machine.measured.AttentionForm`, as logarithms
    objective   sum over rows of  2 (sqrt(1 + (log(predicted / measured) / s)^2) - 1),   s a tenth

The time is a product of unknowns (the pairs of blocks that are not full, times what a pair takes), so it is not convex
in them, but smooth; two starts, the better kept.  A local optimum: its residuals are shown, no claim rests on it.
Bytes are left out: none of these kernels waits for them.

Source: Dao, FlashAttention-2 (2023), for blocks of 128 queries, of which a processor has one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.machine.measured import QUERIES, AttentionForm
from ...models.program.attention import FUSED, PER_FEATURE
from ...models.program.operators import FUNCTIONS
from ...models.text import InputError

__all__ = ["MEASURED", "Attention", "fit", "seconds"]

Floats = NDArray[np.float64]

MEASURED: Final = {"forward": "attention", "backward": FUSED}
"""The function that a row of this direction measures."""

_STARTS: Final = (0.01, 0.3)
"""Of `wave` and `band`: blocks are nearly full, or mostly not."""
_SCALE: Final = 0.1


@dataclass(frozen=True)
class Attention:
    """One call of a kernel on equally many queries and keys, and its seconds."""

    batch: int
    heads: int
    sequence: int
    width: int
    causal: bool
    seconds: float

    @property
    def rows(self) -> int:
        """Queries over batch and heads."""
        return self.batch * self.heads * self.sequence

    @property
    def pairs(self) -> int:
        """Of query and key, in the band."""
        each = self.sequence * (self.sequence + 1) // 2 if self.causal else self.sequence**2
        return self.batch * self.heads * each

    def operations(self, direction: str) -> int:
        """Per pair, as the cost model counts them."""
        function = MEASURED[direction]
        return FUNCTIONS[function].flops + self.width * sum(PER_FEATURE[function])


def fit(rows: Sequence[Attention], dtype: str, direction: str, processors: int) -> AttentionForm:
    """The form of one element type and direction, constants of four digits.  Raises `InputError` without rows.

    >>> from dataclasses import replace
    >>> from itertools import product
    >>> true = AttentionForm("float16", "forward", 99, *map(Fraction, ("5e-6", "2e-15", "2e-13", "1e-10", ".1", ".2")))
    >>> sizes = product((1, 8), (1, 16), (256, 2048, 8192), (64, 128), (False, True), (1.0,))
    >>> rows = [replace(r, seconds=float(seconds(true, r))) for r in (Attention(*size) for size in sizes)]
    >>> found = fit(rows, "float16", "forward", 99)
    >>> abs(float(found.pace / true.pace) - 1) < 0.01
    True
    """
    if not rows:
        raise InputError("no attention is left to fit")
    from scipy.optimize import least_squares  # seconds to load

    columns = [(r.pairs, r.rows, r.sequence, r.causal, r.operations(direction), r.seconds) for r in rows]
    pairs, queries, keys, causal, operations, measured = np.array(columns, dtype=np.float64).T

    def off(x: Floats) -> Floats:
        launch, pace, pair, row, wave, band = np.exp(x)
        spread = pairs + (wave + band * causal) * QUERIES * processors * keys
        out: Floats = np.log((launch + spread * (pace * operations + pair) + row * queries) / measured)
        return out

    found = [
        least_squares(off, np.log([3e-6, 2.5e-15, 2e-13, 1e-10, start, 0.5]), loss="soft_l1", f_scale=_SCALE)
        for start in _STARTS
    ]
    best = min(found, key=lambda f: float(f.cost)).x
    return AttentionForm(dtype, direction, processors, *(_exact(float(v)) for v in np.exp(best)))


def seconds(form: AttentionForm, row: Attention) -> Fraction:
    """What the form says of a row."""
    return form.seconds(row.pairs, row.rows, row.sequence, row.operations(form.direction), row.causal)


def _exact(value: float) -> Fraction:
    """Four significant digits; nothing below 10^-18."""
    return Fraction(f"{value:.3e}") if value >= 1e-18 else Fraction(0)

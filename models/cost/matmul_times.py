"""How long a matrix product takes on a GPU: tiles in waves over its processors, or its bytes, plus
launches.

    shape     (m, k) x (k, n), w bytes an element of the operands, two of the result
    tile      (a, b) of the result; ceil(m / a) ceil(n / b) of them, each split into s parts along k
    waves     ceil( tiles s / processors ):  small and odd sizes pay for whole tiles and whole waves
    product   min over tiles and s of   waves ( 2 a b K / rate_ab + tail ) + step K  [ + split + sum tiles s 4 a b ],
              K = k / s up to a multiple of 64;  [..] where s > 1;  rates fall by `odd` where m > 128 is no multiple of
              64
    seconds   launch + max( product, bytes / bandwidth ) + result m n + cast m k        cast: fp8 with scales only

The library picks the kernel, so the fastest of the tiles is meant to be its choice.  All constants are >= 0, exact and
per GPU and element type; where they come from: `formal.calibration.matmul_times`.

>>> flat = MatmulTime(Fraction("3e-6"), Fraction(10**12), 100, 2, ((128, 128),), (Fraction(10**12),), split=Fraction(1))
>>> [float(flat.seconds(128 * tiles, 128, 8192)) for tiles in (1, 100, 101)]     # one wave, one wave, two
[0.000271435456, 0.000271435456, 0.000539870912]
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

__all__ = ["SPLITS", "STEP", "MatmulTime"]

SPLITS: Final = (1, 2, 4, 8, 16, 32)
"""Parts of k that are tried."""

STEP: Final = 64
"""k is padded to this: the depth that a tile loads at once."""


@dataclass(frozen=True)
class MatmulTime:
    """Constants of one GPU and element type: seconds, bytes/s, flop/s of one processor per tile; see the module."""

    launch: Fraction
    bandwidth: Fraction
    processors: int
    width: int
    tiles: tuple[tuple[int, int], ...]
    rates: tuple[Fraction, ...]
    tail: Fraction = Fraction(0)
    step: Fraction = Fraction(0)
    split: Fraction = Fraction(0)
    sum: Fraction = Fraction(0)
    result: Fraction = Fraction(0)
    cast: Fraction = Fraction(0)
    odd: Fraction = Fraction(0)

    def seconds(self, m: int, n: int, k: int) -> Fraction:
        """The exact time of one product.  Raises `ValueError` for an empty shape."""
        if min(m, n, k) < 1:
            raise ValueError(f"a product of {m} x {k} and {k} x {n} has no work; sizes must be at least 1")
        slowed = 1 + (self.odd if m > 128 and m % STEP else 0)
        best: Fraction | None = None
        for (a, b), rate in zip(self.tiles, self.rates, strict=True):
            whole = -(-m // a) * -(-n // b)
            for parts in SPLITS:
                depth = ceil(Fraction(k, parts * STEP)) * STEP
                waves = -(-whole * parts // self.processors)
                time = waves * (2 * a * b * depth * slowed / rate + self.tail) + self.step * depth
                if parts > 1:
                    time += self.split + self.sum * whole * parts * 4 * a * b
                best = time if best is None else min(best, time)
        moved = Fraction(self.width * (m * k + n * k) + 2 * m * n) / self.bandwidth
        product = moved if best is None else max(best, moved)
        return self.launch + product + self.result * m * n + self.cast * m * k

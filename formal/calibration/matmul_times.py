r"""Fits the constants of matrix products: least mean |log(predicted / measured)|, one constant after the
other.

The time is a minimum over tiles of a maximum with memory, so it is convex in nothing; but it rises with every constant
and is cheap.  From the data sheet's peaks each constant is moved up and down in its logarithm, steps grow where that
helps and halve where it does not, until all are below half a percent; several starts, best kept.  A local optimum: its
residual is shown, no claim rests on it.

Constants without effect on any row stay at their start and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.cost.matmul_times import SPLITS, STEP, MatmulTime
from ...models.text import InputError

__all__ = ["TILES", "Device", "Fitted", "Product", "fit"]

Floats = NDArray[np.float64]

TILES: Final = (
    (16, 64),
    (64, 16),
    (64, 32),
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (64, 256),
    (128, 256),
    (256, 128),
)
"""Tiles of the vendor's kernels (CUTLASS names them in its profiler)."""

_NAMES: Final = ("launch", "bandwidth", "split", "tail", "step", "sum", "result", "odd", "cast")
_STARTS: Final = (1.0, 0.6, 1.6)
_LEAST, _ROUNDS = 0.005, 60


@dataclass(frozen=True)
class Product:
    """One product and its seconds."""

    m: int
    n: int
    k: int
    seconds: float


@dataclass(frozen=True)
class Device:
    """Data sheet: processors, bytes/s, flop/s of the element type, bytes of an element; `scaled`: products that cast
    and scale their input first (fp8).
    """

    processors: int
    bandwidth: float
    peak: float
    width: int
    scaled: bool = False


@dataclass(frozen=True)
class Fitted:
    """Constants, mean relative deviation on the rows fitted, their number."""

    time: MatmulTime
    mean_error: float
    rows: int


def fit(rows: Sequence[Product], device: Device) -> Fitted:
    """Constants of one GPU and element type.  Raises `InputError` without rows.

    >>> true = MatmulTime(Fraction("3e-6"), Fraction(10**12), 100, 2, ((128, 128),), (Fraction(2 * 10**12),))
    >>> sizes = [(m, n, k) for m in (1, 200, 3000) for n in (64, 1000, 5000) for k in (128, 4096)]
    >>> rows = [Product(*s, float(true.seconds(*s))) for s in sizes]
    >>> fit(rows, Device(100, 1.2e12, 3e14, 2)).mean_error < 0.02
    True
    """
    if not rows:
        raise InputError("no matrix product is left to fit")
    table = _Table(rows, device)
    best, error = table.start(1.0), np.inf
    for scale in _STARTS:
        x, off = _search(table, table.start(scale))
        if off < error:
            best, error = x, off
    value = dict(zip(_NAMES, np.exp(best[: len(_NAMES)]), strict=True))
    rates = tuple(_exact(r) for r in np.exp(best[len(_NAMES) :]))
    time = MatmulTime(
        _exact(value["launch"]),
        _exact(value["bandwidth"]),
        device.processors,
        device.width,
        TILES,
        rates,
        _exact(value["tail"]),
        _exact(value["step"]),
        _exact(value["split"]),
        _exact(value["sum"]),
        _exact(value["result"]),
        _exact(value["cast"]) if device.scaled else Fraction(0),
        _exact(value["odd"]),
    )
    return Fitted(time, float(np.abs(table.predict(best) / table.seconds - 1).mean()), len(rows))


def _exact(value: float) -> Fraction:
    return Fraction(f"{value:.4e}")


class _Table:
    """Counts per row, tile and split, so that a prediction is a few array operations.  Unknowns are logarithms."""

    def __init__(self, rows: Sequence[Product], device: Device) -> None:
        self.device = device
        m, n, k = (np.array([getattr(r, c) for r in rows], dtype=np.float64) for c in "mnk")
        self.seconds = np.array([r.seconds for r in rows])
        waves, depth, area, sums, parts = [], [], [], [], []
        for a, b in TILES:
            whole = np.ceil(m / a) * np.ceil(n / b)
            for s in SPLITS:
                waves.append(np.ceil(whole * s / device.processors))
                depth.append(np.ceil(k / (s * STEP)) * STEP)
                area.append(2.0 * a * b)
                sums.append(whole * s * 4 * a * b if s > 1 else 0 * whole)
                parts.append(float(s > 1))
        self.waves, self.depth, self.sums = np.array(waves), np.array(depth), np.array(sums)
        self.area, self.parts = np.array(area)[:, None], np.array(parts)[:, None]
        self.tile = np.repeat(np.arange(len(TILES)), len(SPLITS))
        self.moved = device.width * (m * k + n * k) + 2 * m * n
        self.result, self.input = m * n, m * k if device.scaled else 0 * m
        self.odd = ((m > 128) & (m % STEP != 0)).astype(np.float64)

    def start(self, scale: float) -> Floats:
        d = self.device
        rate = d.peak / d.processors
        first = [3e-6, 0.8 * d.bandwidth, 2e-6, 3e-7, 6e-10 * scale, 1e-13, 1e-13, 0.1, 2e-12]
        rates = [0.8 * scale * rate * min(1.0, (a * b / 32768) ** 0.4) for a, b in TILES]
        out: Floats = np.log(np.array(first + rates))
        return out

    def predict(self, x: Floats) -> Floats:
        launch, bandwidth, split, tail, step, add, result, odd, cast = np.exp(x[: len(_NAMES)])
        rates: Floats = np.exp(x[len(_NAMES) :])[self.tile][:, None]
        time = self.waves * (self.depth * (self.area / rates) * (1 + odd * self.odd) + tail) + step * self.depth
        time += self.parts * split + add * self.sums
        product = np.maximum(time.min(axis=0), self.moved / bandwidth)
        out: Floats = launch + product + result * self.result + cast * self.input
        return out

    def off(self, x: Floats) -> float:
        return float(np.abs(np.log(self.predict(x) / self.seconds)).mean())


def _search(table: _Table, x: Floats) -> tuple[Floats, float]:
    free = [c for c in range(len(x)) if c != _NAMES.index("cast") or table.device.scaled]
    error, steps = table.off(x), np.full(len(x), 0.3)
    for _ in range(_ROUNDS):
        for c in free:
            for sign in (1, -1):
                moved = x.copy()
                moved[c] += sign * steps[c]
                off = table.off(moved)
                if off < error - 1e-7:
                    x, error, steps[c] = moved, off, min(1.5 * steps[c], 1.0)
                    break
            else:
                steps[c] /= 2
        if steps[free].max() < _LEAST:
            break
    return x, error

r"""Fits positive unknowns of a time formula, by robust least squares on the logarithm of predicted over
measured.

    x = exp(u),  low <= x <= high        unknowns, by physics positive; bounds are data-sheet peaks
    r(x)                                  residuals, usually log(predicted / measured) times a weight
    minimise  sum over rows  2 s^2 ( sqrt(1 + (r / s)^2) - 1 )        s = SOFT: beyond it a row counts by |r|, not r^2

Levenberg and Marquardt's steps on the rows reweighted by 1 / sqrt(1 + (r/s)^2); derivatives by differences.  An
unknown that moves no residual stays where it started: `moved` tells which did not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SOFT: Final = 0.04
"""Residual (about 4 %) beyond which a row counts linearly: measured steps hold outliers of 20 to 40 %."""

_STEP: Final = 1e-5
_ROUNDS: Final = 200


@dataclass(frozen=True)
class Fitted:
    """The unknowns, the objective there, and which of them any row depends on."""

    x: Floats
    cost: float
    moved: tuple[bool, ...]


def fit(residuals: Callable[[Floats], Floats], start: Floats, low: Floats, high: Floats, soft: float = SOFT) -> Fitted:
    """Descend from `start` (positive) within the bounds.

    >>> t = np.array([1.0, 2.0, 4.0, 8.0])
    >>> y = 3 * t + 2
    >>> found = fit(lambda x: np.log((x[0] * t + x[1]) / y), np.ones(2), np.full(2, 0.01), np.full(2, 100.0))
    >>> found.x.round(4).tolist(), found.moved
    ([3.0, 2.0], (True, True))
    """
    bottom, top = np.log(low), np.log(high)
    u = np.clip(np.log(start), bottom, top)
    r = residuals(np.exp(u))
    cost, damping = _cost(r, soft), 1e-2
    moved = np.zeros(len(u), dtype=bool)
    for _ in range(_ROUNDS):
        jacobian = np.empty((len(r), len(u)))
        for k in range(len(u)):
            side = -_STEP if u[k] + _STEP > top[k] else _STEP
            v = u.copy()
            v[k] += side
            jacobian[:, k] = (residuals(np.exp(v)) - r) / side
        moved |= np.abs(jacobian).max(axis=0) > 1e-12
        weight = 1 / np.sqrt(1 + (r / soft) ** 2)
        gradient = jacobian.T @ (weight * r)
        # an unknown at a bound that the descent would push beyond it takes no part in this step
        free = ~(((u >= top) & (gradient < 0)) | ((u <= bottom) & (gradient > 0)))
        curvature = (jacobian * weight[:, None]).T @ jacobian
        before = cost
        while damping < 1e8:
            matrix = curvature[np.ix_(free, free)]
            step = np.zeros(len(u))
            scale = np.maximum(np.diag(matrix), 1e-9)
            step[free] = np.linalg.solve(matrix + damping * np.diag(scale), -gradient[free])
            candidate = np.clip(u + np.clip(step, -1, 1), bottom, top)
            tried = residuals(np.exp(candidate))
            reached = _cost(tried, soft)
            if reached < cost:
                u, r, cost, damping = candidate, tried, reached, max(damping / 5, 1e-9)
                break
            damping *= 4
        else:
            break
        if before - cost < 1e-9 * max(cost, 1e-12):
            break
    return Fitted(np.exp(u), cost, tuple(bool(m) for m in moved))


def _cost(r: Floats, soft: float) -> float:
    value = float((2 * soft**2 * (np.sqrt(1 + (r / soft) ** 2) - 1)).sum())
    return value if np.isfinite(value) else np.inf


def exact(value: float, digits: int = 4) -> Fraction:
    """A float as the fraction that its first digits write.

    >>> exact(281.4173), exact(0.0123456)
    (Fraction(1407, 5), Fraction(247, 20000))
    """
    return Fraction(f"{value:.{digits}g}")

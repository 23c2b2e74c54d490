r"""Computes least absolute relative deviation of convex piecewise linear times, by cvxpy.

    x_c >= 0       unknowns: inverse rates, latencies
    time of a row  f(x) = sum over steps  max over pieces (v x_c)  +  sum over added terms v x_c          (convex in x)
    objective      sum over rows  | f(x) / t - 1 |                                                        -> LP

The maximum makes the objective non-convex where a row is predicted too short, so the largest piece of every step is
fixed at the present x, the linear problem is solved, and this is repeated until the pieces stay; the best x met (by the
true objective, the start included) is kept.  The answer is a local optimum: no claim rests on it, its residuals are
shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...models.text import InputError
from .solver import solve

Floats = NDArray[np.float64]

_ROUNDS = 40


@dataclass(frozen=True)
class Row:
    """Linear pieces of one timing: per step (unknown -> seconds at value 1), and what is added whatever is largest."""

    steps: tuple[tuple[tuple[int, float], ...], ...]
    added: tuple[tuple[int, float], ...]
    seconds: float


@dataclass(frozen=True)
class Residuals:
    """Of predicted over measured: mean and largest |ratio - 1|, smallest and largest ratio, Spearman's rank
    correlation (None: fewer than 3 rows).
    """

    rows: int
    mean: float
    worst: float
    low: float
    high: float
    rank: float | None

    @staticmethod
    def of(predicted: Floats, measured: Floats) -> Residuals:
        """Of two equally long lists of positive seconds."""
        ratio = predicted / measured
        error = abs(ratio - 1)
        rank = spearman(predicted, measured) if len(ratio) > 2 else None
        return Residuals(
            len(ratio), float(error.mean()), float(error.max()), float(ratio.min()), float(ratio.max()), rank
        )

    def words(self) -> str:
        """The errors in the fixed words that stand in the source of a calibrated constant
        (`parts.calibration_errors`).
        """
        return f"mean error {100 * self.mean:.1f} %, worst {100 * self.worst:.1f} %"

    def as_json(self) -> dict[str, object]:
        """Plain numbers."""
        return {
            "rows": self.rows,
            "mean_error": self.mean,
            "worst_error": self.worst,
            "lowest_ratio": self.low,
            "highest_ratio": self.high,
            "rank_correlation": self.rank,
        }


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation; ties share their mean rank; 0 if one side is constant.

    >>> spearman(np.array([1.0, 2, 3]), np.array([10.0, 30, 20]))
    0.5
    """

    def ranks(x: Floats) -> Floats:
        low = (x[None, :] < x[:, None]).sum(axis=1)
        equal = (x[None, :] == x[:, None]).sum(axis=1)
        return np.asarray(low + (equal - 1) / 2, dtype=np.float64)

    ra, rb = ranks(a) - (len(a) - 1) / 2, ranks(b) - (len(b) - 1) / 2
    size = float(np.sqrt((ra @ ra) * (rb @ rb)))
    return round(float(ra @ rb) / size, 12) if size else 0.0


def fit(rows: Sequence[Row], start: Floats) -> Floats:
    """The unknowns, each within a factor 1000 of its (positive) start; those that no row depends on stay.  Raises
    `InputError` if the solver fails.

    >>> rows = [Row((((0, n), (1, 1.0)),), ((2, 1.0),), max(2 * n, 3.0) + 1) for n in (0.5, 1.0, 4.0, 8.0)]
    >>> fit(rows, np.array([1.0, 2.0, 0.5])).round(6).tolist()
    [2.0, 3.0, 1.0]
    """
    import cvxpy

    best, x, seen = start, start, set()
    for _ in range(_ROUNDS):
        linear = (
            np.array([active(r, x) / r.seconds for r in rows]) * start
        )  # columns in units of the start: well scaled
        key = linear.tobytes()
        if key in seen:
            break
        seen.add(key)
        used = linear.any(axis=0)
        factor = cvxpy.Variable(len(start), bounds=[0.001, 1000])
        # the small term holds constants that no row moves where they are, and keeps the answer unique
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.sum(cvxpy.abs(linear @ factor - 1)) + 1e-6 * cvxpy.sum(cvxpy.abs(factor - 1)))
        )
        if solve(problem) not in ("optimal", "optimal_inaccurate"):
            raise InputError(f"the fit failed: the solver says {problem.status}")
        x = np.where(used, np.asarray(factor.value) * start, x)
        if objective(rows, x) < objective(rows, best):
            best = x
    return best


def active(row: Row, x: Floats) -> Floats:
    """The row's linear form at x: its value there is `active(row, x) @ x`."""
    out = np.zeros(len(x))
    for pieces in row.steps:
        c, v = max(pieces, key=lambda p: p[1] * x[p[0]])
        out[c] += v
    for c, v in row.added:
        out[c] += v
    return out


def objective(rows: Sequence[Row], x: Floats) -> float:
    """Mean relative deviation."""
    return float(np.mean([abs(float(active(r, x) @ x) / r.seconds - 1) for r in rows]))


def active_unknowns(rows: Sequence[Row], x: Floats) -> list[bool]:
    """Per unknown: does any row depend on it at x?"""
    return [any(active(r, x)[c] > 0 for r in rows) for c in range(len(x))]

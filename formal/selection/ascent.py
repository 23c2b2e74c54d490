"""Bound with resource rows: message sweeps alternate with subgradient steps on the multipliers.

    LB(m, n) = Q constant + sum_v min theta_v + sum_e min bracket_e - L sum_t n_t,    theta_v includes sum_t n_t u_t,v

A step moves n along  use(argmin theta) - L  averaged with the last direction, kept at n >= 0, with length
0.3 rho (target - LB) / |g|^2; rho shrinks when the bound has not moved for a while.  Multipliers stay integers in units of 1/Q
throughout: rounding them at the end would give back part of the bound.
Source: `shared/research/memory-constrained-selection.md`, section 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...models.problems import Ints
from .clock import Clock
from .messages import Sweeper
from .network import INFINITE
from .rows import Rows


@dataclass(eq=False)
class Ascended:
    """Best state met: multipliers over the events, and its bound without the constant."""

    n: Ints
    bound: float


def apply(sweeper: Sweeper, rows: Rows, n: Ints) -> None:
    """Put the multipliers into the vertex costs of `sweeper`."""
    sweeper.extra = rows.weighted(sweeper.network.domains, n)


def ceiling(sweeper: Sweeper, rows: Rows) -> float:
    """Largest multiplier that cannot make an int64 sum of `bounds.score` wrap."""
    most = sum(int(kinds.usage.max()) for kinds in rows.kinds if kinds is not None)
    return float((1 << 56) // max(1, most * max(1, len(rows.events))))


def ascend(sweeper: Sweeper, rows: Rows, start: Ints, target: float | None, steps: int, clock: Clock) -> Ascended:
    """Up to `steps` double sweeps with multiplier steps between; leaves the best messages in `sweeper`, last sweep backward.

    `target` is the incumbent in units of 1/Q without the constant, None without one.
    """
    top = ceiling(sweeper, rows)
    n = np.minimum(start, int(top))
    apply(sweeper, rows, n)
    best = Ascended(n, -np.inf)
    kept: tuple[list[Ints], list[Ints]] = (list(sweeper.to_u), list(sweeper.to_v))
    direction = np.zeros(len(rows.events))
    rho, still, anchor = 1.0, 0, -np.inf
    for _ in range(steps):
        swept = sweeper.sweep(True, clock)
        if swept is not None and swept < INFINITE:
            swept = sweeper.sweep(False, clock)
        if swept is None or swept >= INFINITE:
            break
        bound = float(swept - rows.limit * int(n.sum()))
        if bound > best.bound:
            best = Ascended(n, bound)
            kept = (list(sweeper.to_u), list(sweeper.to_v))
        if bound > anchor + 1e-4 * abs(anchor if np.isfinite(anchor) else 0.0) + 1e-9:
            anchor, still = bound, 0
        else:
            still += 1
        if target is not None and best.bound >= target:
            break
        if still >= 10:
            rho, still = rho * 0.5, 0
            if rho < 0.01:
                break
            n = best.n
            sweeper.to_u, sweeper.to_v = list(kept[0]), list(kept[1])
            apply(sweeper, rows, n)
        over = _usage(sweeper, rows) - rows.limit
        direction = 0.5 * direction + 0.5 * over
        g = np.where((n <= 0) & (direction < 0), 0.0, direction)
        size = float(g @ g)
        if size == 0.0:
            break
        gap = (target - bound) if target is not None else 0.1 * abs(bound) + 1.0
        fresh = np.clip(n + 0.6 * rho * max(gap, 1e-3 * abs(bound)) / size * g, 0.0, top)
        n = np.rint(fresh).astype(np.int64)
        apply(sweeper, rows, n)
    sweeper.to_u, sweeper.to_v = kept
    apply(sweeper, rows, best.n)
    return best


def _usage(sweeper: Sweeper, rows: Rows) -> NDArray[np.float64]:
    """Usage per event of the labels that minimise theta."""
    x = []
    for v, d in enumerate(sweeper.network.domains):
        x.append(int(d[int(np.argmin(sweeper.theta(v)))]) if rows.kinds[v] is not None else 0)
    return rows.use(x).astype(np.float64)



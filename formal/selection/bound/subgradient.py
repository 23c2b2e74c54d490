"""This module raises the bound of a problem with resource rows by moving their multipliers, known as subgradient
ascent (Lagrangian relaxation): message sweeps alternate with steps.

    LB(m, n) = Q constant + sum_v min theta_v + sum_e min bracket_e - L sum_t n_t,    theta_v includes sum_t n_t u_t,v

A step moves n along  use(argmin theta) - L  averaged with the last direction, kept at n >= 0, with length
rho (target - best LB) / |g|^2; rho shrinks when the bound has not moved for a while.  Multipliers stay integers in
units of 1/Q throughout: rounding them at the end would give back part of the bound.
Source: Held, Wolfe and Crowder, "Validation of subgradient optimization", Mathematical Programming 1974.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints
from ..model.clock import Clock
from ..model.factored import INFINITE
from ..model.resources import Rows
from .accelerated import AcceleratedSweeper
from .decode import decode
from .trws import Sweeper


@dataclass(eq=False)
class Ascended:
    """Best state met: multipliers over the events, its bound without the constant (None: no sweep was finished),
    and the last step factor.
    """

    n: Ints
    bound: int | None
    rho: float
    turns: int = 0
    """Double sweeps made (`accelerated_ascent`)."""


def apply_multipliers(sweeper: Sweeper, rows: Rows, n: Ints) -> None:
    """Put the multipliers into the vertex costs of `sweeper`."""
    sweeper.extra = rows.weighted(sweeper.network.domains, n)


def ceiling(rows: Rows) -> float:
    """Largest sum of multipliers with which no label's price wraps in int64 (sums over vertices are Python
    integers).
    """
    most = max((int(kinds.usage.max()) for kinds in rows.kinds if kinds is not None), default=0)
    return float((1 << 56) // max(1, most))


def _capped(n: NDArray[np.float64], top: float) -> Ints:
    total = float(n.sum())
    return np.floor(n if total <= top else n * (top / total)).astype(np.int64)


def subgradient_ascent(
    sweeper: Sweeper,
    rows: Rows,
    start: Ints,
    target: int | None,
    steps: int,
    clock: Clock,
    rho: float | None = None,
) -> Ascended:
    """Up to `steps` double sweeps with multiplier steps between; leaves the best messages in `sweeper`, last sweep
    backward.

    `target` is the incumbent in units of 1/Q without the constant, None without one; `rho`: the first step (default:
    `options.bound.step`).
    """
    options = sweeper.options
    rho = options.step if rho is None else rho
    top = ceiling(rows)
    n = _capped(start.astype(np.float64), top)
    apply_multipliers(sweeper, rows, n)
    best = Ascended(n, None, rho)
    kept: tuple[list[Ints], list[Ints]] = (list(sweeper.to_u), list(sweeper.to_v))
    direction = np.zeros(len(rows.events))
    still = 0
    anchor: int | None = None
    for _ in range(steps):
        swept = sweeper.sweep(True, clock)
        if swept is not None and swept < INFINITE:
            swept = sweeper.sweep(False, clock)
        if swept is None or swept >= INFINITE:
            break
        bound = swept - rows.limit * int(n.sum())
        if best.bound is None or bound > best.bound:
            best = Ascended(n, bound, rho)
            kept = (list(sweeper.to_u), list(sweeper.to_v))
        if anchor is None or (bound - anchor) * options.step_gain > abs(anchor):
            anchor, still = bound, 0
        else:
            still += 1
        if target is not None and bound >= target:
            break
        if still >= options.step_patience:
            rho, still = rho * options.step_factor, 0
            if rho < options.least_step:
                break
            n = best.n
            sweeper.to_u, sweeper.to_v = list(kept[0]), list(kept[1])
            apply_multipliers(sweeper, rows, n)
        over = _usage(sweeper, rows) - rows.limit
        direction = options.averaged * direction + (1.0 - options.averaged) * over
        g = np.where((n <= 0) & (direction < 0), 0.0, direction)
        size = float(g @ g)
        if size == 0.0:
            break
        # from the best bound, not the present one: just after a step the messages lag behind and the bound is far too
        # low
        reached = bound if best.bound is None else best.bound
        gap = float(target - reached) if target is not None else options.guessed_gap * abs(reached) + 1.0
        n = _capped(np.rint(np.maximum(n + rho * max(gap, 1e-3 * abs(reached)) / size * g, 0.0)), top)
        apply_multipliers(sweeper, rows, n)
    sweeper.to_u, sweeper.to_v = kept
    apply_multipliers(sweeper, rows, best.n)
    best.rho = rho
    return best


def accelerated_ascent(sweeper: Sweeper, rows: Rows, start: Ints, target: int | None, clock: Clock) -> Ascended:
    """The same for large networks: strides of accelerated sweeps, between them steps along the usage of a decoded
    solution.

    Ends with the time, at `target`, when steps have become small, or after `strides`.
    """
    options = sweeper.options
    top = ceiling(rows)
    n, rho, worse = _capped(start.astype(np.float64), top), options.stride_step, 0
    apply_multipliers(sweeper, rows, n)
    moving = AcceleratedSweeper(sweeper)
    best = Ascended(n, None, rho)
    kept: tuple[list[Ints], list[Ints]] = (list(sweeper.to_u), list(sweeper.to_v))
    direction = np.zeros(len(rows.events))
    turns = 0
    for _ in range(options.strides):
        if rho < options.least_stride_step or clock.over():
            break
        swept = moving.run(options.stride, clock)
        if swept is None:
            break
        turns += options.stride
        moving.store()
        bound = swept - rows.limit * int(n.sum())
        if best.bound is None or bound > best.bound:
            best, kept, worse = Ascended(n, bound, rho), (list(sweeper.to_u), list(sweeper.to_v)), 0
        else:
            worse += 1
        if target is not None and bound >= target:
            break
        if worse >= options.lagging:
            n, rho, worse, direction = best.n, options.step_factor * rho, 0, np.zeros(len(rows.events))
            sweeper.to_u, sweeper.to_v = list(kept[0]), list(kept[1])
            apply_multipliers(sweeper, rows, n)
            moving = AcceleratedSweeper(sweeper)
            continue
        x = [int(d[i]) for d, i in zip(sweeper.network.domains, decode(sweeper, False), strict=True)]
        over = rows.use(x).astype(np.float64) - rows.limit
        direction = options.averaged * direction + (1.0 - options.averaged) * over
        g = np.where((n <= 0) & (direction < 0), 0.0, direction)
        size = float(g @ g)
        if size == 0.0:
            break
        gap = float(target - bound) if target is not None else options.guessed_gap * abs(bound)
        n = _capped(np.rint(np.maximum(n + rho * max(gap, 0.0) / size * g, 0.0)), top)
        apply_multipliers(sweeper, rows, n)
        moving.reprice()
    sweeper.to_u, sweeper.to_v = kept
    apply_multipliers(sweeper, rows, best.n)
    best.rho, best.turns = rho, turns
    return best


def _usage(sweeper: Sweeper, rows: Rows) -> NDArray[np.float64]:
    """Usage per event of the labels that minimise theta."""
    x = []
    for v, d in enumerate(sweeper.network.domains):
        x.append(int(d[int(np.argmin(sweeper.theta(v)))]) if rows.kinds[v] is not None else 0)
    return rows.use(x).astype(np.float64)

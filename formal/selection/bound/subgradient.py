"""Raises the bound of a problem with resource rows by moving their multipliers, known as subgradient
ascent (Lagrangian relaxation): message sweeps alternate with steps.

    LB(m, n) = Q constant + sum_v min theta_v + sum_e min bracket_e - L sum_t n_t,    theta_v includes sum_t n_t u_t,v

Steps are those of `bound/multipliers.py`.  Multipliers stay integers in units of 1/Q throughout: rounding them at the
end would give back part of the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....models.problem.selection_problem import Ints
from ..model.clock import Clock
from ..model.resources import Rows
from .accelerated import AcceleratedSweeper
from .decode import decode
from .multipliers import Floats, StepRule, subgradient_ascent
from .trws import Sweeper


@dataclass(eq=False)
class Ascended:
    """Best state met: multipliers over the events, its bound without the constant (None: no sweep was finished)."""

    n: Ints
    bound: int | None


def apply_multipliers(sweeper: Sweeper, rows: Rows, n: Ints) -> None:
    """Put the multipliers into the vertex costs of `sweeper`."""
    sweeper.extra = rows.price_usage(sweeper.network.domains, n)


def ceiling(rows: Rows) -> float:
    """Largest sum of multipliers with which no label's price wraps in int64 (sums over vertices are Python
    integers).
    """
    most = max((int(kinds.usage.max()) for kinds in rows.kinds if kinds is not None), default=0)
    return float((1 << 56) // max(1, most))


def _capped(n: Floats, top: float) -> Ints:
    total = float(n.sum())
    return np.floor(n if total <= top else n * (top / total)).astype(np.int64)


class _Ascent:
    """Strides of accelerated sweeps; usage of a decoded solution."""

    def __init__(self, sweeper: Sweeper, rows: Rows, start: Ints, target: int | None, clock: Clock) -> None:
        self.sweeper, self.rows, self.target, self.clock = sweeper, rows, target, clock
        self.options = sweeper.options
        self.top = ceiling(rows)
        self.n = _capped(start.astype(np.float64), self.top)
        self.best = Ascended(self.n, None)
        self.kept: tuple[list[Ints], list[Ints]] = (list(sweeper.to_u), list(sweeper.to_v))
        apply_multipliers(sweeper, rows, self.n)
        self.moving = AcceleratedSweeper(sweeper)

    @property
    def size(self) -> int:
        return len(self.rows.events)

    def sweep(self) -> int | None:
        swept = None if self.clock.over() else self.moving.sweep(self.options.stride, self.clock)
        if swept is None:
            return None
        self.moving.store()
        return swept - self.rows.limit * int(self.n.sum())

    def note(self, bound: float) -> bool:
        """Keep the state if it is the best."""
        now = int(bound)
        if self.best.bound is not None and now <= self.best.bound:
            return False
        self.best = Ascended(self.n, now)
        self.kept = (list(self.sweeper.to_u), list(self.sweeper.to_v))
        return True

    def is_enough(self, bound: float) -> bool:
        return self.target is not None and bound >= self.target

    def over(self) -> Floats:
        x = self.sweeper.network.solution(decode(self.sweeper))
        return self.rows.use(x).astype(np.float64) - self.rows.limit

    def aim(self, bound: float, rho: float) -> float:
        now = int(bound)
        gap = float(self.target - now) if self.target is not None else self.options.guessed_gap * abs(now)
        return rho * max(gap, 0.0)

    def multipliers(self) -> Floats:
        return self.n.astype(np.float64)

    def price(self, n: Floats) -> None:
        self.n = _capped(np.rint(n), self.top)
        apply_multipliers(self.sweeper, self.rows, self.n)
        self.moving.reprice()

    def restore(self) -> None:
        self.n = self.best.n
        self.sweeper.to_u, self.sweeper.to_v = list(self.kept[0]), list(self.kept[1])
        apply_multipliers(self.sweeper, self.rows, self.n)
        self.moving = AcceleratedSweeper(self.sweeper)


def factored_ascent(
    sweeper: Sweeper, rows: Rows, start: Ints, target: int | None, clock: Clock, strides: int | None = None
) -> Ascended:
    """Strides of sweeps, between them steps along the usage of a decoded solution; leaves the best messages in
    `sweeper`.

    `target` is the incumbent in units of 1/Q without the constant, None without one.  Ends with the time, at `target`,
    when steps have become small, or after `strides` (default: those of the options).
    """
    at = sweeper.options
    rule = StepRule(at.step_factor, at.least_step, at.step_patience, at.averaged, again=True)
    ascent = _Ascent(sweeper, rows, start, target, clock)
    subgradient_ascent(ascent, rule, at.step, at.strides if strides is None else strides)
    sweeper.to_u, sweeper.to_v = ascent.kept
    apply_multipliers(sweeper, rows, ascent.best.n)
    return ascent.best

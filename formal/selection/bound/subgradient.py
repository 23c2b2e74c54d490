"""This module raises the bound of a problem with resource rows by moving their multipliers, known as subgradient
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
from ..model.factored import INFINITE
from ..model.resources import Rows
from .accelerated import AcceleratedSweeper
from .decode import decode
from .multipliers import Floats, StepRule, ascend
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


def _capped(n: Floats, top: float) -> Ints:
    total = float(n.sum())
    return np.floor(n if total <= top else n * (top / total)).astype(np.int64)


class _Plain:
    """Plain sweeps; usage of the labels of least theta.  Leaves the last sweep backward."""

    def __init__(self, sweeper: Sweeper, rows: Rows, start: Ints, target: int | None, clock: Clock) -> None:
        self.sweeper, self.rows, self.target, self.clock = sweeper, rows, target, clock
        self.options = sweeper.options
        self.top = ceiling(rows)
        self.n = _capped(start.astype(np.float64), self.top)
        self.best = Ascended(self.n, None, 0.0)
        self.kept: tuple[list[Ints], list[Ints]] = (list(sweeper.to_u), list(sweeper.to_v))
        self.anchor: int | None = None
        apply_multipliers(sweeper, rows, self.n)

    @property
    def size(self) -> int:
        return len(self.rows.events)

    def sweep(self) -> int | None:
        swept = self.sweeper.sweep(True, self.clock)
        if swept is not None and swept < INFINITE:
            swept = self.sweeper.sweep(False, self.clock)
        if swept is None or swept >= INFINITE:
            return None
        return swept - self.rows.limit * int(self.n.sum())

    def keep(self, bound: int) -> bool:
        """Keep the state if it is the best."""
        if self.best.bound is not None and bound <= self.best.bound:
            return False
        self.best = Ascended(self.n, bound, 0.0)
        self.kept = (list(self.sweeper.to_u), list(self.sweeper.to_v))
        return True

    def note(self, bound: float) -> bool:
        now = int(bound)
        self.keep(now)
        if self.anchor is None or (now - self.anchor) * self.options.step_gain > abs(self.anchor):
            self.anchor = now
            return True
        return False

    def reached(self, bound: float) -> bool:
        return self.target is not None and bound >= self.target

    def over(self) -> Floats:
        return _usage(self.sweeper, self.rows) - self.rows.limit

    def aim(self, bound: float, rho: float) -> float:
        """From the best bound, not the present one: just after a step the messages lag behind and the bound is far too
        low.
        """
        reached = int(bound) if self.best.bound is None else self.best.bound
        guess = self.options.guessed_gap * abs(reached) + 1.0
        gap = float(self.target - reached) if self.target is not None else guess
        return rho * max(gap, self.options.lagging_gap * abs(reached))

    def multipliers(self) -> Floats:
        return self.n.astype(np.float64)

    def price(self, n: Floats) -> None:
        self.n = _capped(np.rint(n), self.top)
        apply_multipliers(self.sweeper, self.rows, self.n)

    def restore(self) -> None:
        self.n = self.best.n
        self.sweeper.to_u, self.sweeper.to_v = list(self.kept[0]), list(self.kept[1])
        apply_multipliers(self.sweeper, self.rows, self.n)


class _Accelerated(_Plain):
    """Strides of accelerated sweeps; usage of a decoded solution."""

    def __init__(self, sweeper: Sweeper, rows: Rows, start: Ints, target: int | None, clock: Clock) -> None:
        super().__init__(sweeper, rows, start, target, clock)
        self.moving = AcceleratedSweeper(sweeper)
        self.turns = 0

    def sweep(self) -> int | None:
        swept = None if self.clock.over() else self.moving.run(self.options.stride, self.clock)
        if swept is None:
            return None
        self.turns += self.options.stride
        self.moving.store()
        return swept - self.rows.limit * int(self.n.sum())

    def note(self, bound: float) -> bool:
        return self.keep(int(bound))

    def over(self) -> Floats:
        choice = decode(self.sweeper, False)
        x = [int(d[i]) for d, i in zip(self.sweeper.network.domains, choice, strict=True)]
        return self.rows.use(x).astype(np.float64) - self.rows.limit

    def aim(self, bound: float, rho: float) -> float:
        now = int(bound)
        gap = float(self.target - now) if self.target is not None else self.options.guessed_gap * abs(now)
        return rho * max(gap, 0.0)

    def price(self, n: Floats) -> None:
        super().price(n)
        self.moving.reprice()

    def restore(self) -> None:
        super().restore()
        self.moving = AcceleratedSweeper(self.sweeper)


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
    at = sweeper.options
    rule = StepRule(at.step_factor, at.least_step, at.step_patience, at.averaged)
    plain = _Plain(sweeper, rows, start, target, clock)
    last = ascend(plain, rule, at.step if rho is None else rho, steps)
    return _best(plain, last)


def accelerated_ascent(sweeper: Sweeper, rows: Rows, start: Ints, target: int | None, clock: Clock) -> Ascended:
    """The same for large networks: strides of accelerated sweeps, between them steps along the usage of a decoded
    solution.

    Ends with the time, at `target`, when steps have become small, or after `strides`.
    """
    at = sweeper.options
    rule = StepRule(at.step_factor, at.least_stride_step, at.lagging, at.averaged, again=True)
    moving = _Accelerated(sweeper, rows, start, target, clock)
    best = _best(moving, ascend(moving, rule, at.stride_step, at.strides))
    best.turns = moving.turns
    return best


def _best(at: _Plain, rho: float) -> Ascended:
    """The best state of `at`, its messages in the sweeper again."""
    at.sweeper.to_u, at.sweeper.to_v = at.kept
    apply_multipliers(at.sweeper, at.rows, at.best.n)
    at.best.rho = rho
    return at.best


def _usage(sweeper: Sweeper, rows: Rows) -> Floats:
    """Usage per event of the labels that minimise theta."""
    x = []
    for v, d in enumerate(sweeper.network.domains):
        x.append(int(d[int(np.argmin(sweeper.theta(v)))]) if rows.kinds[v] is not None else 0)
    return rows.use(x).astype(np.float64)

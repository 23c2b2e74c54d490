"""Moves the multipliers of resource rows, known as subgradient ascent with Polyak's step length and
averaged directions: the step rule of every ascent, and the loop around it.

    direction  <-  a direction + (1 - a) over       over = use - L, of a solution that the bound suggests: the estimator
    g_t         =  0 where n_t = 0 and the direction would lower it, else direction_t
    n          <-  max(0, n + aim / |g|^2 g)        aim = rho (target - bound)

rho shrinks, and the best state comes back, when the bound has not risen for a while.  What is ascended is a
`Relaxation`: messages over factored or dense tables, swept plainly or with acceleration, each with its own estimator of
the usage (labels of least theta, or a decoded solution; the smoothed dual takes expected usage and the steps alone).
Source: Held, Wolfe and Crowder, "Validation of subgradient optimization", Mathematical Programming 1974.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Relaxation(Protocol):
    """A bound with multipliers, as an ascent sees it."""

    @property
    def size(self) -> int:
        """How many multipliers there are."""
        ...

    def sweep(self) -> float | None:
        """The bound after more sweeps at the present multipliers; None: no time, or some vertex has no label."""
        ...

    def note(self, bound: float) -> bool:
        """Keep the state if it is the best; True when the bound counts as risen."""
        ...

    def is_enough(self, bound: float) -> bool:
        """True when nothing more is needed, or the time is over."""
        ...

    def over(self) -> Floats:
        """By how much the rows are exceeded by a solution that the messages suggest, shape (size,)."""
        ...

    def aim(self, bound: float, rho: float) -> float:
        """What a step aims to gain: the share `rho` of the gap."""
        ...

    def multipliers(self) -> Floats:
        """The present ones, shape (size,)."""
        ...

    def price(self, n: Floats) -> None:
        """Go on with the multipliers `n`."""
        ...

    def restore(self) -> None:
        """Go back to the best state."""
        ...


@dataclass(frozen=True)
class StepRule:
    """`patience`: sweeps without a rise after which rho is multiplied by `factor`; the ascent ends below `least`.

    `averaged`: the share of the last direction in the next one.  `again`: sweep again after going back, with no
    direction.  `endless`: a direction of zero is not the end.
    """

    factor: float
    least: float
    patience: int
    averaged: float
    again: bool = False
    endless: bool = False


class Steps:
    """The averaged direction, and the multipliers a step further along it."""

    def __init__(self, size: int, averaged: float) -> None:
        self.direction: Floats = np.zeros(size)
        self.averaged = averaged

    def next(self, n: Floats, over: Floats, aim: float, least: float = 0.0) -> Floats | None:
        """The multipliers after `n`, at least zero; None when the direction is zero.  `least`: of |g|^2."""
        self.direction = self.averaged * self.direction + (1.0 - self.averaged) * over
        g = np.where((n <= 0) & (self.direction < 0), 0.0, self.direction)
        size = float(g @ g)
        if size == 0.0:
            return None
        return np.asarray(np.maximum(n + aim / max(size, least) * g, 0.0))


def subgradient_ascent(at: Relaxation, rule: StepRule, rho: float, most: int) -> float:
    """Up to `most` sweeps with steps between; the last rho.  The best state is what `at` has kept."""
    steps, still = Steps(at.size, rule.averaged), 0
    for _ in range(most):
        bound = at.sweep()
        if bound is None:
            break
        still = 0 if at.note(bound) else still + 1
        if at.is_enough(bound) or (at.size == 0 and still >= rule.patience):
            break
        if at.size == 0:
            continue
        if still >= rule.patience:
            rho, still = rho * rule.factor, 0
            if rho < rule.least:
                break
            at.restore()
            if rule.again:
                steps = Steps(at.size, rule.averaged)
                continue
        n = steps.next(at.multipliers(), at.over(), at.aim(bound, rho))
        if n is not None:
            at.price(n)
        elif not rule.endless:
            break
    return rho

"""Sweeps messages with acceleration until their bound hardly moves."""

from __future__ import annotations

from ..model.clock import Clock
from .accelerated import AcceleratedSweeper
from .trws import Sweeper


def converge(sweeper: Sweeper, clock: Clock, enough: int | None = None) -> int | None:
    """Sweep until the bound hardly moves or reaches `enough`.

    The bound without the network's constant; None when the time was over at once or some vertex has no allowed label.
    """
    moving = AcceleratedSweeper(sweeper)
    before: int | None = None
    for _ in range(0, sweeper.options.turns, sweeper.options.span):
        bound = moving.sweep(sweeper.options.span, clock, enough)
        if bound is None:
            return None
        if (
            clock.over()
            or enough is not None
            and bound >= enough
            or before is not None
            and (bound - before) * sweeper.options.flat <= abs(bound)
        ):
            break
        before = bound
    moving.store()
    return moving.bound

"""This module sweeps messages with acceleration until their bound hardly moves."""

from __future__ import annotations

from typing import Final

from ..model.clock import Clock
from .accelerated import AcceleratedSweeper
from .trws import Sweeper

TURNS: Final = 400
"""Double sweeps of one block or window at most."""

SPAN: Final = 8
"""Double sweeps whose joint gain decides whether more follow."""

FLAT: Final = 50_000
"""A block has converged when that gain is less than one part in so many of its bound."""


def converge(sweeper: Sweeper, clock: Clock, enough: int | None = None) -> int | None:
    """Sweep until the bound hardly moves or reaches `enough`.

    The bound without the network's constant; None when the time was over at once or some vertex has no allowed label.
    """
    moving = AcceleratedSweeper(sweeper)
    before: int | None = None
    for _ in range(0, TURNS, SPAN):
        bound = moving.run(SPAN, clock, enough)
        if bound is None:
            return None
        if (
            clock.over()
            or enough is not None
            and bound >= enough
            or before is not None
            and (bound - before) * FLAT <= abs(bound)
        ):
            break
        before = bound
    moving.store()
    return moving.bound

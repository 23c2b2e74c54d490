"""Decides how long a node is swept before labels are fixed there, and what is looked for between sweeps.

Sweeps come in strides.  After each the messages are decoded and the solution offered, improved by local search.  They
end when one of these holds:

    closed    the bound needs no improvement (`Run.is_closed`)
    fixable   half of the labels cost more than the gap by their vertex term alone: the node is solved again without
              them
    flat      the bound hardly moves
    late      so much of the time limit has gone that the rest belongs to solutions and fixing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..bound.accelerated import AcceleratedSweeper
from ..bound.decode import decode
from ..bound.trws import Sweeper
from ..model.infinity import INFINITY

if TYPE_CHECKING:
    from .run import Run


def sweep(run: Run, sweeper: Sweeper, depth: int) -> None:
    """Sweep and decode until a stop rule holds."""
    constant, at = sweeper.network.base.constant, run.options.tree
    moving = AcceleratedSweeper(sweeper)
    history: list[int] = []
    for _ in range(0, run.limits.node_sweeps if depth else run.limits.root_sweeps, at.stride):
        found = moving.sweep(at.stride, run.clock)
        if found is None:
            return
        moving.store()
        run.charge(sweeper.network)
        bound = found + constant
        run.offer(sweeper.network, decode(sweeper), polish=True)
        run.progress.update("messages", None if depth else bound // run.denominator, run.upper())
        history.append(bound)
        flat = len(history) > 2 and (history[-1] - history[-3]) * at.flat <= abs(bound)
        if flat or run.is_closed(bound) or run.clock.over() or _late(run) or _fixable(run, sweeper, bound):
            return


def bound_now(sweeper: Sweeper) -> int:
    """Bound of the present messages when every edge minimum is zero (after a full sweep)."""
    return sum(int(sweeper.theta(v).min()) for v in range(len(sweeper.network.domains))) + sweeper.network.base.constant


def _late(run: Run) -> bool:
    return run.clock.remaining_s() < run.options.tree.late * (run.clock.limit_s or 0.0)


def _fixable(run: Run, sweeper: Sweeper, bound: int) -> bool:
    """True when the vertex term alone of enough labels exceeds the gap: what fixing would remove at least."""
    if run.incumbent.cost >= INFINITY:
        return False
    gap = run.incumbent.cost * run.denominator - bound
    gone = 0
    for v in range(len(sweeper.network.domains)):
        theta = sweeper.theta(v)
        gone += int(np.count_nonzero(theta - theta.min() > gap))
    return gone >= run.limits.fix_share * max(1, sweeper.network.labels)

"""This module decides how long a node is swept before labels are fixed there, and what is looked for between sweeps.

Every look decodes the messages and offers the solution, improved by local search.  Sweeps end when one of these holds:

    closed    the bound needs no improvement (`Run.closed`)
    fixable   half of the labels cost more than the gap by their vertex term alone: the node is solved again without
              them
    slow      the gap is small and a sweep closes less than three tenths of it: fixing is worth more
    flat      the bound hardly moves; sweeps that share follow then, since solutions can be read off their messages
    late      at the root, when so much of the time limit has gone that the rest belongs to solutions and fixing

The last sweep keeps what it can at vertices.  Large networks begin with accelerated sweeps, which pay at the
root alone: parts of the tree start from messages that are nearly right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..bound.accelerated import AcceleratedSweeper
from ..bound.decode import decode
from ..bound.trws import Style, Sweeper
from ..elimination.factored import elimination_order
from ..model.factored import INFINITE, Network
from ..model.infinity import INFINITY

if TYPE_CHECKING:
    from .run import Run


def acceleration_pays(run: Run, network: Network) -> bool:
    """True where sweeps at the root are accelerated."""
    return (
        len(network.domains) >= run.options.tree.accelerated_vertices
        or network.pair_cells() >= run.options.tree.accelerated_cells
    )


def sweep(run: Run, sweeper: Sweeper, depth: int, taken: int = 0) -> None:
    """Sweep and decode until a stop rule holds.

    `taken` = L sum_t n_t of the multipliers in the vertex costs of `sweeper`; solutions are not looked for at prices.
    """
    network = sweeper.network
    constant = network.base.constant - taken
    history: list[int] = []
    at = run.options.tree
    rounds = run.limits.root_sweeps if depth == 0 else run.limits.node_sweeps
    settling = 0
    if depth == 0 and acceleration_pays(run, network):
        if _accelerated(run, sweeper, taken):
            return
        settling = 1
    finish = False
    for turn in range(rounds):
        started = run.clock.seconds()
        style: Style = "keep" if finish else "share" if settling else "all"
        bound = 0
        for forward in (True, False):
            swept = sweeper.sweep(forward, run.clock, style)
            if swept is None or swept >= INFINITE:
                return
            bound = swept + constant
            if not taken and (turn < at.early or turn % at.look == 0 or finish or settling):
                run.offer(network, decode(sweeper, forward), polish=True)
            if run.closed(bound):
                return
        run.progress.update("messages", bound // run.denominator if depth == 0 else None, run.upper())
        if finish or run.clock.left() < 3 * (run.clock.seconds() - started):
            break
        history.append(bound)
        flat = turn >= at.flat_from and (history[-1] - history[-4]) * (at.priced_flat if taken else at.flat) <= abs(
            history[-1]
        )
        settling += settling > 0 or flat
        finish = (
            depth == 0
            and _late(run)
            or settling > run.options.tree.shared
            or _slow(run, history)
            or _fixable(run, sweeper, bound)
        )


def _accelerated(run: Run, sweeper: Sweeper, taken: int) -> bool:
    """Sweep with acceleration while that gains; True when nothing is left to do: the gap is closed, the time over, or a
    vertex has no allowed label.
    """
    constant = sweeper.network.base.constant - taken
    moving = AcceleratedSweeper(sweeper)
    history: list[int] = []
    while len(history) * run.options.tree.stride < run.options.tree.accelerated_turns:
        found = moving.run(run.options.tree.stride, run.clock)
        if found is None:
            return True
        moving.store()
        bound = found + constant
        if not taken:
            run.offer(sweeper.network, decode(sweeper, False), polish=True)
        run.progress.update("messages", bound // run.denominator, run.upper())
        if run.closed(bound) or run.clock.over():
            return True
        history.append(bound)
        if len(history) > 2 and (history[-1] - history[-3]) * run.options.tree.accelerated_flat <= abs(bound):
            return False
        if _late(run) or _fixable(run, sweeper, bound):
            return False
    return False


def bound_now(sweeper: Sweeper) -> int:
    """Bound of the present messages when every edge minimum is zero (after a full sweep)."""
    return sum(int(sweeper.theta(v).min()) for v in range(len(sweeper.network.domains))) + sweeper.network.base.constant


def _late(run: Run) -> bool:
    return run.clock.left() < run.options.tree.late * (run.clock.limit_s or 0.0)


def _slow(run: Run, history: list[int]) -> bool:
    """True when the gap is small and closes slowly: fixing is worth more than another sweep."""
    if run.incumbent.cost >= INFINITY or len(history) < 2:
        return False
    gap = run.incumbent.cost * run.denominator - history[-1]
    at = run.options.tree
    return gap * at.slow_gap <= abs(history[-1]) and history[-1] - history[-2] < gap * at.slow_gain


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


def sweep_order(network: Network) -> list[int]:
    """Leaves first on forests (one sweep is exact there), the given order otherwise."""
    n = len(network.domains)
    parent = list(range(n))

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    for arc in network.arcs:
        a, b = root(arc.u), root(arc.v)
        if a == b:
            return list(range(n))
        parent[a] = b
    return list(elimination_order(network).order)

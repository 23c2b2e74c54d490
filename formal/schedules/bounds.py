"""Computes lower bounds of a shop with their arguments: longest path, best load of a stream, refutations.

`branch_on` takes one makespan at a time, by edge finding and branching with a limit on nodes (`closing`: what raises
heads and tails before that, and the halving of makespans between the best load and a known schedule).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.schedules.certificate import Bound, Load, Path, Refutation
from ..selection.model.clock import Clock
from .kernels import best_load, heads
from .refute import CLOSED, OPEN, Known, branch
from .shop import Shop

MOST_ROWS = 400_000
"""Rows of a refutation: what the checker replays in half a minute."""

NODE = 1
"""Steps of work per task of a node."""

DEEPEST = 190
"""Splits above one another; the checker takes 200."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Heads and tails of a shop, shape (tasks,) each, and the bound that they give at once."""

    shop: Shop
    head: Ints
    tail: Ints
    value: int
    bound: Bound


def frame(shop: Shop) -> Frame:
    """Longest paths and the best load.

    >>> from ...models.schedules.pipeline import Pipeline
    >>> from .shop import shop
    >>> frame(shop(Pipeline(((1, 1, 1),) * 4, 8, 0, 4))).value
    27
    """
    f, b = shop.forward, shop.backward
    head = heads(f.order, shop.times, f.at, f.to, f.lag)
    tail = heads(b.order, shop.times, b.at, b.to, b.lag)
    path = int((head + shop.times + tail).max())
    load, stream, r, q = best_load(shop.times, head, tail, shop.tasks_at, shop.tasks)
    if load > path:
        return Frame(shop, head, tail, int(load), Load(int(stream), int(r), int(q)))
    return Frame(shop, head, tail, path, Path())


@dataclass(frozen=True, eq=False)
class BranchOutcome:
    """What became of one makespan: refuted, or a schedule no longer than it, or neither."""

    refutation: Refutation | None
    starts: Ints | None


def branch_on(found: Frame, makespan: int, nodes: int, rows: Ints, clock: Clock) -> BranchOutcome:
    """Branch on at most `nodes` nodes, for which `clock` is charged; `rows` is room for the argument, shape (rows,
    5).
    """
    shop = found.shop
    starts = np.zeros(len(shop.times), dtype=np.int64)
    root = Known(found.head, found.tail, np.zeros((0, 2), dtype=np.int64))
    state, used, seen = branch(shop, root, makespan, rows, nodes, DEEPEST, starts)
    clock.charge(NODE * seen * len(shop.times))
    if state == CLOSED:
        return BranchOutcome(Refutation(makespan, rows[:used].copy()), None)
    return BranchOutcome(None, starts if state == OPEN else None)

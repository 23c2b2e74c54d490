"""Improves a schedule part by part: orders are kept outside a window, and inside it branching looks for one unit less.

A window is a span of time on some neighbouring streams.  Its tasks are free among each other; every other pair of one
stream keeps the order of the schedule, as arcs.  Windows grow while they are searched to the end without success and
shrink when the search runs out of nodes (large neighbourhood search, Shaw 1998).
"""

from __future__ import annotations

import numpy as np

from ...models.problem.selection_problem import Ints
from ..selection.model.clock import Clock
from .bounds import branch_on, frame
from .shop import Links, Shop, links

NODES = 150
LEAST, MOST = 12.0, 400.0
"""Tasks of a window."""


def improve_windows(
    shop: Shop, starts: Ints, makespan: int, lower: int, clock: Clock, random: np.random.Generator
) -> tuple[Ints, int]:
    """A schedule at least as short, until it meets `lower` or no time is left."""
    n = len(shop.times)
    rows = np.zeros((40_000, 5), dtype=np.int64)
    by_stream = [shop.tasks[shop.tasks_at[s] : shop.tasks_at[s + 1]] for s in range(shop.streams)]
    source = np.repeat(np.arange(n, dtype=np.int64), np.diff(shop.forward.at))
    size = 60.0
    while makespan > lower and not clock.over():
        clock.charge(2 * n)
        count = int(random.integers(1, shop.streams + 1)) if random.random() < 0.6 else shop.streams
        first = int(random.integers(0, shop.streams - count + 1))
        middle = random.random() * makespan
        density = n * count / shop.streams / makespan
        half = size / max(density, 1e-9) / 2
        arcs, open_ = [], []
        for s, tasks in enumerate(by_stream):
            order = tasks[np.lexsort((starts[tasks] + shop.times[tasks], starts[tasks]))]
            inside = np.zeros(len(order), dtype=np.bool_)
            if first <= s < first + count:
                inside = (starts[order] + shop.times[order] > middle - half) & (starts[order] < middle + half)
            arcs += _chain(order, inside)
            open_.append(order[inside])  # all others have their place
        added = np.array(arcs, dtype=np.int64).reshape(-1, 2)
        try:
            forward = _with(shop.forward, source, added[:, 0], added[:, 1], n)
            backward = _with(shop.forward, source, added[:, 0], added[:, 1], n, turned=True)
        except ValueError:  # tasks of no time in an order that precedences do not have
            size = max(LEAST, size * 0.9)
            continue
        tasks_at = np.cumsum(np.array([0, *map(len, open_)], dtype=np.int64))
        part = shop._replace(tasks_at=tasks_at, tasks=np.concatenate(open_), forward=forward, backward=backward)
        result = branch_on(frame(part), makespan - 1, NODES, rows, clock)
        if result.starts is not None:
            starts, makespan = result.starts, int((result.starts + shop.times).max())
        elif result.refutation is not None:
            size = min(MOST, size * 1.05)
        else:
            size = max(LEAST, size * 0.85)
    return starts, makespan


def _chain(order: Ints, inside: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Arcs of one stream: one after another outside, free inside, which is one run."""
    arcs: list[tuple[int, int]] = []
    free: list[int] = []
    before = -1
    for t, within in zip(order.tolist(), inside.tolist(), strict=True):
        if within:
            free.append(t)
            if before >= 0:
                arcs.append((before, t))
            continue
        if free:
            arcs += [(x, t) for x in free]
            free = []
        elif before >= 0:
            arcs.append((before, t))
        before = t
    return arcs


def _with(old: Links, source: Ints, before: Ints, after: Ints, n: int, turned: bool = False) -> Links:
    a, b = np.concatenate([source, before]), np.concatenate([old.to, after])
    lag = np.concatenate([old.lag, np.zeros(len(before), dtype=np.int64)])
    return links(n, b, a, lag) if turned else links(n, a, b, lag)

"""Makes plans that need no search: everything on every device, the batch split over all devices, every
operator split along its largest axis.

They are what people compare with, and what is left when there was no time: `selection.floor` takes the best of them
that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...models.cost.selection import Decision, Planning
from ...models.program.graph import Role
from .schedules import ScheduleConflict, propagate
from .strategy import Rule, Strategy, StrategyError

Score = Callable[[Decision], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]


def simple_plans(planning: Planning) -> Iterator[tuple[int, ...]]:
    """Solutions of the problem of `planning`, whether they fit the memory or not."""
    return (x for _, x in named_plans(planning))


def named_plans(planning: Planning) -> Iterator[tuple[str, tuple[int, ...]]]:
    """`simple_plans` with their names."""
    yield "everything on every device", tuple(_most(d, -1) for d in planning.decisions)
    data = _data_parallel(planning)
    if data is not None:
        yield "the batch split over all devices", data
    yield "every operator split along its largest axis", tuple(_most(d, None) for d in planning.decisions)


def _most(decision: Decision, row: int | None) -> int:
    """The first choice with the largest degree in a row of its matrix (-1: replication); None: with the least
    replication, of one axis if possible.
    """
    degrees = decision.placements.prod(axis=2)
    if row is not None:
        return int(degrees[:, row].argmax())
    return int(np.lexsort((-degrees[:, :-1].max(axis=1, initial=1), degrees[:, -1]))[0])


def _data_parallel(planning: Planning) -> tuple[int, ...] | None:
    """The first dimension of every input that is no parameter is split as far as it goes, and that is carried to
    what reads it.
    """
    graph, machine = planning.graph, planning.machine
    inputs = {t.name for t in graph.tensors if t.role is Role.INPUT}
    rules: dict[str, Rule] = {}
    for op in graph.operators:
        for access in op.inputs:
            if access.tensor not in inputs or not access.index or op.name in rules:
                continue
            axes = [name for name, _ in access.index[0].terms if op.axis(name).splittable]
            if axes:
                rules[op.name] = Rule(op.name, ((axes[0], _degrees(op.axis(axes[0]).extent, planning)),))
    if not rules:
        return None
    try:
        return planning.solution(propagate(graph, machine, Strategy(tuple(rules.values()))).choices)
    except (ScheduleConflict, StrategyError, ValueError):
        return None


def _degrees(extent: int, planning: Planning) -> tuple[tuple[str, int], ...]:
    """Levels from the outermost on, as long as the sizes divide what is left of the extent."""
    out = []
    for level in planning.machine.levels:
        if extent % level.size == 0:
            out.append((level.name, level.size))
            extent //= level.size
    return tuple(out)

"""This module searches for graphs of computation and communication: list schedules under the memory limit, against
raised levels.

Priorities are raised tails first, then tails with changes from a fixed seed; the bound is the best load or path over
raised heads and tails.  Program order one task after another, and program order on every stream (collectives as early
as memory allows), are kept for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ...models.text import InputError
from ..compiling import monotonic
from .bounds import frame
from .levels import levelled
from .memory import scheduled, store
from .search import Found
from .shop import shop

STALE = 40
"""Random rounds without a better schedule after which the search ends: the changes repeat themselves."""


@dataclass(frozen=True, eq=False)
class Overlapped:
    """What was found, and the makespans of program order and of greedy prefetch."""

    found: Found
    program_order: int
    greedy: int


def overlap(problem: ScheduleProblem, seconds: float, seed: int = 0, order: Ints | None = None) -> Overlapped:
    """The best schedule within the memory limits.  `order`: tasks one after another, None: as they are numbered, or
    behind what they wait for.  `InputError` if this order itself does not fit.

    >>> from ...models.schedules.problem import Precedence, Stream, Task
    >>> tasks = (Task("gather", 5, (1,)), Task("a", 4, (0,)), Task("b", 6, (0,)))
    >>> streams = (Stream(0, "compute"), Stream(0, "group"))
    >>> done = overlap(ScheduleProblem("p", streams, tasks, (Precedence(0, 2),), (), (None,)), 5.0)
    >>> done.found.makespan, done.found.lower_bound, done.program_order
    (11, 11, 15)
    """
    end = monotonic() + seconds
    arrays, kept = shop(problem), store(problem)
    n = len(problem.tasks)
    if order is None:
        order = arrays.forward.order if _disordered(problem) else np.arange(n, dtype=np.int64)
    greedy = scheduled(arrays, kept, -np.argsort(order).astype(np.float64), order)
    if greedy is None:
        raise InputError(f"{problem.name}: one task after another exceeds the memory limit already; raise the limit")
    start = levelled(frame(arrays))
    priority = start.tail.astype(np.float64)
    random = np.random.default_rng(seed)
    best, makespan = greedy, int((greedy + arrays.times).max())
    first, stale = makespan, -1
    while makespan > start.value and stale < STALE and (stale < 0 or monotonic() < end):
        noise = random.choice([1e-4, 1e-3, 1e-2]) * priority.max() if stale >= 0 else 0.0
        starts = scheduled(arrays, kept, priority + noise * random.random(n), order)
        reached = makespan if starts is None else int((starts + arrays.times).max())
        stale += 1
        if starts is not None and reached < makespan:
            best, makespan, stale = starts, reached, 0
    found = Found(best, makespan, start.value, start.bound)
    return Overlapped(found, int(arrays.times.sum()), first)


def _disordered(problem: ScheduleProblem) -> bool:
    return any(p.before > p.after for p in problem.precedences)

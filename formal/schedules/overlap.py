"""Searches for graphs of computation and communication: list schedules under the memory limit, against
raised levels.

Priorities are raised tails first, then those where work that keeps no memory comes earlier; then what would delay work
of higher priority waits, then come changes from a fixed seed.  The bound is the best load or path over raised heads and
tails, and, where a gap is left, what memory adds to it (`memory_bound`).  Program order one task after another, and
program order on every stream (collectives as early as memory allows), are kept for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ...models.text import InputError
from ..selection.model.clock import Clock
from .bounds import frame
from .crowded import memory_bound
from .levels import raise_levels
from .memory import UNLIMITED, Floats, list_schedule, store
from .search import Found
from .shop import shop

STALE = 40
"""Random rounds without a better schedule after which the search ends: the changes repeat themselves."""

EARLIER = (0.97, 0.9, 0.8)
"""Priorities of work that keeps no memory, as parts of the largest one."""

DELAYS = 12
"""By how much a task may delay one of higher priority that is ready soon: the longest time, halved so often."""

CHAIN = 40
"""Most tasks of such work that end in one of them."""

BOUND_SHARE = 0.7
"""Of the time, at most, for what memory adds to the bound."""


@dataclass(frozen=True, eq=False)
class Overlapped:
    """What was found, and the makespans of program order and of greedy prefetch."""

    found: Found
    program_order: int
    greedy: int


def overlap(
    problem: ScheduleProblem, clock: Clock, seed: int = 0, order: Ints | None = None, known: Ints | None = None
) -> Overlapped:
    """The best schedule within the memory limits.  `order`: tasks one after another, None: as they are numbered, or
    behind what they wait for; `known`: a schedule that fits.  `InputError` if this order itself does not fit.

    >>> from ...models.schedules.problem import Precedence, Stream, Task
    >>> tasks = (Task("gather", 5, (1,)), Task("a", 4, (0,)), Task("b", 6, (0,)))
    >>> streams = (Stream(0, "compute"), Stream(0, "group"))
    >>> done = overlap(ScheduleProblem("p", streams, tasks, (Precedence(0, 2),), (), (None,)), Clock(5.0))
    >>> done.found.makespan, done.found.lower_bound, done.program_order
    (11, 11, 15)
    """
    arrays, kept = shop(problem), store(problem)
    n = len(problem.tasks)
    if order is None:
        order = arrays.forward.order if _disordered(problem) else np.arange(n, dtype=np.int64)
    greedy = list_schedule(arrays, kept, -np.argsort(order).astype(np.float64), order)
    if greedy is None:
        raise InputError(f"{problem.name}: one task after another exceeds the memory limit already; raise the limit")
    start = raise_levels(frame(arrays))
    lower, bound = start.value, start.bound
    priority = start.tail.astype(np.float64)
    random = np.random.default_rng(seed)
    best, makespan = greedy, int((greedy + arrays.times).max())
    first = makespan
    if known is not None and (ends := int((known + arrays.times).max())) < makespan:
        best, makespan = known, ends

    def is_shorter(values: Floats, delay: int = UNLIMITED) -> bool:
        """Whether these priorities give a shorter schedule."""
        nonlocal best, makespan
        clock.charge(n)
        starts = list_schedule(arrays, kept, values, order, delay)
        reached = makespan if starts is None else int((starts + arrays.times).max())
        if starts is None or reached >= makespan:
            return False
        best, makespan = starts, reached
        return True

    if makespan > lower:
        is_shorter(priority)
    if makespan > lower:
        found = memory_bound(start, problem, makespan, clock.at_most(BOUND_SHARE * clock.remaining_s()))
        if found is not None:
            lower, bound = found.value, found.bound
    if makespan > lower and (idle := free_tasks(problem)):
        for earlier in _earlier(priority, idle):
            if is_shorter(earlier):
                priority = earlier
    delay, longest = UNLIMITED, int(arrays.times.max())
    for k in range(DELAYS):
        if makespan > lower and not clock.over() and is_shorter(priority, longest >> k):
            delay = longest >> k
    stale = 0
    while makespan > lower and stale < STALE and not clock.over():
        noise = random.choice([1e-4, 1e-3, 1e-2]) * priority.max()
        stale = 0 if is_shorter(priority + noise * random.random(n), delay) else stale + 1
    found_best = Found(best, makespan, lower, bound)
    return Overlapped(found_best, int(arrays.times.sum()), first)


def _earlier(priority: Floats, idle: list[int]) -> Iterator[Floats]:
    """The same priorities with tasks that hold nothing earlier and earlier."""
    for part in EARLIER:
        earlier = priority.copy()
        earlier[idle] = np.maximum(earlier[idle], part * priority.max())
        yield earlier


def free_tasks(problem: ScheduleProblem) -> list[int]:
    """Tasks that can run before anything on other streams, together with what they need, and keep no memory then.

    >>> from ...models.schedules.problem import Holding, Precedence, Stream, Task
    >>> streams, tasks = (Stream(0, "compute"),), (Task("a", 1, (0,)), Task("b", 1, (0,)), Task("c", 1, (0,)))
    >>> held = (Holding(0, 4, None, (1,)), Holding(0, 9, 0, (1,)), Holding(0, 4, 1, (2,)), Holding(0, 7, 2, ()))
    >>> free_tasks(ScheduleProblem("p", streams, tasks, (Precedence(0, 1), Precedence(1, 2)), held, (20,)))
    [0, 1]
    """
    before: list[list[int]] = [[] for _ in problem.tasks]
    made: list[int] = [0] * len(before)
    read: list[list[int]] = [[] for _ in before]
    for p in problem.precedences:
        before[p.after].append(p.before)
    for k, h in enumerate(problem.holdings):
        if h.first is not None:
            made[h.first] += h.amount
        for t in h.last:
            read[t].append(k)
    found: set[int] = set()
    for t, task in enumerate(problem.tasks):
        chain, todo = {t}, [t]
        while todo and len(chain) <= CHAIN:
            fresh = [u for u in before[todo.pop()] if u not in chain]
            chain.update(fresh)
            todo += fresh
        if len(chain) > CHAIN or any(problem.tasks[u].streams != task.streams for u in chain):
            continue
        ended = {k for u in chain for k in read[u] if chain.issuperset(problem.holdings[k].last)}
        if sum(made[u] for u in chain) <= sum(problem.holdings[k].amount for k in ended):
            found |= chain
    return sorted(found)


def _disordered(problem: ScheduleProblem) -> bool:
    return any(p.before > p.after for p in problem.precedences)

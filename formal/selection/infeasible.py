"""What to say about a large problem that has no solution: the rows in conflict, and the least limit for which one is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...models.claims import Infeasible
from ...models.problems import Ints, SelectionProblem
from .clock import Clock
from .network import exact_cost

LEAST_LIMIT_S: Final = 20.0
"""Seconds for the smallest limit that works: a service beside the proof, so it may outlast the time limit by this much."""

NAMED: Final = 20
"""Rows named although the proof does not need them: those that are over the limit by most when every vertex uses its least."""


def infeasible_at_scale(problem: SelectionProblem, used: set[int]) -> Infeasible:
    """The claim that goes with a proof that uses the rows of the steps `used`; every vertex takes part."""
    steps = set(used)
    events = np.array(problem.events(), dtype=np.int64)
    if problem.limit is not None and events.size:
        least = least_use(problem, events)
        over = np.flatnonzero(least > problem.limit)
        worst = over[np.lexsort((over, -least[over]))][:NAMED]
        steps.update(events[worst].tolist())
    limit, witness = (None, None) if problem.limit is None else least_limit(problem, Clock(LEAST_LIMIT_S))
    return Infeasible(tuple(sorted(steps)), tuple(range(len(problem.vertices))), limit, witness)


def least_use(problem: SelectionProblem, events: Ints) -> Ints:
    """Sum over the usages of their least amounts, per event."""
    change = np.zeros(events.size + 1, dtype=np.int64)
    for u in problem.usages:
        if u.start < u.end:
            first, last = np.searchsorted(events, (u.start, u.end))
            change[first] += int(u.amount.min())
            change[last] -= int(u.amount.min())
    return np.cumsum(change)[:-1]


def least_limit(problem: SelectionProblem, clock: Clock) -> tuple[int | None, tuple[int, ...] | None]:
    """(smallest limit for which a solution was found, that solution): bisection between the problem's limit and what a free choice uses."""
    from .scale import Scale  # it asks this module when nothing fits

    assert problem.limit is not None
    low, best = problem.limit, None
    high = sum(int(u.amount.max()) for u in problem.usages)
    while best is None or (high - low > max(1, high // 1000) and not clock.over()):
        limit = high if best is None else (low + high) // 2
        run = Scale(replace(problem, limit=limit), Clock(min(max(clock.left(), 1.0), LEAST_LIMIT_S / 4)))
        found = run.first()
        if found is None:
            if best is None:
                return None, None
            low = limit
        else:
            best, high = found, problem.peak_of(found)[0]
    if high <= problem.limit or exact_cost(replace(problem, limit=high), best) is None:
        return None, None
    return high, best

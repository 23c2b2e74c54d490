"""What to say about a problem that has no solution: the rows in conflict, and the least limit for which one is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

import numpy as np

from ...models.claims import Infeasible
from ...models.problems import Ints, SelectionProblem
from ...proofs.certificates import Dual, Elimination, Open, Point, Record, Reduced, RowConflict, Split
from ...proofs.reduction_log import Rule
from .clock import Clock
from .eliminate import eliminate, plan
from .messages import Sweeper
from .network import Network, build, exact_cost, whole
from .primal import Choice, decode, descend
from .rows import smallest_peak
from .sweeps import order

if TYPE_CHECKING:
    from .search import Search

LEAST_LIMIT_S: Final = 10.0
SCALE_LIMIT_S: Final = 20.0
"""Seconds for the smallest limit that works, and for that of a problem too large to ground: a service beside the proof, cut to what is left of the time."""

LEAST_S: Final = 2.0
"""Seconds for it when nothing is left."""

NAMED: Final = 20
"""Rows named although the proof does not need them: those that are over the limit by most when every vertex uses its least."""


def infeasible(search: Search, record: Record) -> Infeasible:
    """The claim: rows used by the proof, vertices that take part, and the smallest limit for which a solution was found."""
    steps: set[int] = set()
    vertices: set[int] = set()
    if _conflicts(search.problem, record, steps, vertices):
        vertices = set(range(len(search.problem.vertices)))
    least, witness = least_limit(search)
    return Infeasible(tuple(sorted(steps)), tuple(sorted(vertices)), least, witness)


def infeasible_at_scale(problem: SelectionProblem, used: set[int], clock: Clock) -> Infeasible:
    """The claim that goes with a proof that uses the rows of the steps `used`; every vertex takes part."""
    steps = set(used)
    events = np.array(problem.events(), dtype=np.int64)
    if problem.limit is not None and events.size:
        least = least_use(problem, events)
        over = np.flatnonzero(least > problem.limit)
        worst = over[np.lexsort((over, -least[over]))][:NAMED]
        steps.update(events[worst].tolist())
    limit, witness = (None, None) if problem.limit is None else least_limit_at_scale(problem, _rest(clock, SCALE_LIMIT_S))
    return Infeasible(tuple(sorted(steps)), tuple(range(len(problem.vertices))), limit, witness)


def _conflicts(problem: SelectionProblem, record: Record, steps: set[int], vertices: set[int]) -> bool:
    """Collect rows and vertices of all `RowConflict` records; True when the proof also rests on costs (then every vertex counts)."""
    match record:
        case RowConflict():
            for t, _ in record.multipliers:
                steps.add(t)
                vertices.update(u.vertex for u in problem.usages if u.start <= t < u.end)
            return False
        case Split():
            vertices.add(record.vertex)
            found = [_conflicts(problem, child, steps, vertices) for child in record.children]  # all of them: each adds to the sets
            return any(found)
        case Dual():
            if record.then is not None:
                _conflicts(problem, record.then, steps, vertices)
            return True
        case Elimination() | Point() | Open():
            return True
        case Reduced():
            inner: set[int] = set()
            _conflicts(problem, record.then, inner, set())
            kept = record.steps[-1].tolist() if record.steps else problem.events()  # step t of the reduced problem is kept[t]
            steps.update(kept[t] for t in inner if 0 <= t < len(kept))
            steps.update(record.log[record.log[:, 0] == Rule.OVERFULL, 3].tolist())
            return True
        case _:
            assert_never(record)


def least_use(problem: SelectionProblem, events: Ints) -> Ints:
    """Sum over the usages of their least amounts, per event."""
    change = np.zeros(events.size + 1, dtype=np.int64)
    for u in problem.usages:
        if u.start < u.end:
            first, last = np.searchsorted(events, (u.start, u.end))
            change[first] += int(u.amount.min())
            change[last] -= int(u.amount.min())
    return np.cumsum(change)[:-1]


def least_limit(search: Search) -> tuple[int | None, tuple[int, ...] | None]:
    """(smallest limit for which a solution was found, that solution) once nothing fits the problem's own limit."""
    if search.rows is None:
        return None, None
    network = build(search.unit, whole(search.problem))
    schedule = plan(network, search.limits.joint)
    outcome = eliminate(network, schedule, search.clock) if search.fits(schedule) else None
    if outcome is not None and outcome.choice is None:
        return None, None  # no limit helps
    start = list(outcome.choice) if outcome is not None and outcome.choice is not None else _any(search, network)
    x, peak = smallest_peak(network, search.rows, start, _rest(search.clock, LEAST_LIMIT_S))
    solution = tuple(int(d[i]) for d, i in zip(network.domains, x, strict=True))
    if peak <= search.rows.limit or exact_cost(replace(search.problem, limit=None), solution) is None:
        return None, None
    return peak, solution


def _rest(clock: Clock, most: float) -> Clock:
    """A clock over what is left, at least `LEAST_S` and at most `most` seconds."""
    return clock.beside(min(most, max(LEAST_S, clock.left())))


def _any(search: Search, network: Network) -> Choice:
    sweeper = Sweeper(network, order(network), search.threads)
    sweeper.sweep(True, search.clock)
    return descend(network, decode(sweeper, True), search.clock)


def least_limit_at_scale(problem: SelectionProblem, clock: Clock) -> tuple[int | None, tuple[int, ...] | None]:
    """(smallest limit for which a solution was found, that solution): bisection between the problem's limit and what a free choice uses."""
    from .scale import Scale  # it asks this module when nothing fits

    assert problem.limit is not None
    low, best = problem.limit, None
    high = sum(int(u.amount.max()) for u in problem.usages)
    while best is None or (high - low > max(1, high // 1000) and not clock.over()):
        limit = high if best is None else (low + high) // 2
        run = Scale(replace(problem, limit=limit), Clock(min(max(clock.left(), 1.0), SCALE_LIMIT_S / 4)))
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

"""What there is to say about a problem that has no solution: the rows in conflict, and the least
limit for which a solution is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import numpy as np

from ....models.problem.claims import Infeasible
from ....models.problem.selection_problem import Ints, SelectionProblem
from ....proofs.selection.certificates import Dual, Elimination, Open, Point, Record, Reduced, RowConflict, Split
from ....proofs.selection.presolve_log import Rule
from ..model.factored import Domains, allowed_domains, exact_cost
from ..model.resources import added_up
from .run import Run

LeastLimit = tuple[int | None, tuple[int, ...] | None]
"""Smallest limit for which a solution was found, and that solution; None: none was."""


def infeasible(run: Run, record: Record, alone: bool = False) -> Infeasible:
    """The claim: rows used by the proof, vertices that take part, and the smallest limit for which a solution was
    found; `alone`: none is searched for.
    """
    steps, vertices = conflicts(run.problem, record)
    least: LeastLimit = (None, None) if alone else least_limit(run)
    return Infeasible(tuple(sorted(steps)), tuple(sorted(vertices)), *least)


def conflicts(problem: SelectionProblem, root: Record) -> tuple[set[int], set[int]]:
    """(steps whose rows `RowConflict` records and OVERFULL entries use, vertices that take part: all as soon as the
    proof also rests on costs).

    A proof of `search` reduces at most once, at the root.
    """
    steps: set[int] = set()
    vertices: set[int] = set()
    todo: list[tuple[Record, list[int] | None]] = [
        (root, None)
    ]  # record, steps of the problem that its own steps stand for (None: the same)
    while todo:
        record, stands = todo.pop()

        def original(t: int, stands: list[int] | None = stands) -> int:
            return t if stands is None else stands[t] if 0 <= t < len(stands) else -1

        match record:
            case RowConflict():
                steps.update(original(t) for t, _ in record.multipliers)
                if stands is None:
                    vertices.update(
                        u.vertex for u in problem.usages if any(u.start <= t < u.end for t, _ in record.multipliers)
                    )
            case Split():
                if stands is None:
                    vertices.add(record.vertex)
                todo.extend((child, stands) for child in record.children)
            case Dual() | Elimination():
                vertices.update(range(len(problem.vertices)))
                if record.then is not None:
                    todo.append((record.then, stands))
            case Point() | Open():
                vertices.update(range(len(problem.vertices)))
            case Reduced():
                vertices.update(range(len(problem.vertices)))
                kept = record.steps[-1].tolist() if record.steps else problem.events()
                steps.update(original(t) for t in record.log[record.log[:, 0] == Rule.OVERFULL, 3].tolist())
                todo.append((record.then, [original(t) for t in kept]))
            case _:
                assert_never(record)
    return steps, vertices


def least_use(problem: SelectionProblem, events: Ints) -> Ints:
    """Sum over the usages of their least amounts, per event."""
    return added_up(events, [(u, int(u.amount.min())) for u in problem.usages])


def overfull(problem: SelectionProblem) -> RowConflict | None:
    """The fullest step, if its least use alone is above the limit: nothing fits, and no search is needed to say so."""
    events = np.array(problem.events(), dtype=np.int64)
    if problem.limit is None or not events.size:
        return None
    least = least_use(problem, events)
    k = int(least.argmax())
    return RowConflict(((int(events[k]), 1),)) if int(least[k]) > problem.limit else None


def leanest(problem: SelectionProblem, domains: Domains) -> tuple[int, ...]:
    """At every vertex the choice of its domain that uses least over all steps, the cheapest of those."""
    use: list[Ints] = [np.zeros(d.size, dtype=np.int64) for d in domains]
    for u in problem.usages:
        use[u.vertex] += u.amount[domains[u.vertex]]
    costs = (v.cost[d] for v, d in zip(problem.vertices, domains, strict=True))
    return tuple(int(d[np.lexsort((c, a))[0]]) for d, c, a in zip(domains, costs, use, strict=True))


def least_limit(run: Run) -> LeastLimit:
    """Once nothing fits the problem's own limit: bisection between that and what a free choice uses; the leanest choice
    where the problem is too large for that.
    """
    from .dense_search import DenseSearch  # compiled loops: other problems start without them

    problem, at = run.problem, run.options.tree
    if problem.limit is None or at.least_limit_s <= 0:
        return None, None
    clock = run.clock.beside(min(at.least_limit_s, max(at.least_s, run.clock.remaining_s())))
    low, best = problem.limit, None
    high = sum(int(u.amount.max()) for u in problem.usages)
    while best is None or (high - low > max(1, high // at.least_limit_steps) and not clock.over()):
        limit = high if best is None else (low + high) // 2
        looser = replace(problem, limit=limit, fine=None)
        each = clock.beside(min(max(clock.remaining_s(), 1.0), at.least_limit_s / 4))
        found = DenseSearch(run.part(looser, each)).first()
        if found is not None:
            best, high = found, problem.peak_of(found)[0]
        elif best is None:
            best = leanest(problem, allowed_domains(problem)) if all(d.size for d in allowed_domains(problem)) else None
            if best is not None:
                high = problem.peak_of(best)[0]
            break
        else:
            low = limit
    if best is None or high <= problem.limit or exact_cost(replace(problem, limit=high), best) is None:
        return None, None
    return high, best

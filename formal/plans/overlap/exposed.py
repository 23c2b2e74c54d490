"""Finds placements whose reshardings hide better: the same problem again, where a resharding costs
what it exposes.

    min  WHOLE * all operators + sum over edges e of  factor[e] * resharding of e,    1 <= factor[e] <= WHOLE

All factors begin alike; after every solution those of its reshardings go half way to the share of WHOLE that its
schedule leaves exposed.  This proves nothing, and finds what no weighted sum of totals does: a solution that moves much
beside operators and little on the way.  With a memory limit, solutions obey the rows of the program's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ....models.cost.selection import Planning
from ....models.problem.selection_problem import FORBIDDEN, Edge, Ints, ProblemError, SelectionProblem, Vertex
from ...selection.model.clock import Clock
from .planned import Planned, schedule_if_fits, solve_weighted
from .tasks import times_of

WHOLE = 8
STARTS = (1, 2, 4)
"""Factors to begin with: how little of a resharding is exposed is not known beforehand."""

STEPS = 8
SOLVE_SHARE, SCHEDULE_SHARE = 0.3, 0.02
"""Of the time that is left: for one solution at most, for one schedule."""


def weighted_problem(planning: Planning, factors: Ints) -> SelectionProblem:
    """The problem with `factors`, shape (edges,); with the rows of the program's order if there is a limit."""
    problem = planning.problem
    operators = set(planning.operators.values())

    def times(values: Ints, factor: int) -> Ints:
        return np.where(values >= FORBIDDEN, FORBIDDEN, values * factor)

    vertices = tuple(
        Vertex(v.name, times(v.cost, WHOLE if k in operators else 0)) for k, v in enumerate(problem.vertices)
    )
    number: dict[tuple[int, int], int] = {}
    tables: list[Ints] = []
    edges: list[Edge] = []
    for e, factor in zip(problem.edges, factors.tolist(), strict=True):
        if (e.table, factor) not in number:
            number[e.table, factor] = len(tables)
            tables.append(times(problem.tables[e.table], factor))
        edges.append(Edge(e.u, e.v, number[e.table, factor], e.rows, e.cols))
    usages = () if problem.limit is None else problem.usages
    return replace(problem, vertices=vertices, tables=tuple(tables), edges=tuple(edges), usages=usages).check()


def less_exposed(planning: Planning, clock: Clock, gap: Fraction) -> Iterator[Planned]:
    """New solutions with their schedules, one after another, until the time is over."""
    known: list[tuple[int, ...]] = []
    for start in STARTS:
        share = np.full(len(planning.problem.edges), start / WHOLE)
        for _ in range(STEPS):
            if clock.over():
                return
            try:
                part = weighted_problem(planning, np.clip(np.rint(share * WHOLE), 1, WHOLE).astype(np.int64))
            except ProblemError:  # numbers too large
                return
            x = solve_weighted(part, clock.at_most(clock.remaining_s() * SOLVE_SHARE), gap, planning, known).solution
            made = (
                None
                if x is None
                else schedule_if_fits(planning, x, clock.at_most(min(60.0, clock.remaining_s() * SCHEDULE_SHARE)))
            )
            if x is None or made is None:
                break
            if x not in known:
                known.append(x)
                yield made
            times = np.array(times_of(planning, x)[1], dtype=np.int64)
            moved = np.flatnonzero(times)
            exposed = made.exposed_communication()[len(planning.graph.operators) :] * made.quantum / times[moved]
            share[moved] = (share[moved] + np.minimum(exposed, 1.0)) / 2

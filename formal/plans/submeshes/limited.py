"""Finds plans on submeshes that fit a memory limit, where the fastest one does not.

    rows     of the problem: what lies on the whole machine; branches on a submesh count nothing there, so that a
             solution may hold more
    room     what the rows may use: the limit, then less by what the last solution held too much
    fewer    where no room helps, one more of the regions runs on the whole machine

The claim stays that of the problem under the limit: what is found fits, and nothing that its rows allow takes less than
the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, SelectionProblem
from ...selection.answer import Answer
from ...selection.model.clock import Clock
from ...selection.solve import solve, solve_accepting
from .memory import held_bytes
from .problem import SubmeshPlanning

MOST_ROOMS: Final = 5
"""Searches for one choice of regions, each with less room: what a solution holds falls by about the difference."""

PROOF_S: Final = 30.0
"""Seconds at most for the proof of the bound beside a plan that fits: the search has found it once."""

LEAST_STEP: Final = 32
"""Of the limit, the part by which room shrinks at least."""


def fit_memory(
    planning: SubmeshPlanning,
    answer: Answer,
    limit: int,
    clock: Clock,
    gap: Fraction,
    threads: int = 1,
) -> Answer | None:
    """The best plan that fits and was found, under the bound of `answer`; None without any.  `limit`: bytes of a
    device.
    """
    if answer.solution is None or answer.certificate is None or answer.lower_bound is None:
        return None
    if holds(planning, answer.solution) <= limit:
        return answer
    best = min(((planning.problem.cost_of(x), x) for x in _fitting(planning, limit, clock, gap, threads)), default=None)
    if best is None:
        return None
    cost, x = best
    near = Fraction(max(0, cost - answer.lower_bound), max(1, abs(cost)))
    # a proof counts on the cost of its own solution, so that it is looked for once more
    return solve_accepting(
        planning.problem,
        lambda x: holds(planning, x) <= limit,
        x,
        clock.beside(PROOF_S),
        max(gap, near),
        threads,
    )


def holds(planning: SubmeshPlanning, x: tuple[int, ...]) -> int:
    """Bytes on the fullest device."""
    p = planning.planning
    return held_bytes(p.graph, p.machine, planning.regions, planning.choices(x))


def _fitting(
    planning: SubmeshPlanning, limit: int, clock: Clock, gap: Fraction, threads: int
) -> Iterator[tuple[int, ...]]:
    """Solutions that fit: of all regions, then with one more of them on the whole machine, until there is one."""
    problem = planning.problem
    for whole in range(len(planning.regions) + 1):
        room, found = limit, False
        for _ in range(MOST_ROOMS):
            if room <= 0 or clock.over():
                break
            x = solve(replace(problem, limit=room), clock=clock, gap=gap, threads=threads).solution
            if x is None:
                break
            held = holds(planning, x)
            if held <= limit:
                found = True
                yield x
                break
            room -= max(held - limit, limit // LEAST_STEP, 1)
        if found or whole == len(planning.regions):
            return
        problem = _on_the_whole_machine(planning, problem, whole)


def _on_the_whole_machine(planning: SubmeshPlanning, problem: SelectionProblem, region: int) -> SelectionProblem:
    v = planning.phases[region][0]
    cost = np.full_like(problem.vertices[v].cost, FORBIDDEN)
    cost[0] = problem.vertices[v].cost[0]
    vertices = [*problem.vertices]
    vertices[v] = replace(vertices[v], cost=cost)
    return replace(problem, vertices=tuple(vertices))

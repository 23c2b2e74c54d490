"""A solution with its schedule, and the search for solutions of weighted problems."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np

from ....models.cost.selection import Planning
from ....models.problem.selection_problem import Ints, SelectionProblem
from ....models.schedules.problem import ScheduleProblem
from ....models.text import InputError
from ...schedules.overlap import overlap
from ...schedules.search import Found
from ...selection.answer import Answer
from ...selection.model.clock import Clock
from ...selection.relax_resources import relax_resources
from ...selection.solve import solve
from ..simple import simple_plans
from .memory import program_order
from .tasks import COMPUTE, quantum_of, tasks_of, times_of


@dataclass(frozen=True, eq=False)
class Planned:
    """A solution with its schedule; `sums`: C and M, in units of the problem."""

    x: tuple[int, ...]
    problem: ScheduleProblem
    quantum: int
    found: Found
    sums: tuple[int, int]

    @property
    def makespan(self) -> int:
        """In units of the planning problem."""
        return self.found.makespan * self.quantum

    @property
    def peak(self) -> int | None:
        """Most bytes that a device holds at a moment; None without a limit."""
        return most_held(self.problem, self.found.starts)

    def exposed_communication(self) -> Ints:
        """Per task, in units of the schedule: the time of a resharding while no operator runs; 0 for operators."""
        return exposed_times(self.problem, self.found.starts)


def most_held(problem: ScheduleProblem, starts: Ints) -> int | None:
    """Most bytes that a device holds at a moment of a schedule; None without a limit."""
    if problem.limits == (None,):
        return None
    ends = starts + np.array([t.time for t in problem.tasks], dtype=np.int64)
    change: dict[int, int] = {}
    for h in problem.holdings:
        begin = 0 if h.first is None else int(starts[h.first])
        end = max((int(ends[t]) for t in h.last), default=1 << 62)
        if end > begin:
            change[begin] = change.get(begin, 0) + h.amount
            change[end] = change.get(end, 0) - h.amount
    return max(accumulate(change[moment] for moment in sorted(change)), default=0)


def exposed_times(problem: ScheduleProblem, starts: Ints) -> Ints:
    """Per task, in units of the schedule: the time of a resharding while no operator runs; 0 for operators."""
    ends = starts + np.array([t.time for t in problem.tasks], dtype=np.int64)
    computing = np.array([t.streams == (COMPUTE,) for t in problem.tasks], dtype=bool)
    order = np.lexsort((ends[computing], starts[computing]))
    begins, done = starts[computing][order], ends[computing][order]
    passed = np.concatenate([[0], np.cumsum(done - begins)])

    def busy(moments: Ints) -> Ints:
        """Time of operators before each moment; they run one after another."""
        k = np.searchsorted(begins, moments, side="right")
        running = np.where(k > 0, np.maximum(0, done[k - 1] - moments), 0) if len(done) else 0
        return np.asarray(passed[k] - running, dtype=np.int64)

    return np.where(computing, 0, ends - starts - busy(ends) + busy(starts))


def solve_weighted(
    part: SelectionProblem, clock: Clock, gap: Fraction, planning: Planning, known: list[tuple[int, ...]]
) -> Answer:
    """The least weighted sum; memory rows are left out first."""
    if part.limit is not None:
        return relax_resources(part, clock=clock.at_most(None), gap=gap, brought=simple_plans(planning))
    return solve(part, clock=clock.at_most(None), gap=gap, brought=simple_plans(planning), known=known)


def schedule_solution(planning: Planning, x: tuple[int, ...], clock: Clock) -> Planned:
    """A solution with the best schedule that is found.  `InputError` if program order exceeds the memory limit."""
    operators, edges = times_of(planning, x)
    quantum = quantum_of(operators, edges)
    tasks = tasks_of(planning, x, quantum)
    limited = planning.problem.limit is not None
    order = program_order(tasks.tasks, tasks.precedences, len(operators)) if limited else None
    return Planned(x, tasks, quantum, overlap(tasks, clock, order=order).found, (sum(operators), sum(edges)))


def schedule_if_fits(planning: Planning, x: tuple[int, ...], clock: Clock) -> Planned | None:
    """`schedule_solution`, or None."""
    try:
        return schedule_solution(planning, x, clock)
    except InputError:
        return None

"""Into how many micro-batches a step is cut when memory is short: a plan per count, the cheapest that
fits.

    counts     1, 2, 4, .. that divide the batch, each with gradients brought together in every micro-batch, and once
               per step; the next one is tried while nothing fits, and once more while it pays
    one        is the last one where its plan is proved to be the best even without the rows of memory

Under a time limit every count gets half of what is left at least.  Every count is a graph of its own with a certificate
of its own: no claim is made about counts that were not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.sources.training import TrainingStep
from ...models.sources.training.accumulation import accumulate, counts, parts_of
from ..selection.model.clock import Clock
from .plan import Planned
from .recompute import BEGIN_SHARE, LEAST_SHARE
from .tried import CandidateOutcome, best_without_rows


@dataclass(frozen=True)
class MicroAttempt:
    """One count; `parts`: of a gradient that is brought together once, else 1."""

    count: int
    parts: int
    tried: CandidateOutcome

    def to_json(self) -> dict[str, object]:
        """Plain data; times in units of 1/scale."""
        return {
            "micro_batches": self.count,
            "parts": self.parts,
            **self.tried.to_json(),
        }


@dataclass(frozen=True, eq=False)
class ChosenCount:
    """The cheapest count that fits; without one, the last that was tried."""

    planned: Planned
    step: TrainingStep
    attempts: tuple[MicroAttempt, ...]


def plan_micro(
    step: TrainingStep, plan: Callable[[Graph, float | None], Planned], clock: Clock, devices: int
) -> ChosenCount:
    """Try counts.  `plan`: plan of a graph within some seconds.  Raises `InputError` for a step that looks at its whole
    batch.
    """
    known: dict[tuple[int, int], tuple[Planned, TrainingStep]] = {}
    attempts: list[MicroAttempt] = []
    best: tuple[int, int] | None = None
    for case in _cases(step.graph, devices):
        if attempts and clock.limit_s is not None and clock.remaining_s() < BEGIN_SHARE * clock.limit_s:
            break
        if best is not None and case[0] > 2 * best[0]:
            break
        cut = accumulate(step, *case)
        seconds = None if clock.limit_s is None else max(0.0, clock.remaining_s() * LEAST_SHARE)
        planned = plan(cut.graph, seconds)
        known[case] = planned, cut
        cost = planned.answer.cost
        attempts.append(MicroAttempt(*case, CandidateOutcome.of(planned)))
        if cost is not None:
            worse = best is not None and cost >= (known[best][0].answer.cost or 0)
            best = best if worse else case
            if case[0] == 1 and best_without_rows(planned):
                break
    last = attempts[-1].count, attempts[-1].parts
    return ChosenCount(*known[last if best is None else best], tuple(attempts))


def _cases(graph: Graph, devices: int) -> Iterator[tuple[int, int]]:
    """(micro-batches, parts of a gradient)."""
    for count in counts(graph):
        yield count, 1
        if count > 1 and (parts := parts_of(graph, count, devices)) > 1:
            yield count, parts


def render_counts(attempts: tuple[MicroAttempt, ...], problem: SelectionProblem) -> list[str]:
    """What was tried; `problem`: any of theirs, for the unit of costs."""
    lines = []
    for a in attempts:
        how = ", gradients brought together once" if a.parts > 1 else ""
        lines.append(f"  {a.count} micro-batch{'es' if a.count > 1 else ''}{how}: {a.tried.words(problem)}")
    return lines

"""This module turns what a search has proved into an answer: status, claim, and the certificate that supports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...models.problem.claims import Infeasible, LowerBound, Optimal, Status, WithinGap
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Record, SelectionCertificate
from .elimination.dense import PlainOutcome
from .engines.consult import Asked
from .model.clock import Clock
from .model.infinity import INFINITY, NOTHING
from .options import Options
from .tree.infeasible import infeasible_dense

if TYPE_CHECKING:
    from .tree.dense_search import Outcome


@dataclass(frozen=True, eq=False)
class Answer:
    """`lower_bound` and `cost` in units of the problem (None: none known); `certificate` is None only when nothing is
    proved.

    `asked`: what another engine was asked, and what it said.
    """

    status: Status
    certificate: SelectionCertificate | None
    lower_bound: int | None
    cost: int | None
    solution: tuple[int, ...] | None
    seconds: float
    asked: tuple[Asked, ...] = ()


def answer_of(
    problem: SelectionProblem,
    solution: tuple[int, ...] | None,
    upper: int,
    record: Record,
    bound: int,
    clock: Clock,
    claim_infeasible: Callable[[], Infeasible],
) -> Answer:
    """The claim that `record`, which establishes `bound`, supports; both numbers are coarse where the problem has a
    fine part.
    """
    digest = problem.sha256()
    if problem.fine is not None and NOTHING < bound < INFINITY:
        bound <<= problem.fine.bits
    if solution is not None:
        if problem.fine is not None:
            upper = problem.cost_of(solution)
        lower = min(bound, upper)
        if lower >= upper:
            claim: Optimal | WithinGap = Optimal(solution, upper)
            return Answer(
                Status.OPTIMAL, SelectionCertificate(digest, claim, record), upper, upper, solution, clock.seconds()
            )
        known = None if lower <= NOTHING else lower
        certificate = None if known is None else SelectionCertificate(digest, WithinGap(solution, upper, known), record)
        return Answer(Status.FEASIBLE, certificate, known, upper, solution, clock.seconds())
    if bound >= INFINITY:
        return Answer(
            Status.INFEASIBLE,
            SelectionCertificate(digest, claim_infeasible(), record),
            None,
            None,
            None,
            clock.seconds(),
        )
    if bound <= NOTHING:
        return Answer(Status.UNKNOWN, None, None, None, None, clock.seconds())
    return Answer(
        Status.UNKNOWN, SelectionCertificate(digest, LowerBound(bound), record), bound, None, None, clock.seconds()
    )


def answer_of_elimination(problem: SelectionProblem, found: PlainOutcome, clock: Clock) -> Answer:
    """What elimination of plain tables has proved."""
    proved = found.bound >= found.cost
    claim = Optimal(found.solution, found.cost) if proved else WithinGap(found.solution, found.cost, found.bound)
    certificate = SelectionCertificate(problem.sha256(), claim, found.record)
    return Answer(
        Status.OPTIMAL if proved else Status.FEASIBLE,
        certificate,
        found.bound,
        found.cost,
        found.solution,
        clock.seconds(),
    )


def answer_of_dense_search(problem: SelectionProblem, outcome: Outcome, clock: Clock, options: Options) -> Answer:
    """What the dense search has proved."""
    best = outcome.best
    return answer_of(
        problem,
        best.solution,
        best.cost,
        outcome.record,
        outcome.bound,
        clock,
        lambda: infeasible_dense(problem, outcome.steps, clock, options),
    )

"""Turns what a search has proved into an answer: status, claim, and the certificate that supports it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...models.problem.claims import LowerBound, Optimal, Status, WithinGap
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Record, SelectionCertificate
from .bound.plain import at_least_plain
from .engines.consult import Alone, EngineAnswer
from .model.infinity import INFINITY, NOTHING
from .tree.infeasible import infeasible
from .tree.run import Run


@dataclass(frozen=True, eq=False)
class Answer:
    """`lower_bound` and `cost` in units of the problem (None: none known); `certificate` is None only when nothing is
    proved.

    `asked`: what another engine was asked, and what it said; `alone`: the same of one that decided without us.
    """

    status: Status
    certificate: SelectionCertificate | None
    lower_bound: int | None
    cost: int | None
    solution: tuple[int, ...] | None
    seconds: float
    asked: tuple[EngineAnswer, ...] = ()
    alone: Alone | None = None

    def gap(self) -> Fraction:
        """(cost - bound) / cost, a huge number where one is missing."""
        if self.cost is None or self.lower_bound is None:
            return Fraction(1 << 30)
        return Fraction(self.cost - self.lower_bound, max(1, abs(self.cost)))


def answer_with(
    problem: SelectionProblem, x: tuple[int, ...], cost: int, record: Record, bound: int, seconds: float
) -> Answer:
    """`x` at its cost, with a record that establishes `bound`, both in units of the problem, or with the plain bound
    where that says more.
    """
    if bound < cost:
        record, bound = at_least_plain(problem, record, bound)
    lower = min(bound, cost)
    claim = Optimal(x, cost) if lower >= cost else WithinGap(x, cost, lower)
    status = Status.OPTIMAL if lower >= cost else Status.FEASIBLE
    return Answer(status, SelectionCertificate(problem.sha256(), claim, record), lower, cost, x, seconds)


def answer_of(run: Run, record: Record, bound: int, alone: bool = False) -> Answer:
    """The claim that `record`, which establishes `bound`, supports with the solution of the run; its numbers are coarse
    where the problem has a fine part.  `alone`: without a native search for a limit that fits.
    """
    problem, solution, seconds = run.problem, run.incumbent.solution, run.clock.seconds()
    if NOTHING < bound < INFINITY:
        bound <<= problem.fine_bits
    if solution is not None:
        upper = problem.cost_of(solution)
        if bound <= NOTHING:
            return Answer(Status.FEASIBLE, None, None, upper, solution, seconds)
        return answer_with(problem, solution, upper, record, bound, seconds)
    if bound >= INFINITY:
        certificate = SelectionCertificate(problem.sha256(), infeasible(run, record, alone), record)
        return Answer(Status.INFEASIBLE, certificate, None, None, None, run.clock.seconds())
    if bound <= NOTHING:
        return Answer(Status.UNKNOWN, None, None, None, None, seconds)
    record, bound = at_least_plain(problem, record, bound)
    certificate = SelectionCertificate(problem.sha256(), LowerBound(bound), record)
    return Answer(Status.UNKNOWN, certificate, bound, None, None, seconds)

"""Solves a problem without its resource rows first, known as relaxing constraints, and keeps the proof if
the solution fits.

    min over x that fit the rows  >=  min over all x  >=  B          (rows only restrict)

so a record about the problem without rows establishes the same bound B with them, and its solution, where it fits, has
the same cost.  Every record ignores rows unless it names them (multipliers, steps), except `Reduced`: its log begins
with an entry that lets all rows leave.  What is lost when the solution does not fit is the time of the first attempt,
so that is given only a share of the clock, and none where the smallest choices already break a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

import numpy as np

from ...models.keywords import keywords_of
from ...models.problem.claims import Optimal, Status, WithinGap
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Point,
    Record,
    Reduced,
    RowConflict,
    SelectionCertificate,
    Split,
)
from ...proofs.selection.presolve_log import Rule
from .answer import Answer
from .engines.consult import EngineAnswer
from .fallback import certify, fallback
from .model.clock import Clock, Overdue, Quiet
from .model.factored import exact_cost
from .options import options_in_use
from .primal.incumbent import Incumbent
from .question import Engine, Question
from .solve import given_up, search_answer
from .tree.branch_and_bound import new_run
from .tree.infeasible import overfull
from .tree.run import Run
from .uniform import uniform_start


@dataclass(frozen=True, eq=False)
class WithoutRows:
    """`outer` without its resource rows (`model/transformation.py`)."""

    outer: SelectionProblem

    @property
    def inner(self) -> SelectionProblem:
        """The same problem without rows and limit."""
        return replace(self.outer, usages=(), limit=None)

    def solution_back(self, solution: tuple[int, ...]) -> tuple[int, ...]:
        """The same; it may break a row."""
        return solution

    def messages_there(self, dual: Dual) -> Dual:
        """The same, without multipliers of what is not there."""
        return Dual(dual.to_u, dual.to_v, dual.denominator)

    def proof_back(self, proof: Record) -> Record:
        """The same, but for reductions: their log begins with an entry that lets all rows leave."""
        match proof:
            case Reduced():
                leave = np.array([[Rule.ROWS, len(proof.steps), 0, 0]], dtype=np.int64)
                return replace(
                    proof, steps=(*proof.steps, np.zeros(0, dtype=np.int64)), log=np.concatenate([leave, proof.log])
                )
            case Split():
                return replace(proof, children=tuple(self.proof_back(child) for child in proof.children))
            case Dual() | Elimination():
                return proof if proof.then is None else replace(proof, then=self.proof_back(proof.then))
            case Point() | Open() | RowConflict():
                return proof


@keywords_of(Question)
def relax_resources(question: Question) -> Answer:
    """`solve`, at the price of the problem without rows where those do not bind.

    Closed in time: the solution fits, and is the answer, or it does not, and the rows matter.  Still open when its
    share of the time is over: with a solution that fits the rest of the time goes to the same problem, else to the one
    with rows.
    """
    problem, clock, options = question.problem, question.clock or Clock(), question.options or options_in_use()
    progress, known = question.progress or Quiet(), tuple(question.known)
    run = new_run(problem, Incumbent(problem), clock, options, question.gap, progress, question.threads)
    try:
        return _relaxed(run, question.engine, known, question.brought)
    except Overdue:
        return fallback(problem, given_up(run), clock, chain(known, question.brought), options)


def _relaxed(
    run: Run, engine: Engine, known: tuple[tuple[int, ...], ...], brought: Iterable[tuple[int, ...]]
) -> Answer:
    """`relax_resources` in a run on its problem, which is offered what was found on the way."""
    problem, clock, options, gap = run.problem, run.clock, run.options, run.gap
    start = uniform_start(run) if engine == "native" else None
    if start is not None and _closed(start, gap):
        return replace(start, seconds=clock.seconds())
    asked: list[EngineAnswer] = []
    if start is not None and start.solution is not None:
        known = (start.solution, *known)

    def attempt(part: SelectionProblem, until: Clock) -> Answer:
        began = clock.seconds()
        whole = part is problem
        inner = run.again(until) if whole else replace(run, problem=part, clock=until, incumbent=Incumbent(part))
        answer = search_answer(inner, engine, known)
        if answer.solution is not None and answer.certificate is None:  # given up
            run.incumbent.offer(answer.solution)
        asked.extend(replace(a, at=began + a.at) for a in answer.asked)
        return answer

    kept: Answer | None = None
    loose: Answer | None = None
    if may_fit(problem):
        free = WithoutRows(problem).inner
        loose = attempt(free, clock.share(options.solve.relaxed_share))
        kept = _with_rows(problem, loose)
        if kept is not None and not _closed(kept, gap) and clock.limit_s is not None and not clock.over():
            longer = _with_rows(problem, attempt(free, clock.at_most(None)))
            if longer is not None and (_closed(longer, gap) or longer.gap() < kept.gap()):
                kept = longer
    if kept is None:
        kept = attempt(problem, clock.at_most(None))
    found = () if run.incumbent.solution is None else (run.incumbent.solution,)
    if start is None or found:
        answer = fallback(problem, kept, clock, chain(found, brought), options)
    else:
        answer = kept
    answer = _best(problem, answer, start, loose)
    return replace(answer, seconds=clock.seconds(), asked=tuple(asked))


def _best(problem: SelectionProblem, answer: Answer, start: Answer | None, loose: Answer | None) -> Answer:
    """The cheaper solution of `answer` and `start` with the best bound that one of them, or `loose` without rows,
    proves: multipliers that had little time can fall below that one.
    """
    known = [a for a in (answer, start) if a is not None]
    best = min((a for a in known if a.solution is not None), key=lambda a: a.cost or 0, default=answer)
    x, cost = best.solution, best.cost
    if answer.status in (Status.OPTIMAL, Status.INFEASIBLE) or x is None or cost is None:
        return answer
    if loose is not None and loose.certificate is not None:
        proof = WithoutRows(problem).proof_back(loose.certificate.proof)
        certificate = SelectionCertificate(problem.sha256(), loose.certificate.claim, proof)
        known.append(replace(loose, solution=None, certificate=certificate))
    proved = [
        a if a.solution == x and a.certificate is not None else certify(problem, x, cost, a)
        for a in known
        if a is answer or a.certificate is not None
    ]
    return replace(min(proved, key=Answer.gap), asked=answer.asked)


def _closed(answer: Answer, gap: Fraction) -> bool:
    return answer.status is Status.OPTIMAL or answer.gap() <= gap


def may_fit(problem: SelectionProblem) -> bool:
    """False without rows, and when the smallest amounts alone break one."""
    return problem.limit is not None and len(problem.events()) > 0 and overfull(problem) is None


def _with_rows(problem: SelectionProblem, found: Answer) -> Answer | None:
    """The answer to the problem without rows as one with them; None if its solution does not fit, or nothing is
    proved.
    """
    if found.certificate is None or found.solution is None or exact_cost(problem, found.solution) is None:
        return None
    claim = found.certificate.claim
    if not isinstance(claim, Optimal | WithinGap):
        return None
    return replace(
        found,
        certificate=SelectionCertificate(
            problem.sha256(), claim, WithoutRows(problem).proof_back(found.certificate.proof)
        ),
    )


def ignores_rows(record: Record) -> bool:
    """True when the record proves its bound without any row: nothing that fits is better than the best without rows."""
    match record:
        case Reduced():
            return (
                len(record.log) > 0
                and int(record.log[0, 0]) == Rule.ROWS
                and record.steps[int(record.log[0, 1])].size == 0
            )
        case Dual():
            return not record.multipliers and not record.rounded and (record.then is None or ignores_rows(record.then))
        case Elimination():
            return record.then is None or ignores_rows(record.then)
        case Split():
            return all(ignores_rows(child) for child in record.children)
        case Open():
            return True
        case Point() | RowConflict():
            return False

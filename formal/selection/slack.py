"""Resource rows that cost nothing: solve without them first, and keep the proof if the solution fits.

    min over x that fit the rows  >=  min over all x  >=  B          (rows only restrict)

so a record about the problem without rows establishes the same bound B with them, and its solution, where it fits, has the same
cost.  Every record ignores rows unless it names them (multipliers, steps), except `Reduced`: its log begins with an entry that
lets all rows leave.  What is lost when the solution does not fit is the time of the first attempt, so that is given only a
share of the clock, and none where the smallest choices already break a row.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from ...models.claims import Optimal, Status, WithinGap
from ...models.problems import SelectionProblem
from ...proofs.certificates import Dual, Elimination, Open, Point, Record, Reduced, RowConflict, SelectionCertificate, Split
from ...proofs.reduction_log import Rule
from .clock import Clock, Progress
from .network import exact_cost
from .solve import Answer, Engine, solve

SHARE: Final = 0.5
"""Most of the time limit that the attempt without rows may take."""


def solve_slack(
    problem: SelectionProblem, *, time_limit_s: float | None = None, gap: Fraction = Fraction(0), engine: Engine = "native",
    progress: Progress | None = None, seed: int = 0, threads: int = 1,
) -> Answer:
    """`solve`, at the price of the problem without rows where those do not bind."""
    clock = Clock(time_limit_s)
    if _may_fit(problem):
        free = replace(problem, usages=(), limit=None)
        share = None if time_limit_s is None else SHARE * time_limit_s
        found = solve(free, time_limit_s=share, gap=gap, engine=engine, progress=progress, seed=seed, threads=threads)
        if found.solution is not None and exact_cost(problem, found.solution) is not None and (kept := _with_rows(problem, found, gap)) is not None:
            return replace(kept, seconds=clock.seconds())
    left = None if time_limit_s is None else max(0.0, clock.left())
    answer = solve(problem, time_limit_s=left, gap=gap, engine=engine, progress=progress, seed=seed, threads=threads)
    return replace(answer, seconds=clock.seconds())


def _may_fit(problem: SelectionProblem) -> bool:
    """False without rows, and when the smallest amounts alone break one."""
    if problem.limit is None or not problem.events():
        return False
    change: dict[int, int] = {}
    for u in problem.usages:
        if u.start < u.end:
            least = int(u.amount.min())
            change[u.start] = change.get(u.start, 0) + least
            change[u.end] = change.get(u.end, 0) - least
    level = 0
    for t in sorted(change):
        level += change[t]
        if level > problem.limit:
            return False
    return True


def _with_rows(problem: SelectionProblem, found: Answer, gap: Fraction) -> Answer | None:
    """The answer to the problem without rows as one with them; None unless its proof is good enough."""
    if found.certificate is None or found.cost is None or found.lower_bound is None:
        return None
    claim = found.certificate.claim
    closed = found.status is Status.OPTIMAL or found.cost - found.lower_bound <= gap * abs(found.cost)
    if not closed or not isinstance(claim, Optimal | WithinGap):
        return None
    return replace(found, certificate=SelectionCertificate(problem.sha256(), claim, without_rows(found.certificate.proof)))


def without_rows(record: Record) -> Record:
    """A record about a problem without rows as one about the same problem with rows."""
    match record:
        case Reduced():
            leave = np.array([[Rule.ROWS, len(record.steps), 0, 0]], dtype=np.int64)
            return replace(record, steps=(*record.steps, np.zeros(0, dtype=np.int64)), log=np.concatenate([leave, record.log]))
        case Split():
            return replace(record, children=tuple(without_rows(child) for child in record.children))
        case Dual() | Elimination():
            return record if record.then is None else replace(record, then=without_rows(record.then))
        case Point() | Open() | RowConflict():
            return record


def ignores_rows(record: Record) -> bool:
    """True when the record proves its bound without any row: nothing that fits is better than the best without rows."""
    match record:
        case Reduced():
            return len(record.log) > 0 and int(record.log[0, 0]) == Rule.ROWS and record.steps[int(record.log[0, 1])].size == 0
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

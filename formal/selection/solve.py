"""Solve a selection problem and say what is proved: `solve`.

Every answer ends in the same certificate, whatever engine found the solution: the incumbent's cost is the upper bound UB, and a
tree of integer facts (`proofs.certificates`) establishes the lower bound B.  `optimal` is said only when B >= UB, `infeasible` only
when B is infinite without a solution; a time limit ends in `feasible` or `unknown` with the best bound proved so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ...models.claims import Infeasible, LowerBound, Optimal, Status, WithinGap
from ...models.problems import SelectionProblem
from ...proofs.certificates import SelectionCertificate
from .clock import Clock, Progress
from .draft import INFINITY, NOTHING, Assembler
from .network import whole
from .search import Incumbent, Limits, Search

Engine = Literal["native", "ilp", "smt"]


@dataclass(frozen=True, eq=False)
class Answer:
    """`lower_bound` and `cost` in units of the problem (None: none known); `certificate` is None only when nothing is proved."""

    status: Status
    certificate: SelectionCertificate | None
    lower_bound: int | None
    cost: int | None
    solution: tuple[int, ...] | None
    seconds: float


def solve(
    problem: SelectionProblem, *, time_limit_s: float | None = None, gap: Fraction = Fraction(0), engine: Engine = "native",
    progress: Progress | None = None, seed: int = 0, threads: int = 1, limits: Limits | None = None,
) -> Answer:
    """Best solution of `problem` with a certificate.

    `gap`: stop when (cost - bound) <= gap * |cost|.  `limits` tunes the native search (tests use it to force its branches).

    >>> import numpy as np
    >>> from shardproof.models.problems import Edge, SelectionProblem, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> a = solve(p)
    >>> a.status.value, a.cost, a.solution
    ('optimal', 1, (0, 0))
    """
    clock = Clock(time_limit_s)
    problem.check()
    incumbent = Incumbent(problem)
    search = Search(problem, incumbent, clock, limits=limits, gap=gap, progress=progress, threads=threads)
    draft = search.run()
    maker = Assembler(problem, search.base, incumbent.cost, search.enough(), search.eliminator)
    record, bound = maker.assemble(draft, whole(problem))
    digest = problem.sha256()
    upper, solution = incumbent.cost, incumbent.solution
    if solution is not None:
        lower = min(bound, upper)
        if lower >= upper:
            claim: Optimal | WithinGap = Optimal(solution, upper)
            return Answer(Status.OPTIMAL, SelectionCertificate(digest, claim, record), upper, upper, solution, clock.seconds())
        known = None if lower <= NOTHING else lower
        certificate = None if known is None else SelectionCertificate(digest, WithinGap(solution, upper, known), record)
        return Answer(Status.FEASIBLE, certificate, known, upper, solution, clock.seconds())
    if bound >= INFINITY:
        claim_no = Infeasible((), tuple(range(len(problem.vertices))), None, None)
        return Answer(Status.INFEASIBLE, SelectionCertificate(digest, claim_no, record), None, None, None, clock.seconds())
    if bound <= NOTHING:
        return Answer(Status.UNKNOWN, None, None, None, None, clock.seconds())
    return Answer(Status.UNKNOWN, SelectionCertificate(digest, LowerBound(bound), record), bound, None, None, clock.seconds())

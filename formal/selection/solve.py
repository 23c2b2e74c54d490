"""This module solves a selection problem and says what is proved: `solve`.

Every answer ends in the same certificate, whatever engine found the solution: the incumbent's cost is the upper bound
UB, and a tree of integer facts (`proofs.selection.certificates`) establishes the lower bound B.  `optimal` is said only
when B >= UB, `infeasible` only when B is infinite without a solution; a time limit ends in `feasible` or `unknown` with
the best bound proved so far, and however short it is, with what can always be answered (`fallback`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Final, Literal, get_args

from ...models.problem.claims import Status
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Dual
from .answer import Answer, answer_of, claimed
from .decomposition.blocks import begin
from .decomposition.quotient import quotient
from .elimination.dense import Size, eliminate_dense, plain
from .engines.consult import Asked, consult
from .fallback import fallback
from .model.clock import Clock, Progress, Quiet
from .model.dense import cells_of
from .model.factored import whole
from .model.infinity import INFINITY
from .model.interrupt import interruptible
from .options import OPTIONS, Limits, Options
from .primal.incumbent import Incumbent
from .tree.branch_and_bound import eliminator, new_run
from .tree.infeasible import least_limit, overfull
from .tree.proof_tree import Assembler
from .tree.run import Run

Engine = Literal["native", "ilp", "smt"]


def solve(
    problem: SelectionProblem,
    *,
    time_limit_s: float | None = None,
    gap: Fraction = Fraction(0),
    engine: Engine = "native",
    progress: Progress | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    options: Options | None = None,
    clock: Clock | None = None,
    brought: Iterable[tuple[int, ...]] = (),
    known: Iterable[tuple[int, ...]] = (),
) -> Answer:
    """Best solution of `problem` with a certificate.

    `time_limit_s` counts from now; `clock`: one that runs already, and ends the search when it is over.  `brought`:
    solutions that are known, taken when the time is over and nothing better was found (`fallback`).  `known`: solutions
    that the search begins with, and is never worse than.
    `gap`: stop when (cost - bound) <= gap * |cost|.  `options`: every tuning constant; `limits`: those of the factored
    search, which is then the one that runs.  `engine`: who looks for the solution (`engines/consult.py`); the proof is
    native.  Raises `EngineRefused` for what an engine cannot take.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> a = solve(p)
    >>> a.status.value, a.cost, a.solution
    ('optimal', 1, (0, 0))
    """
    options = options or OPTIONS
    if limits is not None:
        options = replace(options, limits=limits)
    until = (clock or Clock()).at_most(time_limit_s)
    task = Task(problem, until, Incumbent(problem), options, limits is not None, gap, progress or Quiet(), threads)
    return fallback(problem, searched(task, engine, known), brought, options)


def searched(task: Task, engine: Engine = "native", known: Iterable[tuple[int, ...]] = ()) -> Answer:
    """`solve` without what can always be answered: nothing if the search found nothing before the clock was over."""
    if engine not in get_args(Engine):
        raise ValueError(f"engine {engine!r}: choose native, ilp or smt")
    task.problem.check()
    if (conflict := overfull(task.problem)) is not None:
        least = partial(least_limit, task.problem, task.clock, task.options)
        return answer_of(task.problem, None, 0, conflict, INFINITY, task.clock, least)
    if task.clock.over():
        return Answer(Status.UNKNOWN, None, None, None, None, task.clock.seconds())
    for x in known:
        task.incumbent.offer(x)
    asked = tuple[Asked, ...]()
    if engine != "native":
        with interruptible(task.clock):
            warm, asked = consult(task.run(), engine)
        task = replace(task, warm=warm)
    for search in SEARCHES:
        if search.accepts(task):
            with interruptible(task.clock), _deep(task.options.solve.recursion):
                answer = search.run(task)
            if answer is not None:
                return replace(answer, asked=asked)
    raise AssertionError("the last search accepts everything")


@dataclass(frozen=True, eq=False)
class Task:
    """What a search is given.  `forced`: limits were given, which are those of the factored search; `warm`: messages
    to start from.
    """

    problem: SelectionProblem
    clock: Clock
    incumbent: Incumbent
    options: Options
    forced: bool
    gap: Fraction
    progress: Progress
    threads: int
    warm: Dual | None = None

    def run(self) -> Run:
        """A run of branch and bound on the problem."""
        return new_run(self.problem, self.incumbent, self.clock, self.options, self.gap, self.progress, self.threads)

    def part(self, problem: SelectionProblem, until: Clock) -> Run:
        """A run on another problem with the same settings, nearer to its bound."""
        gap = self.gap / self.options.solve.inner_gap_share
        return new_run(problem, Incumbent(problem), until, self.options, gap, threads=self.threads)


def suits_dense_search(problem: SelectionProblem, options: Options) -> bool:
    """True when presolve and dense loops are likely to pay: many vertices, with resource rows or very many, no
    repeated blocks with large tables.
    """
    n = len(problem.vertices)
    rows = problem.limit is not None and bool(problem.usages)
    return (
        problem.fine is None
        and n >= (options.solve.dense_vertices_with_rows if rows else options.solve.dense_vertices)
        and not (
            n >= options.decomposition.vertices
            and cells_of(problem) > options.solve.repeated_cells
            and quotient(problem, options.decomposition) is not None
        )
    )


def _dense_search_accepts(task: Task) -> bool:
    return not task.forced and suits_dense_search(task.problem, task.options)


def _dense_search(task: Task) -> Answer | None:
    """None when the problem is too large for presolve."""
    from .tree.dense_search import DenseSearch  # compiled loops: other problems start without them

    dense = DenseSearch(task.problem, task.clock, task.options, task.gap, task.progress, task.threads)
    if task.incumbent.solution is not None:
        dense.best.offer(task.incumbent.solution)
    outcome = dense.run()
    if outcome is None:
        return None
    record, bound, best = outcome
    problem, clock, options = task.problem, task.clock, task.options
    least = partial(least_limit, problem, clock, options)
    return answer_of(problem, best.solution, best.cost, record, bound, clock, least)


def _elimination_accepts(task: Task) -> bool:
    return not task.forced and plain(task.problem)


def _elimination(task: Task) -> Answer | None:
    """None when the tables would be too large, or the time is over."""
    at = task.options.solve
    size = Size(at.plain_joint, at.plain_work, at.plain_kept)
    found = eliminate_dense(task.problem, size, task.clock, task.options.elimination)
    if found is None:
        return None
    return claimed(task.problem, found.solution, found.cost, found.record, found.bound, task.clock.seconds())


def _factored_search(task: Task) -> Answer:
    """Branch and bound on factored tables; repeated blocks first where nothing else is known."""
    run = task.run()
    warm = task.warm if task.forced or task.warm is not None else begin(run, task.part)
    tree = run.search(warm)
    maker = Assembler(task.problem, run.incumbent.cost, run.enough(), run.base, partial(eliminator, run))
    record, bound = maker.assemble(tree, whole(task.problem))
    best = run.incumbent
    least = partial(least_limit, task.problem, task.clock, task.options)
    return answer_of(task.problem, best.solution, best.cost, record, bound, task.clock, least)


@dataclass(frozen=True)
class Search:
    """One row of the portfolio: `run` answers None when it finds that it cannot."""

    name: str
    accepts: Callable[[Task], bool]
    run: Callable[[Task], Answer | None]


SEARCHES: Final = (
    Search("dense search", _dense_search_accepts, _dense_search),
    Search("elimination of plain tables", _elimination_accepts, _elimination),
    Search("factored search", lambda task: True, _factored_search),
)
"""In the order in which they are tried; the first that accepts and answers counts."""


@contextmanager
def _deep(frames: int) -> Iterator[None]:
    """Room for branching: a path of the tree takes a few Python frames per split."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, frames))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)

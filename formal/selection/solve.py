"""This module solves a selection problem and says what is proved: `solve`.

Every answer ends in the same certificate, whatever engine found the solution: the incumbent's cost is the upper bound
UB, and a tree of integer facts (`proofs.selection.certificates`) establishes the lower bound B.  `optimal` is said only
when B >= UB, `infeasible` only when B is infinite without a solution; a time limit ends in `feasible` or `unknown` with
the best bound proved so far, and however short it is, with what can always be answered (`fallback`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final, Literal, get_args

from ...models.problem.claims import Status
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Dual
from .answer import Answer, answer_of, answer_of_dense_search, answer_of_elimination
from .decomposition.blocks import LEAST, begin
from .decomposition.quotient import quotient
from .elimination.dense import Size, eliminate_dense, plain
from .engines.consult import Asked, consult
from .fallback import fallback
from .model.clock import Clock, Progress
from .model.factored import whole
from .model.interrupt import interruptible
from .primal.incumbent import Incumbent
from .tree.branch_and_bound import eliminator, new_run
from .tree.infeasible import infeasible
from .tree.limits import Limits
from .tree.proof_tree import Assembler
from .tree.run import Run

Engine = Literal["native", "ilp", "smt"]

DEEPEST: Final = 50_000

SCALE_ROWS: Final = 12
"""Vertices from which a problem with resource rows is reduced and solved on flat arrays (measured: 18 made-up
vertices 0.03 s there, 0.9 s here).
"""

SCALE_PLAIN: Final = 5_000
"""The same without resource rows, where elimination is hard to beat."""

SCALE_REPEATED: Final = 20_000_000
"""Entries over all edges from which repeated blocks are solved as such (measured, BERT-Large with limits that bind: 3.6
million 0.0004 % there and 0.08 % as blocks after 30 s, 28 million 27 % and 11 %)."""

ELIMINATED: Final = Size(joint=20_000_000, work=400_000_000, kept=40_000_000)
"""What plain tables may cost to be eliminated at once."""


def solve(
    problem: SelectionProblem,
    *,
    time_limit_s: float | None = None,
    gap: Fraction = Fraction(0),
    engine: Engine = "native",
    progress: Progress | None = None,
    seed: int = 0,
    threads: int = 1,
    limits: Limits | None = None,
    clock: Clock | None = None,
    brought: Iterable[tuple[int, ...]] = (),
) -> Answer:
    """Best solution of `problem` with a certificate.

    `time_limit_s` counts from now; `clock`: one that runs already, and ends the search when it is over.  `brought`:
    solutions that are known, taken when the time is over and nothing better was found (`fallback`).
    `gap`: stop when (cost - bound) <= gap * |cost|.  `limits` tunes the native search (tests use it to force its
    branches).  `engine`: who looks for the solution (`engines/consult.py`); the proof is native.  Raises
                `EngineRefused` for what
    an engine cannot take.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> a = solve(p)
    >>> a.status.value, a.cost, a.solution
    ('optimal', 1, (0, 0))
    """
    found = searched(
        problem,
        (clock or Clock()).at_most(time_limit_s),
        gap=gap,
        engine=engine,
        progress=progress,
        seed=seed,
        threads=threads,
        limits=limits,
    )
    return fallback(problem, found, brought)


def searched(
    problem: SelectionProblem,
    clock: Clock,
    *,
    gap: Fraction = Fraction(0),
    engine: Engine = "native",
    progress: Progress | None = None,
    seed: int = 0,
    threads: int = 1,
    limits: Limits | None = None,
) -> Answer:
    """`solve` without what can always be answered: nothing if the search found nothing before `clock` was over."""
    if engine not in get_args(Engine):
        raise ValueError(f"engine {engine!r}: choose native, ilp or smt")
    problem.check()
    if clock.over():
        return Answer(Status.UNKNOWN, None, None, None, None, clock.seconds())
    incumbent, warm, asked = Incumbent(problem), None, tuple[Asked, ...]()
    if engine != "native":
        with interruptible(clock):
            warm, asked = consult(
                new_run(problem, incumbent, clock, limits=limits, progress=progress, threads=threads), engine, seed
            )
    if limits is None and suits_dense_search(problem):
        from .tree.dense_search import DenseSearch  # compiled loops: other problems start without them

        with interruptible(clock):
            dense = DenseSearch(problem, clock, gap=gap, progress=progress, seed=seed, threads=threads)
            if incumbent.solution is not None:
                dense.best.offer(incumbent.solution)
            outcome = dense.run()
        if outcome is not None:
            return replace(answer_of_dense_search(problem, outcome, clock), asked=asked)
    if limits is None and plain(problem):
        with interruptible(clock):
            found = eliminate_dense(problem, ELIMINATED, clock)
        if found is not None:
            return replace(answer_of_elimination(problem, found, clock), asked=asked)
    with interruptible(clock):
        return replace(_solve_whole(problem, clock, gap, incumbent, warm, progress, threads, limits), asked=asked)


def _solve_whole(
    problem: SelectionProblem,
    clock: Clock,
    gap: Fraction,
    incumbent: Incumbent,
    warm: Dual | None,
    progress: Progress | None,
    threads: int,
    limits: Limits | None,
) -> Answer:
    run = new_run(problem, incumbent, clock, limits=limits, gap=gap, progress=progress, threads=threads)

    def make(part: SelectionProblem, until: Clock) -> Run:
        return new_run(part, Incumbent(part), until, limits=limits, gap=gap / 4, threads=threads)

    with _deep():
        tree = run.search(begin(run, make) if limits is None and warm is None else warm)
        maker = Assembler(problem, run.base, incumbent.cost, run.enough(), partial(eliminator, run))
        record, bound = maker.assemble(tree, whole(problem))
    return answer_of(problem, incumbent.solution, incumbent.cost, record, bound, clock, lambda: infeasible(run, record))


def suits_dense_search(problem: SelectionProblem) -> bool:
    """True when reductions and flat loops are likely to pay: many vertices, with resource rows or very many, no
    repeated blocks with large tables.
    """
    n = len(problem.vertices)
    rows = problem.limit is not None and bool(problem.usages)
    return (
        problem.fine is None
        and n >= (SCALE_ROWS if rows else SCALE_PLAIN)
        and not (n >= LEAST and _wide(problem) and quotient(problem) is not None)
    )


def _wide(problem: SelectionProblem) -> bool:
    return sum(problem.domain_size(e.u) * problem.domain_size(e.v) for e in problem.edges) > SCALE_REPEATED


@contextmanager
def _deep() -> Iterator[None]:
    """Room for branching: a path of the tree takes a few Python frames per split."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)

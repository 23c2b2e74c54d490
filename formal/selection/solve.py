"""Solves a selection problem and says what is proved: `solve`.

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
from itertools import chain
from typing import Final, get_args

from ...models.keywords import keywords_of
from ...models.problem.claims import Status
from ...models.problem.selection_problem import SelectionProblem
from .answer import Answer, answer_of, answer_with
from .bound.decode import decode
from .bound.plain import plain_dual
from .bound.trws import Sweeper
from .decomposition.blocks import begin
from .decomposition.quotient import quotient
from .elimination.dense import Size, eliminate_dense, plain
from .engines.consult import EngineAnswer, consult
from .fallback import fallback, with_plain_bound
from .model.clock import Clock, Overdue, Quiet
from .model.dense import cells_of
from .model.factored import build, whole
from .model.infinity import INFINITY
from .model.interrupt import interruptible
from .options import Options, options_in_use
from .primal.incumbent import Accepts, Incumbent
from .primal.walk import walk
from .question import Engine, SolveQuestion
from .tree.branch_and_bound import eliminator, new_run
from .tree.infeasible import overfull
from .tree.proof_tree import Assembler
from .tree.run import Run


@keywords_of(SolveQuestion)
def solve(question: SolveQuestion) -> Answer:
    """Best solution of a problem with a certificate (`question.py`).  Raises `EngineRefused` for what an engine cannot
    take.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> a = solve(p)
    >>> a.status.value, a.cost, a.solution
    ('optimal', 1, (0, 0))
    """
    problem, limits = question.problem, question.limits
    options = question.options or options_in_use()
    if limits is not None:
        options = replace(options, limits=limits)
    until = (question.clock or Clock()).at_most(question.time_limit_s)
    progress, forced = question.progress or Quiet(), limits is not None
    run = new_run(problem, Incumbent(problem), until, options, question.gap, progress, question.threads, forced=forced)
    known, brought = tuple(question.known), question.brought
    if question.alone:
        if known or forced or tuple(brought):
            raise ValueError("alone: leave out known, brought and limits, which are of the native search")
        return by_itself(run, question.engine)
    try:
        return fallback(problem, search_answer(run, question.engine, known), until, brought, options)
    except Overdue:
        return fallback(problem, given_up(run), until, chain(known, brought), options)


def solve_accepting(
    problem: SelectionProblem, accepts: Accepts, known: tuple[int, ...], clock: Clock, gap: Fraction, threads: int = 1
) -> Answer:
    """`solve`, where a solution also has to be one that `accepts` takes, beside what the rows say, as `known` is."""
    run = new_run(problem, Incumbent(problem, accepts), clock, options_in_use(), gap, Quiet(), threads)
    run.incumbent.offer(known)
    try:
        found = search_answer(run, known=[known])
        return with_plain_bound(problem, given_up(run) if found.solution is None else found)
    except Overdue:
        return with_plain_bound(problem, given_up(run))


def search_answer(run: Run, engine: Engine = "native", known: Iterable[tuple[int, ...]] = ()) -> Answer:
    """`solve` without what can always be answered: nothing if the search found nothing before the clock was over."""
    if engine not in get_args(Engine):
        raise ValueError(f"engine {engine!r}: choose native, ilp, smt or cp-sat")
    if (conflict := overfull(run.problem)) is not None:
        return answer_of(run, conflict, INFINITY)
    if run.clock.over():
        return Answer(Status.UNKNOWN, None, None, None, None, run.clock.seconds())
    run.problem.check()
    for x in known:
        run.incumbent.offer(x)
    asked = tuple[EngineAnswer, ...]()
    if engine != "native":
        with interruptible(run.clock):
            warm, asked = consult(replace(run), engine)
        run = replace(run, warm=warm)
    for search in SEARCHES:
        if search.accepts(run):
            try:
                with interruptible(run.clock), _deep(run.options.solve.recursion):
                    answer = search.run(run)
            except Overdue:
                return replace(given_up(run), asked=asked)
            if answer is not None:
                return replace(answer, asked=asked)
    raise AssertionError("the last search accepts everything")


def by_itself(run: Run, engine: Engine) -> Answer:
    """`solve` by another engine alone: what it found and proved when it was over, with a bound at least."""
    if engine == "native":
        raise ValueError("alone: choose the engine ilp, smt or cp-sat; the native search is alone without it")
    from .engines.alone import answer_to, proof_of, question, whose  # most commands ask nobody

    told = question(run, engine)
    run.problem.check()
    try:
        with interruptible(run.clock), _deep(run.options.solve.recursion):
            told = answer_to(run, told)
            record, bound, reasons = proof_of(run, told)
            told, found = replace(told, reasons=reasons), answer_of(run, record, bound, alone=True)
    except Overdue:
        found = given_up(run)
    found = with_plain_bound(run.problem, found)
    proof = None if found.certificate is None else found.certificate.proof
    closed = found.status in (Status.OPTIMAL, Status.INFEASIBLE)
    words = whose(run.problem, engine, proof, found.lower_bound, closed)
    return replace(found, alone=replace(told, proof=words))


def given_up(run: Run) -> Answer:
    """What is known without what was given up: a solution, perhaps, and nothing proved."""
    x = run.incumbent.solution
    if x is None:
        return Answer(Status.UNKNOWN, None, None, None, None, run.clock.seconds())
    return Answer(Status.FEASIBLE, None, None, run.problem.cost_of(x), x, run.clock.seconds())


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


def _dense_search_accepts(run: Run) -> bool:
    return not run.forced and suits_dense_search(run.problem, run.options)


def _dense_search(run: Run) -> Answer | None:
    """None when the problem is too large for presolve."""
    from .tree.dense_search import DenseSearch  # compiled loops: other problems start without them

    proved = DenseSearch(run).search()
    return None if proved is None else answer_of(run, *proved)


def _elimination_accepts(run: Run) -> bool:
    return not run.forced and plain(run.problem) and run.incumbent.accepts is None


def _elimination(run: Run) -> Answer | None:
    """None when the tables would be too large, or the time is over."""
    at = run.options.solve
    size = Size(at.plain_joint, at.plain_work, at.plain_kept)
    found = eliminate_dense(run.problem, size, run.clock, run.options.elimination)
    if found is None:
        return None
    return answer_with(run.problem, found.solution, found.cost, found.record, found.bound, run.clock.seconds())


def _network_search_accepts(run: Run) -> bool:
    """Small tables and numbers, no rows, no repeated blocks, nothing known but solutions."""
    problem, options = run.problem, run.options
    return (
        not run.forced
        and run.warm is None
        and problem.fine is None
        and run.rows is None
        and cells_of(problem) <= options.network.cells
        and (len(problem.vertices) < options.decomposition.vertices or quotient(problem, options.decomposition) is None)
    )


def _network_search(run: Run) -> Answer | None:
    """Elimination where the width allows; a solution that costs what the plain bound is.  None when presolve cannot
    begin, or the numbers are too large for its messages.
    """
    run.progress.update("elimination", None, None)
    network = build(run.unit, whole(run.problem))
    outcome = run.eliminate(network, run.limits.joint, run.limits.work)
    if outcome is not None:
        if outcome.choice is not None:
            run.incumbent.offer(network.solution(outcome.choice))
        return answer_of(run, outcome.record, outcome.value)
    plain, least = plain_dual(run.problem)
    if least < INFINITY and all(d.size for d in network.domains):
        x = walk(network, decode(Sweeper(network)), least - run.problem.constant, run.clock, run.options.primal)
        run.incumbent.offer(network.solution(x))
        if run.enough() <= least:
            return answer_of(run, plain, least)
    from .tree.network_search import NetworkSearch  # compiled loops: other problems start without them

    proved = NetworkSearch(run).run()
    return None if proved is None else answer_of(run, *proved)


def _factored_search(run: Run) -> Answer:
    """Branch and bound on factored tables; repeated blocks first where nothing else is known."""
    tree = run.search(run.warm if run.forced or run.warm is not None else begin(run))
    maker = Assembler(run.problem, run.incumbent.cost, run.enough(), run.base, partial(eliminator, run))
    return answer_of(run, *maker.assemble(tree, whole(run.problem)))


@dataclass(frozen=True)
class Search:
    """One row of the portfolio: `run` answers None when it finds that it cannot."""

    name: str
    accepts: Callable[[Run], bool]
    run: Callable[[Run], Answer | None]


SEARCHES: Final = (
    Search("dense search", _dense_search_accepts, _dense_search),
    Search("elimination of plain tables", _elimination_accepts, _elimination),
    Search("network search", _network_search_accepts, _network_search),
    Search("factored search", lambda run: True, _factored_search),
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

"""Solve a selection problem and say what is proved: `solve`.

Every answer ends in the same certificate, whatever engine found the solution: the incumbent's cost is the upper bound
UB, and a tree of integer facts (`proofs.selection.certificates`) establishes the lower bound B.  `optimal` is said only
when B >= UB, `infeasible` only when B is infinite without a solution; a time limit ends in `feasible` or `unknown` with
the best bound proved so far, and however short it is, with what can always be answered (`floor`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, get_args

from ...models.problem.claims import Infeasible, LowerBound, Optimal, Status, WithinGap
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Dual, Record, SelectionCertificate
from .blocks import LEAST, begin
from .budget import Limits
from .clock import Clock, Progress
from .draft import INFINITY, NOTHING, Assembler
from .external import Asked, consult
from .floor import floor
from .incumbent import Incumbent
from .infeasible import infeasible, infeasible_at_scale
from .network import whole
from .plain import PlainOutcome, Size, plain, solve_plain
from .repeat import quotient
from .search import Search

if TYPE_CHECKING:
    from .scale import Outcome

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
    solutions that are known, taken when the time is over and nothing better was found (`floor`).
    `gap`: stop when (cost - bound) <= gap * |cost|.  `limits` tunes the native search (tests use it to force its
    branches).  `engine`: who looks for the solution (`external`); the proof is native.  Raises `EngineRefused` for what
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
    return floor(problem, found, brought)


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
                Search(problem, incumbent, clock, limits=limits, progress=progress, threads=threads), engine, seed
            )
    if limits is None and at_scale(problem):
        from .scale import Scale  # compiled loops: other problems start without them

        with interruptible(clock):
            scale = Scale(problem, clock, gap=gap, progress=progress, seed=seed, threads=threads)
            if incumbent.solution is not None:
                scale.best.offer(incumbent.solution)
            outcome = scale.run()
        if outcome is not None:
            return replace(_answer_at_scale(problem, outcome, clock), asked=asked)
    if limits is None and plain(problem):
        with interruptible(clock):
            found = solve_plain(problem, ELIMINATED, clock)
        if found is not None:
            return replace(_answer_plain(problem, found, clock), asked=asked)
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
    search = Search(problem, incumbent, clock, limits=limits, gap=gap, progress=progress, threads=threads)

    def make(part: SelectionProblem, until: Clock) -> Search:
        return Search(part, Incumbent(part), until, limits=limits, gap=gap / 4, threads=threads)

    with _deep():
        draft = search.run(begin(search, make) if limits is None and warm is None else warm)
        maker = Assembler(problem, search.base, incumbent.cost, search.enough(), search.eliminator)
        record, bound = maker.assemble(draft, whole(problem))
    return _answer(
        problem, incumbent.solution, incumbent.cost, record, bound, clock, lambda: infeasible(search, record)
    )


def _answer(
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


def _answer_plain(problem: SelectionProblem, found: PlainOutcome, clock: Clock) -> Answer:
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


def at_scale(problem: SelectionProblem) -> bool:
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


def _answer_at_scale(problem: SelectionProblem, outcome: Outcome, clock: Clock) -> Answer:
    best = outcome.best
    return _answer(
        problem,
        best.solution,
        best.cost,
        outcome.record,
        outcome.bound,
        clock,
        lambda: infeasible_at_scale(problem, outcome.steps, clock),
    )


_INTERRUPTIBLE: list[Clock] = []
"""The clock that Ctrl-C stops, if any."""


@contextmanager
def interruptible(clock: Clock, notice: str = "") -> Iterator[None]:
    """Ctrl-C ends the time limit: the best answer so far is returned.  A second one interrupts as usual.

    The outermost one counts: inside another nothing is done, nor where Ctrl-C is ignored.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or _INTERRUPTIBLE or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        clock.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if notice:
            os.write(2, notice.encode())  # a handler must not enter a stream that it may have interrupted

    before = signal.signal(signal.SIGINT, stop)
    _INTERRUPTIBLE.append(clock)
    try:
        yield
    finally:
        _INTERRUPTIBLE.pop()
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


@contextmanager
def _deep() -> Iterator[None]:
    """Room for branching: a path of the tree takes a few Python frames per split."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)

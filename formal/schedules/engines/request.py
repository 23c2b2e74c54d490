"""Carries out what `schedule` asks for, from the command line and from Python alike: the shortest schedule of a
pipeline or of a graph of operators and collectives, or a published one and what is shorter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from ....models.problem.selection_problem import Ints
from ....models.schedules.pipeline import Pipeline, Times
from ....models.schedules.problem import ScheduleProblem
from ....models.text import InputError, seconds_text
from ....proofs.schedules.certificate import ScheduleCertificate
from ...selection.model.clock import Clock
from ..chunks import search_chunks
from ..drawing import peaks
from ..overlap import Overlapped, overlap
from ..published import orders, starts_of, with_chunks
from ..search import Found, search
from ..shop import in_order, shop
from .consult import EngineAnswer, consult

Engine = Literal["native", "ilp", "smt", "cp-sat"]

ASKED_SHARE: Final = 0.5
"""Of the search's time, for another engine; the native search has the rest, and what an engine leaves."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A schedule and bound of `subject`; `shorter` is the makespan of a better one that was found beside it; `asked`:
    what another engine said.
    """

    subject: Pipeline | ScheduleProblem
    problem: ScheduleProblem
    found: Found
    kind: str
    shorter: int | None
    fits: bool
    asked: EngineAnswer | None = None

    @property
    def scale(self) -> int:
        return self.problem.scale

    def time(self, units: int) -> str:
        """A time as people read it: seconds of a graph, exact units of a pipeline."""
        if isinstance(self.subject, Pipeline):
            return str(Fraction(units, self.scale))
        return seconds_text(units, self.scale)

    def certificate(self) -> ScheduleCertificate:
        f = self.found
        return ScheduleCertificate(self.subject, f.starts, f.makespan, f.lower_bound, f.bound, self.kind)


def schedule_pipeline(pipe: Pipeline, kind: str, engine: Engine, clock: Clock) -> Answer:
    """A pipeline; `kind`: "best", or the name of a published schedule."""
    if kind == "best":
        found, asked = _searched(pipe, engine, clock, None)
        return Answer(pipe, pipe.problem(), found, kind, None, True, asked)
    cut = with_chunks(kind, pipe).check()
    starts = starts_of(cut, orders(kind, cut))
    problem = cut.problem()
    makespan = max(int(s) + t.time for s, t in zip(starts, problem.tasks, strict=True))
    fits = _fits(problem, starts)
    if not fits:  # of no use for the search; what it needs is said
        return Answer(cut, problem, Found(starts, makespan, 0, search(shop(cut), Clock(0.0)).bound), kind, None, False)
    best, asked = _searched(cut, engine, clock, starts)
    shorter = best.makespan if best.makespan < makespan else None
    return Answer(cut, problem, replace(best, starts=starts, makespan=makespan), kind, shorter, True, asked)


def _searched(pipe: Pipeline, engine: Engine, clock: Clock, first: Ints | None) -> tuple[Found, EngineAnswer | None]:
    """The best schedule and bound; `first`: a schedule that fits (None: list schedules do).  An engine is asked first,
    and what it proposes, if it holds and is shorter, is where the native search begins.
    """
    asked, arrays = None, shop(pipe)
    if engine != "native":
        known = search(arrays, Clock(0.0)).starts if first is None else first
        most = int((known + arrays.times).max())
        memory = pipe.memory is not None and pipe.chunks > 1
        asked = consult(engine, pipe.problem(), arrays, most, memory, clock.share(ASKED_SHARE))
        if asked.starts is not None and asked.makespan is not None and asked.makespan <= most:
            first = in_order(pipe, asked.starts)
    rest = clock.at_most(None)
    return (search(arrays, rest) if first is None else search_chunks(pipe, rest, first)), asked


def schedule_graph(problem: ScheduleProblem, engine: Engine, clock: Clock) -> tuple[Answer, Overlapped]:
    """A graph of operators and collectives."""
    asked = None
    if engine != "native":
        most = overlap(problem, Clock(0.0)).found.makespan
        asked = consult(engine, problem, shop(problem), most, True, clock.share(ASKED_SHARE))
    done = overlap(problem, clock, known=None if asked is None else asked.starts)
    return Answer(problem, problem, done.found, "best", None, True, asked), done


def _fits(problem: ScheduleProblem, starts: Ints) -> bool:
    return all(
        limit is None or peak <= limit for peak, limit in zip(peaks(problem, starts), problem.limits, strict=True)
    )


def parse_times(value: str, stages: int) -> tuple[Times, ...]:
    """Times of every stage: forward, backward for inputs, backward for weights.  Raises `InputError`.

    >>> parse_times("1,2,1", 2)
    ((1, 2, 1), (1, 2, 1))
    """
    rows: list[Times] = []
    for part in value.split(";"):
        match = re.fullmatch(r"\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*", part)
        if match is None:
            raise InputError(
                f"--times {part[:60]!r}: write three integers, forward, backward for inputs and backward for weights, "
                f"such as 1,1,1; one triple per stage is separated by ';'"
            )
        rows.append((int(match[1]), int(match[2]), int(match[3])))
    if len(rows) == 1:
        rows *= stages
    if len(rows) != stages:
        raise InputError(f"--times has {len(rows)} triples for {stages} stages; give one, or one per stage")
    return tuple(rows)

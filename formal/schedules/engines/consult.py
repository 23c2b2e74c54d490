"""Puts a schedule to another solver, looks at what it proposes, and says what became of it.

Nothing that an engine says is believed.  Starts are used if they are whole numbers, one per task, and obey precedences,
streams and memory; then they are a schedule like any other, from which the native search goes on.  The bound that an
engine claims is printed and has no part in the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise

import numpy as np

from ....models.problem.selection_problem import Ints
from ....models.schedules.problem import ScheduleProblem
from ....models.text import InputError
from ...compiling import monotonic
from ...selection.model.clock import Clock
from ..drawing import peaks
from ..shop import Shop
from .child import EngineName, reply_in_time
from .question import question

MOST_PARTS: dict[EngineName, int] = {"ilp": 20_000, "smt": 40_000, "cp-sat": 400_000}
"""Parts that an engine is asked about at most: beyond, it finds nothing in minutes."""

MOST_TASKS = 10_000

MOST_START = 1 << 60

NEEDS: dict[EngineName, tuple[str, str]] = {
    "ilp": ("highspy", "pip install shardproof"),
    "smt": ("z3", "pip install shardproof"),
    "cp-sat": ("ortools", "pip install 'shardproof[solvers]'"),
}


@dataclass(frozen=True, eq=False)
class EngineAnswer:
    """One question and its answer.  `starts`: a schedule that holds, shape (tasks,), with its `makespan`; `unusable`:
    why what was proposed is none; `claims`: the bound that the engine claims.
    """

    engine: EngineName
    tasks: int
    parts: int
    seconds: float
    says: str
    starts: Ints | None
    makespan: int | None
    unusable: str | None
    claims: int | None

    def lines(self, text: Callable[[int], str], makespan: int) -> list[str]:
        """The conversation; `makespan`: of the schedule that the answer has."""
        head = (
            f"{self.engine} was asked about {self.tasks} tasks, {self.parts} open pairs: it answered {self.says!r} "
            f"after {self.seconds:.1f} s"
        )
        lines = [head if self.makespan is None else f"{head}, makespan {text(self.makespan)}"]
        if self.unusable is not None:
            lines.append(f"its proposal is not usable: {self.unusable}; the schedule is the native search's")
        elif self.makespan is None:
            lines.append("it proposed nothing: the schedule is the native search's")
        elif self.makespan > makespan:
            lines.append(f"the native search found a shorter schedule than {self.engine}")
        if self.claims is not None:
            wrong = ", which is wrong: a shorter one is here" if self.claims > makespan else ", which is not believed"
            lines.append(f"it claims that none is shorter than {text(self.claims)}{wrong}: the proof is native")
        return lines

    def to_json(self, number: Callable[[int], float], makespan: int) -> dict[str, object]:
        """The same as data."""
        return {
            "engine": self.engine,
            "tasks": self.tasks,
            "parts": self.parts,
            "seconds": round(self.seconds, 3),
            "says": self.says,
            "makespan": None if self.makespan is None else number(self.makespan),
            "unusable": self.unusable,
            "claims": None if self.claims is None else number(self.claims),
            "claim_is_wrong": self.claims is not None and self.claims > makespan,
        }


def consult(
    engine: EngineName, problem: ScheduleProblem, shop: Shop, most: int, memory: bool, clock: Clock, threads: int = 1
) -> EngineAnswer:
    """Ask `engine` for a schedule no longer than `most`.  `memory`: limits are to be stated; otherwise links of `shop`
    keep them.  `InputError` if it is not installed, or the problem is too large for it.
    """
    package, install = NEEDS[engine]
    if find_spec(package) is None:
        raise InputError(f"engine {engine} needs the package {package}, which is not installed: {install}")
    if len(shop.times) > MOST_TASKS:
        raise InputError(f"engine {engine}: {len(shop.times)} tasks, at most {MOST_TASKS} can be asked about")
    asked = question(problem, shop, most, memory)
    if asked.parts > MOST_PARTS[engine]:
        raise InputError(
            f"engine {engine}: {problem.name}: {asked.parts} open pairs, at most {MOST_PARTS[engine]} can be asked "
            f"about; use --engine native, or a smaller problem"
        )
    begun, given = monotonic(), clock.allowance()
    reply = reply_in_time(engine, asked, given, threads)
    spent = monotonic() - begun
    clock.charge(given.steps or 0)
    starts, unusable = None, None
    if reply.starts is not None:
        starts = whole(reply.starts, len(asked.times))
        unusable = f"it is not {len(asked.times)} whole numbers" if starts is None else broken(problem, starts)
        if unusable is not None:
            starts = None
    makespan = None if starts is None else int((starts + shop.times).max())
    claims = reply.claims if type(reply.claims) is int and abs(reply.claims) < MOST_START else None
    return EngineAnswer(engine, len(asked.times), asked.parts, spent, reply.says, starts, makespan, unusable, claims)


def whole(value: object, tasks: int) -> Ints | None:
    """The starts as an array; None unless they are one integer in range per task.

    >>> whole([0, 3], 2), whole([0, 3.0], 2), whole([0, True], 2), whole([0], 2), whole("ab", 2), whole([0, 1 << 70], 2)
    (array([0, 3]), None, None, None, None, None)
    """
    if not isinstance(value, list) or len(value) != tasks:
        return None
    if not all(type(x) is int and abs(x) < MOST_START for x in value):
        return None
    return np.array(value, dtype=np.int64)


def broken(problem: ScheduleProblem, starts: Ints) -> str | None:
    """What a schedule breaks; None if it holds."""
    begin = [int(x) for x in starts]
    ends = [s + t.time for s, t in zip(begin, problem.tasks, strict=True)]
    for k, s in enumerate(begin):
        if s < 0:
            return f"task {problem.tasks[k].name} starts at {s}"
    for p in problem.precedences:
        if begin[p.after] < ends[p.before] + p.lag:
            return f"{problem.tasks[p.after].name} starts before {problem.tasks[p.before].name} is there"
    by_stream: list[list[int]] = [[] for _ in problem.streams]
    for k, t in enumerate(problem.tasks):
        for s in t.streams:
            by_stream[s].append(k)
    for tasks in by_stream:
        for a, b in pairwise(sorted(tasks, key=lambda t: (begin[t], ends[t]))):
            if begin[b] < ends[a]:
                return f"{problem.tasks[a].name} and {problem.tasks[b].name} run on one stream at the same time"
    for d, (peak, limit) in enumerate(zip(peaks(problem, starts), problem.limits, strict=True)):
        if limit is not None and peak > limit:
            return f"device {d} holds {peak}, its limit is {limit}"
    return None

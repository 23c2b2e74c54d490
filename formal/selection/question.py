"""A selection problem and how its solution is looked for: what `solve` and `relax_resources` take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Literal

from ...models.problem.selection_problem import SelectionProblem
from .model.clock import Clock, Progress
from .options import Limits, Options

Engine = Literal["native", "ilp", "smt", "cp-sat"]


@dataclass(frozen=True, eq=False)
class Question:
    """`gap`: stop when (cost - bound) <= gap * |cost|.  `engine`: who looks for the solution (`engines/consult.py`);
    proofs are native.  `clock`: one that runs already, and ends the search when it is over.  `known`: solutions that
    the search begins with, and is never worse than; `brought`: solutions that are taken when the time is over and
    nothing better was found (`fallback`).  `options`: every tuning constant.
    """

    problem: SelectionProblem
    _: KW_ONLY
    gap: Fraction = Fraction(0)
    engine: Engine = "native"
    progress: Progress | None = None
    threads: int = 1
    clock: Clock | None = None
    known: Iterable[tuple[int, ...]] = ()
    brought: Iterable[tuple[int, ...]] = ()
    options: Options | None = None


@dataclass(frozen=True, eq=False)
class SolveQuestion(Question):
    """`time_limit_s` counts from now.  `alone`: the engine decides, and the proof is its own too (`engines/alone.py`).
    `limits`: those of the factored search, which is then the one that runs.
    """

    _: KW_ONLY
    time_limit_s: float | None = None
    alone: bool = False
    limits: Limits | None = None

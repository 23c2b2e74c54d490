"""Claims: what is said about a problem, and the closed words for status and verdict.

`Verdict` is what a checker says, `Status` what a solver says.  Neither has a truth value, and `unknown` never
becomes anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NoReturn


class _Closed(Enum):
    def __bool__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no truth value; compare with a member")


class Verdict(_Closed):
    """What a checker says about a claim."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Status(_Closed):
    """What a solver says about a problem."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Optimal:
    """`solution` is feasible, costs `cost`, and nothing costs less."""

    solution: tuple[int, ...]
    cost: int


@dataclass(frozen=True)
class WithinGap:
    """`solution` is feasible, costs `cost`, and nothing costs less than `lower_bound`."""

    solution: tuple[int, ...]
    cost: int
    lower_bound: int


@dataclass(frozen=True)
class LowerBound:
    """Nothing feasible costs less than `lower_bound`; no solution is offered."""

    lower_bound: int


@dataclass(frozen=True)
class Infeasible:
    """Nothing is feasible.  `steps` are the steps of the resource rows that the proof rests on, `vertices` those that
    take part; `least_limit` is the smallest limit for which a solution is known (None: not known), `witness` that
    solution, whose peak it is."""

    steps: tuple[int, ...]
    vertices: tuple[int, ...]
    least_limit: int | None
    witness: tuple[int, ...] | None


SelectionClaim = Optimal | WithinGap | LowerBound | Infeasible

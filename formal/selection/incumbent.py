"""The best solution so far, and other engines that may offer one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...models.problems import SelectionProblem
from .draft import INFINITY
from .network import exact_cost


class Incumbent:
    """Best feasible solution so far; only exact evaluation of the original problem lets one in."""

    def __init__(self, problem: SelectionProblem) -> None:
        self.problem = problem
        self.solution: tuple[int, ...] | None = None
        self.cost = INFINITY

    def offer(self, x: tuple[int, ...]) -> bool:
        """Keep `x` if it is feasible and cheaper."""
        cost = exact_cost(self.problem, x)
        if cost is None or cost >= self.cost:
            return False
        self.solution, self.cost = x, cost
        return True


@dataclass(frozen=True)
class Helper:
    """Another engine: asked once, for the first subproblem on the way down whose `size` is at most `largest`."""

    size: Callable[[SelectionProblem], int]
    largest: int
    ask: Callable[[SelectionProblem, float | None], tuple[int, ...] | None]

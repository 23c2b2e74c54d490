"""The best solution so far."""

from __future__ import annotations

from ...models.problem.selection_problem import SelectionProblem
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

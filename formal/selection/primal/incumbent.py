"""The best solution so far, known as the incumbent."""

from __future__ import annotations

from ....models.problem.selection_problem import SelectionProblem
from ..model.factored import exact_cost
from ..model.infinity import INFINITY


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

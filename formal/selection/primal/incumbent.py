"""The best solution so far, known as the incumbent."""

from __future__ import annotations

from collections.abc import Callable

from ....models.problem.selection_problem import SelectionProblem
from ..model.factored import exact_cost
from ..model.infinity import INFINITY

Accepts = Callable[[tuple[int, ...]], bool]


class Incumbent:
    """Best feasible solution so far; only exact evaluation of the original problem lets one in, and `accepts`, which
    knows what its rows do not say.
    """

    def __init__(self, problem: SelectionProblem, accepts: Accepts | None = None) -> None:
        self.problem, self.accepts = problem, accepts
        self.solution: tuple[int, ...] | None = None
        self.cost = INFINITY

    def offer(self, x: tuple[int, ...]) -> bool:
        """Keep `x` if it is feasible and cheaper."""
        cost = exact_cost(self.problem, x)
        if cost is None or cost >= self.cost or not (self.accepts is None or self.accepts(x)):
            return False
        self.solution, self.cost = x, cost
        return True

"""Solves linear problems of the fits by HiGHS through cvxpy, which keeps its banner to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..highs import without_banner

if TYPE_CHECKING:
    import cvxpy


def solve(problem: cvxpy.Problem) -> str:
    """The solver's status; the variables hold the solution."""
    import cvxpy

    with without_banner():
        problem.solve(solver=cvxpy.HIGHS)
    return str(problem.status)

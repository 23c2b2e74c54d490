"""Writes selection problems for other solvers.  What they say is a candidate; `engines/consult.py`
evaluates it, the native search proves the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .....models.problem.selection_problem import Ints, SelectionProblem


@dataclass(frozen=True)
class Reply:
    """What an engine said.  `solution`: its choices, not yet believed; `says`: its own status word; `final`: it
    says that nothing is cheaper (or fits).
    """

    solution: tuple[int, ...] | None
    says: str
    final: bool = False


def row_terms(problem: SelectionProblem, event: int) -> tuple[dict[int, Ints], int]:
    """The resource row at a step: per vertex the amount of every choice beyond its least one, and what is left of the
    limit for these.

    Vertices whose choices all use the same are left out.  Raises ValueError for a problem without a limit.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Usage, Vertex
    >>> p = SelectionProblem("one", (Vertex("a", np.array([3, 1])),), (), (), (Usage(0, 0, 2, np.array([4, 9])),), 10)
    >>> row_terms(p, 1)
    ({0: array([0, 5])}, 6)
    """
    if problem.limit is None:
        raise ValueError("resource rows need a limit")
    amounts: dict[int, Ints] = {}
    for u in problem.usages:
        if u.start <= event < u.end:
            amounts[u.vertex] = amounts[u.vertex] + u.amount if u.vertex in amounts else u.amount
    left = problem.limit - sum(int(a.min()) for a in amounts.values())
    return {v: a - int(a.min()) for v, a in amounts.items() if int(a.max()) > int(a.min())}, left


def all_events(problem: SelectionProblem) -> Sequence[int]:
    """The steps at which a row has to hold; none without a limit."""
    return () if problem.limit is None else problem.events()

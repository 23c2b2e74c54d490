"""Writes selection problems for other solvers.  What they say is a candidate; `engines/consult.py`
evaluates it, the native search proves the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem


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


def exact_costs(problem: SelectionProblem) -> tuple[list[dict[int, int]], list[dict[tuple[int, int], int]]]:
    """Exact costs of what is allowed, per vertex by choice, per edge by row and column."""
    fine, bits, n = problem.fine_parts(), problem.fine_bits, len(problem.vertices)
    choices: list[dict[int, int]] = []
    for v, vertex in enumerate(problem.vertices):
        allowed = np.flatnonzero(vertex.cost < FORBIDDEN).tolist()
        choices.append({a: (int(vertex.cost[a]) << bits) + (int(fine[v][a]) if fine else 0) for a in allowed})
    entries: list[dict[tuple[int, int], int]] = []
    for e in problem.edges:
        table = problem.tables[e.table]
        digits = fine[n + e.table] if fine else None
        rows, cols = ends_of(problem, e.u, e.rows), ends_of(problem, e.v, e.cols)
        entries.append(
            {
                (r, c): (int(table[r, c]) << bits) + (0 if digits is None else int(digits[r, c]))
                for r in rows
                for c in cols
                if table[r, c] < FORBIDDEN
            }
        )
    return choices, entries


def ends_of(problem: SelectionProblem, v: int, index: Ints | None) -> dict[int, list[int]]:
    """Rows (or columns) that vertex `v` can reach, with its choices there."""
    out: dict[int, list[int]] = {}
    for a in range(problem.vertices[v].cost.size):
        out.setdefault(a if index is None else int(index[a]), []).append(a)
    return out

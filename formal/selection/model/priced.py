"""This module puts prices of the resource rows into the costs of a problem, known as Lagrangian relaxation of the
rows.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import SelectionProblem, Vertex
from .factored import INFINITE, saturate

Floats = NDArray[np.float64]


def priced(problem: SelectionProblem, events: list[int], n: Floats) -> SelectionProblem:
    """The whole problem without rows, prices in its costs."""
    prefix = np.concatenate([[0.0], np.cumsum(n)])
    added: dict[int, Floats] = {}
    for u in problem.usages:
        w = float(prefix[bisect_left(events, u.end)] - prefix[bisect_left(events, u.start)])
        if w > 0.0:
            added[u.vertex] = added.get(u.vertex, np.zeros(u.amount.size)) + w * u.amount
    return replace(plus(problem, added), limit=None, usages=())


def plus(problem: SelectionProblem, added: dict[int, Floats]) -> SelectionProblem:
    """`problem` with `added[v]`, rounded, in the costs of v; what a steep price puts beyond int64 is forbidden.

    >>> from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem, Vertex
    >>> one = SelectionProblem("one", (Vertex("a", np.array([3, 5])),), (), ())
    >>> dear = plus(one, {0: np.array([0.6, 1e40])}).vertices[0].cost
    >>> int(dear[0]), int(dear[1]) == FORBIDDEN
    (4, True)
    """
    vertices = list(problem.vertices)
    for v, w in added.items():
        whole = np.rint(np.minimum(w, float(INFINITE))).astype(np.int64)
        vertices[v] = Vertex(vertices[v].name, saturate(vertices[v].cost + whole))
    return replace(problem, vertices=tuple(vertices))

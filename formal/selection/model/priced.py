"""Puts prices of the resource rows into the costs of a problem, known as Lagrangian relaxation of the
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints, SelectionProblem, Vertex
from .factored import INFINITE, saturate, whole
from .resources import Rows

Floats = NDArray[np.float64]


def priced_problem(rows: Rows, n: Floats) -> SelectionProblem:
    """The whole problem without its `rows`, prices `n` over their events in its costs."""
    problem = rows.problem
    return replace(plus(problem, rows.price_usage(whole(problem), n)), limit=None, usages=())


def plus(problem: SelectionProblem, added: Sequence[Ints | Floats | None]) -> SelectionProblem:
    """`problem` with `added[v]`, rounded, in the costs of v; what a steep price puts beyond int64 is forbidden.

    >>> from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem, Vertex
    >>> one = SelectionProblem("one", (Vertex("a", np.array([3, 5])),), (), ())
    >>> dear = plus(one, [np.array([0.6, 1e40])]).vertices[0].cost
    >>> int(dear[0]), int(dear[1]) == FORBIDDEN
    (4, True)
    """
    vertices = list(problem.vertices)
    for v, w in enumerate(added):
        if w is not None and w.any():
            whole_units = np.rint(np.minimum(w, float(INFINITE))).astype(np.int64)
            vertices[v] = Vertex(vertices[v].name, saturate(vertices[v].cost + whole_units))
    return replace(problem, vertices=tuple(vertices))

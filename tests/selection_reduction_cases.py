"""Tiny selection problems on which every reduction rule fires, and their optimum by enumeration, vectorised.

Nothing here shares code with the reducer or the replay: the optimum is taken over the array of all assignments.
"""

from __future__ import annotations

import numpy as np

from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem


def landscape(problem: SelectionProblem) -> np.ndarray:
    """Cost of every assignment, FORBIDDEN where it is not feasible; one axis per vertex."""
    sizes = [v.cost.size for v in problem.vertices]
    total = np.full(sizes, problem.constant, dtype=np.int64)
    bad = np.zeros(sizes, dtype=bool)

    def along(a: np.ndarray, *axes: int) -> np.ndarray:
        shape = [1] * len(sizes)
        for axis, size in zip(axes, a.shape, strict=True):
            shape[axis] = size
        return a.reshape(shape)

    for v, vertex in enumerate(problem.vertices):
        total += along(np.where(vertex.cost >= FORBIDDEN, 0, vertex.cost), v)
        bad |= along(vertex.cost >= FORBIDDEN, v)
    for e in problem.edges:
        t = problem.tables[e.table]
        t = t if e.rows is None else t[e.rows]
        t = t if e.cols is None else t[:, e.cols]
        ends = (e.u, e.v)
        if e.u > e.v:
            t, ends = t.T, (e.v, e.u)
        total += along(np.where(t >= FORBIDDEN, 0, t), *ends)
        bad |= along(t >= FORBIDDEN, *ends)
    if problem.limit is not None:
        for step in {u.start for u in problem.usages}:
            use = np.zeros(sizes, dtype=np.int64)
            for u in problem.usages:
                if u.start <= step < u.end:
                    use += along(u.amount, u.vertex)
            bad |= use > problem.limit
    total[bad] = FORBIDDEN
    return total

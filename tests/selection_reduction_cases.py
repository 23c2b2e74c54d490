"""Tiny selection problems on which every reduction rule fires, and their optimum by enumeration, vectorised.

Nothing here shares code with the reducer or the replay: the optimum is taken over the array of all assignments.
"""

from __future__ import annotations

import random

import numpy as np

from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Usage, Vertex


def instance(seed: int, n: int = 6, k: int = 4) -> SelectionProblem:
    """1 to `n` vertices of 1 to `k` choices: trees, cycles, isolated vertices, parallel edges in both directions;
    tables that are random, functional, separable, constant or full of forbidden entries; usages with empty, equal and
    nested intervals; tight, loose or no limit."""
    rng = random.Random(seed)
    n = rng.randint(1, n)
    few = rng.random() < 0.5  # few distinct costs: ties
    top = rng.choice([2, 3, 9])
    low = rng.choice([0, 0, -3])
    hole = rng.choice([0.0, 0.1, 0.3, 0.5])

    def cost() -> int:
        return rng.randint(low, top) if few else rng.randint(-20, 99) if low else rng.randint(0, 99)

    sizes = [rng.randint(1, k) for _ in range(n)]
    vertices = []
    ordered = [rng.random() < 0.3 for _ in range(n)]  # costs and usages ascend together
    for v, size in enumerate(sizes):
        costs = [FORBIDDEN + rng.choice([0, 3]) if rng.random() < hole / 3 else cost() for _ in range(size)]
        vertices.append(Vertex(f"v{v}", np.array(sorted(costs) if ordered[v] else costs, dtype=np.int64)))

    def table(rows: int, cols: int) -> np.ndarray:
        kind = rng.choice(["random", "random", "functional", "functional", "separable", "holes", "line", "gate"])
        out = np.array([[cost() for _ in range(cols)] for _ in range(rows)], dtype=np.int64)
        if kind == "functional":
            g = [rng.randrange(rows) for _ in range(cols)]
            if rows == cols and rng.random() < 0.6:
                g = rng.sample(range(rows), rows)
            out[np.arange(rows)[:, None] != np.array(g)[None, :]] = FORBIDDEN
            return out.T.copy() if rows == cols and rng.random() < 0.5 else out
        if kind == "separable":
            return np.add.outer(out[:, 0], out[0])
        if kind == "gate":
            return np.array(
                [[FORBIDDEN if rng.random() < 0.4 else 0 for _ in range(cols)] for _ in range(rows)], dtype=np.int64
            )
        if kind == "line":
            out[rng.randrange(rows)] = FORBIDDEN
        if kind != "random" or rng.random() < 0.5:
            out[np.array([[rng.random() < hole for _ in range(cols)] for _ in range(rows)])] = FORBIDDEN
        return out

    tables: list[np.ndarray] = []
    edges: list[Edge] = []
    for _ in range(rng.randint(0, rng.choice([n, 2 * n])) if n > 1 else 0):
        u, v = rng.sample(range(n), 2)
        if edges and rng.random() < 0.15:
            u, v = rng.choice([(edges[-1].u, edges[-1].v), (edges[-1].v, edges[-1].u)])
        if tables and rng.random() < 0.15:
            t = rng.randrange(len(tables))
            rows, cols = tables[t].shape
            edges.append(
                Edge(
                    u,
                    v,
                    t,
                    *(
                        np.array([rng.randrange(s) for _ in range(sizes[w])], dtype=np.int64)
                        for s, w in ((rows, u), (cols, v))
                    ),
                )
            )
        else:
            tables.append(table(sizes[u], sizes[v]))
            edges.append(Edge(u, v, len(tables) - 1))
    usages, limit = [], None
    if rng.random() < 0.8:
        for v in range(n):
            for _ in range(rng.choice([0, 0, 1, 1, 2])):
                start = rng.randint(-1, 5)
                same = rng.random() < 0.25
                amount = [rng.randint(0, 6)] * sizes[v] if same else [rng.randint(0, 6) for _ in range(sizes[v])]
                usages.append(
                    Usage(
                        v,
                        start,
                        start + rng.choice([-1, 0, 1, 1, 2, 3, 5]),
                        np.array(sorted(amount) if ordered[v] else amount, dtype=np.int64),
                    )
                )
        limit = rng.randint(0, rng.choice([6, 12, 24]))
    return SelectionProblem(
        f"tiny {seed}", tuple(vertices), tuple(tables), tuple(edges), tuple(usages), limit, rng.randint(-5, 5)
    ).check()


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

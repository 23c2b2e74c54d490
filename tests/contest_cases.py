"""Problems in the manner of the contest on intra-operator parallelism, made up: chains of operators with skip links,
layout changes that cost or are forbidden, usage over intervals, and a limit that binds.  Deterministic in the seed.
"""

from __future__ import annotations

import random

import numpy as np

from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Usage, Vertex


def contest_problem(
    seed: int, layers: int = 40, width: int = 3, *, crosscuts: float = 0.3, tight: float = 0.5
) -> SelectionProblem:
    """`layers` x `width` operators, each followed by up to three vertices that copy or convert its layout.

    `crosscuts`: share of edges that allow equal layouts only; `tight`: where the limit lies between the least use of
    every vertex alone
    (0) and that of the cheapest choices (1).
    """
    rng = random.Random(seed)
    kinds = [rng.randint(3, 7) for _ in range(5)]
    costs: list[np.ndarray] = []
    amounts: list[np.ndarray] = []
    spans: list[tuple[int, int]] = []
    edges: list[Edge] = []
    tables: list[np.ndarray] = []

    def vertex(k: int, scale: int, start: int, end: int) -> int:
        cost = np.array([rng.randint(0, scale) for _ in range(k)], dtype=np.int64)
        costs.append(cost)
        order = np.argsort(-cost, kind="stable")  # cheap choices replicate: they use more
        amount = np.zeros(k, dtype=np.int64)
        for rank, a in enumerate(order.tolist()):
            amount[a] = (1 + rank) * rng.randint(200, 400)
        amounts.append(amount)
        spans.append((start, end))
        return len(costs) - 1

    def link(u: int, v: int, same: bool) -> None:
        shape = (costs[u].size, costs[v].size)
        table = np.array([[rng.randint(0, 4000) for _ in range(shape[1])] for _ in range(shape[0])], dtype=np.int64)
        for a in range(min(shape)):
            table[a, a] = 0
        if same and shape[0] == shape[1]:
            table[~np.eye(shape[0], dtype=bool)] = FORBIDDEN
        edges.append(Edge(u, v, len(tables)))
        tables.append(table)

    lanes: list[int] = []
    for w in range(width):
        lanes.append(vertex(kinds[w % 5], 5000, 0, 3))
    old = list(lanes)
    for layer in range(1, layers):
        for w in range(width):
            k = kinds[rng.randrange(5)] if rng.random() < 0.5 else costs[lanes[w]].size
            at = 3 * layer
            op = vertex(k, 5000, at, at + rng.randint(1, 12))
            link(lanes[w], op, rng.random() < crosscuts)
            if rng.random() < 0.4:
                link(old[rng.randrange(width)], op, False)
            tail = op
            for _ in range(rng.randint(0, 2)):
                copy = vertex(k, 50, at + 1, at + 1 + rng.choice([0, 1, 4]))
                if rng.random() < 0.5:
                    link(tail, copy, True)
                else:
                    link(copy, tail, True)
                tail = copy
            lanes[w] = tail
        if layer % 5 == 0:
            old = list(lanes)
    usages = tuple(Usage(i, s, e, a, f"t{i}") for i, ((s, e), a) in enumerate(zip(spans, amounts, strict=True)))
    free = SelectionProblem(
        f"made up {seed}",
        tuple(Vertex(f"n{i}", c) for i, c in enumerate(costs)),
        tuple(tables),
        tuple(edges),
        usages,
        1 << 40,
    ).check()
    least = free.peak_of(tuple(int(a.argmin()) for a in amounts))[0]
    most = free.peak_of(tuple(int(c.argmin()) for c in costs))[0]
    limit = least + int(tight * (most - least))
    return SelectionProblem(free.name, free.vertices, free.tables, free.edges, usages, limit).check()

"""Numbers the repetitions of a problem: in which layer every vertex lies."""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints, SelectionProblem
from .interface import neighbours
from .quotient import Quotient


def layers(problem: SelectionProblem, found: Quotient) -> Ints:
    """Number of the repetition of every vertex, shape (vertices,): members of a class in order, backwards in classes
    that run against the first.

    Whether a class runs with or against its neighbour is read off the edges between them; vertices of rare classes join
    a neighbour.
    """
    n = len(problem.vertices)
    members, full = found.members, found.frequent_classes
    most = max(len(g) for g in members.values())
    rank = np.zeros(n, dtype=np.int64)
    for g in members.values():
        rank[g] = np.arange(len(g))
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    around = neighbours(problem)
    for e in problem.edges:
        c, d = found.of_vertex[e.u], found.of_vertex[e.v]
        if c != d and c in full and d in full:
            pairs.setdefault((c, d), []).append((int(rank[e.u]), int(rank[e.v])))
    links: dict[
        int, list[tuple[int, int, int]]
    ] = {}  # class -> (other, sign, offset): rank there = sign * rank here + offset
    for (c, d), found_pairs in pairs.items():
        differences = {b - a for a, b in found_pairs}
        sums = {a + b for a, b in found_pairs}
        if len(found_pairs) < 2 or min(len(differences), len(sums)) > 2:
            continue
        sign, offset = (1, min(differences)) if len(differences) <= len(sums) else (-1, max(sums))
        links.setdefault(c, []).append((d, sign, offset))
        links.setdefault(d, []).append((c, sign, -offset if sign == 1 else offset))
    place: dict[int, tuple[int, int]] = {}
    start = next(c for c in members if c in full)
    place[start] = (1, 0)
    queue = [start]
    for c in queue:
        a, b = place[c]
        for d, sign, offset in links.get(c, []):
            if d not in place:  # layer = a rank_c + b and rank_c = sign (rank_d - offset)
                place[d] = (a * sign, b - a * sign * offset)
                queue.append(d)
    layer = np.full(n, -1, dtype=np.int64)
    for c, (a, b) in place.items():
        layer[members[c]] = np.clip(a * rank[members[c]] + b, 0, most - 1)
    todo = [v for v in range(n) if layer[v] >= 0]
    for v in todo:
        for w in around[v]:
            if layer[w] < 0:
                layer[w] = layer[v]
                todo.append(w)
    return np.maximum(layer, 0)

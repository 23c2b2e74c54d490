"""This module finds what repetitions do not describe: the interface between blocks that repeat and the rest, and how
far every vertex is from it.
"""

from __future__ import annotations

from collections import Counter

from ....models.problem.selection_problem import SelectionProblem
from ..options.bound import BOUND
from .quotient import Quotient


def interface(problem: SelectionProblem, found: Quotient) -> set[int]:
    """Ends of the edges that the quotient lacks."""
    return {v for e, k in zip(problem.edges, found.of_edge, strict=True) if k is None for v in (e.u, e.v)}


def rare(found: Quotient) -> set[int]:
    """Vertices whose class has less than half as many members as the largest."""
    size = Counter(found.of_vertex)
    most = max(size.values())
    return {v for v, c in enumerate(found.of_vertex) if size[c] * 2 < most}


def ends(problem: SelectionProblem, found: Quotient, reach: int, hub: int = BOUND.hub) -> set[int]:
    """Rare vertices, and those within `reach` edges of an interface."""
    return rare(found) | {v for v, d in enumerate(distances(problem, interface(problem, found), hub)) if d <= reach}


def distances(problem: SelectionProblem, seeds: set[int], hub: int = BOUND.hub) -> list[int]:
    """Edges between every vertex and the nearest of `seeds`, hubs not crossed; vertices that are not reached are
    farthest.
    """
    around: list[list[int]] = [[] for _ in problem.vertices]
    for e in problem.edges:
        around[e.u].append(e.v)
        around[e.v].append(e.u)
    far = len(problem.vertices)
    distance = [far] * far
    reached = sorted(seeds)
    for v in reached:
        distance[v] = 0
    for v in reached:
        if len(around[v]) >= hub:
            continue
        for w in around[v]:
            if distance[w] == far:
                distance[w] = distance[v] + 1
                reached.append(w)
    return distance

"""Finds what repetitions do not describe: the interface between blocks that repeat and the rest, and what
lies near it.
"""

from __future__ import annotations

from ....models.problem.selection_problem import SelectionProblem
from ..options.bound import BOUND
from .quotient import Quotient


def interface(problem: SelectionProblem, found: Quotient) -> set[int]:
    """Ends of the edges that the quotient lacks."""
    return {v for e, k in zip(problem.edges, found.of_edge, strict=True) if k is None for v in (e.u, e.v)}


def ends(problem: SelectionProblem, found: Quotient, reach: int, hub: int = BOUND.hub) -> set[int]:
    """Vertices of rare classes, and those within `reach` edges of the interface, hubs not crossed."""
    around, near = neighbours(problem), interface(problem, found)
    for _ in range(reach):
        near |= {w for v in near if len(around[v]) < hub for w in around[v]}
    return near | {v for v, c in enumerate(found.of_vertex) if c not in found.frequent_classes}


def neighbours(problem: SelectionProblem) -> list[list[int]]:
    """The other ends of the edges at every vertex."""
    around: list[list[int]] = [[] for _ in problem.vertices]
    for e in problem.edges:
        around[e.u].append(e.v)
        around[e.v].append(e.u)
    return around

"""A problem with fewer choices: for forced decisions, for other engines, and for questions such as "what if".

The restricted problem keeps vertices, edges, rows and the shared tables; only costs, maps and amounts are cut to the kept choices.
A solution of it, mapped back, costs the same and uses the same; conversely every solution inside the domains is one of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...models.problems import Edge, Fine, Ints, ProblemError, SelectionProblem, Usage, Vertex

Back = Callable[[tuple[int, ...]], tuple[int, ...]]


def restrict(problem: SelectionProblem, domains: Mapping[int, tuple[int, ...]]) -> tuple[SelectionProblem, Back]:
    """(`problem` where vertex v may only take `domains[v]`, map of its solutions back); vertices not named keep every choice.

    Raises `ProblemError` for a vertex or choice that does not exist, or an empty domain.

    >>> import numpy as np
    >>> from shardproof.models.problems import SelectionProblem, Vertex
    >>> p = SelectionProblem("one", (Vertex("a", np.array([3, 1, 2])),), (), ())
    >>> q, back = restrict(p, {0: (0, 2)})
    >>> q.vertices[0].cost.tolist(), back((1,))
    ([3, 2], (2,))
    """
    kept: dict[int, Ints] = {}
    for v, choices in domains.items():
        if not 0 <= v < len(problem.vertices):
            raise ProblemError("restriction", f"vertex {v} does not exist")
        place = f"restriction of vertex {v} {problem.vertices[v].name!r}"
        if not choices:
            raise ProblemError(place, "no choice is left")
        size = problem.domain_size(v)
        wrong = [a for a in choices if not 0 <= a < size]
        if wrong:
            raise ProblemError(place, f"choice {wrong[0]} is not in 0..{size - 1}")
        if len(choices) < size or tuple(choices) != tuple(range(size)):
            kept[v] = np.array(sorted(set(choices)), dtype=np.int64)

    def cut(v: int, index: Ints | None) -> Ints | None:
        if v not in kept:
            return index
        return kept[v] if index is None else index[kept[v]]

    vertices = tuple(Vertex(x.name, x.cost[kept[v]]) if v in kept else x for v, x in enumerate(problem.vertices))
    edges = tuple(Edge(e.u, e.v, e.table, cut(e.u, e.rows), cut(e.v, e.cols)) for e in problem.edges)
    usages = tuple(
        Usage(u.vertex, u.start, u.end, u.amount[kept[u.vertex]], u.name) if u.vertex in kept else u for u in problem.usages
    )

    fine = problem.fine
    if fine is not None:
        parts = problem.fine_parts()
        digits = [part[kept[v]] if v in kept else part.reshape(-1) for v, part in enumerate(parts)]
        fine = Fine(fine.bits, np.concatenate(digits))

    def back(x: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(kept[v][a]) if v in kept else a for v, a in enumerate(x))

    return replace(problem, vertices=vertices, edges=edges, usages=usages, fine=fine), back

"""Restriction of a selection problem to some choices of some vertices, and the way back.

    min { F(x) : x_v in A_v for v in `allowed` }  =  min F' of the smaller problem;    x_v = kept_v[x'_v]

Tables are shared with the original problem; only the maps of the edges are cut.  "Same optimum" holds in both directions:
`lift` keeps costs and usages exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..models.problems import Edge, Ints, ProblemError, SelectionProblem, Usage, Vertex


@dataclass(frozen=True, eq=False)
class Restricted:
    """`kept[v]`: choices of the original vertex that are left, ascending; None where all are."""

    problem: SelectionProblem
    kept: tuple[Ints | None, ...]

    def lift(self, x: tuple[int, ...]) -> tuple[int, ...]:
        """The same solution in the numbers of the original problem."""
        return tuple(a if k is None else int(k[a]) for a, k in zip(x, self.kept, strict=True))


def restrict(problem: SelectionProblem, allowed: Mapping[int, tuple[int, ...]]) -> Restricted:
    """`problem` where vertex v may only take the choices `allowed[v]`.  Raises `ProblemError` for a choice that does not exist.

    >>> import numpy as np
    >>> p = SelectionProblem("p", (Vertex("a", np.array([3, 1, 2])),), (), ())
    >>> r = restrict(p, {0: (2, 0)})
    >>> r.problem.cost_of((1,)), r.lift((1,))
    (2, (2,))
    """
    kept: list[Ints | None] = [None] * len(problem.vertices)
    for v, choices in sorted(allowed.items()):
        if not 0 <= v < len(problem.vertices):
            raise ProblemError(f"vertex {v}", f"does not exist; there are {len(problem.vertices)}")
        place, size = f"vertex {v} {problem.vertices[v].name!r}", problem.domain_size(v)
        if not choices:
            raise ProblemError(place, "no choice is allowed")
        for a in choices:
            if not 0 <= a < size:
                raise ProblemError(place, f"choice {a} is not in 0..{size - 1}")
        kept[v] = np.array(sorted(set(choices)), dtype=np.int64)

    def cut(index: Ints | None, v: int) -> Ints | None:
        k = kept[v]
        return index if k is None else k if index is None else index[k]

    vertices = tuple(x if k is None else Vertex(x.name, x.cost[k]) for x, k in zip(problem.vertices, kept, strict=True))
    edges = tuple(Edge(e.u, e.v, e.table, cut(e.rows, e.u), cut(e.cols, e.v)) for e in problem.edges)
    usages = tuple(u if (k := kept[u.vertex]) is None else Usage(u.vertex, u.start, u.end, u.amount[k], u.name) for u in problem.usages)
    small = replace(problem, name=problem.name + ", restricted", vertices=vertices, edges=edges, usages=usages)
    return Restricted(small.check(), tuple(kept))


def without(problem: SelectionProblem, vertex: int, choice: int) -> dict[int, tuple[int, ...]]:
    """`allowed` for everything but one choice of one vertex.  Raises `ProblemError` if that was the only one."""
    rest = tuple(a for a in range(problem.domain_size(vertex)) if a != choice)
    if not rest:
        raise ProblemError(f"vertex {vertex} {problem.vertices[vertex].name!r}", "has only one choice")
    return {vertex: rest}

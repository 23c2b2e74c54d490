"""Makes a problem with fewer choices: for forced decisions, for other engines, and for questions such as
"what if".

The restricted problem keeps vertices, edges, rows and the shared tables; only costs, maps and amounts are cut to the
kept choices.  A solution of it, mapped back, costs the same and uses the same; conversely every solution inside the
domains is one of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from ....models.problem.selection_problem import (
    FORBIDDEN,
    Edge,
    Fine,
    Ints,
    ProblemError,
    SelectionProblem,
    Usage,
    Vertex,
)
from ....proofs.selection.certificates import Dual, Record
from .factored import saturate
from .resources import added_up


@dataclass(frozen=True, eq=False)
class Restriction:
    """A problem with fewer choices (`model/transformation.py`); `kept[v]`: those of v, where it has lost some."""

    inner: SelectionProblem
    kept: Mapping[int, Ints]

    def solution_back(self, solution: tuple[int, ...]) -> tuple[int, ...]:
        """The same choices by their numbers in the outer problem."""
        return tuple(int(self.kept[v][a]) if v in self.kept else a for v, a in enumerate(solution))

    def messages_there(self, dual: Dual) -> Dual:
        """The same: the tables are."""
        return Dual(dual.to_u, dual.to_v, dual.denominator, dual.multipliers)

    def proof_back(self, proof: Record) -> None:
        """A bound on some choices is none on all."""


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A problem on the vertices `order` alone, all others as in `outer`; `edges`: the outer numbers of its edges."""

    inner: SelectionProblem
    outer: tuple[int, ...]
    order: tuple[int, ...]
    edges: tuple[int, ...]

    def solution_back(self, solution: tuple[int, ...]) -> tuple[int, ...]:
        """The whole solution with these choices in it."""
        out = list(self.outer)
        for v, a in zip(self.order, solution[: len(self.order)], strict=True):
            out[v] = a
        return tuple(out)

    def messages_there(self, dual: Dual) -> Dual:
        """Those of the edges that are left."""
        to_u, to_v = (tuple(side[e] for e in self.edges) for side in (dual.to_u, dual.to_v))
        return Dual(to_u, to_v, dual.denominator)

    def proof_back(self, proof: Record) -> None:
        """A bound around one solution is none on all."""


def restrict(problem: SelectionProblem, domains: Mapping[int, tuple[int, ...]]) -> Restriction:
    """`problem` where vertex v may only take `domains[v]`; vertices not named keep every choice.

    Raises `ProblemError` for a vertex or choice that does not exist, or an empty domain.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import SelectionProblem, Vertex
    >>> p = SelectionProblem("one", (Vertex("a", np.array([3, 1, 2])),), (), ())
    >>> q = restrict(p, {0: (0, 2)})
    >>> q.inner.vertices[0].cost.tolist(), q.solution_back((1,))
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

    def restrict_index(v: int, index: Ints | None) -> Ints | None:
        if v not in kept:
            return index
        return kept[v] if index is None else index[kept[v]]

    vertices = tuple(Vertex(x.name, x.cost[kept[v]]) if v in kept else x for v, x in enumerate(problem.vertices))
    edges = tuple(
        Edge(e.u, e.v, e.table, restrict_index(e.u, e.rows), restrict_index(e.v, e.cols)) for e in problem.edges
    )
    usages = tuple(
        Usage(u.vertex, u.start, u.end, u.amount[kept[u.vertex]], u.name) if u.vertex in kept else u
        for u in problem.usages
    )

    fine = problem.fine
    if fine is not None:
        parts = problem.fine_parts()
        digits = [part[kept[v]] if v in kept else part.reshape(-1) for v, part in enumerate(parts)]
        fine = Fine(fine.bits, np.concatenate(digits))

    return Restriction(replace(problem, vertices=vertices, edges=edges, usages=usages, fine=fine), kept)


def condition(problem: SelectionProblem, solution: tuple[int, ...], free: AbstractSet[int]) -> Conditioned:
    """`problem` on the vertices `free` alone, all others as in `solution`.

    What the others cost is the constant, edges to them are in the costs of the free ones: a solution costs what it
    costs in the whole.  What is forbidden among the others is left out: it is no reason to choose worse here.  With
    resource rows one more vertex, the last, has what the others use where the free ones could exceed the limit, so that
    a solution fits exactly if it fits in the whole (where the others alone do).  Raises `ProblemError` for problems
    with costs in two parts.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
    >>> pair = SelectionProblem("pair", (Vertex("a", np.array([1, 2])), Vertex("b", np.array([5, 3]))), (np.array([[0,
    ...     9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> small = condition(pair, (1, 0), {0})
    >>> small.inner.vertices[0].cost.tolist(), small.inner.constant, small.solution_back((0,))
    ([1, 11], 5, (0, 0))
    """
    if problem.fine is not None:
        raise ProblemError("condition", "is for problems with costs in one part")
    order = sorted(free)
    place = {v: i for i, v in enumerate(order)}
    costs = {v: problem.vertices[v].cost.astype(np.int64) for v in order}
    fixed = [int(x.cost[a]) for v, (x, a) in enumerate(zip(problem.vertices, solution, strict=True)) if v not in place]
    edges: list[Edge] = []
    origin: list[int] = []
    for k, e in enumerate(problem.edges):
        if e.u in place and e.v in place:
            edges.append(replace(e, u=place[e.u], v=place[e.v]))
            origin.append(k)
            continue
        table = problem.tables[e.table]
        row = solution[e.u] if e.rows is None else int(e.rows[solution[e.u]])
        column = solution[e.v] if e.cols is None else int(e.cols[solution[e.v]])
        if e.u in place:
            costs[e.u] = saturate(costs[e.u] + (table[:, column] if e.rows is None else table[e.rows, column]))
        elif e.v in place:
            costs[e.v] = saturate(costs[e.v] + (table[row] if e.cols is None else table[row, e.cols]))
        else:
            fixed.append(int(table[row, column]))
    constant = problem.constant + sum(c for c in fixed if c < FORBIDDEN)
    vertices = tuple(Vertex(problem.vertices[v].name, costs[v]) for v in order)

    small = replace(problem, vertices=vertices, edges=tuple(edges), usages=(), constant=constant)
    if problem.limit is None:
        return Conditioned(small, solution, tuple(order), tuple(origin))
    usages = _around(problem, problem.limit, solution, place)
    small = replace(small, vertices=(*vertices, Vertex("the others", np.zeros(1, dtype=np.int64))), usages=usages)
    return Conditioned(small, solution, tuple(order), tuple(origin))


def _around(
    problem: SelectionProblem, limit: int, solution: tuple[int, ...], place: Mapping[int, int]
) -> tuple[Usage, ...]:
    """Usages of the free vertices where the limit can be exceeded, and of one more vertex what the others use there."""
    events = np.array(problem.events(), dtype=np.int64)
    inside = [u for u in problem.usages if u.vertex in place]
    outside = [(u, int(u.amount[solution[u.vertex]])) for u in problem.usages if u.vertex not in place]
    fixed, most = added_up(events, outside), added_up(events, [(u, int(u.amount.max())) for u in inside])
    tight = (fixed + most > limit) & (most > 0)
    found = [
        replace(u, vertex=place[u.vertex])
        for u in inside
        if tight[np.searchsorted(events, u.start) : np.searchsorted(events, u.end)].any()
    ]
    runs = np.flatnonzero(np.diff(np.where(tight, fixed, -1), prepend=-1, append=-1))
    for first, last in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
        if tight[first]:
            end = int(events[last] if last < events.size else events[-1] + 1)
            found.append(Usage(len(place), int(events[first]), end, fixed[first : first + 1], "the others"))
    return tuple(found)

"""Dynamic programming in the manner of PaSE, as a baseline: dense tables, no proof, no resource rows.

    order      repeatedly the vertex with fewest neighbours in the graph with fill-in (then the smaller number)
    table      R_v(phi) = min_c [ c_v(c) + sum of the tables that mention v at (c, phi) ],   phi: choices of v's
               neighbours then
    solution   backwards through the argmin of every table, the first among equals

What PaSE keeps as data frames of whole strategies is one array and its argmin here, so this is the lower limit of that
method's time, and the plain elimination that other solvers are compared with.  Time and memory are those of the largest
table, K^(M+1).
Source: V. Elango, "PaSE", IPDPS 2021, section III.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardproof.formal.selection.model.factored import saturate
from shardproof.models.problem.selection_problem import FORBIDDEN, Ints, ProblemError, SelectionProblem

MOST_CELLS: Final = 1 << 27
"""Entries of one table (1 GiB)."""


@dataclass(frozen=True)
class PaseResult:
    """`solution`, `cost`: None when every choice is forbidden; `width`: most neighbours at elimination; `cells`:
    entries of all tables.
    """

    solution: tuple[int, ...] | None
    cost: int | None
    width: int
    cells: int


def pase_dp(problem: SelectionProblem) -> PaseResult:
    """Optimum of `problem` (of its int64 costs, where they have a fine part) by dynamic programming.  Raises
    `ProblemError` for resource rows or a table of more than 2**27 entries.

    >>> from shardproof.models.problem.selection_problem import Edge, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> pase_dp(p)
    PaseResult(solution=(0, 0), cost=1, width=1, cells=6)
    """
    if problem.limit is not None and problem.usages:
        raise ProblemError("problem", "has resource rows", "dynamic programming of this kind knows none; use solve")
    n = len(problem.vertices)
    size = [v.cost.size for v in problem.vertices]
    pool: list[list[tuple[tuple[int, ...], Ints]]] = [
        [((v,), np.minimum(x.cost, FORBIDDEN))] for v, x in enumerate(problem.vertices)
    ]
    near: list[set[int]] = [set() for _ in range(n)]
    for e in problem.edges:
        t = problem.tables[e.table]
        t = t if e.rows is None else t[e.rows]
        t = t if e.cols is None else t[:, e.cols]
        ends = (e.u, e.v) if e.u < e.v else (e.v, e.u)
        entry = ends, np.minimum(t if e.u < e.v else t.T, FORBIDDEN)
        for w in ends:
            pool[w].append(entry)
        near[e.u].add(e.v)
        near[e.v].add(e.u)
    heap = [(len(near[v]), v) for v in range(n)]
    heapq.heapify(heap)
    gone = [False] * n
    back: list[tuple[int, tuple[int, ...], Ints]] = []
    constant, width, cells = problem.constant, 0, 0
    while heap:
        degree, v = heapq.heappop(heap)
        if gone[v] or degree != len(near[v]):
            continue
        gone[v] = True
        around = tuple(sorted(near[v]))
        axes = (v, *around)
        shape = [size[w] for w in axes]
        entries = int(np.prod(shape, dtype=object))
        if entries > MOST_CELLS:
            raise ProblemError(
                f"vertex {v} {problem.vertices[v].name!r}", f"needs a table of {entries} entries", "use solve"
            )
        width, cells = max(width, len(around)), cells + entries
        joint = np.zeros(shape, dtype=np.int64)
        for scope, table in _distinct(pool[v]):
            joint += _aligned(scope, table, axes)
            saturate(joint)
        best = joint.argmin(axis=0)
        back.append((v, around, best))
        least = np.take_along_axis(joint, best[None], axis=0)[0]
        for w in around:
            pool[w] = [entry for entry in pool[w] if v not in entry[0]]
            near[w].discard(v)
        if around:
            for w in around:
                pool[w].append((around, least))
                near[w].update(x for x in around if x != w)
                heapq.heappush(heap, (len(near[w]), w))
        elif int(least) >= FORBIDDEN:
            return PaseResult(None, None, width, cells)
        else:
            constant += int(least)
    x = [0] * n
    for v, around, best in reversed(back):
        x[v] = int(best[tuple(x[w] for w in around)])
    return PaseResult(tuple(x), constant if problem.fine is None else problem.cost_of(tuple(x)), width, cells)


def _distinct(entries: list[tuple[tuple[int, ...], Ints]]) -> list[tuple[tuple[int, ...], Ints]]:
    """Tables by scope, equal scopes added up."""
    out: dict[tuple[int, ...], Ints] = {}
    for scope, table in entries:
        out[scope] = saturate(out[scope] + table) if scope in out else table
    return list(out.items())


def _aligned(scope: tuple[int, ...], table: Ints, axes: tuple[int, ...]) -> Ints:
    """`table` over `scope` as an array that broadcasts over `axes`, of which the first is the vertex and the others
    ascend.
    """
    v = axes[0]
    if v in scope:
        table = np.moveaxis(table, scope.index(v), 0)
        scope = (v, *(w for w in scope if w != v))
    sizes = dict(zip(scope, table.shape, strict=True))
    return table.reshape([sizes.get(w, 1) for w in axes])

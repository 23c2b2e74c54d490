"""The early manuscript's algorithms 1 to 3 as a reference: tables of best responses to the neighbours, then
enumeration.

    tbl(v)  subset of the choices of v and all its neighbours, at first all of them
    for v in order (fewest unprocessed neighbours first, then the smaller number):
        per choice of the neighbours keep one cheapest choice of v
        (`best`)
        neighbours w of v keep only what agrees with an entry of tbl(v) on v, w and their common neighbours
        (`restrict`)
    valid   all strategies that agree with every table; the cheapest of them is the result

The printed listing is repaired (alg. 2 returns true at its end, alg. 3 takes the
vertices of the entry and does not mistake an empty set for the first vertex).  The manuscript claims that an optimal
strategy stays valid whatever minimum is picked.  That is false (`tests/test_best_response.py` runs the counterexample).
It is true for one fixed order of the choices of every vertex, cheapest entry first in that order, costs compared
exactly: the default `pick`.

Exponential in the degree, and in the number of chosen best responses: for small graphs only.  Resource rows are not
known to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardproof.formal.selection.model.factored import saturate
from shardproof.models.problem.selection_problem import FORBIDDEN, Ints, ProblemError, SelectionProblem

Mask = NDArray[np.bool_]
Pick = Callable[[int, dict[int, int], list[int]], int]
"""`pick(v, choices of its neighbours, cheapest choices of v)`: the one that is kept."""

MOST: Final = 10_000_000
"""Entries of a table, and partial strategies while they are enumerated."""


@dataclass(frozen=True)
class BestResponses:
    """`valid`: strategies consistent with all tables; `solution`: the cheapest of them, the first among equals
    (None: there is none).
    """

    valid: tuple[tuple[int, ...], ...]
    solution: tuple[int, ...] | None
    cost: int | None


def first(v: int, around: dict[int, int], cheapest: list[int]) -> int:
    """The fixed order: the smallest number."""
    return cheapest[0]


def best_responses(problem: SelectionProblem, pick: Pick = first, order: Sequence[int] | None = None) -> BestResponses:
    """Run the three algorithms.  `order`: another order of processing; it must take a vertex with fewest unprocessed
    neighbours each time.

    Raises `ProblemError` for resource rows, tables or enumerations beyond 10 million entries, and an order that breaks
    the rule.

    >>> from shardproof.models.problem.selection_problem import Edge, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> best_responses(p)
    BestResponses(valid=((0, 0), (1, 1)), solution=(0, 0), cost=1)
    """
    if problem.limit is not None and problem.usages:
        raise ProblemError("problem", "has resource rows", "the manuscript's algorithm knows none; use solve")
    run = _Run(problem)
    unprocessed = list(range(len(problem.vertices)))
    wanted = list(order) if order is not None else None
    if wanted is not None and sorted(wanted) != unprocessed:
        raise ProblemError("order", "must name every vertex once")
    waiting = [set(near) for near in run.near]
    for turn in range(len(problem.vertices)):
        least = min(len(waiting[v]) for v in unprocessed)
        v = min(u for u in unprocessed if len(waiting[u]) == least) if wanted is None else wanted[turn]
        if len(waiting[v]) != least:
            raise ProblemError("order", f"vertex {v} has {len(waiting[v])} unprocessed neighbours, another one {least}")
        run.keep_best(v, pick)
        for w in run.near[v]:
            run.restrict(v, w)
            waiting[w].discard(v)
        unprocessed.remove(v)
    valid = run.valid()
    costs = [problem.cost_of(x) for x in valid]
    if not costs or min(costs) >= FORBIDDEN:
        return BestResponses(valid, None, None)
    at = costs.index(min(costs))
    return BestResponses(valid, valid[at], costs[at])


class _Run:
    """Tables as masks: `table[v]` has one axis for v and one for each neighbour, in the order `scope[v]`."""

    def __init__(self, problem: SelectionProblem) -> None:
        n = len(problem.vertices)
        self.size = [problem.domain_size(v) for v in range(n)]
        pairs: dict[tuple[int, int], Ints] = {}
        for e in problem.edges:
            t = np.minimum(problem.tables[e.table], FORBIDDEN)
            t = t if e.rows is None else t[e.rows]
            t = t if e.cols is None else t[:, e.cols]
            for key, one in (((e.u, e.v), t), ((e.v, e.u), t.T)):
                pairs[key] = saturate(pairs[key] + one) if key in pairs else one.copy()
        self.pairs = pairs
        self.cost = [np.minimum(v.cost, FORBIDDEN) for v in problem.vertices]
        self.near = [[w for w in range(n) if (v, w) in pairs] for v in range(n)]
        self.scope = [(v, *self.near[v]) for v in range(n)]
        self.table: list[Mask] = []
        for v in range(n):
            shape = [self.size[w] for w in self.scope[v]]
            if np.prod(shape, dtype=object) > MOST:
                raise ProblemError(
                    f"vertex {v} {problem.vertices[v].name!r}",
                    f"its table has {np.prod(shape, dtype=object)} entries",
                    "use solve",
                )
            self.table.append(np.ones(shape, dtype=bool))

    def keep_best(self, v: int, pick: Pick) -> None:
        """Of the entries with equal choices of the neighbours one of least cost stays; other terms of the cost are
        equal in all of them.
        """
        table, axes = self.table[v], len(self.scope[v])
        total = self.cost[v].reshape(-1, *[1] * (axes - 1))
        for axis, w in enumerate(self.near[v], start=1):
            shape = [1] * axes
            shape[0], shape[axis] = self.pairs[v, w].shape
            total = saturate(total + self.pairs[v, w].reshape(shape))
        total = np.broadcast_to(total, table.shape)
        kept = np.zeros_like(table)
        for around in np.ndindex(*table.shape[1:]):
            there = np.flatnonzero(table[(slice(None), *around)])
            if there.size:
                costs = total[(there, *around)]
                cheapest = there[costs == costs.min()].tolist()
                kept[(pick(v, dict(zip(self.near[v], around, strict=True)), cheapest), *around)] = True
        self.table[v] = kept

    def restrict(self, v: int, w: int) -> None:
        """`w` keeps what agrees with an entry of `v` on v, w and their common neighbours."""
        common = [x for x in self.scope[v] if x in self.scope[w]]
        seen: Mask = np.asarray(
            self.table[v].any(axis=tuple(k for k, x in enumerate(self.scope[v]) if x not in common))
        )
        at = [common.index(x) for x in self.scope[w] if x in common]  # axes of `seen` in the order of w's scope
        shape = [self.size[x] if x in common else 1 for x in self.scope[w]]
        self.table[w] = self.table[w] & np.transpose(seen, at).reshape(shape)

    def valid(self) -> tuple[tuple[int, ...], ...]:
        """Join of all tables, in ascending order of the strategies."""
        joined: list[dict[int, int]] = [{}]
        for v, scope in enumerate(self.scope):
            entries = np.argwhere(self.table[v]).tolist()
            known = [k for k, x in enumerate(scope) if joined and x in joined[0]]
            by_known: dict[tuple[int, ...], list[list[int]]] = {}
            for entry in entries:
                by_known.setdefault(tuple(entry[k] for k in known), []).append(entry)
            grown: list[dict[int, int]] = []
            for partial in joined:
                for entry in by_known.get(tuple(partial[scope[k]] for k in known), ()):
                    grown.append({**partial, **dict(zip(scope, entry, strict=True))})
                if len(grown) > MOST:
                    raise ProblemError(
                        "problem", f"more than {MOST} partial strategies are consistent with the tables", "use solve"
                    )
            joined = grown
        return tuple(sorted(tuple(x[v] for v in range(len(self.size))) for x in joined))

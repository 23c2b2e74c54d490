"""Replays elimination with the fine part of the costs, in Python integers, on what is left of the domains.

    pool := tables of the problem on D, every entry 2**bits * coarse + fine, infinite where forbidden
    for v in order:  m(s) := min_{a in D_v} sum of the pool tables that touch v at (s, a);   pool := pool - those + m

The scalars that are left, added to the constant, are the least cost over D (resource rows ignored).  Effort is bounded
first.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints
from ...proofs.selection.certificates import Elimination
from .elimination import check_effort, check_order, check_scope
from .ground import INFINITE, Bound, Domains, Ground, Refuted

CELL_COST: Final = 1 << 8
"""Cells that an entry of a joint table costs: a few additions of Python integers."""

Table = tuple[tuple[int, ...], Ints]
"""Scope and an object array of Python integers (and infinite floats) over positions in the domains."""


def fine_bound(ground: Ground, record: Elimination, domains: Domains, place: str) -> Bound:
    """B of a fine elimination record; `Refuted` where it is not well formed or asks for too much."""
    if ground.problem.fine is None:
        raise Refuted(place, "asks for the fine part of costs that have none")
    if record.messages or record.then is not None:
        raise Refuted(place, "a fine elimination holds no messages and no further record")
    check_order(record, domains, place)
    check_effort(ground, record, domains, place, CELL_COST)
    pool = _tables(ground, domains)
    gone: set[int] = set()
    bound: Bound = ground.exact(ground.problem.constant)
    for k, (v, scope) in enumerate(zip(record.order, record.scopes, strict=True)):
        consumed = [table for table in pool[v] if table is not None]
        gone.add(v)
        check_scope(
            scope,
            {w for reached, _ in consumed for w in reached},
            v,
            gone,
            domains,
            f"{place}, step {k} ({ground.name(v)})",
        )
        axes = (*scope, v)
        total = np.zeros([domains[w].size for w in axes], dtype=object)
        for reached, values in consumed:
            order = sorted(range(len(reached)), key=lambda i, reached=reached: axes.index(reached[i]))  # type: ignore[misc]
            total = total + values.transpose(order)[tuple(slice(None) if w in reached else None for w in axes)]
        least = np.asarray(np.minimum.reduce(total, axis=-1), dtype=object)
        used = {id(values) for _, values in consumed}
        for w in scope:
            pool[w] = [table for table in pool[w] if id(table[1]) not in used]
            pool[w].append((scope, least))
        if not scope:
            bound += least.item()
    return bound


def _tables(ground: Ground, domains: Domains) -> list[list[Table]]:
    """For every vertex the tables that touch it."""
    problem, parts = ground.problem, ground.problem.fine_parts()

    def exact(coarse: Ints, fine: np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]]) -> Ints:
        values = coarse.astype(object) * (1 << problem.fine_bits) + fine.astype(object)
        values[coarse >= FORBIDDEN] = INFINITE
        return np.asarray(values, dtype=object)

    pool: list[list[Table]] = [
        [((v,), exact(vertex.cost[domains[v]], parts[v][domains[v]]))] for v, vertex in enumerate(problem.vertices)
    ]
    for edge in problem.edges:
        rows = domains[edge.u] if edge.rows is None else edge.rows[domains[edge.u]]
        cols = domains[edge.v] if edge.cols is None else edge.cols[domains[edge.v]]
        where = np.ix_(rows, cols)
        table = (
            (edge.u, edge.v),
            exact(problem.tables[edge.table][where], parts[len(problem.vertices) + edge.table][where]),
        )
        pool[edge.u].append(table)
        pool[edge.v].append(table)
    return pool

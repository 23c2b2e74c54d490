"""The arrays of a problem end to end, for records that are checked on all vertices and edges at once."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem

MOST: Final = 1 << 24
"""Entries of all tables that are laid out end to end."""


class Flat:
    """A problem end to end; `plain`: it has edges, which reach their tables directly, small tables, and no usages."""

    def __init__(self, problem: SelectionProblem) -> None:
        self.problem = problem
        edges = problem.edges
        self.plain = (
            bool(edges)
            and not problem.usages
            and all(e.rows is None and e.cols is None for e in edges)
            and sum(t.size for t in problem.tables) <= MOST
        )

    @cached_property
    def ends(self) -> tuple[Ints, Ints]:
        """The vertices u and v of every edge."""
        both = np.array([(e.u, e.v) for e in self.problem.edges], dtype=np.int64)
        return both[:, 0].copy(), both[:, 1].copy()

    @cached_property
    def cells(self) -> Ints:
        """Entries of all tables."""
        return np.concatenate([t.ravel() for t in self.problem.tables]).astype(np.int64, copy=False)

    @cached_property
    def at(self) -> tuple[Ints, Ints]:
        """(where the table of every edge begins in `cells`, how wide it is)."""
        starts = starts_of([t.size for t in self.problem.tables])
        tables = np.array([e.table for e in self.problem.edges], dtype=np.int64)
        return starts[tables], np.array([t.shape[1] for t in self.problem.tables], dtype=np.int64)[tables]

    @cached_property
    def cost(self) -> tuple[Ints, Ints]:
        """(costs of all choices, where those of every vertex begin)."""
        sizes = [v.cost.size for v in self.problem.vertices]
        return np.concatenate([v.cost for v in self.problem.vertices]), starts_of(sizes)

    @cached_property
    def shapes(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Of the messages of every edge."""
        shapes = [self.problem.tables[e.table].shape for e in self.problem.edges]
        return [(rows,) for rows, _ in shapes], [(cols,) for _, cols in shapes]

    @cached_property
    def starts(self) -> tuple[Ints, Ints]:
        """Where the messages of every edge begin, to u and to v."""
        rows, cols = self.shapes
        return starts_of([k for (k,) in rows]), starts_of([k for (k,) in cols])

    @cached_property
    def degree(self) -> int:
        """The most edges at a vertex."""
        return int(np.bincount(np.concatenate(self.ends)).max())

    @cached_property
    def largest(self) -> tuple[int, int]:
        """The largest |allowed cost| and |allowed entry|."""
        cost, cells = (np.where(a < FORBIDDEN, a, 0) for a in (self.cost[0], self.cells))
        return max(-int(cost.min()), int(cost.max())), max(-int(cells.min()), int(cells.max()))


def starts_of(sizes: list[int] | Ints) -> Ints:
    """Where each of the pieces begins when they are laid end to end."""
    at = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=at[1:])
    return at

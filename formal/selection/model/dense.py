"""This module holds a selection problem as flat arrays of dense tables, for compiled loops over tens of thousands of
small vertices.

Labels of vertex v are numbered label[v] .. label[v+1]-1.  Edge e has a dense table of shape (K_u, K_v), row-major from
table[e], and two messages: to u at message[2e], to v at message[2e+1].  Usage of v is a list of spans, part[v] ..
part[v+1]-1: rows first <= r < last use amount[at[p] + a] for label a.  Rows are the steps `problem.events()`, numbered
from 0.  Entries >= FORBIDDEN stay as they are in `cost` and `cells`; loops read clipped copies (`clipped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from .factored import Domains, whole

Floats = NDArray[np.float64]


class Graph(NamedTuple):
    """What compiled loops read of a network.  Labels of vertex i are label[i] .. label[i+1]-1, its edges edge[near[i]]
    .. edge[near[i+1]-1].  Edge e goes from u[e] to v[e], its table begins at table[e], row-major; side 2e is that of
    u[e], side 2e+1 that of v[e].  Messages of side s are message[s] .. message[s+1]-1, one per row of the table (or
    column).
    """

    label: Ints
    near: Ints
    edge: Ints
    u: Ints
    v: Ints
    table: Ints
    message: Ints


class Spans(NamedTuple):
    """What they read of usage: spans part[v] .. part[v+1]-1 of vertex v, rows first <= r < last use amount[at + a]."""

    part: Ints
    first: Ints
    last: Ints
    at: Ints
    amount: Ints


@dataclass(frozen=True, eq=False)
class DenseProblem:
    """See the module docstring.  `choice[label]`: the choice of the problem's vertex that the label stands for."""

    problem: SelectionProblem
    label: Ints
    choice: Ints
    cost: Ints
    u: Ints
    v: Ints
    table: Ints
    cells: Ints
    message: Ints
    near: Ints
    edge: Ints
    events: Ints
    limit: int
    part: Ints
    first: Ints
    last: Ints
    at: Ints
    amount: Ints

    @cached_property
    def graph(self) -> Graph:
        """Arrays for compiled loops."""
        return Graph(self.label, self.near, self.edge, self.u, self.v, self.table, self.message)

    @cached_property
    def spans(self) -> Spans:
        """Usage for compiled loops."""
        return Spans(self.part, self.first, self.last, self.at, self.amount)

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return self.label.size - 1

    @property
    def labels(self) -> int:
        """Number of labels of all vertices."""
        return int(self.label[-1])

    @property
    def domains(self) -> Domains:
        """Choices per vertex."""
        return tuple(self.choice[a:b] for a, b in zip(self.label[:-1].tolist(), self.label[1:].tolist(), strict=True))

    def solution(self, x: Ints) -> tuple[int, ...]:
        """Choices of the problem behind positions `x`, shape (vertices,)."""
        return tuple(self.choice[self.label[:-1] + x].tolist())

    def positions(self, solution: tuple[int, ...]) -> Ints | None:
        """Inverse of `solution`; None when a choice is not among the labels."""
        out = np.zeros(self.vertices, dtype=np.int64)
        for v, a in enumerate(solution):
            inside = self.choice[self.label[v] : self.label[v + 1]]
            k = int(np.searchsorted(inside, a))
            if k == inside.size or int(inside[k]) != a:
                return None
            out[v] = k
        return out

    def clipped(self, big: int) -> tuple[Floats, Floats]:
        """(costs, cells) as floats, entries above `big` lowered to it."""
        return np.minimum(self.cost, big).astype(np.float64), np.minimum(self.cells, big).astype(np.float64)


def cells_of(problem: SelectionProblem) -> int:
    """Entries of all tables once every edge has its own."""
    return sum(problem.domain_size(e.u) * problem.domain_size(e.v) for e in problem.edges)


def dense_problem(problem: SelectionProblem, domains: Domains | None = None) -> DenseProblem:
    """The flat form of `problem` on `domains` (default: every choice; none empty)."""
    d = whole(problem) if domains is None else domains
    n = len(d)
    full = [x.size == v.cost.size for x, v in zip(d, problem.vertices, strict=True)]
    label = offsets([x.size for x in d])
    cost = np.concatenate(
        [
            np.zeros(0, dtype=np.int64),
            *(v.cost if f else v.cost[x] for v, x, f in zip(problem.vertices, d, full, strict=True)),
        ]
    )
    blocks = []
    for e in problem.edges:
        t = problem.tables[e.table]
        rows = e.rows if full[e.u] else d[e.u] if e.rows is None else e.rows[d[e.u]]
        cols = e.cols if full[e.v] else d[e.v] if e.cols is None else e.cols[d[e.v]]
        t = t if rows is None else t[rows]
        t = t if cols is None else t[:, cols]
        blocks.append(t.reshape(-1))
    u, v = (
        np.array([e.u for e in problem.edges], dtype=np.int64),
        np.array([e.v for e in problem.edges], dtype=np.int64),
    )
    sizes = np.diff(label)
    pairs = np.stack([sizes[u], sizes[v]], axis=1).reshape(-1) if u.size else np.zeros(0, dtype=np.int64)
    ends, numbers = np.concatenate([u, v]), np.concatenate([np.arange(u.size), np.arange(v.size)])
    order = np.lexsort((numbers, ends))
    live = [w for w in problem.usages if w.start < w.end and problem.limit is not None]
    live.sort(key=lambda w: w.vertex)
    events = np.array(problem.events() if problem.limit is not None else [], dtype=np.int64)
    first = np.searchsorted(events, np.array([w.start for w in live], dtype=np.int64))
    last = np.searchsorted(events, np.array([w.end for w in live], dtype=np.int64))
    return DenseProblem(
        problem,
        label,
        np.concatenate([np.zeros(0, dtype=np.int64), *d]),
        cost,
        u,
        v,
        offsets([b.size for b in blocks]),
        np.concatenate([np.zeros(0, dtype=np.int64), *blocks]),
        offsets(pairs),
        offsets(np.bincount(ends, minlength=n)),
        numbers[order],
        events,
        FORBIDDEN if problem.limit is None else problem.limit,
        offsets(np.bincount([w.vertex for w in live], minlength=n) if live else [0] * n),
        first.astype(np.int64),
        last.astype(np.int64),
        offsets([d[w.vertex].size for w in live])[:-1],
        np.concatenate([np.zeros(0, dtype=np.int64), *(w.amount[d[w.vertex]] for w in live)]),
    )


def offsets(sizes: Ints | list[int]) -> Ints:
    """0 and the running sums.

    >>> offsets([2, 3]).tolist()
    [0, 2, 5]
    """
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.asarray(sizes, dtype=np.int64), dtype=np.int64)])

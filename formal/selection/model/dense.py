"""Shows a network as flat arrays, for compiled loops; with a table per edge and usage as spans it is the
dense form of a problem, for tens of thousands of small vertices.

Labels of vertex v are numbered label[v] .. label[v+1]-1.  Edge e has a table of shape (K_u, K_v), row-major from
table[e], and two messages: to u at message[2e], to v at message[2e+1].  Usage of v is a list of spans, part[v] ..
part[v+1]-1: rows first <= r < last use amount[at[p] + a] for label a.  Rows are the steps `problem.events()`, numbered
from 0.  Forbidden entries stay as they are in `cost` and `cells`; loops read clipped copies (`clip`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from .factored import Base, Domains, Network, build, whole

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


def graph_of(network: Network) -> tuple[Graph, list[int]]:
    """The arrays of `network`, and which of its tables stand one after another from 0."""
    arcs, tables = network.arcs, network.tables
    used = sorted({a.table for a in arcs})
    first = dict(zip(used, offsets([tables[t].size for t in used]).tolist(), strict=False))
    u, v, at = (
        np.array(column, dtype=np.int64)
        for column in ([a.u for a in arcs], [a.v for a in arcs], [first[a.table] for a in arcs])
    )
    return Graph(
        offsets([c.size for c in network.unary]),
        offsets([len(near) for near in network.around]),
        np.array([e for near in network.around for e in near], dtype=np.int64),
        u,
        v,
        at,
        offsets([side for a in arcs for side in tables[a.table].shape]),
    ), used


@dataclass(frozen=True, eq=False)
class DenseProblem:
    """See the module docstring.  `choice[label]`: the choice of the problem's vertex that the label stands for."""

    network: Network
    graph: Graph
    choice: Ints
    cost: Ints
    cells: Ints
    events: Ints
    limit: int
    spans: Spans

    @property
    def problem(self) -> SelectionProblem:
        """What it is the dense form of."""
        return self.network.base.problem

    @property
    def domains(self) -> Domains:
        """Choices per vertex."""
        return self.network.domains

    @property
    def label(self) -> Ints:
        """Where the labels of the vertices begin, and the end."""
        return self.graph.label

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return self.label.size - 1

    @property
    def entries(self) -> int:
        """Numbers that one pass over everything reads: tables, costs and amounts."""
        sizes = np.diff(self.label)
        tables = int((sizes[self.graph.u] * sizes[self.graph.v]).sum())
        return tables + self.labels + int(self.spans.amount.size)

    @property
    def labels(self) -> int:
        """Number of labels of all vertices."""
        return int(self.label[-1])

    def solution(self, x: Ints) -> tuple[int, ...]:
        """Choices of the problem behind positions `x`, shape (vertices,)."""
        return tuple(self.choice[self.label[:-1] + x].tolist())

    def clip(self, big: int) -> tuple[Floats, Floats]:
        """(costs, cells) as floats, entries above `big` lowered to it."""
        return np.minimum(self.cost, big).astype(np.float64), np.minimum(self.cells, big).astype(np.float64)


def cells_of(problem: SelectionProblem) -> int:
    """Entries of all tables once every edge has its own."""
    return sum(problem.domain_size(e.u) * problem.domain_size(e.v) for e in problem.edges)


def dense_problem(problem: SelectionProblem, domains: Domains | None = None, base: Base | None = None) -> DenseProblem:
    """The dense form of `problem` on `domains` (default: every choice; none empty); `base`: its numbers, if known."""
    d = whole(problem) if domains is None else domains
    network = build(base or Base(problem), d, apart=True)
    graph, used = graph_of(network)
    live = [w for w in problem.usages if w.start < w.end and problem.limit is not None]
    live.sort(key=lambda w: w.vertex)
    events = np.array(problem.events() if problem.limit is not None else [], dtype=np.int64)
    first, last = (
        np.searchsorted(events, np.array(ends, dtype=np.int64)).astype(np.int64)
        for ends in ([w.start for w in live], [w.end for w in live])
    )
    spans = Spans(
        offsets(np.bincount([w.vertex for w in live], minlength=len(d)) if live else [0] * len(d)),
        first,
        last,
        offsets([d[w.vertex].size for w in live])[:-1],
        concatenate_all(w.amount[d[w.vertex]] for w in live),
    )
    cells = concatenate_all(network.tables[t].reshape(-1) for t in used)
    limit = FORBIDDEN if problem.limit is None else problem.limit
    return DenseProblem(network, graph, concatenate_all(d), concatenate_all(network.unary), cells, events, limit, spans)


def concatenate_all(parts: Iterable[Ints]) -> Ints:
    """One after another; there may be none."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def sides(graph: Graph, messages: Ints) -> tuple[list[Ints], list[Ints]]:
    """The messages to both ends of every edge."""
    parts = [messages[a:b] for a, b in pairwise(graph.message.tolist())]
    return parts[0::2], parts[1::2]


def alternating(to_u: Iterable[Ints], to_v: Iterable[Ints]) -> Ints:
    """`sides` as one array."""
    return concatenate_all(m for pair in zip(to_u, to_v, strict=True) for m in pair)


def offsets(sizes: Ints | list[int]) -> Ints:
    """0 and the running sums.

    >>> offsets([2, 3]).tolist()
    [0, 2, 5]
    """
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.asarray(sizes, dtype=np.int64), dtype=np.int64)])

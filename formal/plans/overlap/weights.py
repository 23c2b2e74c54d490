"""Numbers that no schedule is below, and the weighted sums of them: C, all operators; M, all reshardings; and for a
chain of operators P, these with the reshardings between them and all operators that come behind its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ....models.cost.selection import DecisionKind, Planning
from ....models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Vertex
from ....models.program.graph import Graph
from .memory import MOST_OPERATORS, rows_of_every_order
from .tasks import copies_of, times_of

Rows = Literal["", "program", "every"]
"""Of memory: none, those of the program's order, those that no order escapes."""

Weights = tuple[int, ...]
"""Of C, of M, of every chain."""


@dataclass(frozen=True, eq=False)
class Chain:
    """`operators`: names in order.  `late`: those of the chain and all behind its end.  `edges`: between them."""

    operators: tuple[str, ...]
    late: frozenset[str]
    edges: frozenset[int]


NO_CHAIN = Chain((), frozenset(), frozenset())


def chain_of(planning: Planning, x: tuple[int, ...]) -> Chain:
    """The chain that says most about this solution."""
    graph = planning.graph
    n = len(graph.operators)
    if n > MOST_OPERATORS:
        return NO_CHAIN
    operators, edges = times_of(planning, x)
    between = edges_between(planning)
    head, before = [0] * n, [-1] * n
    behind = np.zeros((n, n), dtype=bool)
    for i, op in enumerate(graph.operators):
        for j, a in enumerate(op.inputs):
            w = graph.writer().get(a.tensor)
            if w is not None:
                reach = head[w] + sum(edges[k] for k in between[i, j])
                if reach > head[i] or before[i] < 0:
                    head[i], before[i] = max(reach, head[i]), w
        head[i] += operators[i]
    for i in reversed(range(n)):
        for w in {graph.writer()[a.tensor] for a in graph.operators[i].inputs if a.tensor in graph.writer()}:
            behind[w] |= behind[i]
            behind[w, i] = True
    values = np.array(head) + behind.astype(np.int64) @ np.array(operators, dtype=np.int64)
    last = at = int(values.argmax())
    names = []
    while at >= 0:
        names.append(at)
        at = before[at]
    names.reverse()
    later = {graph.operators[i].name for i in np.flatnonzero(behind[last]).tolist()} - copies_of(graph)
    inside = later.union(graph.operators[i].name for i in names)
    return Chain(tuple(graph.operators[i].name for i in names), frozenset(inside), links_of(graph, names, between))


def edges_between(planning: Planning) -> dict[tuple[int, int], tuple[int, ...]]:
    """(operator, input position) -> edges on the way from the operator that writes the tensor."""
    graph = planning.graph
    number = {op.name: k for k, op in enumerate(graph.operators)}
    fills: dict[str, int] = {}
    reads: dict[tuple[int, int], int] = {}
    for k, route in enumerate(planning.routes):
        target = planning.decisions[route.target]
        if target.kind is DecisionKind.COPY:
            fills[route.tensor] = k
        else:
            position = 0 if route.input_position is None else route.input_position
            reads[number[target.name], position] = k
    out: dict[tuple[int, int], tuple[int, ...]] = {}
    for i, op in enumerate(graph.operators):
        for j, a in enumerate(op.inputs):
            edge = reads.get((i, j))
            copied = edge is not None and planning.decisions[planning.routes[edge].source].kind is DecisionKind.COPY
            way = [fills[a.tensor]] if copied and a.tensor in fills else []
            out[i, j] = (*way, *([] if edge is None else [edge]))
    return out


def links_of(graph: Graph, names: list[int], between: dict[tuple[int, int], tuple[int, ...]]) -> frozenset[int]:
    """Edges between the members of a chain, given as positions of operators."""
    found: set[int] = set()
    for a, b in pairwise(names):
        out = graph.operators[a].output.tensor
        j = next(j for j, access in enumerate(graph.operators[b].inputs) if access.tensor == out)
        found |= set(between[b, j])
    return frozenset(found)


def weighted_problem(
    planning: Planning, chains: Sequence[Chain], weights: Weights, rows: Rows = ""
) -> SelectionProblem:
    """The problem of the weighted sum of C, M and every P.  `rows`: of memory, those of the program's order, or those
    that no order escapes.
    """
    problem = planning.problem
    usages = {"": (), "program": problem.usages, "every": rows_of_every_order(planning) if rows == "every" else ()}
    names, copies = {v: name for name, v in planning.operators.items()}, copies_of(planning.graph)
    along = list(zip(chains, weights[2:], strict=True))

    def times(values: Ints, factor: int) -> Ints:
        return np.where(values >= FORBIDDEN, FORBIDDEN, values * factor)

    vertices = tuple(
        Vertex(
            v.name,
            times(
                v.cost,
                (names[k] not in copies) * weights[0] + sum(w for x, w in along if names[k] in x.late)
                if k in names
                else 0,
            ),
        )
        for k, v in enumerate(problem.vertices)
    )
    number: dict[tuple[int, int], int] = {}
    tables: list[Ints] = []
    edges: list[Edge] = []
    for k, e in enumerate(problem.edges):
        factor = weights[1] + sum(w for x, w in along if k in x.edges)
        if (e.table, factor) not in number:
            number[e.table, factor] = len(tables)
            tables.append(times(problem.tables[e.table], factor))
        edges.append(Edge(e.u, e.v, number[e.table, factor], e.rows, e.cols))
    limit = problem.limit if rows else None
    return replace(
        problem, vertices=vertices, tables=tuple(tables), edges=tuple(edges), usages=usages[rows], limit=limit
    ).check()


def sums_of(planning: Planning, chains: Sequence[Chain], x: tuple[int, ...]) -> tuple[int, ...]:
    """C, M and every P of a solution."""
    operators, edges = times_of(planning, x)
    named = list(zip((op.name for op in planning.graph.operators), operators, strict=True))
    paths = (sum(t for name, t in named if name in c.late) + sum(edges[k] for k in c.edges) for c in chains)
    return (sum(t for name, t in named if name not in copies_of(planning.graph)), sum(edges), *paths)

"""Writes the search for symmetric (orbit-constant) solutions, the same in every repetition, ends
included, as a problem of its own: the pricing problem of column generation.

Over the classes c of a quotient (`decomposition/quotient.py`), with m_c members, and the kinds k of edges between two
classes, met n_k times,

    minimise  sum_c m_c cost_c(x_c)  +  sum_c sum of loops of c at (x_c, x_c)  +  sum_k n_k T_k(x, x)

is the cost of the whole problem where every vertex takes the choice of its class: a solution here is one there, at the
same cost, and at prices n_t of the resource rows the usage of all members is priced with it.  The ring of one block
alone knows nothing of the ends, which may decide between two plans that are as good as each other in the middle.

Measured (BERT-Large with Adam, ms): batch 64 on 4x8 the ring's plan at every repetition 126.1, the symmetric optimum
84.619 after 7 s, which is the optimum; 16 layers, batch 128 on 2x8: 174.9, with the ends searched again 113.6, and
107.082 after 5 s, which is the optimum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Vertex
from ..model.factored import saturate, whole
from ..model.priced import Floats, plus
from ..model.resources import Rows
from .quotient import Numbers, Quotient


def symmetric_problem(problem: SelectionProblem, found: Quotient) -> SelectionProblem:
    """The symmetric problem of `problem`, under its resource rows: vertices are those of `found`.

    >>> from ..options.decomposition import DecompositionOptions
    >>> from .quotient import quotient
    >>> cost, table = np.array([1, 2]), np.array([[0, 3], [3, 0]])
    >>> chain = SelectionProblem("chain", tuple(Vertex(f"v{i}", cost) for i in range(40)), (table,),
    ...                          tuple(Edge(i, i + 1, 0) for i in range(39)))
    >>> found = quotient(chain, DecompositionOptions(rounds=4))
    >>> small = symmetric_problem(chain, found)
    >>> plan = tuple(i % 2 for i in range(len(small.vertices)))
    >>> small.cost_of(plan) == chain.cost_of(found.solution_back(plan))
    True
    """
    size = Counter(found.of_vertex)
    costs = [_times(size[c], v.cost) for c, v in enumerate(found.problem.vertices)]
    numbers = Numbers()
    count: Counter[tuple[int, int, int, int, int]] = Counter()
    example: dict[tuple[int, int, int, int, int], Edge] = {}
    for e in problem.edges:
        u, v = found.of_vertex[e.u], found.of_vertex[e.v]
        if u == v:
            every = np.arange(costs[u].size)
            costs[u] = saturate(
                costs[u]
                + problem.tables[e.table][every if e.rows is None else e.rows, every if e.cols is None else e.cols]
            )
            continue
        kind = u, v, e.table, numbers.of(e.rows), numbers.of(e.cols)
        count[kind] += 1
        example.setdefault(kind, e)
    tables = list(problem.tables)
    place = {(t, 1): t for t in range(len(tables))}
    edges: list[Edge] = []
    for kind, n in count.items():
        u, v, t, *_ = kind
        if (t, n) not in place:
            place[t, n] = len(tables)
            tables.append(_times(n, tables[t]))
        edges.append(replace(example[kind], u=u, v=v, table=place[t, n]))
    vertices = tuple(Vertex(v.name, cost) for v, cost in zip(found.problem.vertices, costs, strict=True))
    usages = tuple(replace(use, vertex=found.of_vertex[use.vertex]) for use in problem.usages)
    return replace(problem, vertices=vertices, tables=tuple(tables), edges=tuple(edges), usages=usages)


def _times(n: int, costs: Ints) -> Ints:
    out = np.minimum(costs, FORBIDDEN // n)  # in place: tables may be hundreds of MB
    out *= n
    out[costs >= FORBIDDEN] = FORBIDDEN
    return out


def average(rows: Rows, found: Quotient, n: Floats) -> SelectionProblem:
    """One block with the price of what the average member uses in its costs; `rows`: of the symmetric problem."""
    size = np.bincount(found.of_vertex)
    added = rows.price_usage(whole(rows.problem), n)
    return plus(found.problem, [None if w is None else w / k for w, k in zip(added, size, strict=True)])

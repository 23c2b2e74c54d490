"""Selection problems in the form of the PaSE tables: `{"info", "nodes": [{name, configs, cost}], "edges": [[u, v, matrix]]}`.

Costs are floats, that is dyadic rationals: they are scaled by one power of two to integers, exactly, or refused.
Source: `shared/data/pase/README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite, lcm

import numpy as np

from ..problems import FINITE_LIMIT, Edge, Ints, ProblemError, SelectionProblem, Vertex


def from_pase(data: Mapping[str, object]) -> SelectionProblem:
    """The problem of a PaSE table file.  Raises `ProblemError` naming the place."""
    nodes, edges, info = data.get("nodes"), data.get("edges"), data.get("info")
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise ProblemError("PaSE file", "needs the lists nodes and edges")
    costs: list[list[Fraction]] = []
    names = []
    for i, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("cost"), list):
            raise ProblemError(f"nodes[{i}]", "needs a list cost")
        costs.append(_exact(node["cost"], f"nodes[{i}].cost"))
        names.append(str(node.get("name", f"node {i}")))
    matrices: list[list[list[Fraction]]] = []
    ends: list[tuple[int, int]] = []
    for i, edge in enumerate(edges):
        if not isinstance(edge, list) or len(edge) != 3 or type(edge[0]) is not int or type(edge[1]) is not int or not isinstance(edge[2], list):
            raise ProblemError(f"edges[{i}]", "must be [u, v, matrix]")
        u, v = edge[0], edge[1]
        if not (0 <= u < len(costs) and 0 <= v < len(costs)):
            raise ProblemError(f"edges[{i}]", f"names a node outside 0..{len(costs) - 1}")
        rows = [_exact(row, f"edges[{i}] row {r}") for r, row in enumerate(edge[2])]
        if len(rows) != len(costs[u]) or any(len(row) != len(costs[v]) for row in rows):
            raise ProblemError(f"edges[{i}]", f"matrix must have {len(costs[u])} rows and {len(costs[v])} columns")
        matrices.append(rows)
        ends.append((u, v))
    scale = lcm(1, *(x.denominator for c in costs for x in c), *(x.denominator for m in matrices for row in m for x in row))
    name = f"{info.get('graph', 'pase')}-p{info.get('p', '')}" if isinstance(info, dict) else "pase"

    def whole(values: Sequence[Fraction], place: str) -> Ints:
        numbers = [int(x * scale) for x in values]
        if any(abs(x) >= FINITE_LIMIT for x in numbers):
            raise ProblemError(place, f"does not fit 64 bits once scaled by {scale}")
        return np.array(numbers, dtype=np.int64)

    vertices = tuple(Vertex(n, whole(c, f"cost of {n}")) for n, c in zip(names, costs, strict=True))
    tables = tuple(np.stack([whole(row, f"edges[{i}]") for row in m]) for i, m in enumerate(matrices))
    return SelectionProblem(name, vertices, tables, tuple(Edge(u, v, i) for i, (u, v) in enumerate(ends)), scale=scale).check()


def _exact(values: object, place: str) -> list[Fraction]:
    if not isinstance(values, list):
        raise ProblemError(place, "must be a list of numbers")
    out = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise ProblemError(place, f"{value!r} is not a finite number")
        out.append(Fraction(value))
    return out

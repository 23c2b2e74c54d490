"""Selection problems of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (IOPDDL JSON).

One object with the key `problem`: node intervals [s, e) half-open, costs and usages per strategy, edges of two nodes with flat
row-major cost lists, `usage_limit` (may be absent).  Entries of 10^18 and more mean forbidden.  Source: `shared/data/iopddl/README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ..problems import FORBIDDEN, Edge, Ints, ProblemError, SelectionProblem, Usage, Vertex

INFINITE: Final = 10**18
"""The contest's value for a forbidden combination."""


def from_iopddl(data: Mapping[str, object]) -> SelectionProblem:
    """The problem under the key `problem`.  Raises `ProblemError` naming the place."""
    problem = _mapping(data.get("problem"), "problem")
    nodes, edges = _mapping(problem.get("nodes"), "problem.nodes"), _mapping(problem.get("edges"), "problem.edges")
    costs, usages = _lists(nodes.get("costs"), "nodes.costs"), _lists(nodes.get("usages"), "nodes.usages")
    intervals = _lists(nodes.get("intervals"), "nodes.intervals")
    if not len(costs) == len(usages) == len(intervals):
        raise ProblemError("problem.nodes", f"has {len(costs)} costs, {len(usages)} usages and {len(intervals)} intervals")
    vertices = tuple(Vertex(f"node {i}", integers(c, f"nodes.costs[{i}]")) for i, c in enumerate(costs))
    live = []
    for i, (interval, usage) in enumerate(zip(intervals, usages, strict=True)):
        if len(interval) != 2:
            raise ProblemError(f"nodes.intervals[{i}]", "must be a pair")
        start, end = integers(interval, f"nodes.intervals[{i}]").tolist()
        if start < end:
            live.append(Usage(i, start, end, integers(usage, f"nodes.usages[{i}]"), f"node {i}"))
    pairs, tables = _lists(edges.get("nodes"), "edges.nodes"), _lists(edges.get("costs"), "edges.costs")
    if len(pairs) != len(tables):
        raise ProblemError("problem.edges", f"has {len(pairs)} pairs and {len(tables)} cost lists")
    made: list[Ints] = []
    joined: list[Edge] = []
    number: dict[tuple[tuple[int, int], bytes], int] = {}
    for i, (pair, flat) in enumerate(zip(pairs, tables, strict=True)):
        place = f"edges.nodes[{i}]"
        if len(pair) != 2:
            raise ProblemError(place, f"joins {len(pair)} nodes; only pairs are supported")
        u, v = integers(pair, place).tolist()
        if not (0 <= u < len(vertices) and 0 <= v < len(vertices)):
            raise ProblemError(place, f"names a node outside 0..{len(vertices) - 1}")
        shape = (vertices[u].cost.size, vertices[v].cost.size)
        values = integers(flat, f"edges.costs[{i}]")
        if values.size != shape[0] * shape[1]:
            raise ProblemError(f"edges.costs[{i}]", f"has {values.size} entries for {shape[0]} x {shape[1]} choices")
        key = (shape, values.tobytes())
        if key not in number:
            number[key] = len(made)
            made.append(values.reshape(shape))
        joined.append(Edge(u, v, number[key]))
    limit = problem.get("usage_limit")
    if limit is not None and type(limit) is not int:
        raise ProblemError("problem.usage_limit", f"{limit!r} is not an integer")
    name = problem.get("name", "iopddl")
    return SelectionProblem(str(name), vertices, tuple(made), tuple(joined), tuple(live), limit if isinstance(limit, int) else None).check()


def integers(values: Sequence[object], place: str) -> Ints:
    """Exact integers as int64, forbidden entries as `FORBIDDEN`; `ProblemError` names what is not an integer."""
    out = []
    for value in values:
        if type(value) is not int:
            raise ProblemError(place, f"{value!r} is not an integer")
        if value < -INFINITE:
            raise ProblemError(place, f"{value} is out of range")
        out.append(FORBIDDEN if value >= INFINITE else value)
    return np.array(out, dtype=np.int64)


def _mapping(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ProblemError(place, "must be an object")
    return value


def _lists(value: object, place: str) -> list[list[object]]:
    if not isinstance(value, list) or any(not isinstance(v, list) for v in value):
        raise ProblemError(place, "must be a list of lists")
    return value

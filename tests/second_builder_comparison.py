"""Production's tables beside the second builder's, matched by content: which entries differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from second_builder.description import read_machine, read_program
from second_builder.placements import Matrix
from second_builder.resharding_time import redistribution
from second_builder.tables import Edge, Tables, Vertex
from second_builder.tilings import Digit, Tiling

from shardproof.models.communication.choices import communications
from shardproof.models.cost.selection import DecisionKind, Planning
from shardproof.models.layout.layout import Layout


@dataclass
class Outcome:
    """`entries`: how many were compared; `differences`: what is not equal, in words."""

    entries: int
    differences: list[str]


def tables_of(planning: Planning) -> Tables:
    """The second builder's tables of the same question: graph, machine, name of the space, unit of time."""
    return Tables(
        read_program(planning.graph.to_json()),
        read_machine(planning.machine.to_json()),
        planning.space.name,
        planning.problem.scale,
    )


def entries_of(planning: Planning) -> int:
    """How many entries production's tables have: costs, edges and rows."""
    sizes = [v.cost.size for v in planning.problem.vertices]
    rows = {(u.vertex, u.start, u.end) for u in planning.problem.usages}
    return sum(sizes) + sum(sizes[e.u] * sizes[e.v] for e in planning.problem.edges) + sum(sizes[v] for v, _, _ in rows)


def compare(planning: Planning, tables: Tables) -> Outcome:
    """Every vertex, vertex cost, edge entry and memory row."""
    outcome = Outcome(0, [])
    if planning.problem.constant or planning.problem.fine is not None:
        outcome.differences.append("there is a constant or a fine part")
    order = _vertices(planning, tables, outcome)
    if not outcome.differences:
        _edges(planning, tables, order, outcome)
        _rows(planning, tables, order, outcome)
    return outcome


def compare_movements(planning: Planning, tables: Tables, x: tuple[int, ...]) -> Outcome:
    """Of one solution every resharding: boxes and open digits at both ends, loads and phases of the derived
    steps.
    """
    outcome = Outcome(0, [])
    chosen = {
        _name(planning, i): tables.choices[_name(planning, i)].matrices.index(_matrix(d.placements[x[i]].tolist()))
        for i, d in enumerate(planning.decisions)
    }
    for m in communications(planning.graph, planning.machine.hierarchy, planning.choices(x)):
        source = ("copy", tables.copies[m.tensor]) if m.writer is None else ("operator", m.writer)
        target = ("copy", tables.copies[m.tensor]) if m.reader is None else ("operator", m.reader)
        a, b = tables.leaves(source)[chosen[source]], tables.wants(target, m.position)[chosen[target]]
        moved = redistribution(a, b, planning.machine.hierarchy)[:2]
        outcome.entries += 1
        if (_tiling(m.plan.source), _tiling(m.plan.target)) != (a, b):
            outcome.differences.append(f"{m.tensor} from {source} to {target}: other boxes")
        if (m.plan.loads(), m.plan.phases()) != moved:
            outcome.differences.append(
                f"{m.tensor} from {source} to {target}: {m.plan.loads()} in {m.plan.phases()} / {moved}"
            )
    return outcome


def _tiling(found: Layout) -> Tiling:
    return Tiling(
        tuple(found.box(d) for d in range(prod(found.hierarchy))),
        tuple(Digit(d.level, d.stride, d.prime) for d in found.open),
    )


def _name(planning: Planning, number: int) -> Vertex:
    decision = planning.decisions[number]
    return ("copy" if decision.kind is DecisionKind.COPY else "operator", decision.name)


def _vertices(planning: Planning, tables: Tables, outcome: Outcome) -> dict[Vertex, list[int]]:
    """Per vertex the production's choice of every choice of ours; costs are compared."""
    order: dict[Vertex, list[int]] = {}
    theirs = {_name(planning, i): i for i in range(len(planning.decisions))}
    if len(theirs) != len(planning.problem.vertices) or {*theirs} != {*tables.choices}:
        outcome.differences.append(f"vertices: {sorted({*theirs} ^ {*tables.choices})}")
        return order
    for vertex, chosen in tables.choices.items():
        decision, costs = planning.decisions[theirs[vertex]], planning.problem.vertices[theirs[vertex]].cost
        known = {_matrix(m): i for i, m in enumerate(decision.placements.tolist())}
        if decision.axes != chosen.axes or {*known} != {*chosen.matrices} or len(known) != costs.size:
            outcome.differences.append(
                f"{vertex}: choices over {decision.axes} / {chosen.axes}: {len(known)} / {len(chosen.matrices)}"
            )
            continue
        order[vertex] = [known[m] for m in chosen.matrices]
        for i, cost in zip(order[vertex], tables.costs(vertex), strict=True):
            outcome.entries += 1
            if int(costs[i]) != cost:
                outcome.differences.append(f"{vertex}: {decision.placements[i].tolist()} costs {costs[i]} / {cost}")
    return order


def _matrix(rows: list[list[int]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _edges(planning: Planning, tables: Tables, order: dict[Vertex, list[int]], outcome: Outcome) -> None:
    problem = planning.problem
    theirs = {
        Edge(r.tensor, _name(planning, r.source), _name(planning, r.target), r.input_position): e
        for e, r in enumerate(planning.routes)
    }
    if len(theirs) != len(problem.edges) or {*theirs} != {*tables.edges} or len(tables.edges) != len(theirs):
        outcome.differences.append(f"edges: {sorted({*theirs} ^ {*tables.edges}, key=str)}")
        return
    for edge in tables.edges:
        e = problem.edges[theirs[edge]]
        if (_name(planning, e.u), _name(planning, e.v)) != (edge.source, edge.target):
            outcome.differences.append(f"{edge}: joins {_name(planning, e.u)} and {_name(planning, e.v)}")
            continue
        table = problem.tables[e.table]
        rows = np.arange(table.shape[0]) if e.rows is None else e.rows
        cols = np.arange(table.shape[1]) if e.cols is None else e.cols
        found = table[rows[order[edge.source]]][:, cols[order[edge.target]]]
        ours = np.array(tables.edge_costs(edge), dtype=object)
        outcome.entries += ours.size
        if found.shape != ours.shape or (found != ours).any():
            i, j = np.argwhere(found != ours)[0]
            a, b = tables.choices[edge.source].matrices[i], tables.choices[edge.target].matrices[j]
            outcome.differences.append(
                f"{edge}: {a} to {b} costs {found[i, j]} / {ours[i, j]} ({np.sum(found != ours)} of {ours.size} "
                f"entries differ)"
            )


def _rows(planning: Planning, tables: Tables, order: dict[Vertex, list[int]], outcome: Outcome) -> None:
    if planning.problem.limit is None and not planning.problem.usages:  # without a limit there are no rows
        return
    theirs: Sums = {}
    for u in planning.problem.usages:
        vertex = _name(planning, u.vertex)
        _add(theirs, (vertex, u.start, u.end), u.amount[order[vertex]].tolist())
    ours: Sums = {}
    for row in tables.rows:
        _add(ours, (row.vertex, row.start, row.end), row.amounts)
    for key in sorted({*theirs, *ours}, key=str):
        outcome.entries += len(ours.get(key, ()))
        if theirs.get(key) != ours.get(key):
            outcome.differences.append(f"row {key}: {theirs.get(key)} / {ours.get(key)}")


Sums = dict[tuple[Vertex, int, int], list[int]]
"""Bytes per choice of a vertex over an interval of steps, of all that is held there together."""


def _add(sums: Sums, key: tuple[Vertex, int, int], amounts: Sequence[int]) -> None:
    known = sums.setdefault(key, [0] * len(amounts))
    known[:] = [a + b for a, b in zip(known, amounts, strict=True)]

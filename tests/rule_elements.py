"""Counting communication in elements, as Unity's introduction does: the sum over devices of the elements that each
receives.

    resharding   transfers: volume of every box received;  reduction over a ring of D devices: each receives (g-1) n
                     per phase,
                     so that an all-reduce of S elements over 2 devices counts 2 S                  -> received()
    statistics       softmax and norm statistics of a split axis: all-reduce, likewise               ->
                     statistics_received()

`elements_problem` is the selection problem whose costs are these counts: its optimum moves the fewest elements.  Its
tables are derived pair by pair from `models.communication.resharding`, so it is meant for small machines.

Source: Unity, OSDI 2022, section 1 (813,056 and 131,072 elements for the 784-512-10 perceptron on 2 devices).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from shardproof.models.communication.choices import communications
from shardproof.models.communication.resharding import CommunicationPlan, Reduction, derive, reduction_load
from shardproof.models.cost import cost
from shardproof.models.cost.selection import DecisionKind, Planning
from shardproof.models.layout.layout import Layout, LayoutSet
from shardproof.models.problem.selection_problem import Ints, SelectionProblem, Vertex
from shardproof.models.program.index import Combine

MOST_PAIRS = 1 << 20


def received(plan: CommunicationPlan) -> int:
    """Elements received, over all devices, phases and steps of one resharding."""
    hierarchy = plan.source.hierarchy
    total = 0
    for step in plan.steps:
        if isinstance(step, Reduction):
            total += prod(hierarchy) * reduction_load(step, hierarchy)[-1]
        else:
            total += int(step.transfers.volumes().sum())
    return total


def statistics_received(planning: Planning, vertex: int, choice: int) -> int:
    """Elements received in the all-reduces of an operator's statistics."""
    decision, hierarchy = planning.decisions[vertex], planning.machine.hierarchy
    if decision.kind is not DecisionKind.OPERATOR:
        return 0
    op = planning.graph.operator(decision.name)
    matrix = decision.placements[choice].tolist()
    digits = cost.statistics_digits(op, decision.axes, matrix)
    if not digits:
        return 0
    blocks = [
        -(-op.axis(n).extent // prod(row)) for n, row in zip(decision.axes, matrix, strict=False) if n not in op.over
    ]
    size, ways = prod(blocks), prod(d.prime for d in digits)
    step = Reduction(Combine.SUM, digits, (False,) * len(digits), (), -(-size // ways) * ways)
    return len(op.spec.statistics) * prod(hierarchy) * reduction_load(step, hierarchy)[-1]


def elements_moved(planning: Planning, x: tuple[int, ...]) -> int:
    """Elements that all devices together receive under the solution `x`."""
    moved = sum(
        received(m.plan) for m in communications(planning.graph, planning.machine.hierarchy, planning.choices(x))
    )
    return moved + sum(statistics_received(planning, v, x[v]) for v in range(len(x)))


def elements_problem(planning: Planning) -> SelectionProblem:
    """The same choices with elements moved as cost.  Raises ValueError when there are more than `MOST_PAIRS` pairs
    of layouts.
    """
    pairs = sum(t.size for t in planning.problem.tables)
    if pairs > MOST_PAIRS:
        raise ValueError(f"{pairs} pairs of layouts; at most {MOST_PAIRS} are derived one by one")
    vertices = tuple(
        Vertex(v.name, np.array([statistics_received(planning, i, a) for a in range(v.cost.size)], dtype=np.int64))
        for i, v in enumerate(planning.problem.vertices)
    )
    tables: list[Ints | None] = [None] * len(planning.problem.tables)
    for edge, route in zip(planning.problem.edges, planning.routes, strict=True):
        if tables[edge.table] is None:
            tables[edge.table] = _table(*route.layouts)
    filled = tuple(np.zeros((1, 1), dtype=np.int64) if t is None else t for t in tables)
    return replace(
        planning.problem,
        name=planning.problem.name + ", elements",
        vertices=vertices,
        tables=filled,
        constant=0,
        scale=1,
        unit_name="elements",
    ).check()


def _table(a: LayoutSet, b: LayoutSet) -> Ints:
    targets: list[Layout] = [b.layout(j) for j in range(len(b))]
    out = np.zeros((len(a), len(b)), dtype=np.int64)
    for i in range(len(a)):
        source = a.layout(i)
        for j, target in enumerate(targets):
            out[i, j] = received(derive(source, target))
    return out

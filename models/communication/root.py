"""Movements between a root and all ranks: inputs scattered from rank 0, outputs gathered to it.

    scatter   source: the tensor whole on rank 0, nothing elsewhere;  target: its copy, or what its reader wants
    gather    source: the copy that an output rests in;               target: the tensor whole on rank 0
    seconds   sum over levels of  element_bytes max(received, sent) / bandwidth + latency phases
              received (sent): most elements into (out of) a subtree through its link: at a root the sender counts, too
    least     what ranks must receive in any way: their boxes (scatter), what the root lacks (gather)

They are reshardings like any other (`resharding`), between layouts of which one is the root's.  No claim of a plan
counts them (`inputs-anywhere`): a program whose data begin and end on one rank pays them on top.

Source: thesis on automatic partitioning of array programs, section 5.1.2 (ScatterOntoGrid, GatherFromGrid).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

import numpy as np

from ..layout.layout import Layout
from ..machine.machine import Machine
from ..program.graph import Graph
from ..program.tensor import Role
from .choices import Choices, check_choices, copy_layout, input_layout, output_layout
from .resharding import CommunicationPlan, derive
from .transfers import Exchange, crossing

Direction = Literal["scatter", "gather"]


@dataclass(frozen=True)
class RootTransfer:
    """`moved` and `least`: bytes that all ranks receive together."""

    tensor: str
    direction: Direction
    plan: CommunicationPlan
    moved: int
    least: int
    seconds: Fraction


def root_layout(shape: tuple[int, ...], hierarchy: tuple[int, ...]) -> Layout:
    """The tensor whole on rank 0, nothing elsewhere.

    >>> root_layout((4, 6), (2, 2)).volumes().tolist()
    [24, 0, 0, 0]
    """
    boxes = np.zeros((prod(hierarchy), len(shape), 2), dtype=np.int64)
    boxes[0, :, 1] = shape
    return Layout(hierarchy, shape, boxes)


def root_transfers(graph: Graph, machine: Machine, choices: Choices) -> Iterator[RootTransfer]:
    """Of all inputs and parameters, then of all outputs, in the order of the graph.  Raises `ChoicesError`."""
    for tensor, direction, plan in root_reshardings(graph, machine.hierarchy, choices):
        t = graph.tensor(tensor)
        if direction == "scatter":
            least = int(plan.target.volumes()[1:].sum())
        else:
            least = t.elements - int(plan.source.volumes()[0])
        yield _priced(tensor, direction, plan, least * t.element_bytes, t.element_bytes, machine)


def root_reshardings(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices
) -> Iterator[tuple[str, Direction, CommunicationPlan]]:
    """Tensor, direction and steps of each, in the same order.  Raises `ChoicesError`."""
    check_choices(graph, hierarchy, choices)
    placements, copies, readers = dict(choices.operators), dict(choices.copies), graph.readers()
    for t in graph.tensors:
        if t.role is Role.VALUE or not t.shape or not (readers[t.name] or t.name in copies):
            continue
        if t.name in copies:
            target = copy_layout(t.name, graph, copies[t.name], hierarchy)
        else:
            ((i, j),) = readers[t.name]
            op = graph.operators[i]
            target = input_layout(op, j, graph, placements[op.name], hierarchy)
        yield t.name, "scatter", derive(root_layout(t.shape, hierarchy), target)
    writer = graph.writer()
    for name in graph.outputs:
        t = graph.tensor(name)
        if name not in writer or not t.shape:
            continue
        if name in copies:
            source = copy_layout(name, graph, copies[name], hierarchy)
        else:
            op = next(o for o in graph.operators if o.output.tensor == name)
            source = output_layout(op, graph, placements[op.name], hierarchy)
        yield name, "gather", derive(source, root_layout(t.shape, hierarchy))


def _priced(
    tensor: str, direction: Direction, plan: CommunicationPlan, least: int, size: int, machine: Machine
) -> RootTransfer:
    moved = sum(int(s.transfers.volumes().sum()) for s in plan.steps if isinstance(s, Exchange)) * size
    seconds = sum(
        (
            Fraction(max(received, sent) * size) / level.bandwidth + phases * level.latency
            for level, received, sent, phases in zip(
                machine.levels, plan.loads(), sent_loads(plan), plan.phases(), strict=True
            )
        ),
        Fraction(0),
    )
    return RootTransfer(tensor, direction, plan, moved, least, seconds)


def sent_loads(plan: CommunicationPlan) -> tuple[int, ...]:
    """Largest number of elements that leave a subtree through its link, per level, of the exchanges of a plan."""
    hierarchy = plan.source.hierarchy
    totals = [np.zeros(prod(hierarchy[: i + 1]), dtype=np.int64) for i in range(len(hierarchy))]
    for step in plan.steps:
        if isinstance(step, Exchange):
            t, volumes = step.transfers, step.transfers.volumes()
            first = crossing(t.sources, t.targets, hierarchy)
            for i, left in enumerate(totals):
                np.add.at(left, t.sources[first <= i] // prod(hierarchy[i + 1 :]), volumes[first <= i])
    return tuple(int(x.max()) for x in totals)

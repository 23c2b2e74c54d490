"""Follows the bytes that every device class holds through the steps of a plan.

Step t is the t-th operator.  A tensor occupies the box of its layout on every device over the interval that
`models.cost.memory` gives it; the bytes of a class at step t are those of its fullest device, operand buffers counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...models.communication.choices import Choices, copy_layout, input_layout, output_layout
from ...models.layout.layout import Layout
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import Ints
from ...models.program.graph import Graph, Role


def held_over_time(graph: Graph, machine: Machine, choices: Choices) -> dict[str, Ints]:
    """Device class -> bytes on its fullest device at every step, shape (steps,).

    >>> from shardproof.models.machine.machine import load_machine
    >>> from shardproof.models.sources.zoo import build
    >>> from ..plans.plan import plan_graph
    >>> planned = plan_graph(build("mlp-unity", batch=8), load_machine("localhost:2"))
    >>> {name: bytes_.shape for name, bytes_ in held_over_time(
    ...     planned.plan.graph, planned.plan.machine, planned.plan.choices).items()}
    {'core': (3,)}
    """
    steps = len(graph.operators)
    change = np.zeros((steps + 1, machine.devices), dtype=np.int64)
    volumes: dict[int, Ints] = {}
    kept: list[Layout] = []  # keeps ids alive
    for layout, start, stop, element_bytes in _intervals(graph, machine.hierarchy, choices):
        if id(layout) not in volumes:
            volumes[id(layout)] = layout.volumes()
            kept.append(layout)
        change[start] += volumes[id(layout)] * element_bytes
        change[stop] -= volumes[id(layout)] * element_bytes
    held = np.cumsum(change, axis=0)[:steps]
    of_class: dict[str, list[int]] = {}
    for rank in range(machine.devices):
        of_class.setdefault(machine.class_of(rank).name, []).append(rank)
    return {name: held[:, ranks].max(axis=1) for name, ranks in of_class.items()}


def _intervals(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> Iterator[tuple[Layout, int, int, int]]:
    """Layout, first step, step after the last, element size; the rules of `models.cost.memory`."""
    placements, copies = dict(choices.operators), dict(choices.copies)
    end, readers, writer = len(graph.operators), graph.readers(), graph.writer()
    following = {value for _, value in graph.state}
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        last = end if t.name in graph.outputs or t.role is Role.PARAMETER else max(uses, default=0) + 1
        start = writer.get(t.name, 0)
        if t.name in copies:
            yield copy_layout(t.name, graph, copies[t.name], hierarchy), start, last, t.element_bytes
        if t.name in writer:
            op = graph.operators[start]
            stop = start + 1 if t.name in copies or t.name in following else max(last, start + 1)
            yield output_layout(op, graph, placements[op.name], hierarchy), start, stop, t.element_bytes
        elif t.name not in copies and uses:
            ((i, j),) = readers[t.name]
            op = graph.operators[i]
            yield input_layout(op, j, graph, placements[op.name], hierarchy), 0, last, t.element_bytes
    for i, op in enumerate(graph.operators):
        for j, a in enumerate(op.inputs):
            if a.tensor in writer or a.tensor in copies:
                layout = input_layout(op, j, graph, placements[op.name], hierarchy)
                yield layout, i, i + 1, graph.tensor(a.tensor).element_bytes

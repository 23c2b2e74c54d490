"""What a plan with submeshes holds on the fullest device, in bytes (rows: `models.cost.memory`).

Branches on views run beside each other, in any order with what lies between them in the graph: what is not of one
branch alone, and is there at some step of a phase of a region, is there at all of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....models.communication.choices import Choices, copy_layout, input_layout, needs_copy, output_layout
from ....models.layout.layout import Layout
from ....models.machine.machine import Machine
from ....models.program.graph import Graph, Role
from ....models.views.regions import Region

Row = tuple[int, int, tuple[str, ...], list[tuple[Layout, int]]]
"""From which step to which; operators that write or read it; layouts and bytes of an element."""


def held_bytes(graph: Graph, machine: Machine, regions: Sequence[Region], choices: Choices) -> int:
    """Of the fullest device at the fullest step."""
    placements = dict(choices.operators)
    position = {op.name: i for i, op in enumerate(graph.operators)}
    spans, branch = list[tuple[int, int]](), dict[str, tuple[int, int, int]]()
    for r, region in enumerate(regions):
        if placements[region.branches[0][0][0]].view is None:
            continue
        for p in range(region.phases):
            names = [(b, name) for b, phases in enumerate(region.branches) for name in phases[p]]
            branch |= {name: (r, b, p) for b, name in names}
            steps = [position[name] for _, name in names]
            spans.append((min(steps), max(steps) + 1))
    change = np.zeros((len(graph.operators) + 1, machine.devices), dtype=np.int64)
    for start, end, touching, layouts in _rows(graph, machine.hierarchy, choices):
        own = {branch.get(name) for name in touching}
        start, end = (start, end) if len(own) == 1 and None not in own else _longer(start, end, spans)
        amount = sum(layout.volumes() * size for layout, size in layouts)
        change[start] += amount
        change[end] -= amount
    return int(np.cumsum(change, axis=0)[:-1].max(initial=0))


def _longer(start: int, end: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    met = [(a, b) for a, b in spans if start < b and end > a]
    longer = min([start, *(a for a, _ in met)]), max([end, *(b for _, b in met)])
    return longer if longer == (start, end) else _longer(*longer, spans)


def _rows(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> Iterator[Row]:
    placements, copies = dict(choices.operators), dict(choices.copies)
    readers, writer, copied = graph.readers(), graph.writer(), needs_copy(graph)
    following, last_step = {value for _, value in graph.state}, len(graph.operators)
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        near = tuple(graph.operators[i].name for i in (*uses, *([writer[t.name]] if t.name in writer else [])))
        start = writer.get(t.name, 0)
        kept = t.name in graph.outputs or t.role is Role.PARAMETER
        end = last_step if kept else max([start, *uses]) + 1
        if t.name in copied:
            yield start, end, near, [(copy_layout(t.name, graph, copies[t.name], hierarchy), t.element_bytes)]
        if t.name in writer:
            op = graph.operators[start]
            stop = start + 1 if t.name in copied or t.name in following else end
            yield start, stop, near, [(output_layout(op, graph, placements[op.name], hierarchy), t.element_bytes)]
        elif t.name not in copied and uses:
            i, j = readers[t.name][0]
            op = graph.operators[i]
            yield 0, end, near, [(input_layout(op, j, graph, placements[op.name], hierarchy), t.element_bytes)]
    for i, op in enumerate(graph.operators):
        moved = [
            (input_layout(op, j, graph, placements[op.name], hierarchy), graph.tensor(a.tensor).element_bytes)
            for j, a in enumerate(op.inputs)
            if a.tensor in writer or a.tensor in copied
        ]
        if moved:
            yield i, i + 1, (op.name,), moved

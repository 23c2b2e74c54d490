"""What a plan with submeshes holds on the fullest device, in bytes, a second time: from the boxes of its own choices.

    row          a tensor from a step to another, or received operands at one (`verify.plan.structure.memory_rows`)
    in a phase   branches on views run beside each other, in any order with what lies between them in the graph: a row
                 that is not of one branch alone, and is there at a step of the phase, is there at all of its steps

A device holds its own box of every row; the claim is about the most that one of them holds at a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...models.layout.placement import Placement
from ...models.problem.selection_problem import Ints
from ...models.views.regions import Region
from ...proofs.container.effort import OBJECT
from ..plan.structure import Kept, Received, uses
from ..plan.used_entries import Entries
from .lies import lies

Branch = tuple[int, int, int]


def peak_memory(entries: Entries, regions: Sequence[Region], placements: Sequence[Placement]) -> int:
    """`placements`: of every vertex."""
    graph, machine, steps = entries.graph, entries.machine, len(entries.graph.operators)
    branch: dict[str, Branch] = {}
    spans = list[tuple[int, int]]()
    at = {op.name: t for t, op in enumerate(graph.operators)}
    for r, region in enumerate(regions):
        first = placements[entries.planning.operators[region.branches[0][0][0]]]
        for p in range(region.phases if first.view is not None else 0):
            mine = [(b, name) for b, phases in enumerate(region.branches) for name in phases[p]]
            branch |= {name: (r, b, p) for b, name in mine}
            spans.append((min(at[name] for _, name in mine), max(at[name] for _, name in mine) + 1))
    entries.budget.charge(OBJECT * 8 * (len(entries.rows) * (1 + len(spans)) + steps) * machine.devices, "memory")
    change = np.zeros((steps + 1, machine.devices), dtype=np.int64)
    writer, used = {op.output.tensor: op.name for op in graph.operators}, uses(graph)
    for row in entries.rows:
        touched = _touching(row, used, writer)
        begin, end = row.start, max(row.end, row.start + 1)
        if len({branch.get(name) for name in touched}) > 1 or not touched or branch.get(touched[0]) is None:
            before = None
            while before != (begin, end):  # what is longer may meet another phase
                before = begin, end
                for a, b in spans:
                    if begin < b and end > a:
                        begin, end = min(begin, a), max(end, b)
        amount = _bytes(row, entries, placements)
        change[begin] += amount
        change[min(end, steps)] -= amount
    return int(np.cumsum(change, axis=0)[:-1].max(initial=0))


def _touching(row: Kept | Received, used: Mapping[str, list[tuple[str, int]]], writer: dict[str, str]) -> list[str]:
    """Operators that write or read what a row counts."""
    if isinstance(row, Received):
        return [row.reader]
    found = [name for name, _ in used[row.tensor]]
    return found + ([writer[row.tensor]] if row.tensor in writer else [])


def _bytes(row: Kept | Received, entries: Entries, placements: Sequence[Placement]) -> Ints:
    """Of every device."""
    graph, machine = entries.graph, entries.machine
    if isinstance(row, Received):
        tensors = {j: a.tensor for j, a in enumerate(entries.operators[row.reader].inputs)}
        found: list[tuple[str | None, int | None, str]] = [(row.reader, j, tensors[j]) for j in row.positions]
    else:
        operator = row.writer if row.writer is not None else row.reader
        found = [(operator, None if row.writer is not None else row.position, row.tensor)]
    total = np.zeros(machine.devices, dtype=np.int64)
    for operator, position, tensor in found:
        p = placements[entries.vertex(operator, tensor)]
        home = entries.replaced.get(tensor, tensor) if operator is None else tensor
        ends = lies(entries, operator, position, home, p).ends
        total += (ends[:, :, 1] - ends[:, :, 0]).clip(min=0).prod(axis=1) * graph.tensor(tensor).element_bytes
    return total

"""Which memory rows of a planning problem a stage has: what every row counts, and the rows of every operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..program.graph import Graph

MemoryRow = tuple[str, bool] | int
"""(tensor, whether as its writer leaves it), or the operator whose operands it is."""


def memory_rows(graph: Graph, copies: Mapping[str, int]) -> list[MemoryRow]:
    """What the memory rows of a planning problem count, in their order (`models.cost.memory`)."""
    readers, writer = graph.readers(), graph.writer()
    out: list[MemoryRow] = []
    for t in graph.tensors:
        if t.name in copies:
            out.append((t.name, False))
        if t.name in writer:
            out.append((t.name, True))
        elif t.name not in copies and readers[t.name]:
            out.append((t.name, False))
    for i, op in enumerate(graph.operators):
        if any(a.tensor in writer or a.tensor in copies for a in op.inputs):
            out.append(i)
    return out


def rows_of_operators(graph: Graph, rows: Sequence[MemoryRow]) -> list[list[int]]:
    """Per operator the numbers of the rows that it has to do with, in order: a stage has few of all."""
    readers, writer = graph.readers(), graph.writer()
    out: list[list[int]] = [[] for _ in graph.operators]
    for k, row in enumerate(rows):
        if isinstance(row, int):
            out[row].append(k)
            continue
        written = writer.get(row[0])
        for i in {i for i, _ in readers[row[0]]} | ({written} if written is not None else set()):
            out[i].append(k)
    return out

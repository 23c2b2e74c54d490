"""When a step on a view takes at least what it takes on the view's nodes, each of them one device.

A node of k devices computes and reads k times as fast as one of them, and moves nothing inside itself.  A placement on
the view splits over nodes in some way; the same way there costs no more, entry by entry (`docs/certificate-format.md`,
*Leaves on nodes*), if

    the number of nodes is a power of two, and splits are even
    no operator and no collective between nodes has a measured time of its own
    every index is an axis and a shift, a constant, or a whole dimension, and no axis has two dimensions of an access

and movements are free whose ends cut off a part of what an axis says.
"""

from __future__ import annotations

from dataclasses import replace

from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.program.index import Access
from ..plan.structure import Move


def node_machine(view: Machine, where: Space) -> Machine | None:
    """The machine of nodes; None where there is none that bounds the view."""
    each = 1
    for size in view.hierarchy[1:]:
        each *= size
    count = view.hierarchy[0]
    if count not in {1 << e for e in range(1, 24)} or each < 2:
        return None
    if where.uneven or where.vocabulary or view.others or view.profiles:
        return None
    if view.levels[0].collectives or view.device.products or view.device.attentions:
        return None
    peaks = tuple((name, each * flops) for name, flops in view.device.peaks)
    device = replace(view.device, peaks=peaks, bandwidth=each * view.device.bandwidth)
    return replace(view, levels=(view.levels[0],), device=device, resources=(), reduction=None)


def simple(graph: Graph) -> bool:
    """Whether every index of the graph is one of the three kinds, with an axis of its own."""
    for op in graph.operators:
        for access in (op.output, *op.inputs):
            seen = set[str]()
            for index in access.index:
                for name, times in () if index.whole else index.terms:
                    if name in seen or times != 1 or len(index.terms) != 1:
                        return False
                    seen.add(name)
    return True


def free(graph: Graph, moves: list[Move]) -> frozenset[int]:
    """Movements, by number, at one of whose ends boxes may differ in size."""
    operators = {op.name: op for op in graph.operators}
    shapes = {t.name: t.shape for t in graph.tensors}
    cut: dict[tuple[str, int], bool] = {}
    for name, op in operators.items():
        extents = {a.name: a.extent for a in op.axes}
        for number, access in enumerate((op.output, *op.inputs)):
            cut[name, number] = _cut(access, shapes[access.tensor], extents)
    found = set[int]()
    for number, move in enumerate(moves):
        if move.writer is not None and cut[move.writer, 0]:
            found.add(number)
        if move.reader is not None and cut[move.reader, 1 + move.position]:
            found.add(number)
    return frozenset(found)


def _cut(access: Access, shape: tuple[int, ...], extents: dict[str, int]) -> bool:
    for index, size in zip(access.index, shape, strict=True):
        if not index.whole:
            last = index.offset
            for name, times in index.terms:
                last += times * (extents[name] - 1)
            if index.offset < 0 or last >= size:
                return True
    return False

"""Counts what a layer of experts does beside its products: rows that cross to experts of other devices and are sorted.

sent     rows of everyone, once for every expert that a token chose, to its devices; as many come back
sorted   by expert before they go, and when they came, and back: each time every row is read and written
gates    maps between products of experts alone: a kernel of all these products may compute them on its way
"""

from __future__ import annotations

from math import ceil
from typing import Final

from ....models.cost.alone import Device
from ....models.layout.targets.degrees import Flags
from ....models.program.graph import Graph
from ....models.program.operators import NodeKind, Operator

SORTS: Final = 4
"""Kernels a pass that sort rows."""

SORTED: Final = 2 * SORTS
"""Bytes that they move, a byte of all rows: read and written every time."""


def times_sent(op: Operator, device: Device) -> int:
    """How many rows of experts a token is: they are gathered and scattered each on its own."""
    return device.share(op).get("j", 1) if op.kind is NodeKind.GROUPED else 1


def rows_exchanged(op: Operator, device: Device, flags: Flags) -> tuple[int, int]:
    """Bytes of the rows of a device, for the first product of its experts, and of those that are sent."""
    share = device.share(op)
    rows = share["b"] * share["s"] * share.get("j", 1) // (flags.tp if flags.sequence_parallel else 1)
    size = rows * share["m"] * device.graph.tensor(op.inputs[0].tensor).element_bytes
    return size, ceil(size * device.heaviest(op)) if flags.ep > 1 else 0


def gates(graph: Graph) -> frozenset[str]:
    """Maps that read results of experts' products, or of such maps, and that no others read but those, and products
    that sum over their width (the gradient of a token's weight).

    >>> from ....models.sources.zoo import build
    >>> sorted(gates(build("mixtral-8x7b", layers=1, batch=8, sequence=64, capacity_percent=0)))
    ['layer0.ffn.gated', 'layer0.ffn.silu', 'layer0.ffn.weighed']
    """
    found, written, readers = set[str](), graph.writer(), graph.readers()

    def belongs(i: int | None, kinds: tuple[NodeKind, ...]) -> bool:
        return i is not None and (graph.operators[i].kind in kinds or graph.operators[i].name in found)

    for op in graph.operators:
        if op.kind is NodeKind.MAP and any(belongs(written.get(a.tensor), (NodeKind.GROUPED,)) for a in op.inputs):
            found.add(op.name)
    for op in reversed(graph.operators):
        behind = [i for i, _ in readers[op.output.tensor]]
        if not behind or not all(belongs(i, (NodeKind.GROUPED, NodeKind.CONTRACT)) for i in behind):
            found.discard(op.name)
    return frozenset(found)

"""What every device of the machine has of a tensor under a placement that may be one on a view."""

from __future__ import annotations

from dataclasses import replace

from ...models.layout.placement import Placement
from ..plan.boxes import DeviceBoxes, copy_of, read_by, written_by
from ..plan.used_entries import Entries
from .structure import devices


def lies(
    entries: Entries, operator: str | None, position: int | None, tensor: str, p: Placement, whole: bool = True
) -> DeviceBoxes:
    """A copy (operator None), an operator's output (position None) or an input.  `whole`: of the machine, where devices
    outside of the view have nothing; else of the view.
    """
    machine, graph = entries.machine, entries.graph
    hierarchy = machine.hierarchy if p.view is None else p.view.counts
    inside = replace(p, view=None)
    if operator is None:
        found = copy_of(tensor, graph, inside, hierarchy)
    elif position is None:
        found = written_by(entries.operators[operator], graph, inside, hierarchy)
    else:
        found = read_by(entries.operators[operator], position, graph, inside, hierarchy)
    if p.view is None or not whole:
        return found
    boxes = [tuple((0, 0) for _ in found.shape)] * machine.devices
    for k, device in enumerate(devices(p.view, machine)):
        boxes[device] = found.boxes[k]
    return DeviceBoxes.of(machine.hierarchy, found.shape, boxes, found.open)

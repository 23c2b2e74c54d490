"""A machine as plain text with units: what `shardproof machine show` prints.

>>> from shardproof.models.machine import load_machine
>>> print(render(load_machine("localhost:4")).splitlines()[0])
machine localhost: 4 devices = 4 ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .machine import Machine
from .quantities import show


def render(machine: Machine) -> str:
    """Levels, device, resources, and the source of every constant; ends without a newline."""
    shape = " x ".join(f"{level.size} {level.name}" for level in machine.levels)
    head = [f"machine {machine.name}: {machine.devices} device{'s' if machine.devices > 1 else ''} = {shape}", f"sha256 {machine.sha256()}", ""]
    rows = [("level", "size", "per child, each way", "per phase")]
    rows += [(x.name, str(x.size), show(x.bandwidth, "rate"), show(x.latency, "time")) for x in machine.levels]
    device = machine.device
    rows += [("", "", "", ""), ("device", "memory", "memory bandwidth", "launch")]
    memory = show(Fraction(device.memory), "bytes")
    rows += [(device.name, memory, show(device.bandwidth, "rate"), show(device.launch, "time"))]
    rows += [("", "", "", ""), ("dtype", "peak", "", "")]
    rows += [(dtype, show(peak, "flops"), "", "") for dtype, peak in device.peaks]
    if machine.resources:
        rows += [("", "", "", ""), ("resource", "devices", "capacity", "traffic of (priced for reduction programs)")]
        rows += [(r.name, str(r.devices), show(r.capacity, "rate"), ", ".join(r.traffic) + (f"; only {', '.join(map(str, r.only))}" if r.only else "")) for r in machine.resources]
    if machine.reduction is not None:
        constants = machine.reduction
        rows += [("", "", "", ""), ("reduction programs", "", "", "")]
        rates = (("tree_flow", constants.tree_flow), ("copy", constants.copy))
        rows += [(name, show(value, "rate"), "", "") for name, value in rates if value is not None]
        rows += [("switch_quad", show(constants.switch_quad, "number"), "", "")] if constants.switch_quad is not None else []
    return "\n".join([*head, *_columns(rows), "", "sources", *(f"  {constant}: {text}" for constant, text in machine.sources)])


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]

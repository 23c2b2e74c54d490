"""The least time of a unit whatever its placement: all devices of a view share the arithmetic evenly,
and write.

    operator  >=  max( flops / (D peak),  bytes written / (D bandwidth) ) + launch            D devices of a view

and the least memory: between the forward and the backward pass of a micro-batch all devices of a view together have
the parameters, what the backward pass reads of the forward pass, and sums of gradients if there are several
micro-batches, at least once each.

Where the element type has a measured form of products, 1 / peak and launch are the smaller ones of the class's and the
form's (`ProductForm.pace`: every processor in a full tile of the fastest kind): a product may beat the peak.  An
attention with a measured form takes its launch and pace (`AttentionForm`): its other terms are nowhere below 0.

Times are summed over the operators of a unit that run for every micro-batch.  All this needs no tables, so many
numbers of stages and micro-batches are ruled out by it alone.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate
from math import floor

from ..machine.machine import Machine
from ..program.attention import FORWARD
from ..program.graph import Graph, Role
from ..program.operators import NodeKind
from .division import Division

PER_SECOND = 10**12
"""Bounds are in picoseconds."""


Amounts = list[Counter[tuple[str, int, int, str, str]]]
"""Per unit, how many of its operators have (phase, flops, bytes written, element type of the arithmetic, direction of
an attention or nothing)."""


def amounts(graph: Graph, division: Division) -> Amounts:
    """What the operators of every unit do, whatever the machine; most of a deep model's do the same."""
    found: Amounts = [Counter() for _ in range(division.units)]
    for op, unit, phase in zip(graph.operators, division.unit, division.phase, strict=True):
        if unit >= 0:
            out, flops = graph.tensor(op.output.tensor), graph.work(op)
            dtype = graph.computed_in(op) if flops else ""
            way = ""
            if flops and op.kind is NodeKind.ATTENTION:
                way = "forward" if op.function in FORWARD else "backward"
            found[unit][phase, flops, out.elements * out.element_bytes, dtype, way] += 1
    return found


def unit_work(done: Amounts, machine: Machine, phases: str = "FB") -> list[int]:
    """Per unit, picoseconds of forward and backward (or one of both) of one micro-batch at least, on `machine` (a
    view).
    """
    if machine.profiles:  # measured times may be less than any formula says
        return [0] * len(done)
    device, d = machine.device, machine.devices
    known: dict[tuple[int, int, str, str], Fraction] = {}
    total = []
    for unit in done:
        time = Fraction(0)
        for (phase, flops, written, dtype, way), count in unit.items():
            if phase in phases:
                alike = flops, written, dtype, way
                if alike not in known:
                    pace, launch = 1 / device.peak(dtype) if flops else Fraction(0), device.launch
                    form = device.product(dtype) if flops else None
                    attention = device.attention(dtype, way)
                    if attention is not None:
                        pace, launch = attention.pace, attention.launch
                    elif form is not None:
                        pace, launch = min(pace, form.pace), min(launch, form.launch)
                    writing = Fraction(written, d) / device.bandwidth
                    known[alike] = max(Fraction(flops, d) * pace, writing) + launch
                time += known[alike] * count
        total.append(floor(time * PER_SECOND))
    return total


def unit_live_bytes(graph: Graph, division: Division, summed: bool) -> tuple[list[int], list[int]]:
    """Per unit the bytes that the devices of a stage have together before its first backward operator, at least: what
    is there however many micro-batches are under way, and what each of these keeps.  `summed`: gradients of several
    micro-batches add up.
    """
    fixed, kept = [0] * division.units, [0] * division.units
    place = {op.output.tensor: i for i, op in enumerate(graph.operators)}
    readers = graph.readers()
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        units = {division.unit[i] for i in uses if division.unit[i] >= 0}
        size = t.elements * t.element_bytes
        if t.role is Role.PARAMETER and len(units) == 1:
            fixed[units.pop()] += size
        elif t.name in place and (home := division.unit[place[t.name]]) >= 0:
            phase = division.phase[place[t.name]]
            if phase == "F" and any(division.phase[i] == "B" and division.unit[i] == home for i in uses):
                kept[home] += size
            elif phase == "B" and summed and uses and all(division.phase[i] == "U" for i in uses):
                fixed[home] += size
    return fixed, kept


def unit_peak_bytes(graph: Graph, division: Division) -> list[int]:
    """Per unit the most bytes at a time of what its own operators write and read, on all devices together, at least."""
    changes: list[dict[int, int]] = [{} for _ in range(division.units)]
    readers = graph.readers()
    for i, op in enumerate(graph.operators):
        unit, t = division.unit[i], graph.tensor(op.output.tensor)
        if unit < 0:
            continue
        uses = [k for k, _ in readers[t.name] if division.unit[k] == unit]
        size = t.elements * t.element_bytes
        for at, change in ((i, size), (max(uses, default=i) + 1, -size)):
            changes[unit][at] = changes[unit].get(at, 0) + change
    return [max(accumulate(c[at] for at in sorted(c)), default=0) for c in changes]


def unit_bytes(graph: Graph, division: Division, summed: bool) -> list[int]:
    """Both of `unit_live_bytes` together, of one micro-batch."""
    return [a + b for a, b in zip(*unit_live_bytes(graph, division, summed), strict=True)]

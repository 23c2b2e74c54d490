"""The least time of a unit whatever its placement: all devices of a view share the arithmetic evenly, and write.

    operator  >=  max( flops / (D peak),  bytes written / (D bandwidth) ) + launch            D devices of a view

Where the element type has a measured form of products, 1 / peak and launch are the smaller ones of the class's and the
form's (`ProductForm.pace`: every processor in a full tile of the fastest kind): a product may beat the peak.

Summed over the operators of a unit that run for every micro-batch.  It needs no tables, so many numbers of stages and
micro-batches are ruled out by it alone.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from ..machine.machine import Machine
from ..program.graph import Graph
from .division import Division

PER_SECOND = 10**12
"""Bounds are in picoseconds."""


def unit_work(graph: Graph, machine: Machine, division: Division) -> list[int]:
    """Per unit, picoseconds of forward and backward of one micro-batch at least, on `machine` (a view)."""
    if machine.profiles:  # measured times may be less than any formula says
        return [0] * division.units
    total = [Fraction(0)] * division.units
    device, d = machine.device, machine.devices
    for op, unit, phase in zip(graph.operators, division.unit, division.phase, strict=True):
        if unit >= 0 and phase != "U":
            out = graph.tensor(op.output.tensor)
            flops = graph.work(op)
            pace, launch = 1 / device.peak(graph.computed_in(op)) if flops else Fraction(0), device.launch
            form = device.product(graph.computed_in(op)) if flops else None
            if form is not None:
                pace, launch = min(pace, form.pace), min(launch, form.launch)
            writing = Fraction(out.elements * out.element_bytes, d) / device.bandwidth
            total[unit] += max(Fraction(flops, d) * pace, writing) + launch
    return [floor(t * PER_SECOND) for t in total]

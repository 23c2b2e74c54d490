"""Seconds of one operator on one device, from the boxes of its axes and operands: points, elements and peaks.

The formulas stand in `verify/plan/entries.py`, which takes the slowest device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, prod

from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.machine.parts import DeviceClass, MachineError
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .attention_forms import Attended, attention_axes, attention_seconds, form_of
from .bands import Bounds, attribute_axes, bounds_of, pairs
from .boxes import Ends
from .epilogues import finishing
from .measured import Product, product_of, product_seconds
from .turns import Turns, turns_of

Box = list[int]
"""Extents, one per axis."""


@dataclass(frozen=True)
class DeviceWork:
    """What an operator does, whatever device it is on.

    `axes`: of the placement; `order`: axes of its measured times; `flops`: per point; `dtype`: of the result; `peak`:
    the type whose peak counts; `sizes`: bytes per element of every operand and of the result; `hidden`: axes that are
    no points; `rows`: the axis of rows or groups of a gather, scatter or grouped product, `groups` its extent; `load`:
    what is said of the groups; `banded`: positions of the axes whose ends count, query and key of a band's `bounds`.
    """

    op: Operator
    axes: tuple[str, ...]
    order: tuple[str, ...]
    flops: int
    dtype: str
    peak: str
    sizes: tuple[int, ...]
    hidden: frozenset[str]
    rows: str
    groups: int
    load: tuple[int, ...] | str
    bounds: Bounds | None
    banded: tuple[int, ...]
    loop: Turns | None
    product: Product | None
    attention: Attended | None
    profiles: Mapping[tuple[str, str, tuple[int, ...]], Fraction]

    def seconds(self, device: DeviceClass, ends: Ends, boxes: list[Box]) -> Fraction:
        """Time on a device.  `ends`: of its part of every axis; `boxes`: extents of these, of the operands' and of the
        result's box.  Raises `MachineError` if the machine lacks the element type's peak.
        """
        length = dict(zip(self.axes, boxes[0], strict=True))
        if self.profiles:
            known = self.profiles.get((self.op.function, self.dtype, tuple(length[name] for name in self.order)))
            if known is not None:
                return known
        points = self._points(length, ends)
        elements = [prod(max(0, n) for n in box) for box in boxes[1:]]
        if self.op.kind is NodeKind.GATHER:
            elements[0] = points
        time = self._moved(length, elements) / carrier_rate(self.op.function, device)
        form = device.product(self.peak) if self.product else None
        if self.product and form:
            extents = [prod(length[a] for a in part) for part in self.product.parts]
            finish = elements[-1] * finishing(self.op) / device.peak(self.peak)
            return product_seconds(form, extents, finish, time)
        if self.attention and (table := form_of(device, self.peak, self.attention.backward)):
            amounts = [points, *(prod(length[a] for a in part) for part in (self.attention.rows, self.attention.keys))]
            return attention_seconds(table, amounts, self.flops, self.attention.banded, time)
        if self.flops:
            time = max(time, (points * self.flops + elements[-1] * finishing(self.op)) / device.peak(self.peak))
        return time + device.launch * (self.loop.launches if self.loop else 1)

    def _points(self, length: Mapping[str, int], ends: Ends) -> int:
        """Points of the iteration box for which flops are counted."""
        points = prod(n for name, n in length.items() if name not in self.hidden)
        if self.load == "even":  # every group has as many points as any other
            points = ceil(Fraction(points * length[self.rows], self.groups))
        if isinstance(self.load, tuple):  # the groups that are here have what was counted for them
            first, last = ends[self.banded[-1]].tolist()
            points = ceil(Fraction(points * sum(self.load[first:last]), sum(self.load)))
        if self.bounds:
            query, key = self.banded
            points = points // max(1, length[self.axes[query]] * length[self.axes[key]])
            points *= pairs(tuple(ends[query].tolist()), tuple(ends[key].tolist()), self.bounds)
        return points

    def _moved(self, length: Mapping[str, int], elements: Box) -> int:
        """Bytes through the memory of the device."""
        moved = sum(n * size for n, size in zip(elements, self.sizes, strict=True))
        if self.loop:
            moved += sum(size * prod(length[a] for a in along) for along, size in self.loop.moved)
        return moved


def device_work(op: Operator, graph: Graph, placement: Placement, machine: Machine) -> DeviceWork:
    """What `op` does on any device of this placement."""
    rows = op.attribute("rows", "") if op.kind in (NodeKind.GATHER, NodeKind.SCATTER, NodeKind.GROUPED) else None
    load = op.attribute("load", "even") if op.kind is NodeKind.GROUPED else ""
    counts = tuple(int(n) for n in load) if isinstance(load, tuple) else ()
    extent = {a.name: a.extent for a in op.axes}
    loop, bounds, attention = turns_of(op), bounds_of(op), op.kind is NodeKind.ATTENTION
    dtype = graph.tensor(op.output.tensor).dtype
    flops = loop.flops if loop else graph.flops_per_point(op)
    summed = str(op.attribute("arithmetic", ""))  # factors of this type, summed in that of the result
    hidden = {rows, *attribute_axes(op, "feature"), *attribute_axes(op, "value_feature"), *attribute_axes(op, "packed")}
    if loop:
        hidden |= {*extent} - {*op.output.axes[:-1]}
    banded = [placement.axes.index(a) for role in ("query", "key") for a in attribute_axes(op, role)] if bounds else []
    if counts:
        banded.append(placement.axes.index(str(rows)))
    return DeviceWork(
        op,
        placement.axes,
        (*op.output.axes, *(a.name for a in op.reduction_axes)),
        flops,
        dtype,
        summed or (graph.tensor(op.inputs[0].tensor).dtype if attention else dtype),
        tuple(graph.tensor(a.tensor).element_bytes for a in (*op.inputs, op.output)),
        frozenset(str(name) for name in hidden if name is not None),
        str(rows),
        extent.get(str(rows), 1),
        counts or str(load),
        bounds,
        tuple(banded),
        loop,
        product_of(op) if flops and any(c.products for c in machine.classes) else None,
        attention_axes(op) if flops and any(c.attentions for c in machine.classes) else None,
        measured_by_box(machine) if machine.profiles and not (bounds or summed or loop or counts) else {},
    )


def carrier_rate(function: str, device: DeviceClass) -> Fraction:
    """Bytes/s of what an operator moves.  Raises `MachineError` if the machine says nothing of the link to the host."""
    if function not in ("to_host", "from_host"):
        return device.bandwidth
    if device.host is None:
        raise MachineError(f"[[device_class]] {device.name!r}", "states no link to the host")
    return device.host


@lru_cache(maxsize=8)
def measured_by_box(machine: Machine) -> dict[tuple[str, str, tuple[int, ...]], Fraction]:
    """Measured times by function, element type and extents."""
    return {(p.function, p.dtype, p.extents): p.seconds for p in machine.profiles}

"""Recomputes single entries of a selection problem device by device from index sets; small, slow,
independent of `models/`.

    operator   t = max_d busy_d + statistics;  busy_d = max( flops_d / peak_d, bytes_d / memory bandwidth_d ) +
               launch_d, constants of the device's class, or the time that the machine's profile has for the function,
               element type and extents of device d's box
               flops_d   flops per point x points of device d's iteration box (gather, scatter: without their row axis;
                         grouped product: of one group per point, those of its own groups, rounded up, where they are
                         even; attention: without features, only pairs of query and key in the band), at the peak of
                         the result's element type (attention: of its first operand's); none if the result is no float
               to_host, from_host: bytes over the link to the host
               bytes_d   elements of every operand's box x element size (gather: of the table only the rows touched;
                         scan: and those of its body, in every turn; so are its launches)
               statistics of softmax, attention and layer norm: all-reduced over the digits of the `over` axes, each
                         4 bytes
    movement   t = sum_i element_bytes load_i / bandwidth_i + latency_i phases_i
               fetch     load_i = max over level-i subtrees u of | union_{d in u} B_d  minus  union_{d in u} A_d |,
                         nothing if every B_d is inside A_d
               what lies on hosts takes no byte, and is forbidden to move
               reduction over the open digits first, if there are any, see `reductions`
    measured   at levels with measured forms the collectives take the place of loads and phases, and a matrix product
               and an attention have the time of their class's form, see `verify/plan/measured.py` and
               `attention_forms.py`
    usage      elements of the largest box x element size

Time is exact in seconds and is rounded up once (each measured collective on its own), to the unit of the problem (1 ps,
where that fits).  The formulas are
those that every claim about a plan refers to (`models/cost/cost.py`, `models/communication/pricing.py`: read there, not
imported from there).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.machine.parts import DeviceClass
from ...models.problem.selection_problem import FORBIDDEN
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .boxes import (
    DeviceBoxes,
    Ends,
    all_inside,
    axis_blocks,
    below,
    difference,
    distinct,
    open_digits,
    read_by,
    written_by,
)
from .device_work import device_work
from .measured import Collective, of_fetch, of_reduction, units
from .reductions import Choice, Loads, choice_of, reduction

PER_SECOND = 10**12
"""Units of a problem in picoseconds."""
STATISTIC_BYTES = 4


def operator_entry(op: Operator, graph: Graph, placement: Placement, machine: Machine, scale: int = PER_SECOND) -> int:
    """Time of an operator under a placement, in units of 1/`scale` s.  Raises `MachineError` if the machine lacks
    the element type's peak.
    """
    hierarchy, work = machine.hierarchy, device_work(op, graph, placement, machine)
    extent = {a.name: a.extent for a in op.axes}
    blocks = axis_blocks(tuple(extent[name] for name in placement.axes), placement.matrix, hierarchy)
    operands = [read_by(op, k, graph, placement, hierarchy) for k in range(len(op.inputs))]
    operands.append(written_by(op, graph, placement, hierarchy))
    device, number = (
        _classes(machine) if machine.others else ((machine.device,), np.zeros(machine.devices, dtype=np.int64))
    )
    lengths = [ends[:, :, 1] - ends[:, :, 0] for ends in (blocks, *(held.ends for held in operands))]
    same = [number[:, None], *lengths, *(blocks[:, i, :1] for i in work.banded)]
    busy = Fraction(0)
    for d in distinct(np.concatenate(same, axis=1)):  # devices with equal boxes count once
        busy = max(busy, work.seconds(device[number[d]], blocks[d], [n[d].tolist() for n in lengths]))
    statistics, more = _statistics(op, placement, machine, blocks, scale)
    return ceil((busy + statistics) * scale) + more


@lru_cache(maxsize=8)
def _classes(machine: Machine) -> tuple[tuple[DeviceClass, ...], NDArray[np.int64]]:
    """The device classes, and the number of every device's."""
    each = [machine.class_of(rank) for rank in range(machine.devices)]
    known = {id(c): c for c in each}
    place = {name: i for i, name in enumerate(known)}
    return tuple(known.values()), np.array([place[id(c)] for c in each], dtype=np.int64)


def _statistics(op: Operator, placement: Placement, machine: Machine, blocks: Ends, scale: int) -> tuple[Fraction, int]:
    """The all-reduces of a normalise or attention operator's statistics, one value per point of the axes that are not
    in `over`: seconds on links, and units at levels with measured forms.
    """
    if op.kind not in (NodeKind.NORMALISE, NodeKind.ATTENTION):
        return Fraction(0), 0
    digits = open_digits(placement.matrix, [i for i, name in enumerate(placement.axes) if name in op.over])
    lengths = blocks[:, [i for i, name in enumerate(placement.axes) if name not in op.over]]
    lengths = lengths[:, :, 1] - lengths[:, :, 0]
    values = max(prod(lengths[d].tolist()) for d in distinct(lengths))
    whole = (False,) * len(digits)
    choice = choice_of(machine, STATISTIC_BYTES)
    once = seconds(reduction(machine.hierarchy, digits, whole, values, choice), STATISTIC_BYTES, machine)
    more = units([*of_reduction(machine.hierarchy, digits, whole, values)], STATISTIC_BYTES, machine, scale)
    return len(op.spec.statistics) * once, len(op.spec.statistics) * more


def communication_entry(
    element_bytes: int, source: DeviceBoxes, target: DeviceBoxes, machine: Machine, scale: int = PER_SECOND
) -> int:
    """Time of the resharding from `source` (perhaps partial) to `target` (closed), in units of 1/`scale` s."""
    if not element_bytes:  # it lies on hosts, and nothing takes it to another device
        return FORBIDDEN if any(map(any, communication_loads(source, target))) else 0
    loads = communication_loads(source, target, choice_of(machine, element_bytes))
    linear = ceil(seconds(loads, element_bytes, machine) * scale)
    if not any(level.collectives for level in machine.levels):
        return linear
    return linear + units(communication_collectives(source, target), element_bytes, machine, scale)


@lru_cache(maxsize=512)
def communication_collectives(source: DeviceBoxes, target: DeviceBoxes) -> tuple[Collective, ...]:
    """Every collective of a resharding, level by level."""
    found: list[Collective] = []
    within, loads = _fetched(source, target)
    if not within:
        found += of_fetch(source.hierarchy, loads, source.largest, target.largest)
    if source.open:
        ends = target.largest if within else source.largest
        found += of_reduction(source.hierarchy, source.open, _scattered(source, target, within), ends)
    return tuple(found)


def _fetched(source: DeviceBoxes, target: DeviceBoxes) -> tuple[bool, list[int]]:
    """Whether every device holds what it wants, and what enters the fullest subtree of every level otherwise."""
    hierarchy, a, b = source.hierarchy, source.ends, target.ends
    if all_inside(b, a):
        return True, [0] * len(hierarchy)
    return False, [
        max(difference(*run) for run in below(b, a, prod(hierarchy[level + 1 :]))) for level in range(len(hierarchy))
    ]


def _scattered(source: DeviceBoxes, target: DeviceBoxes, within: bool) -> tuple[bool, ...]:
    b = target.ends
    return tuple(within and bool((b != b[o.zeroed_all(source.hierarchy)]).any()) for o in source.open)


@lru_cache(maxsize=512)
def communication_loads(source: DeviceBoxes, target: DeviceBoxes, choice: Choice | None = None) -> Loads:
    """Elements that enter the fullest subtree of every level, and phases per level.  `choice`: of the programs of
    reductions.
    """
    hierarchy = source.hierarchy
    within, loads = _fetched(source, target)
    phases = [int(load > 0) for load in loads]
    if source.open:
        scattered = _scattered(source, target, within)
        size = target.largest if within else source.largest
        more, steps = reduction(hierarchy, source.open, scattered, size, choice)
        loads = [x + y for x, y in zip(loads, more, strict=True)]
        phases = [x + y for x, y in zip(phases, steps, strict=True)]
    return tuple(loads), tuple(phases)


def seconds(loads: Loads, element_bytes: int, machine: Machine) -> Fraction:
    """Time of loads and phases on the levels of a machine that have no measured forms."""
    return sum(
        (
            element_bytes * load / level.bandwidth + level.latency * phase
            for load, phase, level in zip(*loads, machine.levels, strict=True)
            if not level.collectives
        ),
        Fraction(0),
    )

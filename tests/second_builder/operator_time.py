"""The time of an operator under a placement: its slowest device, then the statistics it exchanges.

busy_d = max(flops_d / peak_d, bytes_d / bandwidth_d) + launch_d,  or the measured time of device d's box where there is
one, or that of a product or an attention by its table; of a loop what its body does in every turn
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, prod

from shardproof.models.program.operators import FUNCTIONS

from .attention_work import attention_seconds, direction, is_banded, operations_per_pair, query_key_pairs
from .description import BYTES, Device, Machine, Operator, Program
from .loop_work import loop_work
from .measured_time import Phase, product_roles, product_time, units
from .placements import Interval, Matrix, iteration_boxes, touched
from .reduction_time import reduction
from .resharding_time import rounded, transfer_time
from .tilings import split_digits, volume

STATISTIC = BYTES["float32"]


def operator_units(
    op: Operator, program: Program, order: Sequence[str], matrix: Matrix, machine: Machine, scale: int
) -> int:
    """Units of 1/`scale` seconds: rounded up, and so is each measured collective of the statistics."""
    boxes = iteration_boxes(op, order, matrix, machine.sizes)
    slowest = max(busy(op, program, box, device, machine) for box, device in zip(boxes, machine.devices, strict=True))
    on_links, collectives = statistics_time(op, order, matrix, boxes, machine)
    return rounded(slowest + on_links, scale) + op.statistics * units(collectives, STATISTIC, machine, scale)


def busy(op: Operator, program: Program, box: dict[str, Interval], device: Device, machine: Machine) -> Fraction:
    """Seconds of one device."""
    dtype = program.tensors[op.output.tensor].dtype
    extents = tuple(length(box[a]) for a in (*op.written, *op.reduced))
    if op.kind == "scan":
        loop = loop_work(op, box, {name: row.flops for name, row in FUNCTIONS.items()})
        once = bytes_moved(op, program, box)
        arithmetic = Fraction(loop.flops) / device.peaks[dtype] if loop.flops else Fraction(0)
        return max(arithmetic, (once + loop.bytes) / device.bandwidth) + loop.launches * device.launch
    factors = op.attributes.get("arithmetic")
    told = not is_banded(op) and factors is None and isinstance(op.attributes.get("load", ""), str)
    if (op.function, dtype, extents) in machine.measured and told:
        return machine.measured[op.function, dtype, extents]
    work_per_point = flops_per_point(op, dtype)
    work = work_per_point * points(op, box)
    if op.function == "fused_product" and work:  # every map of the epilogue, once per element of the result
        work += sum(FUNCTIONS[name].flops for name in op.attributes["epilogue"]) * prod(
            length(box[a]) for a in op.written
        )
    peak = factors or (program.tensors[op.inputs[0].tensor].dtype if op.kind == "attention" else dtype)
    roles = product_roles(op)
    if work_per_point and roles and peak in device.products:
        shape = [prod(length(box[a]) for a in part) for part in roles]
        epilogue = Fraction(work - work_per_point * points(op, box)) / device.peaks[peak]
        return product_time(device.products[peak], shape, epilogue, bytes_moved(op, program, box) / device.bandwidth)
    form = device.attention.get((peak, direction(op))) if work_per_point and op.kind == "attention" else None
    if form:
        return attention_seconds(op, box, form, work_per_point, bytes_moved(op, program, box) / device.bandwidth)
    if op.function in ("to_host", "from_host"):
        return bytes_moved(op, program, box) / device.host + device.launch
    arithmetic = work / device.peaks[peak] if work else Fraction(0)
    return max(arithmetic, bytes_moved(op, program, box) / device.bandwidth) + device.launch


def length(interval: Interval) -> int:
    return interval[1] - interval[0]


def points(op: Operator, box: dict[str, Interval]) -> int:
    """Points of an iteration box; an operator that picks rows of a table visits one row, not all, and each point of a
    grouped product belongs to one group.
    """
    if op.kind == "attention":
        return query_key_pairs(op, box)
    rows = op.attributes["rows"] if op.kind in ("gather", "scatter", "grouped") else None
    met = prod(length(box[a]) for a in box if a != rows)
    if op.kind == "grouped" and op.attributes.get("load", "even") == "even":  # the share of the groups held here
        return ceil(met * Fraction(length(box[rows]), op.axes[rows].extent))
    if op.kind == "grouped" and op.attributes["load"] != "any":  # as many as were counted for the groups held here
        counts = op.attributes["load"]
        return ceil(Fraction(met * sum(counts[box[rows][0] : box[rows][1]]), sum(counts)))
    return met


def flops_per_point(op: Operator, dtype: str) -> int:
    """Nothing is counted for integer and logical results."""
    if "float" not in dtype:
        return 0
    if op.function == "product_sum":
        return op.flops * (len(op.inputs) // 2)
    if op.kind == "attention":
        return operations_per_pair(op)
    if op.kind == "opaque":
        return int(op.attributes.get("flops", op.flops))
    return op.flops


def bytes_moved(op: Operator, program: Program, box: dict[str, Interval]) -> Fraction:
    """Every operand's box once, the result's once; of a table that rows are picked from one element per point."""
    total = 0
    for operand in (*op.inputs, op.output):
        tensor = program.tensors[operand.tensor]
        found = tuple(touched(index, n, box) for index, n in zip(operand.index, tensor.shape, strict=True))
        elements = volume(found)
        if op.kind == "gather" and operand is op.inputs[0]:
            elements = points(op, box)
        total += elements * tensor.size
    return Fraction(total)


def statistics_time(
    op: Operator, order: Sequence[str], matrix: Matrix, boxes: Sequence[dict[str, Interval]], machine: Machine
) -> tuple[Fraction, tuple[Phase, ...]]:
    """All-reduces of the statistics of a normalise operator whose axes `over` are split: all on links, each in
    collectives.
    """
    named = op.attributes.get("over", ())
    over = (named,) if isinstance(named, str) else named
    if op.kind == "attention":
        over = [a for role in ("key", "feature", "value_feature") for a in op.attributes[role]]
    reduces = op.kind in ("normalise", "attention") and op.statistics > 0
    digits = split_digits(matrix, [i for i, a in enumerate(order) if a in over]) if reduces else ()
    if not digits:
        return Fraction(0), ()
    tile = max(prod(length(box[a]) for a in op.written if a not in over) for box in boxes)
    moved = reduction(tile, digits, digits, machine.sizes)
    return op.statistics * transfer_time(moved, STATISTIC, machine), moved[2]

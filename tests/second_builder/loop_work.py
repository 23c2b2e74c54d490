"""What a loop does, from the text of its body: its operators one by one, as often as the loop turns.

Rows are the axes of the result but the last.  An axis of a body's operator is a row where an operand is read along a
dimension that is one; the lengths of all other axes are whole on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .description import BYTES, Operand, Operator, Program, read_program
from .placements import Interval, touched
from .tilings import volume


@dataclass(frozen=True)
class Work:
    """Operations, bytes and launches of a device."""

    flops: int
    bytes: int
    launches: int


def loop_work(op: Operator, box: dict[str, Interval], flops_of: dict[str, int]) -> Work:
    """Of one device's box; `flops_of`: per point of every function."""
    body = read_program(op.attributes["body"])
    own, turn = op.written[:-1], op.attributes["turn"]
    rows: dict[str, list[str]] = {}
    inputs = [t.name for t in body.tensors.values() if t.role == "input"]
    for name, text in zip(inputs, op.attributes["reads"], strict=True):
        rows[name] = [a if a in own else "" for a in text.split() if a != turn]
    flops = moved = 0
    for step in body.operators:
        mine = along(step, rows)
        rows[step.output.tensor] = [mine.get(a, "") for a in step.written]
        here = {a: box[mine[a]] if a in mine else (0, axis.extent) for a, axis in step.axes.items()}
        if "float" in body.tensors[step.output.tensor].dtype:
            pairs = len(step.inputs) // 2 if step.function == "product_sum" else 1
            flops += flops_of[step.function] * pairs * prod(high - low for low, high in here.values())
        moved += sum(bytes_of(a, body, here) for a in (*step.inputs, step.output))
    many = op.axes[turn].extent
    return Work(many * flops, many * moved, many * len(body.operators))


def along(step: Operator, rows: dict[str, list[str]]) -> dict[str, str]:
    """Axis -> the row that it runs along."""
    return {
        index.terms[0][0]: row for a in step.inputs for index, row in zip(a.index, rows[a.tensor], strict=True) if row
    }


def bytes_of(a: Operand, body: Program, box: dict[str, Interval]) -> int:
    """Of an operand's box."""
    tensor = body.tensors[a.tensor]
    found = tuple(touched(index, n, box) for index, n in zip(a.index, tensor.shape, strict=True))
    return volume(found) * BYTES[tensor.dtype]

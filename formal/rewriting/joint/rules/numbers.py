"""Numbers as tensors without axes: a graph scales by a number that it states, a rule by a tensor of rank 0.

scale x by 0.5    is seen as    multiply x by `= 0.5`    and written down again so
"""

from __future__ import annotations

from dataclasses import replace

from .....models.program.index import Access
from .....models.program.operators import Operator
from .....proofs.joint.derivation import NUMBER


def is_number(name: str) -> bool:
    """Whether what a rule reads is a number and no class."""
    return name.startswith(NUMBER)


def by_number(op: Operator) -> Operator:
    """An operator that scales as a product of two operands."""
    number = Access(f"{NUMBER}{op.attribute('scale', 1)!r}", ())
    rest = tuple((k, v) for k, v in op.attributes if k != "scale")
    return replace(op, function="multiply", inputs=(*op.inputs, number), attributes=rest)


def scale_by_input(op: Operator) -> Operator:
    """Inverse of `by_number`; other operators as they are."""
    if op.function != "multiply" or len(op.inputs) != 2 or not is_number(op.inputs[1].tensor):
        return op
    text = op.inputs[1].tensor.removeprefix(NUMBER)
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    return replace(op, function="scale", inputs=op.inputs[:1], attributes=(*op.attributes, ("scale", number)))

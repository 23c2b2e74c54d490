"""Products with elementwise functions applied to every finished sum, so that what lies between never
reaches memory.

    fused_product   inputs: `factors` operands, then operands of the epilogue; attribute `epilogue`: names of maps
                    v = sum over the reduction axes of the product of the factors;  then for every name f in turn
                    v = f(v, next operands of the epilogue, if f takes more than one)

A map of a partial sum is no part of the map of the sum, so the reduction axes are never split; operands of the epilogue
are indexed by axes of the result.  One map at most has attributes, which are the operator's.

    time   as of a product, with the operations of every map once per element of the result; nothing is written or read
           in between

Source: epilogues of cuBLASLt and CUTLASS; operator fusion as a substitution: TASO (SOSP 2019), figure 3.
"""

from __future__ import annotations

from typing import Final

from .operators import FUNCTIONS, HOST_COPIES, NodeKind, Operator

FUSED: Final = "fused_product"

MOST_MAPS: Final = 8
"""Maps of one epilogue."""
MOST_OPERANDS: Final = 5
"""Operands of one map, those of batch_norm."""

OWN: Final = frozenset({"factors", "epilogue", "reversed", "arithmetic"})
"""Attributes that are not those of a map of the epilogue."""


def epilogue(op: Operator) -> tuple[str, ...]:
    """Maps that are applied to every finished sum, in order; empty for other functions."""
    value = op.attribute("epilogue", ()) if op.function == FUSED else ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def factors(op: Operator) -> int:
    """How many inputs are multiplied; of other functions all."""
    value = op.attribute("factors", 0) if op.function == FUSED else len(op.inputs)
    return value if isinstance(value, int) else 0


def can_follow(function: str) -> bool:
    """Whether a map can be part of an epilogue: a fixed number of operands, and the element type stays.

    >>> can_follow("relu"), can_follow("batch_norm"), can_follow("cast"), can_follow("softmax")
    (True, True, False, False)
    """
    row = FUNCTIONS.get(function)
    if row is None or row.kind is not NodeKind.MAP or row.logical or function in ("cast", *HOST_COPIES):
        return False
    return row.arity[0] == row.arity[1] <= MOST_OPERANDS


def operations(op: Operator) -> int:
    """Operations of the epilogue per element of the result."""
    return sum(FUNCTIONS[name].flops for name in epilogue(op))


def wrong(op: Operator) -> str:
    """Why a `fused_product` is none; empty if it is one, and for other functions."""
    if op.function != FUSED:
        return ""
    names, count = epilogue(op), factors(op)
    if not 1 <= len(names) <= MOST_MAPS or not all(map(can_follow, names)):
        many = f"{MOST_MAPS} maps of at most {MOST_OPERANDS} operands"
        return f"fused_product needs attribute epilogue: names of 1 to {many}"
    operands = sum(FUNCTIONS[name].arity[0] - 1 for name in names)
    if count < 1 or count + operands != len(op.inputs):
        return (
            f"fused_product has {len(op.inputs)} inputs, not factors ({count}) and the operands of its epilogue "
            f"({operands})"
        )
    if split := [a.name for a in op.reduction_axes if a.splittable]:
        return f"fused_product reads axis {split[0]!r} whole, so it must not be splittable"
    reduced = {a.name for a in op.reduction_axes}
    if any(reduced & set(a.axes) for a in op.inputs[count:]):
        return "an operand of the epilogue is indexed by a reduction axis"
    return ""

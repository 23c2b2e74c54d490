"""Which type an operator computes in: the lists of torch.autocast, by what operators mean here.

    HALF      products that sum (linear layers, convolutions, einsum), attention, experts: the half type
    FLOAT     softmax, norms, exponentials, logarithms, powers, sums, losses: float32
    WIDEST    everything else: the widest type of its operands, as torch promotes them; numbers without dimensions do
              not count.  The bias of a linear layer or convolution is part of it, and half
    FIRST     batch norm with known statistics: the type of what is normalised
    (a loop is of one type: half where their body has products, as torch's recurrent layers, else the widest)
    STATED    what has no real operands, and functions of the user's own: the type that the model states

A sum of one factor, and a product of a tensor with itself (a norm), are sums.  Source: torch.amp, autocast op reference
(CUDA).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ...program.operators import NodeKind, Operator


class Compute(Enum):
    """See the module docstring."""

    HALF = "half"
    FLOAT = "float"
    WIDEST = "widest"
    FIRST = "first"
    STATED = "stated"


LOSSES: Final = frozenset({"log_softmax", "squared_difference"})
"""What begins a loss: float32 in every precision."""

_FLOAT: Final = LOSSES | {
    "softmax",
    "layer_norm",
    "rms_norm",
    "exp",
    "log",
    "power",
    "rsqrt",
    "reciprocal",
    "softplus",
    "sum",
    "cumulative_sum",
}


def computed_in(op: Operator) -> Compute:
    """In which type an operator computes under autocast.

    >>> from ..zoo import build
    >>> [computed_in(op).value for op in build("mlp-unity").operators]
    ['half', 'widest', 'half']
    """
    if op.kind is NodeKind.OPAQUE or op.function in ("constant", "iota", "random", "cast"):
        return Compute.STATED
    if op.function == "batch_norm":
        return Compute.FIRST
    if op.function in _FLOAT:
        return Compute.FLOAT
    if op.kind is NodeKind.CONTRACT:
        tensors = [a.tensor for a in op.inputs]
        if not op.reduction_axes:
            return Compute.WIDEST
        return Compute.HALF if len(set(tensors)) > 1 else Compute.FLOAT
    return Compute.HALF if op.kind in (NodeKind.ATTENTION, NodeKind.GROUPED) else Compute.WIDEST

"""Gradients of weights that are kept in float32 and read in half precision.

    W -> W.bf16 = cast(W) -> products          grad W = grad W.bf16 = a sum of products

Where each device has a part of that sum, parts are added in the type of  grad W.bf16.  Summed in float32 (Megatron's
fused accumulation, DistributedDataParallel under autocast): the products write float32, so that no part is rounded
before it travels; summed in half precision: as it stands, which on one device is bit for bit autocast.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from ...program.graph import Role
from ...program.operators import NodeKind, Operator
from .backward import Backward

_LINEAR: Final = frozenset({"sum", "scatter_add", "embedding_gradient", "sum_inputs", "copy", "copy_gradient"})
"""Functions besides products that write the same numbers in a wider type, but for rounding."""


def sum_in_float32(b: Backward) -> None:
    """Let gradients of weights that are kept in float32 be written so, where a sum writes them and nobody reads them
    in the reverse pass.
    """
    writer = {op.output.tensor: i for i, op in enumerate(b.operators)}
    readers = Counter(a.tensor for op in b.operators for a in op.inputs)
    for t in b.graph.tensors:
        gradient = b.gradient.get(t.name)
        if t.role is Role.PARAMETER and t.dtype == "float32" and gradient is not None and not readers[gradient]:
            _widen(b, gradient, writer, readers)


def with_arithmetic(op: Operator, types: dict[str, str]) -> Operator:
    """A product of factors in half precision whose sum is written in float32 says so: it has their peak."""
    if op.kind not in (NodeKind.CONTRACT, NodeKind.GROUPED):
        return op
    factors = {types[a.tensor] for a in (op.inputs[:-1] if op.kind is NodeKind.GROUPED else op.inputs)}
    if types[op.output.tensor] != "float32" or len(factors) != 1 or factors & {"float32", "float64"}:
        return op
    stated = tuple(sorted((*op.attributes, ("arithmetic", next(iter(factors))))))
    return replace(op, attributes=stated)


def _widen(b: Backward, name: str, writer: dict[str, int], readers: Counter[str]) -> bool:
    """Write a tensor, and what is only added up to it, in float32; False where no sum writes it."""
    if name not in writer:
        return False
    op = b.operators[writer[name]]
    if op.kind not in (NodeKind.CONTRACT, NodeKind.GROUPED) and op.function not in _LINEAR:
        return False
    if op.function in ("sum_inputs", "copy", "copy_gradient"):
        half = [a.tensor for a in op.inputs if readers[a.tensor] == 1 and b.tensors[a.tensor].element_bytes == 2]
        widened = [_widen(b, t, writer, readers) for t in half]  # all of them
        if not any(widened):
            return False
    b.tensors[name] = replace(b.tensors[name], dtype="float32")
    return True

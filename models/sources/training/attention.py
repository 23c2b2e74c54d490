"""Derivatives of attention: the log-sum-exp of every row, then one operator per operand, each of which computes its
scores again, tile by tile.

    lse    =  attention_lse(q, k[, mask])                  p = exp(s - lse) in every gradient
    delta  =  sum_e g * attention                          = sum_t p (sum_e g v), so no pass over the keys finds it
    grad v, grad q, grad k, grad of an additive mask       as in `models.program.attention`

Both have one number per row and are of at least single precision.  Nothing as large as the scores is kept between the
passes; what is kept are q, k, v and the result, which other adjoints read too.  One operator writes one tensor, so
scores are computed once per gradient (a fused kernel computes them once for all three).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...program.attention import OPERANDS, role
from ...program.graph import GraphError
from ...program.index import Access, Axis, Combine, access
from ...program.operators import Operator, Value
from ..building.attention import log_sum_exp
from .adjoint import pull
from .backward import Backward
from .contributions import Pending

OF_OPERAND = {
    "q": "attention_query_gradient",
    "k": "attention_key_gradient",
    "v": "attention_value_gradient",
    "mask": "attention_mask_gradient",
}


def attention(b: Backward, op: Operator) -> None:
    """Gradients of q, k, v and of a mask that is added."""
    wanted = [j for j in range(len(op.inputs)) if b.wants(op, j)]
    if not wanted:
        return
    known = dict(zip(OPERANDS["attention"], map(b.forward, op.inputs), strict=False))
    known["g"] = b.incoming(op)
    precise = "float64" if b.tensors[op.output.tensor].dtype == "float64" else "float32"
    axes, reads, rows, given = log_sum_exp(op.axes, op.inputs, op.output, dict(op.attributes))
    lse = b.emit(
        f"grad:{op.name}/lse", "attention_lse", axes, [b.forward(a) for a in reads], rows, tuple(given.items()), precise
    )
    known["lse"] = access(lse, *rows)
    if any(OPERANDS["attention"][j] != "v" for j in wanted):
        summed = {*role(op, "value_feature")}
        parts = [*rows, *summed]
        delta = b.emit(
            f"grad:{op.name}/delta",
            "product",
            [_axis(op, a, a in summed) for a in parts],
            (known["g"], b.forward(op.output)),
            rows,
            (),
            precise,
        )
        known["delta"] = access(delta, *rows)
    for j in wanted:
        _give(b, op, j, known)


def _axis(op: Operator, name: str, summed: bool) -> Axis:
    return replace(op.axis(name), combine=Combine.SUM if summed else None)


def _give(b: Backward, op: Operator, position: int, known: dict[str, Access]) -> None:
    """The gradient of one operand, over the axes that it is read along."""
    name, a = OPERANDS["attention"][position], op.inputs[position]
    function = OF_OPERAND[name]
    inputs = tuple(known[n] for n in OPERANDS[function] if n in known)
    out = a.axes
    axes = _ordered(op, out)
    given: list[tuple[str, Value]] = [(k, v) for k, v in op.attributes]
    if b.tensors[a.tensor].dtype == "bool":
        raise GraphError(f"operator {op.name!r}", "a mask of truth values has no gradient")
    singles = tuple(i.single for i in a.index)
    extents = tuple(op.axis(n).extent for n in out)
    if singles == out and extents == b.tensors[a.tensor].shape:
        b.give(op, position, Pending(op.name, function, axes, inputs, out, tuple(sorted(given))))
        return
    whole = b.emit(f"grad:{op.name}/{name}", function, axes, inputs, out, tuple(given), b.tensors[a.tensor].dtype)
    parallel = tuple(replace(op.axis(n), combine=None) for n in out)
    pull(b, replace(op, axes=parallel, output=access(whole, *out)), position, whole)


def _ordered(op: Operator, out: Sequence[str]) -> tuple[Axis, ...]:
    """All axes, those of the result first."""
    written = [replace(op.axis(n), combine=None) for n in out]
    return (*written, *(replace(a, combine=Combine.SUM) for a in op.axes if a.name not in out))

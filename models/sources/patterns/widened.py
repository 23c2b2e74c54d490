"""Recognises patterns of programs that write a function in a wider type than they store: the function
rounds once, inside.

    narrow        cast_D(f(cast_W(x)))         -> f(x) in D      f a function of one value, x of type D
    narrow-norm   norm(cast_W(x), ..) in D     -> norm(x, ..)    x of type D
    widened-norm  cast_D(norm(x, w, ..) in W)  -> norm in D      a norm of x of type D, or of its copy in W; so is w

PyTorch's own kernels for bfloat16 and float16 compute so: arguments are widened in registers, the result is rounded
once, and the wide values are never stored.  Its exporter writes the casts out (`torch._refs`, elementwise type
promotion to the computation type), and with them activations of twice the size that no kernel stores.  The numbers are
the same bit for bit.  A norm that is rounded before its gain (Hugging Face's `LlamaRMSNorm`) stays without gain, and
the product with the gain behind it.  A softmax keeps its casts where it is written in W: its gradient reads the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...program.index import Access
from ...program.operators import Operator
from .view import NARROW, Read, View, axes_of, replacement, rounds

_ONE_VALUE: Final = frozenset(
    {"silu", "gelu", "sigmoid", "softplus", "tanh", "erf", "exp", "log", "rsqrt", "sqrt", "power", "relu"}
)
_WITH_GAIN: Final = frozenset({"rms_norm", "layer_norm"})
_NORMS: Final = _WITH_GAIN | {"softmax", "log_softmax"}


def narrow(view: View, op: Operator) -> Operator | None:
    """A function of one value between a cast up and the cast down again."""
    if op.function != "cast" or not rounds(view, op):
        return None
    (result,) = view.reads(op)
    function = view.writer.get(result[0])
    if function is None or function.function not in _ONE_VALUE or len(function.inputs) != 1:
        return None
    (wide,) = view.reads(function, result[1])
    narrow_read = _before_cast(view, wide)
    if narrow_read is None or view.inner(op, narrow_read) is None:
        return None
    if _dtype(view, narrow_read[0]) != _dtype(view, op.output.tensor):
        return None
    return replacement(op, function.function, [Access(*narrow_read)], dict(function.attributes))


def narrow_norm(view: View, op: Operator) -> Operator | None:
    """A norm that writes a narrow type from a widened copy of its first operand."""
    if op.function not in _NORMS or not rounds(view, op):
        return None
    first, *rest = op.inputs
    narrow_read = _before_cast(view, (first.tensor, first.index))
    if narrow_read is None or _dtype(view, narrow_read[0]) != _dtype(view, op.output.tensor):
        return None
    return replace(op, inputs=(Access(*narrow_read), *rest))


def widened_norm(view: View, op: Operator) -> Operator | None:
    """A norm that is written in a wider type than its first operand, for the cast back alone."""
    if op.function != "cast" or not rounds(view, op):
        return None
    ((tensor, index),) = view.reads(op)
    norm = view.writer.get(tensor)
    if norm is None or norm.function not in _WITH_GAIN or _dtype(view, tensor) != "float32":
        return None
    at = {i.single: o.single for i, o in zip(norm.output.index, index, strict=True)}
    over = tuple(str(at.get(a)) for a in norm.over)
    alone = view.readers[tensor] == [op.name] and tensor not in view.graph.outputs
    if not alone or None in at.values() or len({*at.values()}) < len(at):
        return None
    reads = [_before_cast(view, r) or r for r in view.reads(norm, index)]
    if _dtype(view, reads[0][0]) != _dtype(view, op.output.tensor) or {*axes_of(reads[0])} != {*op.output.axes}:
        return None
    return replacement(op, norm.function, [Access(*r) for r in reads], {**dict(norm.attributes), "over": over})


def _before_cast(view: View, read: Read) -> Read | None:
    """What a cast to a wider type reads, if `read` is written by one."""
    cast = view.writer.get(read[0])
    if cast is None or cast.function != "cast":
        return None
    (before,) = view.reads(cast, read[1])
    return before if _dtype(view, before[0]) in NARROW and _dtype(view, read[0]) == "float32" else None


def _dtype(view: View, tensor: str) -> str:
    return view.graph.tensor(tensor).dtype

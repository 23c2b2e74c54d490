"""This module recognises patterns of programs that write a function in a wider type than they store: the function
rounds once, inside.

    narrow        cast_D(f(cast_W(x)))         -> f(x) in D      f a function of one value, x of type D
    narrow-norm   norm(cast_W(x), ..) in D     -> norm(x, ..)    x of type D

PyTorch's own kernels for bfloat16 and float16 compute so: arguments are widened in registers, the result is rounded
once, and the wide values are never stored.  Its exporter writes the casts out (`torch._refs`, elementwise type
promotion to the computation type), and with them activations of twice the size that no kernel stores.  For `narrow` the
numbers are the same bit for bit; models that write norms with casts of their own (Hugging Face's `LlamaRMSNorm`) round
once more before the gain, which `norm-gain` already leaves out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...program.index import Access
from ...program.operators import Operator
from .view import Read, View, replaced

_NARROW: Final = frozenset({"bfloat16", "float16"})
_ONE_VALUE: Final = frozenset(
    {"silu", "gelu", "sigmoid", "softplus", "tanh", "erf", "exp", "log", "rsqrt", "sqrt", "power", "relu"}
)
_NORMS: Final = frozenset({"rms_norm", "layer_norm", "softmax", "log_softmax"})


def narrow(view: View, op: Operator) -> Operator | None:
    """A function of one value between a cast up and the cast down again."""
    if op.function != "cast" or _dtype(view, op.output.tensor) not in _NARROW:
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
    return replaced(op, function.function, [Access(*narrow_read)], dict(function.attributes))


def narrow_norm(view: View, op: Operator) -> Operator | None:
    """A norm that writes a narrow type from a widened copy of its first operand."""
    if op.function not in _NORMS or _dtype(view, op.output.tensor) not in _NARROW:
        return None
    first, *rest = op.inputs
    narrow_read = _before_cast(view, (first.tensor, first.index))
    if narrow_read is None or _dtype(view, narrow_read[0]) != _dtype(view, op.output.tensor):
        return None
    return replace(op, inputs=(Access(*narrow_read), *rest))


def _before_cast(view: View, read: Read) -> Read | None:
    """What a cast to a wider type reads, if `read` is written by one."""
    cast = view.writer.get(read[0])
    if cast is None or cast.function != "cast":
        return None
    (before,) = view.reads(cast, read[1])
    return before if _dtype(view, before[0]) in _NARROW and _dtype(view, read[0]) == "float32" else None


def _dtype(view: View, tensor: str) -> str:
    return view.graph.tensor(tensor).dtype

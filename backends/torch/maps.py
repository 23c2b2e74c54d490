"""Computes elementwise functions with PyTorch: rows of the tables in `kernels.elementwise` and `kernels.gradient_maps`
that PyTorch has in one or two passes over memory, with the same values at kinks, infinities and NaN.

Operands of other types than one real type, and updates under a condition, are left to those tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Final

import torch
import torch.nn.functional as F

from ...models.program.operators import Operator
from ..kernels.blocks import Array
from ..kernels.elementwise import Elementwise, number
from ..kernels.library import OURS, Write
from .arrays import are_real, array, tensor

Row = Callable[[Sequence[torch.Tensor], Operator], torch.Tensor]


def _approximation(op: Operator) -> str:
    return "tanh" if op.attribute("approximate", "none") == "tanh" else "none"


def _sum(a: Sequence[torch.Tensor], op: Operator) -> torch.Tensor:
    out = a[0] + a[1] if len(a) > 1 else a[0].clone()
    for x in a[2:]:
        out = out + x if out.shape != torch.broadcast_shapes(out.shape, x.shape) else out.add_(x)
    return out


def _moment(name: str, default: float, square: bool) -> Row:
    def row(a: Sequence[torch.Tensor], op: Operator) -> torch.Tensor:
        b = number(op, name, default)
        out = a[0] * b
        return out.addcmul_(a[1], a[1], value=1 - b) if square else out.add_(a[1], alpha=1 - b)

    return row


def _adam(a: Sequence[torch.Tensor], op: Operator, shrunk: float = 1.0) -> torch.Tensor:
    w, m, v = a
    t = number(op, "step", 1)
    spread = torch.sqrt(v / (1 - number(op, "beta2", 0.999) ** t)).add_(number(op, "epsilon", 1e-8))
    rate = number(op, "rate", 0.001) / (1 - number(op, "beta1", 0.9) ** t)
    return torch.addcdiv(w if shrunk == 1.0 else w * shrunk, m, spread, value=-rate)


def _adamw(a: Sequence[torch.Tensor], op: Operator) -> torch.Tensor:
    return _adam(a, op, 1 - number(op, "rate", 0.001) * number(op, "decay", 0.01))


def _batch_norm_gradient(a: Sequence[torch.Tensor], op: Operator) -> torch.Tensor:
    return a[0] * (a[1] / torch.sqrt(a[2] + number(op, "epsilon", 1e-5)))


ROWS: Final = MappingProxyType[str, Row](
    {
        "relu": lambda a, op: torch.relu(a[0]),
        "negate": lambda a, op: -a[0],
        "scale": lambda a, op: a[0] * number(op, "scale", 1.0),
        "shift": lambda a, op: a[0] + number(op, "shift", 0.0),
        "tanh": lambda a, op: torch.tanh(a[0]),
        "sigmoid": lambda a, op: torch.sigmoid(a[0]),
        "exp": lambda a, op: torch.exp(a[0]),
        "log": lambda a, op: torch.log(a[0]),
        "erf": lambda a, op: torch.erf(a[0]),
        "sqrt": lambda a, op: torch.sqrt(a[0]),
        "rsqrt": lambda a, op: torch.rsqrt(a[0]),
        "cos": lambda a, op: torch.cos(a[0]),
        "sin": lambda a, op: torch.sin(a[0]),
        "abs": lambda a, op: torch.abs(a[0]),
        "reciprocal": lambda a, op: torch.reciprocal(a[0]),
        "silu": lambda a, op: F.silu(a[0]),
        "gelu": lambda a, op: F.gelu(a[0], approximate=_approximation(op)),
        "add": lambda a, op: a[0] + a[1],
        "subtract": lambda a, op: a[0] - a[1],
        "multiply": lambda a, op: a[0] * a[1],
        "divide": lambda a, op: a[0] / a[1],
        "maximum": lambda a, op: torch.maximum(a[0], a[1]),
        "minimum": lambda a, op: torch.minimum(a[0], a[1]),
        "relu_gradient": lambda a, op: torch.ops.aten.threshold_backward(a[0], a[1], 0),
        "fused_scale_shift": lambda a, op: torch.addcmul(a[2], a[0], a[1]),
        "sum_inputs": _sum,
        "sgd_update": lambda a, op: torch.add(a[0], a[1], alpha=-number(op, "rate", 0.01)),
        "squared_difference": lambda a, op: (a[0] - a[1]).square_(),
        "tanh_gradient": lambda a, op: torch.ops.aten.tanh_backward(a[0], a[1]),
        "sigmoid_gradient": lambda a, op: torch.ops.aten.sigmoid_backward(a[0], a[1]),
        "silu_gradient": lambda a, op: torch.ops.aten.silu_backward(a[0], a[1]),
        "gelu_gradient": lambda a, op: torch.ops.aten.gelu_backward(a[0], a[1], approximate=_approximation(op)),
        "batch_norm_gradient": _batch_norm_gradient,
        "adam_moment1": _moment("beta1", 0.9, False),
        "adam_moment2": _moment("beta2", 0.999, True),
        "adam_update": _adam,
        "adamw_update": _adamw,
        "momentum": lambda a, op: torch.add(a[1], a[0], alpha=number(op, "momentum", 0.0)),
        "decayed_gradient": lambda a, op: torch.add(a[0], a[1], alpha=number(op, "decay", 0.0)),
    }
)
"""Name -> function of (tensors aligned to the output axes, operator).  A test holds each to the row of its name."""

Into = Callable[[Sequence[torch.Tensor], Operator, torch.Tensor], object]

_INTO: Final = MappingProxyType[str, Into](
    {
        "relu": lambda a, op, out: torch.clamp_min(a[0], 0, out=out),
        "negate": lambda a, op, out: torch.neg(a[0], out=out),
        "scale": lambda a, op, out: torch.mul(a[0], number(op, "scale", 1.0), out=out),
        "tanh": lambda a, op, out: torch.tanh(a[0], out=out),
        "sigmoid": lambda a, op, out: torch.sigmoid(a[0], out=out),
        "exp": lambda a, op, out: torch.exp(a[0], out=out),
        "add": lambda a, op, out: torch.add(a[0], a[1], out=out),
        "subtract": lambda a, op, out: torch.sub(a[0], a[1], out=out),
        "multiply": lambda a, op, out: torch.mul(a[0], a[1], out=out),
        "divide": lambda a, op, out: torch.div(a[0], a[1], out=out),
        "relu_gradient": lambda a, op, out: torch.ops.aten.threshold_backward.grad_input(a[0], a[1], 0, grad_input=out),
        "fused_scale_shift": lambda a, op, out: torch.addcmul(a[2], a[0], a[1], out=out),
    }
)
"""Rows that write where they are told: memory that is in cache, and that nobody has to find."""

_CONDITIONAL: Final = MappingProxyType(
    {"sgd_update": 2, "adam_moment1": 2, "adam_moment2": 2, "adam_update": 3, "adamw_update": 3, "momentum": 2}
)
"""Updates that may take a truth value behind so many operands."""


def _function(name: str) -> Elementwise:
    row, ours = ROWS[name], OURS.functions[name]

    def compute(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
        if not are_real(a) or len(a) > _CONDITIONAL.get(name, len(a)):
            return ours(xp, a, op)
        return array(row([tensor(x) for x in a], op))

    return compute


FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType(
    {**OURS.functions, **{name: _function(name) for name in ROWS}}
)
"""Name -> function, as in `kernels.elementwise.MAPS`: PyTorch's where there is one."""


def _write(name: str) -> Write:
    into = _INTO[name]

    def write(a: Sequence[Array], op: Operator, out: Array) -> None:
        into([tensor(x) for x in a], op, tensor(out))

    return write


WRITES: Final[Mapping[str, Write]] = MappingProxyType({name: _write(name) for name in _INTO})
"""Name -> function that writes into memory, for operands of one real type."""

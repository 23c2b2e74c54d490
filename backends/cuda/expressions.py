"""Scalar CUDA expressions: one row per `map` function that generated kernels know, the text of y =
f(x_1, .., x_n).

The same formulas as `kernels/elementwise.py`, in the operand's own precision; a function without a row here (a change
of element type, for instance) is computed by the array library instead.  `maximum` and `minimum` hand NaN on as NumPy
does; fmax would not.

    {0} {1} ..    operands        {r}  suffix of float functions (f, or nothing)        number(name)    an attribute as
                                  a literal
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from types import MappingProxyType
from typing import Final

from ...models.program.operators import Operator
from ..kernels.elementwise import number
from .kernel import KernelTextError
from .scalar import Row, Scalar, larger, sigmoid, smaller
from .training import TRAINING


def _gelu(a: Sequence[str], c: Scalar) -> str:
    x, half, one = a[0], c.lit(0.5), c.lit(1.0)
    if c.operator.attribute("approximate", "none") == "tanh":
        inner = f"{c.lit(sqrt(2 / pi))} * ({x} + {c.lit(0.044715)} * {x} * {x} * {x})"
        return f"({half} * {x} * ({one} + tanh{c.f}({inner})))"
    return f"({half} * {x} * ({one} + erf{c.f}({x} * {c.lit(sqrt(0.5))})))"


def _power(a: Sequence[str], c: Scalar) -> str:
    return (
        f"({a[0]} * {a[0]})"
        if number(c.operator, "exponent", 1.0) == 2.0
        else f"pow{c.f}({a[0]}, {c.number('exponent', 1.0)})"
    )


def _sigmoid_product(a: Sequence[str], c: Scalar) -> str:
    return f"({a[0]} * {sigmoid(a[0], c)})"


def _clip(a: Sequence[str], c: Scalar) -> str:
    named, out = dict(c.operator.attributes), a[0]
    out = larger(out, c.number("low", 0.0)) if "low" in named else out
    return smaller(out, c.number("high", 0.0)) if "high" in named else out


def _softplus(a: Sequence[str], c: Scalar) -> str:
    return f"({larger(a[0], c.lit(0.0))} + log1p{c.f}(exp{c.f}(-fabs{c.f}({a[0]}))))"


def _compared(sign: str) -> Row:
    return lambda a, c: f"({a[0]} {sign} {a[1] if len(a) > 1 else c.number('value', 0.0)})"


_LOGICAL: Final = MappingProxyType[str, Row](
    {
        "equal": _compared("=="),
        "not_equal": _compared("!="),
        "less": _compared("<"),
        "less_equal": _compared("<="),
        "greater": _compared(">"),
        "greater_equal": _compared(">="),
        "logical_and": lambda a, c: f"({a[0]} != 0 && {a[1]} != 0)",
        "logical_or": lambda a, c: f"({a[0]} != 0 || {a[1]} != 0)",
        "logical_not": lambda a, c: f"({a[0]} == 0)",
    }
)

_MASKS: Final = MappingProxyType({"where": 0, "mask_fill": 1, "mask_clear": 1})
"""Functions with a mask among their operands, and where it stands."""

EXPRESSIONS: Final = MappingProxyType[str, Row](
    {
        "relu": lambda a, c: larger(a[0], c.lit(0.0)),
        "negate": lambda a, c: f"(-{a[0]})",
        "identity": lambda a, c: a[0],
        "stop_gradient": lambda a, c: a[0],
        "relu_gradient_mask": lambda a, c: f"({a[0]} > {c.lit(0.0)} ? {c.lit(1.0)} : {c.lit(0.0)})",
        "scale": lambda a, c: f"({a[0]} * {c.number('scale', 1.0)})",
        "shift": lambda a, c: f"({a[0]} + {c.number('shift', 0.0)})",
        "tanh": lambda a, c: f"tanh{c.f}({a[0]})",
        "sigmoid": lambda a, c: sigmoid(a[0], c),
        "silu": _sigmoid_product,
        "softplus": _softplus,
        "exp": lambda a, c: f"exp{c.f}({a[0]})",
        "log": lambda a, c: f"log{c.f}({a[0]})",
        "cos": lambda a, c: f"cos{c.f}({a[0]})",
        "sin": lambda a, c: f"sin{c.f}({a[0]})",
        "atan": lambda a, c: f"atan{c.f}({a[0]})",
        "erf": lambda a, c: f"erf{c.f}({a[0]})",
        "sqrt": lambda a, c: f"sqrt{c.f}({a[0]})",
        "rsqrt": lambda a, c: f"({c.lit(1.0)} / sqrt{c.f}({a[0]}))",
        "abs": lambda a, c: f"fabs{c.f}({a[0]})",
        "floor": lambda a, c: f"floor{c.f}({a[0]})",
        "ceil": lambda a, c: f"ceil{c.f}({a[0]})",
        "round": lambda a, c: f"rint{c.f}({a[0]})",
        "trunc": lambda a, c: f"trunc{c.f}({a[0]})",
        "fmod": lambda a, c: f"fmod{c.f}({a[0]}, {a[1] if len(a) > 1 else c.number('value', 1.0)})",
        "reciprocal": lambda a, c: f"({c.lit(1.0)} / {a[0]})",
        "power": _power,
        "clip": _clip,
        "gelu": _gelu,
        "add": lambda a, c: f"({a[0]} + {a[1]})",
        "subtract": lambda a, c: f"({a[0]} - {a[1]})",
        "multiply": lambda a, c: f"({a[0]} * {a[1]})",
        "divide": lambda a, c: f"({a[0]} / {a[1]})",
        "maximum": lambda a, c: larger(a[0], a[1]),
        "minimum": lambda a, c: smaller(a[0], a[1]),
        "relu_gradient": lambda a, c: f"({a[1]} <= {c.lit(0.0)} ? {c.lit(0.0)} : {a[0]})",
        "where": lambda a, c: f"({a[0]} != 0 ? {a[1]} : {a[2]})",
        "mask_fill": lambda a, c: f"({a[1]} != 0 ? {a[0]} : {c.number('value', 0.0)})",
        "fused_scale_shift": lambda a, c: f"({a[0]} * {a[1]} + {a[2]})",
        "batch_norm": lambda a, c: (
            f"(({a[0]} - {a[3]}) / sqrt{c.f}({a[4]} + {c.number('epsilon', 1e-5)}) * {a[1]} + {a[2]})"
        ),
        "sum_inputs": lambda a, c: "(" + " + ".join(a) + ")",
        "sgd_update": lambda a, c: f"({a[0]} - {c.number('rate', 0.01)} * {a[1]})",
        "sign": lambda a, c: f"({a[0]} > 0 ? {c.lit(1.0)} : {a[0]} < 0 ? {c.lit(-1.0)} : {a[0]})",
        **TRAINING,
        **_LOGICAL,
    }
)
"""Name -> text of the value, from the texts of the operands (plain names) and the operator."""


def expression(operator: Operator, operands: Sequence[tuple[str, str]], real: str) -> tuple[str, str]:
    """(C type, text) of a map function; `operands`: (C type, text) each.  `KernelTextError` if it has no text."""
    row = EXPRESSIONS.get(operator.function)
    if row is None:
        raise KernelTextError(f"operator {operator.name!r}: {operator.function!r} has no CUDA text")
    if operator.function not in _LOGICAL:
        mask = _MASKS.get(operator.function)
        if any(kind != real for j, (kind, _) in enumerate(operands) if j != mask):
            raise KernelTextError(f"operator {operator.name!r}: operands of mixed types have no CUDA text")
    return "bool" if operator.function in _LOGICAL else real, row(
        [text for _, text in operands], Scalar(operator, real)
    )

"""Texts of map functions in compiled loops: one row per function, the formula of `kernels.elementwise` on scalars.

    {0} {1} ..  operands        real(..)  a number in the element type of the loop

A function without a row is computed by the kernels of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, pi, sqrt
from types import MappingProxyType
from typing import Final

from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from ..kernels.elementwise import number

Row = Callable[[Sequence[str], Operator], str]
"""From names of the operands and the operator."""

REALS: Final = frozenset({"float32", "float64"})
"""Element types that loops are compiled for."""

REDUCTIONS: Final = MappingProxyType(
    {"sum": ("0.0", "add_freely"), "max": ("-np.inf", "largest"), "min": ("np.inf", "smallest")}
)
"""Function -> what it begins with, and how it goes on."""


def _real(value: float) -> str:
    return f"real({value!r})"


def _number(op: Operator, name: str, default: float) -> str:
    return _real(float(number(op, name, default)))


def _power(a: Sequence[str], op: Operator) -> str:
    return f"{a[0]} * {a[0]}" if number(op, "exponent", 1.0) == 2.0 else ""


def _gelu(a: Sequence[str], op: Operator) -> str:
    if op.attribute("approximate", "none") != "tanh":
        return ""
    x = a[0]
    inner = f"{_real(sqrt(2 / pi))} * ({x} + {_real(0.044715)} * {x} * {x} * {x})"
    return f"{_real(0.5)} * {x} * ({_real(1.0)} + tanh({inner}))"


def _logistic(x: str) -> str:
    less = f"exp(-abs({x}))"
    return f"(({less} if {x} < 0 else {_real(1.0)}) / ({_real(1.0)} + {less}))"


def _bounded(a: Sequence[str], op: Operator) -> str:
    named, out = dict(op.attributes), a[0]
    out = f"largest({out}, {_number(op, 'low', 0.0)})" if "low" in named else out
    return f"smallest({out}, {_number(op, 'high', 0.0)})" if "high" in named else out


ROWS: Final = MappingProxyType[str, Row](
    {
        "relu": lambda a, op: f"largest({a[0]}, {_real(0.0)})",
        "negate": lambda a, op: f"-{a[0]}",
        "identity": lambda a, op: a[0],
        "stop_gradient": lambda a, op: a[0],
        "scale": lambda a, op: f"{a[0]} * {_number(op, 'scale', 1.0)}",
        "shift": lambda a, op: f"{a[0]} + {_number(op, 'shift', 0.0)}",
        "abs": lambda a, op: f"abs({a[0]})",
        "sqrt": lambda a, op: f"math.sqrt({a[0]})",
        "rsqrt": lambda a, op: f"{_real(1.0)} / math.sqrt({a[0]})",
        "reciprocal": lambda a, op: f"{_real(1.0)} / {a[0]}",
        "exp": lambda a, op: f"exp({a[0]})",
        "tanh": lambda a, op: f"tanh({a[0]})",
        "sigmoid": lambda a, op: _logistic(a[0]),
        "silu": lambda a, op: f"{a[0]} * {_logistic(a[0])}",
        "gelu": _gelu,
        "power": _power,
        "clip": _bounded,
        "add": lambda a, op: f"{a[0]} + {a[1]}",
        "subtract": lambda a, op: f"{a[0]} - {a[1]}",
        "multiply": lambda a, op: f"{a[0]} * {a[1]}",
        "divide": lambda a, op: f"{a[0]} / {a[1]}",
        "maximum": lambda a, op: f"largest({a[0]}, {a[1]})",
        "minimum": lambda a, op: f"smallest({a[0]}, {a[1]})",
        "fused_scale_shift": lambda a, op: f"{a[0]} * {a[1]} + {a[2]}",
        "sum_inputs": lambda a, op: " + ".join(a),
        "squared_difference": lambda a, op: f"({a[0]} - {a[1]}) * ({a[0]} - {a[1]})",
        "relu_gradient": lambda a, op: f"({_real(0.0)} if {a[1]} <= 0 else {a[0]})",
        "tanh_gradient": lambda a, op: f"{a[0]} * ({_real(1.0)} - {a[1]} * {a[1]})",
    }
)
"""Name -> text of the value; nothing where these attributes have none."""

CHEAP: Final = frozenset({"negate", "scale", "shift", "add", "subtract", "multiply", "power", "identity"})
"""What is computed again rather than kept for a later loop over the same row."""


def text_of(op: Operator, names: Sequence[str]) -> str:
    """The value of a map, from the names of its operands; nothing where it has no text."""
    row = ROWS.get(op.function)
    numbers = [v for _, v in op.attributes if isinstance(v, float)]
    return "" if row is None or not all(map(isfinite, numbers)) else row(names, op)


def has_text(op: Operator, graph: Graph) -> bool:
    """Whether a map or a reduction over one axis has one: of reals of one type, every operand indexed."""
    kinds = {graph.tensor(a.tensor).dtype for a in (*op.inputs, op.output)}
    if len(kinds) != 1 or not kinds <= REALS or any(i.whole for a in op.inputs for i in a.index):
        return False
    if op.kind is NodeKind.MAP:
        parallel = {a.name for a in op.axes} == set(op.output.axes)
        return parallel and bool(op.inputs) and text_of(op, ["x"] * len(op.inputs)) != ""
    if op.kind is not NodeKind.REDUCE or op.function not in REDUCTIONS or len(op.reduction_axes) != 1:
        return False
    return op.reduction_axes[0].name in op.inputs[0].axes and isfinite(number(op, "scale", 1.0))

"""Derivatives of elementwise functions, as data: for every map and input the function that gives the
local gradient.

    y = f(x_0, .., x_n)        grad x_j  =  adjoint of reading x_j, applied to  h_j(g, x_0, .., x_n, y)

Operands of h_j: `g` the incoming gradient, `0`, `1`, .. the inputs, `y` the output.  PASS: h_j = g.  NOTHING: the
derivative is zero almost everywhere, or the input is no number.  Kinks follow PyTorch: relu, abs and sign take 0 at 0,
maximum and minimum share ties evenly, clip passes the gradient at both ends, unless `tie` says which share the first
operand has there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ...program.index import Access, Axis, Combine
from ...program.operators import Operator, Value
from .adjoint import pull
from .backward import Backward
from .contributions import Pending


@dataclass(frozen=True)
class Local:
    """`function` of `operands`; `keep`: attributes of the forward operator that it needs; `fixed`: attributes of
    its own; `rest`: of the attribute `tie` it takes what is left of 1.
    """

    function: str
    operands: tuple[str, ...] = ("g",)
    keep: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Value], ...] = ()
    rest: bool = False


PASS: Final = Local("")
NOTHING: Final = None
_TIMES_0, _TIMES_1 = Local("multiply", ("g", "0")), Local("multiply", ("g", "1"))
_STATISTICS = ("epsilon",)

MAP_RULES: Final[Mapping[str, tuple[Local | None, ...]]] = MappingProxyType(
    {
        "identity": (PASS,),
        "shift": (PASS,),
        "cast": (Local("cast"),),
        "relu": (Local("relu_gradient", ("g", "0")),),
        "relu_gradient": (Local("relu_gradient", ("g", "1")), NOTHING),
        "negate": (Local("negate"),),
        "scale": (Local("scale", ("g",), ("scale",)),),
        "abs": (Local("abs_gradient", ("g", "0")),),
        "reciprocal": (Local("reciprocal_gradient", ("g", "y")),),
        "clip": (Local("clip_gradient", ("g", "0"), ("low", "high", "tie")),),
        "tanh": (Local("tanh_gradient", ("g", "y")),),
        "sigmoid": (Local("sigmoid_gradient", ("g", "y")),),
        "exp": (Local("multiply", ("g", "y")),),
        "erf": (Local("erf_gradient", ("g", "0")),),
        "sqrt": (Local("sqrt_gradient", ("g", "y"), ("flat",)),),
        "rsqrt": (Local("rsqrt_gradient", ("g", "y")),),
        "log": (Local("divide", ("g", "0")),),
        "cos": (Local("cos_gradient", ("g", "0")),),
        "sin": (Local("sin_gradient", ("g", "0")),),
        "atan": (Local("atan_gradient", ("g", "0")),),
        "gelu": (Local("gelu_gradient", ("g", "0"), ("approximate",)),),
        "silu": (Local("silu_gradient", ("g", "0")),),
        "softplus": (Local("softplus_gradient", ("g", "0")),),
        "power": (Local("power_gradient", ("g", "0"), ("exponent", "flat")),),
        "add": (PASS, PASS),
        "subtract": (PASS, Local("negate")),
        "multiply": (_TIMES_1, _TIMES_0),
        "divide": (Local("divide", ("g", "1")), Local("divide_gradient", ("g", "y", "1"))),
        "remainder": (PASS, Local("remainder_gradient", ("g", "0", "1"))),
        "fmod": (PASS, Local("fmod_gradient", ("g", "0", "1"))),
        "maximum": (
            Local("maximum_gradient", ("g", "0", "1"), ("tie",)),
            Local("maximum_gradient", ("g", "1", "0"), ("tie",), rest=True),
        ),
        "minimum": (
            Local("minimum_gradient", ("g", "0", "1"), ("tie",)),
            Local("minimum_gradient", ("g", "1", "0"), ("tie",), rest=True),
        ),
        "mask_fill": (Local("mask_fill", ("g", "1"), (), (("value", 0.0),)), NOTHING),
        "where": (NOTHING, Local("mask_fill", ("g", "0"), (), (("value", 0.0),)), Local("mask_clear", ("g", "0"))),
        "fused_scale_shift": (_TIMES_1, _TIMES_0, PASS),
        "batch_norm": (  # constant statistics
            Local("batch_norm_gradient", ("g", "1", "4"), _STATISTICS),
            Local("batch_norm_scale_gradient", ("g", "0", "3", "4"), _STATISTICS),
            PASS,
            NOTHING,
            NOTHING,
        ),
        "squared_difference": (
            Local("squared_difference_gradient", ("g", "0", "1")),
            Local("squared_difference_gradient", ("g", "1", "0")),
        ),
        "fill": (NOTHING,),
        "sign": (NOTHING,),
        "floor_divide": (NOTHING, NOTHING),
        **{name: (NOTHING,) for name in ("floor", "ceil", "round", "trunc", "stop_gradient")},
        "relu_gradient_mask": (NOTHING,),
        **{
            name: (NOTHING, NOTHING)
            for name in (
                "equal",
                "not_equal",
                "less",
                "less_equal",
                "greater",
                "greater_equal",
                "logical_and",
                "logical_or",
            )
        },
        "logical_not": (NOTHING,),
    }
)
"""Function -> the rule of every input.  `sum_inputs` passes to all of its inputs."""


def map_positions(op: Operator) -> tuple[Local | None, ...]:
    """The rule of every input of a map.  KeyError for one without rules."""
    return (PASS,) * len(op.inputs) if op.function == "sum_inputs" else MAP_RULES[op.function]


def differentiate_map(b: Backward, op: Operator) -> None:
    """Contributions to the inputs of a map."""
    for j, local in enumerate(map_positions(op)[: len(op.inputs)]):
        if local is None or not b.wants(op, j):
            continue
        if local is PASS or (local.function == "cast" and b.typed):  # the gradient is rounded when it is complete
            pull(b, op, j, b.incoming(op).tensor)
            continue
        a, out = op.inputs[j], op.output.axes
        inputs = tuple(_operand(b, op, name) for name in local.operands)
        kept = dict(op.attributes)
        if local.rest and isinstance(share := kept.get("tie"), float):
            kept["tie"] = 1.0 - share
        attributes = tuple((name, kept[name]) for name in local.keep if name in kept) + local.fixed
        if local.function == "cast":
            attributes = (("dtype", b.tensors[a.tensor].dtype),)
        singles = [i.single for i in a.index]
        names = tuple(s for s in singles if s is not None)
        direct = (
            len(names) == len(singles) == len(set(names))
            and tuple(op.axis(x).extent for x in names) == b.tensors[a.tensor].shape
        )
        missing = [x for x in out if x not in names]
        parallel = tuple(Axis(x, op.axis(x).extent, None, op.axis(x).splittable) for x in (names if direct else out))
        if direct and not missing:
            b.give(op, j, Pending(op.name, local.function, parallel, inputs, names, attributes))
        elif direct and local.function == "multiply":
            summed = tuple(Axis(x, op.axis(x).extent, Combine.SUM, op.axis(x).splittable) for x in missing)
            b.give(op, j, Pending(op.name, "product", (*parallel, *summed), inputs, names))
        else:
            every = [op.axis(x) for x in out]
            like = b.tensors[op.output.tensor].dtype if local.function != "cast" else b.tensors[a.tensor].dtype
            pull(b, op, j, b.emit(f"grad:{op.name}/input{j}", local.function, every, inputs, out, attributes, like))


def _operand(b: Backward, op: Operator, name: str) -> Access:
    if name == "g":
        return b.incoming(op)
    return b.forward(op.output if name == "y" else op.inputs[int(name)])

"""Translates core ATen operators that work element by element.

A constant operand that is one number everywhere becomes an attribute (`scale`, `shift`, a comparison's `value`) or
disappears (x + 0, x * 1, where(true, a, b)); other constants become inputs with stated contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isinf

import numpy as np

from ...program.index import Access, Affine, Axis
from ...program.operators import Value
from ..building.exact import DIGITS, INTEGERS, wrap_number
from ..building.flat import Unsupported, letters, pointwise
from .context import Argument, Context, Handler, Node, Ref
from .promoted import as_compared, cast, compared_number, product

UNARY = {
    "relu": "relu",
    "neg": "negate",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "exp": "exp",
    "erf": "erf",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "log": "log",
    "cos": "cos",
    "sin": "sin",
    "atan": "atan",
    "abs": "abs",
    "floor": "floor",
    "reciprocal": "reciprocal",
    "silu": "silu",
}
"""ATen operator (x) -> our function, the same mathematics."""

BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "maximum": "maximum",
    "minimum": "minimum",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
}
"""ATen operator (x, y) -> our function."""

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_OF_NUMBERS = frozenset({"remainder", "fmod", "floor_divide", "power"})
"""Functions that have other values of truth values than of 0 and 1."""
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def spread(c: Context, node: Node, tensor: str, shape: Sequence[int]) -> str:
    """`tensor` of `shape` repeated to the node's shape; itself if it has it."""
    if tuple(shape) == node.shape or not node.shape:
        return tensor
    names = letters(len(node.shape))
    first = len(node.shape) - len(shape)
    index = tuple(
        Affine() if n != node.shape[first + k] else Affine.axis(names[first + k]) for k, n in enumerate(shape)
    ) or (Affine(),)
    axes = [Axis(a, n) for a, n in zip(names, node.shape, strict=True)]
    return c.operator(node, "expand", "copy", axes, [Access(tensor, index)], names)


def elementwise(c: Context, node: Node, function: str, values: Sequence[Ref], **attributes: Value) -> None:
    """One elementwise operator over the values, the result in the node's element type and shape."""
    operands = []
    if function in _COMPARISONS:
        values = as_compared(c, node, values)
    elif "value" in attributes:
        attributes = {**attributes, "value": wrap_number(_number(attributes["value"]), node.dtype)}
    for v in values:
        promoted = (
            v
            if function in _COMPARISONS
            or node.dtype == "bool"
            or (c.dtypes[v] == "bool" and function not in _OF_NUMBERS)
            else cast(c, node, v, node.dtype) or v
        )
        operands.append(c.operand(promoted))
    tensor = pointwise(c, node, "", function, operands, node.dtype, **attributes)
    c.put(node, spread(c, node, tensor, c.g.tensors[tensor].shape))


def unary(c: Context, node: Node) -> None:
    """A row of `UNARY`; integers are rounded already."""
    if node.dtype in INTEGERS and short_kind(node) == "floor":
        _same(c, node, node.ref("self"))
        return
    elementwise(c, node, UNARY[short_kind(node)], [node.ref("self")])


def negation(c: Context, node: Node) -> None:
    """logical_not, and bitwise_not of a mask."""
    x = node.ref("self")
    if node.kind.startswith("aten.bitwise") and node.dtype != "bool":
        raise Unsupported("integers")
    if c.dtypes[x] == "bool":
        c.opposite[Ref(node.name)] = x
    elementwise(c, node, "logical_not", [x])


def short_kind(node: Node) -> str:
    return node.kind.removeprefix("aten.").partition(".")[0]


def binary(c: Context, node: Node) -> None:
    """A row of `BINARY`; `alpha` multiplies the second operand of add and sub."""
    function = BINARY[short_kind(node)]
    left, right = node.arguments["self"], node.arguments["other"]
    if node.kind.startswith("aten.bitwise") and node.dtype != "bool":
        raise Unsupported("integers")
    alpha = node.number("alpha", 1.0)
    if mode := node.text("rounding_mode", ""):
        if mode != "floor" or alpha != 1.0:
            raise Unsupported(f"rounding_mode={mode} (floor is supported)")
        function = "floor_divide"
    numbers = c.uniform(left), c.uniform(right)
    if alpha != 1.0 and numbers[1] is None and isinstance(right, Ref):
        right = _times(c, node, right, alpha)
        alpha = 1.0
    if numbers[1] is not None and isinstance(left, Ref):
        number = numbers[1] if alpha == 1.0 else product(numbers[1], alpha)
        _with_number(c, node, function, *_against(c, node, function, left, right, number), False)
    elif numbers[0] is not None and isinstance(right, Ref) and alpha == 1.0:
        _with_number(c, node, function, *_against(c, node, function, right, left, numbers[0]), True)
    elif isinstance(left, Ref) and isinstance(right, Ref):
        if function == "add" and alpha == 1.0 and (_masked(c, node, left, right) or _masked(c, node, right, left)):
            return
        elementwise(c, node, function, [left, right])
    else:
        raise Unsupported("two numbers")


def _against(c: Context, node: Node, function: str, x: Ref, other: Argument, number: float) -> tuple[Ref, float]:
    return compared_number(c, node, x, other, number) if function in _COMPARISONS else (x, number)


def _times(c: Context, node: Node, value: Ref, number: float) -> Ref:
    """What `alpha` multiplies, in the type of the result."""
    kind = node.dtype if c.dtypes[value] not in DIGITS else c.dtypes[value]
    tensor, shape = c.operand(cast(c, node, value, kind) or value)
    scaled = Ref(f"{node.name}/alpha")
    c.values[scaled] = pointwise(c, node, "alpha", "scale", [(tensor, shape)], kind, scale=number)
    c.shapes[scaled], c.dtypes[scaled] = shape, kind
    return scaled


_OUT_OF_SIGHT = -1e30


def _masked(c: Context, node: Node, x: Ref, mask: Ref) -> bool:
    """x + a constant of 0 and one number below -10^30, which no sum of ordinary size changes: that number where the
    mask is not 0.
    """
    found = c.constants.get(mask)
    if found is None or found.dtype.kind != "f" or c.shapes[x] != node.shape or c.dtypes[x] != node.dtype:
        return False
    small = found[tuple(slice(0, 1) if n == 0 else slice(None) for n in found.strides)]
    low = float(np.min(small))
    if not low <= _OUT_OF_SIGHT or not bool(np.all((small == 0) | (small == low))):
        return False
    shown = Ref(f"{mask.node}/shown", mask.result)
    c.constants[shown], c.shapes[shown], c.dtypes[shown] = np.broadcast_to(small == 0, found.shape), found.shape, "bool"
    elementwise(c, node, "mask_fill", [x, shown], value=low)
    return True


def _with_number(c: Context, node: Node, function: str, x: Ref, number: float, reverse: bool) -> None:
    """function(x, number), or function(number, x) if `reverse`."""
    match function:
        case "add" | "subtract" if not reverse:
            _affine(c, node, x, 1.0, number if function == "add" else -number)
        case "add":
            _affine(c, node, x, 1.0, number)
        case "subtract":
            _affine(c, node, x, -1.0, number)
        case "multiply" if number == 0.0 and node.dtype.startswith(("float", "bfloat")):  # NaN, of NaN and infinity
            tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
            c.put(
                node, spread(c, node, pointwise(c, node, "", "scale", [(tensor, shape)], node.dtype, scale=0.0), shape)
            )
        case "multiply":
            _affine(c, node, x, number, 0.0)
        case "divide" if not reverse and number != 0:
            if not (isfinite(number) and isfinite(1.0 / number)):
                raise Unsupported(f"a quotient by {number:g}")
            _affine(c, node, x, 1.0 / number, 0.0)
        case "divide":
            tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
            inverse = pointwise(c, node, "", "reciprocal", [(tensor, shape)], node.dtype)
            c.put(
                node,
                inverse
                if number == 1.0
                else pointwise(c, node, "scale", "scale", [(inverse, shape)], node.dtype, scale=number),
            )
        case "maximum" | "minimum":
            low, high = (number, inf) if function == "maximum" else (-inf, number)
            _clipped(c, node, x, low, high, 0.5)
        case "floor_divide" if reverse:
            raise Unsupported("a number divided by what is computed, rounding_mode=floor")
        case "logical_and" | "logical_or":
            if (number != 0) == (function == "logical_and") and c.dtypes[x] == "bool":
                _same(c, node, x)
            else:
                c.fill(node, float(function == "logical_or"))
        case _:
            elementwise(c, node, _MIRRORED.get(function, function) if reverse else function, [x], value=number)


def _affine(c: Context, node: Node, x: Ref, scale: float, shift: float) -> None:
    """x * scale + shift."""
    scale, shift = scale if scale == -1.0 else wrap_number(scale, node.dtype), wrap_number(shift, node.dtype)
    if scale == 0.0 and isfinite(shift):
        c.fill(node, shift)
        return
    if scale == 1.0 and shift == 0.0:
        _same(c, node, x)
        return
    tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
    if scale == -1.0:
        tensor = pointwise(c, node, "" if shift == 0.0 else "negate", "negate", [(tensor, shape)], node.dtype)
    elif scale != 1.0:
        tensor = pointwise(
            c, node, "" if shift == 0.0 else "scale", "scale", [(tensor, shape)], node.dtype, scale=scale
        )
    if shift != 0.0:
        tensor = pointwise(c, node, "", "shift", [(tensor, shape)], node.dtype, shift=shift)
    c.put(node, spread(c, node, tensor, shape))


def _same(c: Context, node: Node, x: Ref) -> None:
    """x itself, in the node's element type and shape."""
    if x in c.constants and c.shapes[x] == node.shape:
        c.alias(node, x)
        return
    tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
    c.put(node, spread(c, node, tensor, shape))


def identity(c: Context, node: Node) -> None:
    """clone, alias, detach, dropout: nothing is computed."""
    c.require_unused(node, 1)
    _same(c, node, node.ref("input" if "input" in node.arguments else "self"))


def to_copy(c: Context, node: Node) -> None:
    """_to_copy: another element type."""
    _same(c, node, node.ref("self"))


def overwritten(c: Context, node: Node) -> None:
    """copy: the source, in the shape and the element type of what it is written into."""
    _same(c, node, node.ref("src"))


def fill(c: Context, node: Node) -> None:
    """full_like and its relatives, of a value that is computed: a constant all the same."""
    value = node.arguments.get("fill_value", node.arguments.get("value"))
    kind = short_kind(node)
    number = {"ones_like": 1.0, "zeros_like": 0.0, "new_ones": 1.0, "new_zeros": 0.0}.get(kind)
    if number is None:
        number = c.uniform(value)
    if number is None:
        raise Unsupported("a computed value")
    c.fill(node, number)


def _clipped(c: Context, node: Node, x: Ref, low: float, high: float, tie: float) -> None:
    """x between two numbers; at them it has the share `tie` of the gradient."""
    if (low, high) == (-inf, inf):
        _same(c, node, x)
    elif (low, high, tie) == (0.0, inf, 0.0):
        elementwise(c, node, "relu", [x])
    else:
        bounds = {k: wrap_number(v, node.dtype) for k, v in (("low", low), ("high", high)) if not isinf(v)}
        if tie != 1.0:
            bounds["tie"] = tie
        tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)
        c.put(node, pointwise(c, node, "", "clip", [(tensor, shape)], node.dtype, **bounds))


def clip(c: Context, node: Node) -> None:
    """clamp, which passes the gradient at its bounds, and hardtanh, which has none there."""
    low, high = (node.arguments.get(a, node.arguments.get(b)) for a, b in (("min", "min_val"), ("max", "max_val")))
    if any(isinstance(v, Ref) and c.uniform(v) is None for v in (low, high)):
        _clipped_by_tensors(c, node, node.ref("self"), low, high)
        return
    least, most = (d if v is None else _number(c.uniform(v)) for v, d in ((low, -inf), (high, inf)))
    _clipped(c, node, node.ref("self"), least, most, 0.0 if short_kind(node) == "hardtanh" else 1.0)


def _clipped_by_tensors(c: Context, node: Node, x: Ref, low: Argument, high: Argument) -> None:
    """At least one computed limit; one that is a number everywhere is read as a constant.  At a limit x has the
    gradient; where both limits are equal the lower one has none; where they are crossed the upper one has it, whatever
    x is, NaN too.
    """
    tensor = c.operand(cast(c, node, x, node.dtype) or x)
    ends = {
        part: c.operand(cast(c, node, limit, node.dtype) or limit)
        for part, limit in (("maximum", low), ("minimum", high))
        if isinstance(limit, Ref)
    }
    if len(ends) == 2 and isinstance(low, Ref) and c.uniform(low) is None:
        least = ends["maximum"]
        fixed = pointwise(c, node, "fixed", "stop_gradient", [least], node.dtype), least[1]
        narrow = pointwise(c, node, "narrow", "equal", [least, ends["minimum"]], "bool")
        whole = c.g.tensors[narrow].shape
        made = pointwise(c, node, "low", "where", [(narrow, whole), fixed, least], node.dtype)
        ends["maximum"] = made, c.g.tensors[made].shape
    crossed = None
    if len(ends) == 2:
        highest, real = ends["minimum"], node.dtype.startswith(("float", "bfloat"))
        less = pointwise(c, node, "crossed", "less", [highest, ends["maximum"]], "bool")
        crossed = (less, c.g.tensors[less].shape) if real else None
    given = tensor
    for part, limit in ends.items():
        made = pointwise(c, node, part, part, [tensor, limit], node.dtype, tie=1.0)
        tensor = made, c.g.tensors[made].shape
    if crossed is not None:
        none = pointwise(c, node, "none", "not_equal", [given, given], "bool"), given[1]
        spot = pointwise(c, node, "spot", "mask_fill", [given, none], node.dtype, value=0.0), given[1]
        fixed = pointwise(c, node, "spot_fixed", "stop_gradient", [spot], node.dtype), given[1]
        beside = pointwise(c, node, "beside", "add", [highest, fixed], node.dtype)
        above = beside, c.g.tensors[beside].shape
        made = pointwise(c, node, "chosen", "where", [crossed, above, tensor], node.dtype)
        tensor = made, c.g.tensors[made].shape
    c.put(node, spread(c, node, *tensor))


def _number(value: Argument | Value) -> float:
    if isinstance(value, (int, float)):
        return value
    raise Unsupported(f"{value!r} for a number")


def power(c: Context, node: Node) -> None:
    """pow with a constant exponent."""
    exponent, x = c.uniform(node.arguments["exponent"]), node.ref("self")
    if exponent is None:
        raise Unsupported("a computed exponent")
    match exponent:
        case 1.0:
            _same(c, node, x)
        case 0.5 | -0.5:
            elementwise(c, node, "sqrt" if exponent > 0 else "rsqrt", [x])
        case -1.0:
            elementwise(c, node, "reciprocal", [x])
        case _:
            elementwise(c, node, "power", [x], exponent=exponent)


def gelu(c: Context, node: Node) -> None:
    """gelu, exact or by tanh."""
    how: dict[str, Value] = {} if node.text("approximate", "none") == "none" else {"approximate": "tanh"}
    elementwise(c, node, "gelu", [node.ref("self")], **how)


def softplus(c: Context, node: Node) -> None:
    """softplus with beta 1 (its threshold only saves work)."""
    if node.number("beta", 1.0) != 1.0:
        raise Unsupported(f"beta={node.number('beta', 1.0)}")
    elementwise(c, node, "softplus", [node.ref("self")])


def log1p(c: Context, node: Node) -> None:
    """log(1 + x)."""
    tensor, shape = c.operand(node.ref("self"))
    moved = pointwise(c, node, "shift", "shift", [(tensor, shape)], node.dtype, shift=1.0)
    c.put(node, pointwise(c, node, "", "log", [(moved, shape)], node.dtype))


def where(c: Context, node: Node) -> None:
    """where(mask, a, b); a constant branch becomes `mask_fill`."""
    mask, a, b = node.ref("condition"), node.ref("self"), node.ref("other")
    chosen = c.uniform(mask)
    if chosen is not None:
        _same(c, node, a if chosen else b)
        return
    if c.uniform(a) is not None and c.uniform(a) == c.uniform(b):
        c.fill(node, c.uniform(a) or 0.0)
        return
    value = c.uniform(b)
    if value is not None:
        elementwise(c, node, "mask_fill", [a, mask], value=value)
        return
    value = c.uniform(a)
    if value is not None:
        opposite = c.opposite.get(mask, Ref(f"{node.name}/not"))
        if opposite in c.values or opposite in c.constants:
            elementwise(c, node, "mask_fill", [b, opposite], value=value)
            return
        if mask in c.constants:
            c.constants[opposite] = ~c.constants[mask].astype(bool)
        else:
            c.values[opposite] = pointwise(c, node, "not", "logical_not", [c.operand(mask)])
        c.shapes[opposite], c.dtypes[opposite] = c.shapes[mask], "bool"
        elementwise(c, node, "mask_fill", [b, opposite], value=value)
        return
    elementwise(c, node, "where", [mask, a, b])


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(BINARY, binary),
    **dict.fromkeys(("logical_not", "bitwise_not"), negation),
    **dict.fromkeys(
        ("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "native_dropout", "dropout"), identity
    ),
    "_to_copy": to_copy,
    "copy": overwritten,
    **dict.fromkeys(("full_like", "ones_like", "zeros_like", "fill", "new_full", "new_ones", "new_zeros"), fill),
    "clamp": clip,
    "hardtanh": clip,
    "pow": power,
    "gelu": gelu,
    "softplus": softplus,
    "log1p": log1p,
    "where": where,
}

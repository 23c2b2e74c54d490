"""Translates core ATen operators that round, and remainders of divisions.

    remainder(x, y) = x - y floor(x / y)        fmod(x, y) = x - y trunc(x / y)
    x // y          = round((x - remainder(x, y)) / y), since floor(x / y) is one too large where x / y rounds up;
                      of computed y, which may be infinite, round((x - fmod(x, y)) / y), less 1 where the signs of
                      fmod(x, y) and y differ;  x / y where y is 0;  of integers the floor of the quotient, which is
                      exact, of x, or of x - fmod(x, y) where it is cut

Rounded values have no gradient; remainders pass theirs.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from ..building.exact import INTEGERS, wrap_number
from ..building.flat import Unsupported, pointwise
from .context import Context, Handler, Node, Ref
from .pointwise import binary, elementwise, short_kind, spread
from .promoted import cast

Shaped = tuple[str, tuple[int, ...]]


def round_elements(c: Context, node: Node) -> None:
    """ceil, round (halves to the even neighbour; `decimals`), trunc; integers are rounded already."""
    x, decimals = node.ref("self"), node.integer("decimals", 0)
    if "int" in node.dtype:
        c.alias(node, x)
    elif decimals == 0:
        elementwise(c, node, short_kind(node), [x])
    else:
        factor, shape = 10.0 ** abs(decimals), c.shapes[x]
        up, down = (factor, 1 / factor) if decimals > 0 else (1 / factor, factor)
        large = pointwise(c, node, "scale", "scale", [c.operand(x)], node.dtype, scale=up)
        whole = pointwise(c, node, "round", "round", [(large, shape)], node.dtype)
        c.put(node, pointwise(c, node, "", "scale", [(whole, shape)], node.dtype, scale=down))


def remainder(c: Context, node: Node) -> None:
    """remainder and fmod by a tensor or a number."""
    x, y = node.ref("self"), node.arguments["other"]
    number = c.uniform(y)
    if number is not None:
        elementwise(c, node, short_kind(node), [x], value=number)
    else:
        elementwise(c, node, short_kind(node), [x, node.ref("other")])


def division(c: Context, node: Node) -> None:
    """div and floor_divide: exact, or with a rounding mode."""
    mode = node.text("rounding_mode", "floor" if short_kind(node) == "floor_divide" else "")
    if not mode or (mode == "floor" and "int" in node.dtype and isinstance(node.arguments["self"], Ref)):
        binary(c, node)
        return
    element = node.dtype
    x, y = (_in_type(c, node, k, element) for k in ("self", "other"))
    if element in INTEGERS:
        _whole_quotient(c, node, mode, x, y)
        return
    number = c.uniform(node.arguments["other"])
    if number is not None and not isfinite(number):
        raise Unsupported(f"a rounded quotient by {number:g}")
    given, by_zero, wrong = x, mode == "floor" and number in (None, 0.0), None
    if mode == "floor":
        rest = pointwise(c, node, "rest", "remainder" if number is not None else "fmod", [x, y], element), node.shape
        x = pointwise(c, node, "multiple", "subtract", [x, rest], element), node.shape
        wrong = _too_large(c, node, rest, y, element) if number is None else None
    quotient = pointwise(c, node, "quotient", "divide", [x, y], element), node.shape
    function = "round" if mode == "floor" else "trunc"
    whole = pointwise(c, node, function if by_zero else "", function, [quotient], element)
    if wrong is not None:
        whole = pointwise(c, node, "lower", "subtract", [(whole, node.shape), (wrong, node.shape)], element)
    if by_zero:  # as the exact quotient: infinite, or nan
        zero = pointwise(c, node, "by_zero", "equal", [y], "bool", value=0.0), y[1]
        exact = pointwise(c, node, "exact", "divide", [given, y], element), node.shape
        exact = pointwise(c, node, "stopped", "stop_gradient", [exact], element), node.shape
        whole = pointwise(c, node, "", "where", [zero, exact, (whole, node.shape)], element)
    c.put(node, spread(c, node, whole, c.g.tensors[whole].shape))


def _whole_quotient(c: Context, node: Node, mode: str, x: Shaped, y: Shaped) -> None:
    """The quotient of integers, rounded down or towards zero."""
    if mode != "floor":
        rest = pointwise(c, node, "rest", "fmod", [x, y], node.dtype)
        x = pointwise(c, node, "multiple", "subtract", [x, (rest, node.shape)], node.dtype), node.shape
    whole = pointwise(c, node, "", "floor_divide", [x, y], node.dtype)
    c.put(node, spread(c, node, whole, c.g.tensors[whole].shape))


def _too_large(c: Context, node: Node, rest: Shaped, divisor: Shaped, element: str) -> str:
    """1 where the quotient without the rest of fmod is no floor: where the rest has the other sign than the divisor."""
    signs = [pointwise(c, node, f"negative{k}", "less", [t], "bool", value=0.0) for k, t in enumerate((rest, divisor))]
    apart = pointwise(c, node, "apart", "not_equal", [(signs[0], rest[1]), (signs[1], divisor[1])], "bool")
    some = pointwise(c, node, "some", "not_equal", [rest], "bool", value=0.0)
    both = pointwise(c, node, "wrong", "logical_and", [(apart, rest[1]), (some, rest[1])], "bool")
    return pointwise(c, node, "one", "cast", [(both, rest[1])], element, dtype=element)


def _in_type(c: Context, node: Node, key: str, element: str) -> Shaped:
    """An operand in the element type of the division; a number is a constant of one element."""
    value = node.arguments[key]
    if isinstance(value, Ref):
        return c.operand(cast(c, node, value, element) or value)
    known = c.constant_of(value)
    if known is None:
        raise Unsupported(f"computed {key}")
    made = Ref(f"{node.name}/{key}")
    plain = np.asarray(wrap_number(known.item(), element), "int64") if element in INTEGERS else known.astype("float64")
    c.constants[made], c.shapes[made], c.dtypes[made] = plain, (), element
    return c.operand(made)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("ceil", "round", "trunc"), round_elements),
    **dict.fromkeys(("remainder", "fmod"), remainder),
    **dict.fromkeys(("div", "floor_divide"), division),
}

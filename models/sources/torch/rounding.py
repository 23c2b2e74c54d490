"""This module translates core ATen operators that round, and remainders of divisions.

    remainder(x, y) = x - y floor(x / y)        fmod(x, y) = x - y trunc(x / y)
    x // y          = round((x - remainder(x, y)) / y), since floor(x / y) is one too large where x / y rounds up;
                      x / y where y is 0

Rounded values have no gradient; remainders pass theirs.
"""

from __future__ import annotations

from ..building.flat import Unsupported, pointwise
from .context import Context, Handler, Node, Ref
from .pointwise import binary, cast, elementwise, short_kind, spread


def rounded(c: Context, node: Node) -> None:
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
    """div and floor_divide: exact, or with a rounding mode; integers through float64."""
    mode = node.text("rounding_mode", "floor" if short_kind(node) == "floor_divide" else "")
    if not mode or (mode == "floor" and "int" in node.dtype and isinstance(node.arguments["self"], Ref)):
        binary(c, node)
        return
    element = "float64" if "int" in node.dtype else node.dtype
    x, y = (_floating(c, node, k, element) for k in ("self", "other"))
    given, by_zero = x, mode == "floor" and c.uniform(node.arguments["other"]) in (None, 0.0)
    if mode == "floor":
        rest = pointwise(c, node, "rest", "remainder", [x, y], element)
        x = pointwise(c, node, "multiple", "subtract", [x, (rest, node.shape)], element), node.shape
    quotient = pointwise(c, node, "quotient", "divide", [x, y], element), node.shape
    function, last = "round" if mode == "floor" else "trunc", element == node.dtype and not by_zero
    whole = pointwise(c, node, "" if last else function, function, [quotient], element)
    if by_zero:  # as the exact quotient: infinite, or nan
        zero = pointwise(c, node, "by_zero", "equal", [y], "bool", value=0.0), y[1]
        exact = pointwise(c, node, "exact", "divide", [given, y], element), node.shape
        exact = pointwise(c, node, "stopped", "stop_gradient", [exact], element), node.shape
        part = "" if element == node.dtype else "chosen"
        whole = pointwise(c, node, part, "where", [zero, exact, (whole, node.shape)], element)
    if element != node.dtype:
        whole = pointwise(c, node, "", "cast", [(whole, node.shape)], node.dtype, dtype=node.dtype)
    c.put(node, spread(c, node, whole, c.g.tensors[whole].shape))


def _floating(c: Context, node: Node, key: str, element: str) -> tuple[str, tuple[int, ...]]:
    """An operand in the element type of the division; a number is a constant of one element."""
    value = node.arguments[key]
    if isinstance(value, Ref):
        return c.operand(cast(c, node, value, element) or value)
    known = c.known(value)
    if known is None:
        raise Unsupported(f"computed {key}")
    made = Ref(f"{node.name}/{key}")
    c.constants[made], c.shapes[made], c.dtypes[made] = known.astype("float64"), (), element
    return c.operand(made)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("ceil", "round", "trunc"), rounded),
    **dict.fromkeys(("remainder", "fmod"), remainder),
    **dict.fromkeys(("div", "floor_divide"), division),
}

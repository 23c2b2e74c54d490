"""Translates norms of vectors over given dimensions, or all: sums and extremes of powers of absolute
values.

ord 2          sqrt(sum x^2), whose gradient is 0 at 0          ord 0        the number of elements that are not 0
ord 1          sum |x|                                          ord inf      max |x|        ord -inf   min |x|
ord p          (sum |x|^p)^(1/p), whose gradient is 0 at 0, and at a number that is 0
"""

from __future__ import annotations

from math import inf

from ..building.flat import Folding, pointwise, reduce_dimensions
from .context import Context, Handler, Node, dimension
from .pointwise import short_kind
from .promoted import cast


def vector_norm(c: Context, node: Node) -> None:
    """linalg_vector_norm and norm."""
    x = node.ref("self")
    value, shape = c.operand(cast(c, node, x, node.dtype) or x)
    order = node.number("ord" if short_kind(node) == "linalg_vector_norm" else "p", 2.0)
    dims = sorted({dimension(node, k, len(shape)) for k in node.integers("dim") or range(len(shape))})
    keep = bool(node.integer("keepdim", 0))

    def each(part: str, function: str, tensor: str, **attributes: float) -> str:
        return pointwise(c, node, part, function, [(tensor, shape)], None, **attributes)

    def flat(here: bool) -> dict[str, int]:
        return {"flat": 1} if here else {}

    combine, root = "sum", 1.0
    if order == 2.0:
        value, root = each("square", "power", value, exponent=2.0), 0.5
    elif order == 0.0:
        counted = pointwise(c, node, "not_zero", "not_equal", [(value, shape)], "bool", value=0.0)
        value = pointwise(c, node, "count", "cast", [(counted, shape)], node.dtype, dtype=node.dtype)
    else:
        value = each("abs", "abs", value)
        if abs(order) == inf:
            combine = "max" if order > 0 else "min"
        elif order != 1.0:
            value, root = each("power", "power", value, exponent=order, **flat(order < 1.0)), 1.0 / order
    if dims:
        last = root == 1.0
        more = {} if combine == "sum" else {"nan": 1}
        value = reduce_dimensions(
            c, node, "" if last else combine, value, shape, dims, Folding(combine, keep=keep), **more
        )
    if not c.g.tensors[value].shape:
        value = c.view(node, "scalar", value, (1,))
    if root != 1.0:
        final = (value, c.g.tensors[value].shape)
        if root == 0.5:
            value = pointwise(c, node, "", "sqrt", [final], node.dtype, flat=1)
        else:
            value = pointwise(c, node, "", "power", [final], node.dtype, exponent=root, **flat(order > 1.0))
    c.put(node, value)


HANDLERS: dict[str, Handler] = dict.fromkeys(("linalg_vector_norm", "norm"), vector_norm)

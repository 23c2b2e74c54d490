"""Translates core ATen operators that order and count: topk, sort, argmax, histc; and constants that are
made from numbers alone.

sort, topk   order = argsort(x), equal elements by position (PyTorch leaves them open); values = x[order]; the first k
argmax       MIN of the positions i with x[i] = MAX x, or NaN: the first one, as PyTorch says
median       values[(n - 1) // 2] of the sorted elements, the lower one of two; the first NaN where there is one
bucketize    how many boundaries are less than x, or with `right` not greater; all of them for NaN
histc        the number of elements in each of `bins` intervals of [min, max]; integers of as many bins are counted
"""

from __future__ import annotations

from math import inf

from ...program.index import Affine
from ..building.flat import Folding, Unsupported, normalise, part_of, pointwise, reduce_dimensions
from .context import Context, Handler, Node, Ref, dimension
from .scattered import along, picked_along, positions


def _order(c: Context, node: Node, x: Ref, dim: int, descending: bool) -> str:
    tensor, shape = c.operand(x)
    attributes = {"descending": 1} if descending else {}
    return normalise(c, node, "order", "argsort", [(tensor, shape)], [dim], "int64", **attributes)


def sort(c: Context, node: Node) -> None:
    """sort, argsort: values and positions in order."""
    x = node.ref("self")
    shape = c.shapes[x]
    if not shape:
        raise Unsupported("a scalar")
    dim = dimension(node, node.integer("dim", -1), len(shape))
    descending = bool(node.integer("descending", 0))
    order = _order(c, node, x, dim, descending)
    if not node.kind.startswith("aten.argsort"):
        values = picked_along(c, node, "values", c.operand(x), (order, shape), dim)
        c.put(node, values)
        if len(shape) == 1 and not descending:
            c.ascending.add(values)
    index = len(node.shapes) - 1
    c.put(node, order, index)
    if len(shape) == 1:
        c.permutations.add(Ref(node.name, index))


def top_k(c: Context, node: Node) -> None:
    """topk: the k largest or smallest, in order; indices that only mark the chosen become a mask where they are used
    (`scattered.scatter`).
    """
    x, k = node.ref("self"), node.integer("k", 1)
    shape = c.shapes[x]
    if not shape:
        raise Unsupported("a scalar")
    dim, largest = dimension(node, node.integer("dim", -1), len(shape)), bool(node.integer("largest", 1))
    if largest:
        c.chosen[Ref(node.name, 1)] = (x, k, dim)
    order = _order(c, node, x, dim, largest)
    kept = tuple(k if d == dim else n for d, n in enumerate(shape))
    first = order if kept == shape else part_of(c, node, "first", order, kept, {dim: (1, 0)})
    c.put(node, first, 1)
    if Ref(node.name, 0) in c.read:
        c.put(node, picked_along(c, node, "values", c.operand(x), (first, kept), dim))


def extreme_position(c: Context, node: Node, dim: int | None, largest: bool, result: int = 0) -> None:
    """Put the first position of the largest (smallest) element along a dimension, or in the flattened tensor."""
    tensor, shape = c.operand(node.ref("self"))
    if dim is None or not shape:
        tensor, shape, dim = c.view(node, "all", tensor, (max(1, _size(shape)),)), (max(1, _size(shape)),), 0
    kept = tuple(1 if k == dim else m for k, m in enumerate(shape))
    best = reduce_dimensions(c, node, "best", tensor, shape, [dim], Folding("max" if largest else "min", keep=True))
    hit = pointwise(c, node, "hit", "equal", [(tensor, shape), (best, kept)], "bool")
    if _real(c, node):  # the largest of numbers with NaN is NaN, which equals nothing
        hit = pointwise(
            c, node, "hit", "logical_or", [(hit, shape), (_no_number(c, node, tensor, shape), shape)], "bool"
        )
    y = _first_position(c, node, hit, shape, dim)
    c.put(node, c.view(node, "position", y, node.shapes[result] or (1,)), result)


def _real(c: Context, node: Node) -> bool:
    """Whether the operand may hold NaN."""
    return c.dtypes[node.ref("self")].startswith(("float", "bfloat"))


def _no_number(c: Context, node: Node, tensor: str, shape: tuple[int, ...]) -> str:
    """Where NaN is: it alone differs from itself."""
    return pointwise(c, node, "nan", "not_equal", [(tensor, shape), (tensor, shape)], "bool")


def _first_position(c: Context, node: Node, mask: str, shape: tuple[int, ...], dim: int) -> str:
    """The first position along a dimension, which stays with extent 1, where the mask is true; the extent where there
    is none."""
    n, column = shape[dim], tuple(m if k == dim else 1 for k, m in enumerate(shape))
    place = (c.view(node, "place", positions(c, node, "positions", n), column), column)
    here = pointwise(c, node, "here", "mask_fill", [place, (mask, shape)], "int64", value=n)
    return reduce_dimensions(c, node, "first", here, shape, [dim], Folding("min", keep=True))


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def arg_extreme(c: Context, node: Node) -> None:
    """argmax, argmin."""
    dim = node.arguments.get("dim")
    at = dimension(node, dim, len(c.shapes[node.ref("self")])) if isinstance(dim, int) else None
    extreme_position(c, node, at, node.kind.startswith("aten.argmax"))


def median(c: Context, node: Node) -> None:
    """median of everything, or along a dimension with its position."""
    x = node.ref("self")
    tensor, shape = c.operand(x)
    given = node.arguments.get("dim")
    if not shape:
        raise Unsupported("a scalar")
    if not isinstance(given, int):
        size = _size(shape)
        tensor, shape, dim = c.view(node, "all", tensor, (size,)), (size,), 0
    else:
        dim = dimension(node, given, len(shape))
    order = normalise(c, node, "order", "argsort", [(tensor, shape)], [dim], "int64")
    kept = tuple(1 if k == dim else n for k, n in enumerate(shape))
    middle = part_of(c, node, "middle", order, kept, {dim: (1, (shape[dim] - 1) // 2)})
    real, nan = _real(c, node), ""
    if real:
        nan = _no_number(c, node, tensor, shape)
        first = _first_position(c, node, nan, shape, dim)
        held = pointwise(c, node, "held", "less", [(first, kept)], "bool", value=shape[dim])
        middle = pointwise(c, node, "chosen", "where", [(held, kept), (first, kept), (middle, kept)], "int64")
    value = picked_along(c, node, "values", (tensor, shape), (middle, kept), dim)
    if isinstance(given, int):
        c.put(node, c.view(node, "position", middle, node.shapes[1] or (1,)), 1)
    elif real:  # all elements that are equal to it share its gradient
        equal = pointwise(c, node, "equal", "equal", [(tensor, shape), (value, kept)], "bool")
        equal = pointwise(c, node, "shown", "logical_or", [(equal, shape), (nan, shape)], "bool")
        alike = pointwise(c, node, "alike", "mask_fill", [(tensor, shape), (equal, shape)], None, value=-inf)
        value = reduce_dimensions(c, node, "median", alike, shape, [dim], Folding("max", keep=True), nan=1)
    c.put(node, c.view(node, "value", value, node.shapes[0] or (1,)))


def bucketize(c: Context, node: Node) -> None:
    """bucketize, and searchsorted in one row: positions among ascending boundaries."""
    searched = node.kind.startswith("aten.searchsorted")
    edges, x = (
        (node.ref("sorted_sequence"), node.ref("self")) if searched else (node.ref("boundaries"), node.ref("self"))
    )
    (bounds, many), (tensor, shape) = c.operand(edges), c.operand(x)
    if len(many) != 1 or node.arguments.get("sorter") is not None:
        raise Unsupported("boundaries of several dimensions, or a sorter")
    right = bool(node.integer("right", 0)) or node.arguments.get("side") == "right"
    whole, column = (*shape, *many), (*shape, 1)
    operands = [(bounds, many), (c.view(node, "column", tensor, column), column)]
    if _real(c, node):  # NaN lies behind every boundary
        above = pointwise(c, node, "above", "greater" if right else "greater_equal", operands, "bool")
        below = pointwise(c, node, "below", "logical_not", [(above, whole)], "bool")
    else:
        below = pointwise(c, node, "below", "less_equal" if right else "less", operands, "bool")
    ones = pointwise(c, node, "ones", "cast", [(below, whole)], node.dtype, dtype=node.dtype)
    y = reduce_dimensions(c, node, "", ones, whole, [len(shape)], Folding("sum"))
    c.put(node, c.view(node, "scalar", y, (1,)) if not node.shape else y)


def histogram(c: Context, node: Node) -> None:
    """histc with given limits."""
    x, bins = node.ref("self"), node.integer("bins", 100)
    low, high = node.number("min", 0.0), node.number("max", 0.0)
    if low >= high:
        raise Unsupported("limits that are those of the data (give min < max)")
    tensor, shape = c.operand(x)
    size = _size(shape)
    flat = c.view(node, "flat", tensor, (size,))
    whole = _counted(c, flat) if (low, high) == (0.0, bins - 1.0) else None
    if whole is None:
        moved = pointwise(c, node, "moved", "shift", [(flat, (size,))], None, shift=-low) if low else flat
        factor = bins / (high - low)
        spaced = moved if factor == 1.0 else pointwise(c, node, "spaced", "scale", [(moved, (size,))], scale=factor)
        bin_ = pointwise(c, node, "floor", "floor", [(spaced, (size,))])
        last = pointwise(c, node, "last", "clip", [(bin_, (size,))], None, high=float(bins - 1))
        inside = pointwise(c, node, "inside", "less_equal", [(flat, (size,))], "bool", value=high)
        kept = pointwise(c, node, "kept", "mask_fill", [(last, (size,)), (inside, (size,))], None, value=-1.0)
        whole = pointwise(c, node, "bin", "cast", [(kept, (size,))], "int64", dtype="int64")
    else:
        c.counted[Ref(node.name)] = whole
    one = pointwise(c, node, "one", "fill", [(flat, (size,))], node.dtype, value=1.0)
    c.put(node, along(c, node, "", "scatter_add", (one, (size,)), (whole, (size,)), 0, bins))


def _counted(c: Context, tensor: str) -> str | None:
    """The integers that a tensor of floats holds, if it is a conversion of integers."""
    found = next((op for op in reversed(c.g.operators) if op.output.tensor == tensor), None)
    if found is None or found.function != "cast" or len(found.inputs[0].index) != 1:
        return None
    source = found.inputs[0].tensor
    same = found.inputs[0].index[0] == Affine.axis(found.output.axes[0])
    return source if same and c.g.tensors[source].dtype in ("int64", "int32") else None


def fill_tensor(c: Context, node: Node) -> None:
    """full, scalar_tensor, zeros, ones: one number; empty: contents that nobody may use are 0."""
    kind = node.kind.removeprefix("aten.").partition(".")[0]
    number = 1.0 if kind == "ones" else 0.0
    if kind in ("full", "scalar_tensor"):
        found = c.uniform(node.arguments.get("fill_value", node.arguments.get("s")))
        if found is None:
            raise Unsupported("a computed number")
        number = found
    c.fill(node, number)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("sort", "argsort"), sort),
    "topk": top_k,
    **dict.fromkeys(("argmax", "argmin"), arg_extreme),
    "median": median,
    **dict.fromkeys(("bucketize", "searchsorted"), bucketize),
    "histc": histogram,
    **dict.fromkeys(
        (
            "full",
            "scalar_tensor",
            "zeros",
            "ones",
            "empty",
            "empty_like",
            "empty_permuted",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
        ),
        fill_tensor,
    ),
}

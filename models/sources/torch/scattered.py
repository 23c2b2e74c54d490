"""Translates core ATen operators that write where data says: scatter, index_put, masked_scatter, and those
that write a slice.

    scatter_add, index_put(accumulate), index_add    self + SUM over i with index[i] = v of src[i]
    scatter_reduce, index_reduce                     the same with mean, amax, amin; with self or without
    scatter, index_put                               of the i with index[i] = v the last one writes (PyTorch leaves open
                                                     which does):  w[v] = MAX over i with index[i] = v of i;  src[w[v]]
                                                     where there is one, else self[v]
    masked_scatter                                   source[true elements of the mask before] where the mask is true
    slice_scatter, select_scatter                    parts written side by side, as a concatenation

An index is a position.  Those of index and index_put may be negative in PyTorch and then count from the end: computed
ones that may be are taken modulo the extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import Value
from ..building.flat import Unsupported, broadcast, concatenate, letters, lookup, normalise, part_of, pointwise, reorder
from ..building.intervals import never_negative
from .context import Context, Handler, Node, Ref, dimension
from .layout import slice_scatter as replaced_part
from .pointwise import spread
from .promoted import cast

Shaped = tuple[str, tuple[int, ...]]
"""A tensor of the graph and the shape that its node gives it."""

_COMBINES: Final = {"scatter_add": Combine.SUM, "scatter_max": Combine.MAX, "scatter_min": Combine.MIN}
ROWS: Final = "v"


def value_of(c: Context, node: Node, value: Ref, dtype: str) -> Shaped:
    """An operand in an element type."""
    return c.operand(cast(c, node, value, dtype) or value)


def indices_of(c: Context, value: Ref, extent: int) -> Shaped:
    """Positions along a dimension; constant ones may count from the end.  Raises `Unsupported` for masks."""
    if c.dtypes[value] in ("bool", "uint8"):  # PyTorch takes both for masks
        raise Unsupported("a mask as index (write where(mask, value, x))")
    known = c.constants.get(value)
    places = None if known is None else known.astype(np.int64)
    if places is not None and bool((places < 0).any()):
        turned = Ref(f"{value.node}/positive", value.result)
        c.constants[turned] = np.where(places < 0, places + extent, places)
        c.shapes[turned], c.dtypes[turned] = places.shape, c.dtypes[value]
        return c.operand(turned)
    return c.operand(value)


def from_the_front(c: Context, node: Node, ids: Shaped, extent: int, part: str) -> Shaped:
    """Computed positions that may be negative, modulo the extent: -1 is the last."""
    if never_negative(c.g.operators, c.g.tensors, ids[0]):
        return ids
    return pointwise(c, node, part, "remainder", [ids], "int64", value=extent), ids[1]


def positions(c: Context, node: Node, part: str, count: int) -> str:
    """0, 1, .., count - 1."""
    attributes: dict[str, str | int] = {"along": "n", "start": 0, "step": 1}
    return c.operator(node, part, "iota", [Axis("n", count)], [], ["n"], attributes, "int64")


def along(c: Context, node: Node, part: str, function: str, src: Shaped, ids: Shaped, dim: int, extent: int) -> str:
    """Values of the ids' shape (or along `dim` only) scattered along a dimension of extent `extent`, whole at the
    others.
    """
    names = letters(len(ids[1])) or ["n"]
    out = [ROWS if k == dim else a for k, a in enumerate(names)]
    read = [names[dim]] if len(src[1]) == 1 else names
    axes = [
        *(Axis(a, extent if k == dim else n) for k, (a, n) in enumerate(zip(out, ids[1], strict=True))),
        Axis(names[dim], ids[1][dim], _COMBINES[function]),
    ]
    reads = [Access(src[0], tuple(map(Affine.axis, read))), Access(ids[0], tuple(map(Affine.axis, names)))]
    return c.operator(node, part, function, axes, reads, out, {"rows": ROWS})


def picked_along(c: Context, node: Node, part: str, table: Shaped, ids: Shaped, dim: int) -> str:
    """table[.., ids[.., i, ..], ..] along one dimension; both have the same extents at the others."""
    names = letters(len(ids[1])) or ["n"]
    columns = [ROWS if k == dim else a for k, a in enumerate(names)]
    axes = [*(Axis(a, n) for a, n in zip(names, ids[1], strict=True)), Axis(ROWS, table[1][dim], Combine.SUM)]
    reads = [Access(table[0], tuple(map(Affine.axis, columns))), Access(ids[0], tuple(map(Affine.axis, names)))]
    return c.operator(node, part, "embedding", axes, reads, names, {"rows": ROWS})


def _same_shape(c: Context, node: Node, dim: int) -> tuple[Shaped, tuple[int, ...]]:
    """The index of a scatter, and the shape of the part of self that it may write to."""
    index, shape = node.ref("index"), node.shape
    ids = indices_of(c, index, shape[dim] if shape else 1)
    if len(ids[1]) != len(shape):
        raise Unsupported("an index of another rank than self")
    return ids, tuple(shape[k] if k == dim else n for k, n in enumerate(ids[1]))


def _begin(c: Context, node: Node, part: str, value: Shaped, extents: Sequence[int]) -> Shaped:
    """The first elements along every dimension."""
    if value[1] == tuple(extents):
        return value
    return part_of(c, node, part, value[0], extents, {}), tuple(extents)


def _replaced(c: Context, node: Node, old: Shaped, new: str, written: Sequence[int]) -> str:
    """`old` with its first elements replaced; the new tensor itself if that is all of it."""
    return new if old[1] == tuple(written) else overwritten(c, node, "", old, new, [(0, n) for n in written])


def overwritten(c: Context, node: Node, part: str, old: Shaped, new: str, bounds: Sequence[tuple[int, int]]) -> str:
    """`old` with the box `bounds` replaced by `new`, which has the box's shape."""
    names = letters(len(old[1]))
    reads = [
        Access(old[0], tuple(map(Affine.axis, names))),
        Access(new, tuple(Affine.axis(a).shift(-lo) for a, (lo, _) in zip(names, bounds, strict=True))),
    ]
    attributes: dict[str, Value] = {
        "start": tuple(lo for lo, _ in bounds),
        "stop": tuple(hi for _, hi in bounds),
        "positional": tuple(a for a, n, (lo, hi) in zip(names, old[1], bounds, strict=True) if (lo, hi) != (0, n)),
    }
    axes = [Axis(a, n) for a, n in zip(names, old[1], strict=True)]
    return c.operator(node, part, "update", axes, reads, names, attributes)


def scatter(c: Context, node: Node) -> None:
    """scatter of values or of one number; the indices of `topk` marked by true (or one) are a mask of the k largest."""
    if _mask_of_largest(c, node):
        return
    how = node.text("reduce", "")
    if how not in ("", "add"):
        raise Unsupported(f"reduce={how} (add is supported, and scatter_reduce with sum, mean, amax, amin)")
    shape = node.shape
    dim = dimension(node, node.integer("dim", 0), len(shape))
    ids, written = _same_shape(c, node, dim)
    old = value_of(c, node, node.ref("self"), node.dtype)
    part = _begin(c, node, "begin", old, written)
    source = node.arguments.get("src", node.arguments.get("value"))
    if how == "add":
        src = _source(c, node, source, ids)
        new = pointwise(
            c, node, "sum", "add", [part, (along(c, node, "added", "scatter_add", src, ids, dim, shape[dim]), written)]
        )
    else:
        count = ids[1][dim]
        order = (positions(c, node, "order", count), (count,))
        last = along(c, node, "last", "scatter_max", order, ids, dim, shape[dim])
        new = _written(c, node, part, (last, written), source, ids, dim)
    c.put(node, _replaced(c, node, old, new, written))


def _source(c: Context, node: Node, source: object, ids: Shaped) -> Shaped:
    """What is scattered, as far as the index goes."""
    if isinstance(source, Ref) and c.shapes[source]:
        return _begin(c, node, "source", value_of(c, node, source, node.dtype), ids[1])
    number = c.uniform(source if isinstance(source, (Ref, bool, int, float)) else None)
    if number is None:
        raise Unsupported("a computed number")
    same = pointwise(c, node, "number", "fill", [ids], "int64", value=0)
    held = (pointwise(c, node, "zero", "cast", [(same, ids[1])], node.dtype, dtype=node.dtype), ids[1])
    return pointwise(c, node, "source", "shift", [held], node.dtype, shift=number), ids[1]


def _written(c: Context, node: Node, old: Shaped, last: Shaped, source: object, ids: Shaped, dim: int) -> str:
    """`old`, or what the last writer writes."""
    number = c.uniform(source if isinstance(source, (Ref, bool, int, float)) else None)
    if number is not None:
        free = pointwise(c, node, "free", "less", [last], "bool", value=0)
        return pointwise(c, node, "", "mask_fill", [old, (free, last[1])], node.dtype, value=number)
    new = picked_along(c, node, "new", _source(c, node, source, ids), last, dim)
    here = pointwise(c, node, "here", "greater_equal", [last], "bool", value=0)
    return pointwise(c, node, "", "where", [(here, last[1]), (new, last[1]), old], node.dtype)


def _mask_of_largest(c: Context, node: Node) -> bool:
    found = c.chosen.get(node.ref("index"))
    value, base = c.uniform(node.arguments.get("value", node.arguments.get("src"))), c.uniform(node.arguments["self"])
    if found is None or value != 1.0 or base != 0.0:
        return False
    x, k, dim = found
    if dim != dimension(node, node.integer("dim", 0), len(node.shape)) or node.shape != c.shapes[x]:
        return False
    mask = normalise(c, node, "", "top_k_mask", [c.operand(x)], [dim], k=k)
    if node.dtype != "bool":
        mask = pointwise(c, node, "cast", "cast", [(mask, node.shape)], node.dtype, dtype=node.dtype)
    c.put(node, mask)
    return True


def scatter_add(c: Context, node: Node) -> None:
    """scatter_add: self + the sum of what goes there."""
    _reduced(c, node, "sum", True)


def scatter_reduce(c: Context, node: Node) -> None:
    """scatter_reduce and index_reduce by sum, mean, amax or amin."""
    _reduced(c, node, node.text("reduce", ""), bool(node.integer("include_self", 1)))


def _reduced(c: Context, node: Node, how: str, with_self: bool) -> None:
    function = {"sum": "scatter_add", "mean": "scatter_add", "amax": "scatter_max", "amin": "scatter_min"}.get(how)
    if function is None or (how == "mean" and not node.dtype.startswith(("float", "bfloat"))):
        raise Unsupported(f"reduce={how} of {node.dtype} (sum, amax, amin are supported, and mean of floats)")
    dim = dimension(node, node.integer("dim", 0), len(node.shape))
    extent = node.shape[dim] if node.shape else 1
    if "source" in node.arguments:  # index_reduce
        ids, written = _rows(c, node, dim), node.shape
        src = value_of(c, node, node.ref("source"), node.dtype)
    else:
        ids, written = _same_shape(c, node, dim)
        src = _source(c, node, node.ref("src"), ids)
    base, extreme = c.uniform(node.arguments["self"]), how in ("amax", "amin")
    if how == "sum" and base == 0.0 and written == node.shape:  # whether self counts makes no difference
        c.put(node, along(c, node, "", function, src, ids, dim, extent))
        return
    old = value_of(c, node, node.ref("self"), node.dtype)
    part = _begin(c, node, "begin", old, written)
    reads = _beside(c, node, src, ids, part, dim) if with_self and extreme else (src, ids)
    first = "" if base == 0 and how == "sum" else "gone"
    scattered = (along(c, node, first, function, *reads, dim, extent), written)
    count = None
    if how == "mean" or not with_self:
        ones = (pointwise(c, node, "one", "fill", [src], node.dtype, value=1.0), ids[1])
        count = (along(c, node, "count", "scatter_add", ones, ids, dim, extent), written)
    if with_self and not extreme:
        scattered = (pointwise(c, node, "with", "add", [part, scattered], node.dtype), written)
    if how == "mean" and count is not None:
        bound: dict[str, float] = {"shift": 1.0} if with_self else {"low": 1.0}
        least = pointwise(c, node, "least", "shift" if with_self else "clip", [count], node.dtype, **bound)
        scattered = (pointwise(c, node, "mean", "divide", [scattered, (least, written)], node.dtype), written)
    new = scattered[0]
    if not with_self and count is not None:
        here = pointwise(c, node, "here", "greater", [count], "bool", value=0)
        new = pointwise(c, node, "new", "where", [(here, written), scattered, part], node.dtype)
    c.put(node, _replaced(c, node, old, new, written))


def _beside(c: Context, node: Node, src: Shaped, ids: Shaped, old: Shaped, dim: int) -> tuple[Shaped, Shaped]:
    """Sources and indices, and behind them what was there before: all that attain the extreme share its gradient."""
    names = letters(len(old[1]))
    order, axes = positions(c, node, "order", old[1][dim]), [Axis(a, n) for a, n in zip(names, old[1], strict=True)]
    own = c.operator(node, "own", "copy", axes, [Access(order, (Affine.axis(names[dim]),))], names)
    places = concatenate(c, node, "places", [ids[0], own], dim)
    every = concatenate(c, node, "every", [src[0], old[0]], dim)
    return (every, c.g.tensors[every].shape), (places, c.g.tensors[places].shape)


def _rows(c: Context, node: Node, dim: int) -> Shaped:
    """The index of an index_reduce, one place per row of the source, for every element of it."""
    index, shape = node.ref("index"), c.shapes[node.ref("source")]
    if len(c.shapes[index]) != 1 or len(shape) != len(node.shape):
        raise Unsupported("an index or a source of another rank")
    ids = from_the_front(c, node, indices_of(c, index, node.shape[dim]), node.shape[dim], "index")
    names = letters(len(shape))
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    return c.operator(node, "places", "copy", axes, [Access(ids[0], (Affine.axis(names[dim]),))], names), shape


def index_put(c: Context, node: Node) -> None:
    """index_put: values at index tensors over some dimensions, added to self or in its place."""
    listed = node.arguments["indices"]
    given = {k: v for k, v in enumerate(listed if isinstance(listed, tuple) else ()) if isinstance(v, Ref)}
    add, values = bool(node.integer("accumulate", 0)), node.ref("values")
    if len(given) == 1 and c.dtypes[next(iter(given.values()))] == "bool":
        _at_mask(c, node, next(iter(given.items())), values, add)
        return
    if _inverse(c, node, given, values):
        return
    old, shape = value_of(c, node, node.ref("self"), node.dtype), node.shape
    dims = sorted(given)
    order = [*dims, *(k for k in range(len(shape)) if k not in dims)]
    rest = tuple(shape[k] for k in order[len(dims) :])
    front = old[0] if order == sorted(order) else reorder(c, node, "front", old[0], order)
    size = prod(shape[k] for k in dims)
    table = (c.view(node, "flat", front, (size, *rest)), (size, *rest))
    ids, places = flat_index(c, node, given, shape)
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    src = _values(c, node, values, places, rest, dims[0] if together else 0)
    count = prod(places)
    ids = c.view(node, "index", ids, (count,))
    names = [f"m{k}" for k in range(len(rest))]
    axes = [*(Axis(a, n) for a, n in zip(names, rest, strict=True)), Axis("i", count, Combine.SUM)]
    if add:
        reads = [Access(src, tuple(map(Affine.axis, ("i", *names)))), Access(ids, (Affine.axis("i"),))]
        gone = c.operator(
            node, "added", "scatter_add", [Axis(ROWS, size), *axes], reads, [ROWS, *names], {"rows": ROWS}
        )
        nothing = c.uniform(node.arguments["self"]) == 0.0
        new = gone if nothing else pointwise(c, node, "sum", "add", [table, (gone, table[1])], node.dtype)
    else:
        last = along(
            c, node, "last", "scatter_max", (positions(c, node, "order", count), (count,)), (ids, (count,)), 0, size
        )
        column = c.view(node, "column", last, (size, *(1 for _ in rest)))
        here = pointwise(c, node, "here", "greater_equal", [(column, (size, *(1 for _ in rest)))], "bool", value=0)
        written = lookup(c, node, "new", (src, (count, *rest)), 0, (last, (size,)))  # the last of equal ids
        new = pointwise(
            c, node, "put", "where", [(here, (size, *(1 for _ in rest))), (written, table[1]), table], node.dtype
        )
    back = c.view(node, "shape", new, tuple(shape[k] for k in order))
    c.put(
        node,
        back if order == sorted(order) else reorder(c, node, "back", back, [order.index(k) for k in range(len(shape))]),
    )


def flat_index(c: Context, node: Node, given: Mapping[int, Ref], shape: Sequence[int]) -> Shaped:
    """Index tensors over several dimensions as positions in these dimensions, flattened; their common shape."""
    total: Shaped | None = None
    step = 1
    for k in sorted(given, reverse=True):
        ids = indices_of(c, given[k], shape[k])
        if given[k] not in c.constants:
            ids = from_the_front(c, node, ids, shape[k], f"index{k}")
        if step > 1:
            ids = (pointwise(c, node, "stride", "scale", [ids], "int64", scale=float(step)), ids[1])
        if total is None:
            total = ids
        else:
            common = tuple(np.broadcast_shapes(total[1], ids[1]))
            total = (pointwise(c, node, "flat_index", "add", [total, ids], "int64"), common)
        step *= shape[k]
    if total is None:
        raise Unsupported("no index tensor")
    return total


def _values(c: Context, node: Node, values: Ref, places: tuple[int, ...], rest: tuple[int, ...], first: int) -> str:
    """Values broadcast to (elements of the index, other dimensions); the index stands before dimension `first` of the
    others.
    """
    whole = (*rest[:first], *places, *rest[first:])
    tensor, shape = value_of(c, node, values, node.dtype)
    if shape != whole:
        names = letters(len(whole)) or ["n"]
        axes = [Axis(a, n) for a, n in zip(names, whole or (1,), strict=True)]
        tensor = c.operator(
            node, "values", "copy", axes, [broadcast(tensor, shape or (1,), names, whole or (1,))], names
        )
    moved = [*range(first, first + len(places)), *range(first), *range(first + len(places), len(whole))]
    if moved != sorted(moved):
        tensor = reorder(c, node, "moved", tensor, moved)
    return c.view(node, "rows", tensor, (prod(places), *rest))


def _at_mask(c: Context, node: Node, given: tuple[int, Ref], values: Ref, add: bool) -> None:
    """self[mask] = a value for all places: a single one, or one along the dimensions that the mask does not have."""
    k, mask = given
    behind = len(node.shape) - k - len(c.shapes[mask])
    held = c.shapes[values]
    same = prod(held) if k else prod(held[: max(len(held) - behind, 0)])
    if same != 1:
        raise Unsupported("a mask as index, and a value for each of its places (write masked_scatter)")
    seen = c.view(node, "mask", c.tensor(mask), (*c.shapes[mask], *(1 for _ in range(behind))))
    chosen = (seen, (*c.shapes[mask], *(1 for _ in range(behind))))
    old, value = value_of(c, node, node.ref("self"), node.dtype), value_of(c, node, values, node.dtype)
    wide = held[max(len(held) - behind, 0) :] if not k and prod(held) > 1 else (1,)
    one: Shaped = (c.view(node, "value", value[0], wide), wide)
    if add:
        one = (pointwise(c, node, "sum", "add", [old, one], node.dtype), node.shape)
    c.put(node, pointwise(c, node, "", "where", [chosen, one, old], node.dtype))


def _inverse(c: Context, node: Node, given: Mapping[int, Ref], values: Ref) -> bool:
    """0, 1, .. written at a permutation is its inverse, and so the order of its elements."""
    found = c.constants.get(values)
    if len(node.shape) != 1 or list(given) != [0] or given[0] not in c.permutations or found is None:
        return False
    if found.shape != node.shape or not bool((found == np.arange(len(found))).all()) or node.dtype != "int64":
        return False
    order = normalise(c, node, "", "argsort", [c.operand(given[0])], [0], "int64")
    c.put(node, order)
    c.permutations.add(Ref(node.name))
    return True


def masked_scatter(c: Context, node: Node) -> None:
    """masked_scatter: elements of the source, in order, where the mask is true."""
    mask, source, shape = node.ref("mask"), node.ref("source"), node.shape
    given, width = c.tensor(mask), c.shapes[source][-1] if c.shapes[source] else 1
    rows = _repeated_last(c, given, shape) if shape and width == shape[-1] and c.shapes[mask] == shape else None
    tail: tuple[int, ...] = ()
    if rows is None:  # element by element
        flat, width = c.view(node, "mask", spread(c, node, given, c.shapes[mask]), (prod(shape),)), 1
    else:  # whole rows are written, or none of a row
        flat, tail = c.view(node, "mask", rows, (prod(shape[:-1]),)), (width,)
    count = prod(shape) // width
    place = normalise(c, node, "place", "cumulative_sum", [(flat, (count,))], [0], "int64", exclusive=1)
    held = prod(c.shapes[source]) // width
    table = c.view(node, "source", value_of(c, node, source, node.dtype)[0], (held, *tail))
    new = lookup(c, node, "new", (table, (held, *tail)), 0, (place, (count,)))
    old = c.view(node, "self", value_of(c, node, node.ref("self"), node.dtype)[0], (count, *tail))
    column = (c.view(node, "column", flat, (count, *(1 for _ in tail))), (count, *(1 for _ in tail)))
    y = pointwise(c, node, "put", "where", [column, (new, (count, *tail)), (old, (count, *tail))], node.dtype)
    c.put(node, c.view(node, "shape", y, shape or (1,)))


def _repeated_last(c: Context, tensor: str, shape: tuple[int, ...]) -> str | None:
    """The tensor without its last dimension, if that only repeats: it was expanded, or compared so."""
    found = next((op for op in reversed(c.g.operators) if op.output.tensor == tensor), None)
    if found is None or found.function != "copy" or len(found.inputs) != 1 or len(found.output.index) != len(shape):
        return None
    (read,), last = found.inputs, found.output.axes[-1]
    if last in read.axes or [i.single for i in read.index if i != Affine()] != list(found.output.axes[:-1]):
        return None
    return read.tensor


def slice_scatter(c: Context, node: Node) -> None:
    """slice_scatter, select_scatter: what is written part by part into nothing is what its parts are, side by side."""
    base, shape, one = node.ref("self"), node.shape, node.kind.startswith("aten.select")
    dim, step = dimension(node, node.integer("dim", 0), len(shape)), node.integer("step", 1)
    n = shape[dim]
    low, high = node.integer("index" if one else "start", 0), node.integer("end", n)
    low, high = (min(max(x + n if x < 0 else x, 0), n) for x in (low, high))
    high = low + 1 if one else high
    at, pieces = c.pieces.get(base, (dim, ()))
    alone = all(p[1] <= low or p[0] >= high for p in pieces)
    if step == 1 and low < high and at == dim and alone and (base in c.pieces or c.uniform(base) == 0.0):
        new = value_of(c, node, node.ref("src"), node.dtype)[0]
        new = c.view(node, "row", new, [*shape[:dim], 1, *shape[dim + 1 :]]) if one else new
        found = tuple(sorted((*pieces, (low, high, new))))
        c.pieces[Ref(node.name)] = (dim, found)
        if [p[0] for p in found] == [0, *(p[1] for p in found[:-1])] and found[-1][1] == n:
            c.put(node, concatenate(c, node, "", [p[2] for p in found], dim) if len(found) > 1 else new)
            return
    replaced_part(c, node)


HANDLERS: dict[str, Handler] = {
    "scatter": scatter,
    "scatter_add": scatter_add,
    **dict.fromkeys(("scatter_reduce", "index_reduce"), scatter_reduce),
    "index_put": index_put,
    "_unsafe_index_put": index_put,
    "masked_scatter": masked_scatter,
    **dict.fromkeys(("slice_scatter", "select_scatter"), slice_scatter),
}

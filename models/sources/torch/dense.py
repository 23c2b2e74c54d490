"""Translates core ATen matrix products and gathers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Unsupported, lookup, matrix_product, part_of, pointwise, reorder
from .context import Context, Handler, Node, Ref, TorchError, dimension
from .scattered import flat_index, from_the_front


def product(c: Context, node: Node) -> None:
    """mm, bmm, mv, dot."""
    left, right = (
        c.operand(node.ref(k))
        for k in ("self", next(k for k in ("mat2", "vec", "tensor", "other") if k in node.arguments))
    )
    c.put(node, matrix_product(c, node, "", left, right))


def add_product(c: Context, node: Node) -> None:
    """addmm, baddbmm: beta * self + alpha * product."""
    a, b = ("mat1", "mat2") if "mat1" in node.arguments else ("batch1", "batch2")
    y = matrix_product(c, node, "", c.operand(node.ref(a)), c.operand(node.ref(b)))
    if (alpha := node.number("alpha", 1.0)) != 1.0:
        y = pointwise(c, node, "alpha", "scale", [(y, node.shape)], None, scale=alpha)
    bias, beta = c.operand(node.ref("self")), node.number("beta", 1.0)
    if beta != 0.0 and c.uniform(node.ref("self")) != 0.0:
        if beta != 1.0:
            bias = (pointwise(c, node, "beta", "scale", [bias], None, scale=beta), bias[1])
        y = pointwise(c, node, "bias_add", "add", [(y, node.shape), bias])
    c.put(node, y)


def linear(c: Context, node: Node) -> None:
    """linear(x, weight[n, k], bias), as programs hold it that are not decomposed: x[.., k] weight[n, k] + bias[n]."""
    (x, shape), (w, (n, k)) = c.operand(node.ref("input")), c.operand(node.ref("weight"))
    rows = [f"b{i}" for i in range(len(shape) - 1)]
    axes = [*(Axis(a, e) for a, e in zip(rows, shape, strict=False)), Axis("n", n), Axis("k", k, Combine.SUM)]
    reads = [Access(x, (*map(Affine.axis, rows), Affine.axis("k"))), Access(w, (Affine.axis("n"), Affine.axis("k")))]
    y = c.operator(node, "", "product", axes, reads, [*rows, "n"])
    if (bias := node.optional("bias")) is not None:
        y = pointwise(c, node, "bias_add", "add", [(y, node.shape), c.operand(bias)])
    c.put(node, y)


def _positions(c: Context, value: Ref) -> tuple[int, int] | None:
    """(first, count) if the value is a constant run first, first + 1, .. in its last dimension and the same in all
    others.
    """
    found = c.constants.get(value)
    if found is None or found.ndim == 0 or any(n != 1 for n in found.shape[:-1]):
        return None
    run = found.reshape(-1)
    first = int(run[0])
    return (first, len(run)) if first >= 0 and bool((run == range(first, first + len(run))).all()) else None


def _rows(
    c: Context, node: Node, table: tuple[str, tuple[int, ...]], dim: int, ids: Ref, padding: int | None = None
) -> None:
    """Rows of a table along a dimension; consecutive ones are a slice, computed ones an embedding.  The row `padding`
    gets no gradient.
    """
    run, (tensor, shape) = _positions(c, ids), table
    if (
        run is not None
        and run[0] + run[1] <= shape[dim]
        and not (padding is not None and 0 <= padding - run[0] < run[1])
    ):
        extents = [*shape[:dim], run[1], *shape[dim + 1 :]]
        cut = tensor if list(shape) == extents else part_of(c, node, "", tensor, extents, {dim: (1, run[0])})
        c.put(node, c.view(node, "rows", cut, node.shape))
        return
    c.put(node, lookup(c, node, "", table, dim, c.operand(ids), padding=padding))


def embedding(c: Context, node: Node) -> None:
    """embedding: rows of a matrix; the row padding_idx gets no gradient."""
    padding = node.integer("padding_idx", -1)
    _plain_gradient(node)
    _rows(c, node, c.operand(node.ref("weight")), 0, node.ref("indices"), padding if padding >= 0 else None)


def _plain_gradient(node: Node) -> None:
    """Refuse gradients that are divided by how often a row is read."""
    if node.integer("scale_grad_by_freq", 0):
        raise Unsupported("scale_grad_by_freq, whose gradient is not the derivative of what it computes")


def index_select(c: Context, node: Node) -> None:
    """index_select along one dimension."""
    table = c.operand(node.ref("self"))
    _rows(c, node, table, dimension(node, node.integer("dim", 0), len(table[1])), node.ref("index"))


def index(c: Context, node: Node) -> None:
    """index.Tensor: one index tensor, or constant ones over neighbouring dimensions, which are read as one flat
    dimension.
    """
    listed = node.arguments["indices"]
    if not isinstance(listed, tuple):
        raise TorchError(f"node {node.name!r}", "lacks its index tensors")
    given = [(k, v) for k, v in enumerate(listed) if isinstance(v, Ref)]
    tensor, shape = c.operand(node.ref("self"))
    if len(given) == 1:
        k, ids = given[0]
        if c.dtypes[ids] == "bool":
            raise Unsupported("a mask (the size of the result depends on its contents)")
        _rows(c, node, (tensor, shape), k, _from_the_front(c, node, ids, shape[k]))
        return
    dims = [k for k, _ in given]
    known = [c.constants.get(v) for _, v in given]
    if dims != list(range(dims[0], dims[0] + len(dims))) or any(v is None or v.dtype.kind not in "iu" for v in known):
        _many(c, node, dict(given))
        return
    flat, size = np.zeros((), np.int64), 1
    for k, v in reversed(list(zip(dims, known, strict=True))):
        if v is not None:
            flat, size = flat + size * (v.astype(np.int64) % shape[k]), size * shape[k]
    merged = (*shape[: dims[0]], size, *shape[dims[-1] + 1 :])
    ids = Ref(f"{node.name}/flat")
    c.constants[ids] = flat
    c.shapes[ids], c.dtypes[ids] = c.constants[ids].shape, "int64"
    _rows(c, node, (c.view(node, "flat", tensor, merged), merged), dims[0], ids)


def _from_the_front(c: Context, node: Node, ids: Ref, count: int) -> Ref:
    """Positions, those that count from the end as what they mean."""
    known = c.constants.get(ids)
    if known is None:
        tensor, shape = from_the_front(c, node, c.operand(ids), count, "index")
        made = Ref(f"{node.name}/from_the_front")
        c.values[made], c.shapes[made], c.dtypes[made] = tensor, shape, c.dtypes[ids]
        return ids if tensor == c.operand(ids)[0] else made
    if known.dtype.kind not in "iu":
        return ids
    found = known.astype(np.int64)
    if not bool(np.any(found < 0)):
        return ids
    made = Ref(f"{node.name}/from_the_front")
    c.constants[made], c.shapes[made], c.dtypes[made] = np.where(found < 0, found + count, found), found.shape, "int64"
    return made


def _many(c: Context, node: Node, given: Mapping[int, Ref]) -> None:
    """Several index tensors: positions in their dimensions, flattened; these stand first where they are separated."""
    tensor, shape = c.operand(node.ref("self"))
    dims = sorted(given)
    first = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    rest = [k for k in range(len(shape)) if k not in dims]
    order = [*rest[:first], *dims, *rest[first:]]
    front = tensor if order == sorted(order) else reorder(c, node, "front", tensor, order)
    size = prod(shape[k] for k in dims)
    merged = (*(shape[k] for k in rest[:first]), size, *(shape[k] for k in rest[first:]))
    ids = flat_index(c, node, given, shape)
    rows = lookup(c, node, "", (c.view(node, "flat", front, merged), merged), first, ids)
    c.put(node, rows if node.shape else c.view(node, "scalar", rows, (1,)))


def embedding_bag(c: Context, node: Node) -> None:
    """_embedding_bag with bags of one size: rows summed (or averaged) over the bag."""
    c.require_unused(node, 1)
    _plain_gradient(node)
    if node.integer("padding_idx", -1) >= 0:
        raise Unsupported("padding_idx, whose rows count for no bag")
    table, (ids, places) = c.operand(node.ref("weight")), c.operand(node.ref("indices"))
    offsets = c.constants.get(node.ref("offsets"))
    mode, last = node.integer("mode", 0), node.integer("include_last_offset", 0)
    if (
        offsets is None
        or node.optional("per_sample_weights") is not None
        or mode not in (0, 1)
        or last
        or len(places) != 1
    ):
        raise Unsupported("computed offsets, weights per sample or mode max")
    count = len(offsets)
    size = places[0] // count
    if size * count != places[0] or list(offsets) != list(range(0, places[0], size)):
        raise Unsupported("bags of different sizes")
    bags = c.view(node, "bags", ids, (count, size))
    y = lookup(c, node, "", table, 0, (bags, (count, size)), bag=1)
    c.put(node, pointwise(c, node, "mean", "scale", [(y, node.shape)], None, scale=1.0 / size) if mode == 1 else y)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul"), product),
    **dict.fromkeys(("addmm", "baddbmm"), add_product),
    "linear": linear,
    "embedding": embedding,
    "index_select": index_select,
    "index": index,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag"), embedding_bag),
}

"""Translates grouped matrix products: rows that are sorted by expert, the last row of every expert given by
running sums.

    _grouped_mm(x[s, k], w[e, k, n], ends[e])  =  SUM over e, k with id[s] = e of  x[s, k] w[e, k, n]

where id[s] is the number of ends that are not beyond s, and rows beyond the last end belong to nobody: 0.  Where the
ends are the running sums of how often every expert occurs among positions in ascending order, these positions are the
ids.  `transformers` calls the same function by a name of its own (`grouped_mm_fallback`).

Source: Gale et al., MegaBlocks (2022), section 4.
"""

from __future__ import annotations

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Folding, Unsupported, pointwise, reduce_dimensions
from .context import Context, Handler, Node, Ref
from .scattered import positions


def grouped_product(c: Context, node: Node) -> None:
    """_grouped_mm of a matrix of rows and a matrix per expert."""
    names = ("self", "mat2") if "mat2" in node.arguments else ("input", "weight")
    (x, left), (w, right) = (c.operand(node.ref(k)) for k in names)
    ends = node.optional("offs")
    if ends is None or len(left) != 2 or len(right) != 3 or node.optional("bias") is not None:
        raise Unsupported("other operands than rows[s, k], experts[e, k, n] and offs[e]")
    ids = _ids(c, node, ends, left[0], right[0])
    axes = [
        Axis("s", left[0]),
        Axis("n", right[2]),
        Axis("e", right[0], Combine.SUM),
        Axis("k", left[1], Combine.SUM),
    ]
    reads = [Access(t, tuple(map(Affine.axis, at))) for t, at in ((x, "sk"), (w, "ekn"), (ids, "s"))]
    y = c.operator(node, "", "grouped_product", axes, reads, ["s", "n"], {"rows": "e"})
    c.put(node, y if c.g.tensors[y].dtype == node.dtype else _cast(c, node, y))


def _cast(c: Context, node: Node, y: str) -> str:
    return pointwise(c, node, "cast", "cast", [(y, node.shape)], node.dtype, dtype=node.dtype)


def _ids(c: Context, node: Node, ends: Ref, rows: int, count: int) -> str:
    """The expert of every row."""
    known = c.counted.get(ends)
    if known is not None and known in c.ascending and c.g.tensors[known].shape == (rows,) and _positions(c, known):
        return known
    tensor, shape = c.operand(ends)
    if shape != (count,):
        raise Unsupported("other ends than one per expert")
    place = positions(c, node, "rows", rows)
    at = c.view(node, "row", place, (rows, 1))
    ended = pointwise(c, node, "ended", "less_equal", [(tensor, shape), (at, (rows, 1))], "bool")
    number = pointwise(c, node, "number", "cast", [(ended, (rows, count))], "int64", dtype="int64")
    return reduce_dimensions(c, node, "expert", number, (rows, count), [1], Folding("sum"))


def _positions(c: Context, tensor: str) -> bool:
    """Whether the tensor holds elements of an `argsort` only, and so nothing negative."""
    writer = {op.output.tensor: op for op in c.g.operators}
    while (op := writer.get(tensor)) is not None and op.function in ("copy", "embedding"):
        if len(op.inputs) > 1 and op.function == "copy":
            return False
        tensor = op.inputs[0].tensor
    return op is not None and op.function == "argsort"


HANDLERS: dict[str, Handler] = {"_grouped_mm": grouped_product}

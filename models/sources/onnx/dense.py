"""Translates ONNX matrix products: Gemm, MatMul with leading batch dimensions, Gather of table rows."""

from __future__ import annotations

import numpy as np

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Unsupported, lookup, matrix_product, pointwise
from ..building.intervals import never_negative
from .context import Context, Handler, Node, OnnxError
from .pointwise import operand

Shaped = tuple[str, tuple[int, ...]]


def gemm(c: Context, node: Node) -> None:
    """Gemm: alpha * op(A) op(B) + beta * C, op = transpose if transA, transB."""
    a, b = c.tensor(node.inputs[0]), c.tensor(node.inputs[1])
    left = ["k", "b"] if node.integer("transA", 0) else ["b", "k"]
    right = ["n", "k"] if node.integer("transB", 0) else ["k", "n"]
    shapes = [c.g.tensors[a].shape, c.g.tensors[b].shape]
    if any(len(s) != 2 for s in shapes):
        raise OnnxError(f"node {node.name!r}", f"Gemm needs matrices, got shapes {shapes}")
    sizes = dict(zip(left, shapes[0], strict=True)) | dict(zip(right, shapes[1], strict=True))
    if sizes["k"] != shapes[0][left.index("k")]:
        raise OnnxError(f"node {node.name!r}", f"shapes {shapes} do not fit")
    axes = [Axis("b", sizes["b"]), Axis("n", sizes["n"]), Axis("k", sizes["k"], Combine.SUM)]
    inputs = [Access(a, tuple(map(Affine.axis, left))), Access(b, tuple(map(Affine.axis, right)))]
    y = c.operator(node, "", "product", axes, inputs, ["b", "n"])
    shape = (sizes["b"], sizes["n"])
    if (alpha := node.number("alpha", 1.0)) != 1.0:
        y = pointwise(c, node, "alpha", "scale", [(y, shape)], scale=alpha)
    if node.has(2) and (beta := node.number("beta", 1.0)) != 0.0:
        bias, bias_shape = operand(c, node.inputs[2])
        if beta != 1.0:
            bias = pointwise(c, node, "beta", "scale", [(bias, bias_shape)], scale=beta)
        y = pointwise(c, node, "bias_add", "add", [(y, shape), (bias, bias_shape)])
    c.result(node, y)


def matmul(c: Context, node: Node) -> None:
    """MatMul: leading dimensions are broadcast, vectors are rows or columns."""
    c.result(node, matrix_product(c, node, "", operand(c, node.inputs[0]), operand(c, node.inputs[1])))


def gather(c: Context, node: Node) -> None:
    """Gather of rows (axis 0) of a matrix: an embedding."""
    table, ids = operand(c, node.inputs[0]), operand(c, node.inputs[1])
    if node.integer("axis", 0) != 0 or len(table[1]) != 2 or not ids[1]:
        raise Unsupported(f"axis={node.integer('axis', 0)}, table of rank {len(table[1])}, ids of rank {len(ids[1])}")
    c.result(node, lookup(c, node, "", table, 0, _from_the_front(c, node, ids, table[1][0])))


def _from_the_front(c: Context, node: Node, ids: Shaped, extent: int) -> Shaped:
    """Positions of which -1 is the last, since operator set 11: modulo the extent, where they may be negative."""
    known = c.constant_of(node.inputs[1])
    never = (
        never_negative(c.g.operators, c.g.tensors, ids[0])
        if known is None
        else bool(np.all(np.greater_equal(known, 0)))
    )
    if c.opset < 11 or never:
        return ids
    return pointwise(c, node, "index", "remainder", [ids], c.dtype(node.inputs[1]), value=extent), ids[1]


HANDLERS: dict[str, Handler] = {"Gemm": gemm, "MatMul": matmul, "Gather": gather}

"""ONNX matrix products: Gemm, MatMul with leading batch dimensions, Gather of table rows."""

from __future__ import annotations

from ..index import Access, Affine, Axis, Combine
from .onnx_context import Context, Handler, Node, OnnxError, Unsupported, broadcast
from .onnx_pointwise import apply, operand


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
        y = apply(c, node, "alpha", "scale", [(y, shape)], scale=alpha)
    if node.has(2) and (beta := node.number("beta", 1.0)) != 0.0:
        bias, bias_shape = operand(c, node.inputs[2])
        if beta != 1.0:
            bias = apply(c, node, "beta", "scale", [(bias, bias_shape)], scale=beta)
        y = apply(c, node, "bias_add", "add", [(y, shape), (bias, bias_shape)])
    c.result(node, y)


def matmul(c: Context, node: Node) -> None:
    """MatMul: leading dimensions are broadcast, vectors are rows or columns."""
    (a, left), (b, right) = operand(c, node.inputs[0]), operand(c, node.inputs[1])
    if not left or not right or left[-1] != right[-2 if len(right) > 1 else 0]:
        raise OnnxError(f"node {node.name!r}", f"shapes {left} and {right} do not fit")
    rank = max(len(left), len(right), 2)
    names = ["b", "h", *(f"h{k}" for k in range(rank))][: rank - 2]
    lead = [(1,) * (rank - max(len(s), 2)) + tuple(s[:-2]) for s in (left, right)]
    extents = [max(p, q) for p, q in zip(*lead, strict=True)]
    if any(n not in (1, extents[k]) for s in lead for k, n in enumerate(s)):
        raise OnnxError(f"node {node.name!r}", f"leading dimensions of {left} and {right} cannot be broadcast")

    rows, columns = ["s"] if len(left) > 1 else [], ["n"] if len(right) > 1 else []

    def read(tensor: str, shape: tuple[int, ...], inner: list[str]) -> Access:
        first = broadcast(tensor, shape[: len(shape) - len(inner)], names, extents)
        return Access(tensor, (*first.index, *map(Affine.axis, inner)))

    outer = [Axis(n, e) for n, e in zip(names, extents, strict=True)]
    outer += [*(Axis(r, left[-2]) for r in rows), *(Axis(n, right[-1]) for n in columns)]
    if not outer:
        raise Unsupported("two vectors")
    axes = [*outer, Axis("k", left[-1], Combine.SUM)]
    inputs = [read(a, left, [*rows, "k"]), read(b, right, ["k", *columns])]
    c.result(node, c.operator(node, "", "product", axes, inputs, [x.name for x in outer]))


def gather(c: Context, node: Node) -> None:
    """Gather of rows (axis 0) of a matrix: an embedding."""
    (table, shape), (ids, places) = operand(c, node.inputs[0]), operand(c, node.inputs[1])
    if node.integer("axis", 0) != 0 or len(shape) != 2 or not places:
        raise Unsupported(f"axis={node.integer('axis', 0)}, table of rank {len(shape)}, ids of rank {len(places)}")
    names = [["s"], ["b", "s"]][len(places) - 1] if len(places) < 3 else [f"i{k}" for k in range(len(places))]
    axes = [*(Axis(a, n) for a, n in zip(names, places, strict=True)), Axis("m", shape[1]), Axis("v", shape[0], Combine.SUM)]
    inputs = [Access(table, (Affine.axis("v"), Affine.axis("m"))), Access(ids, tuple(map(Affine.axis, names)))]
    c.result(node, c.operator(node, "", "embedding", axes, inputs, [*names, "m"], {"rows": "v"}))


HANDLERS: dict[str, Handler] = {"Gemm": gemm, "MatMul": matmul, "Gather": gather}

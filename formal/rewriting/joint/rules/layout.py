"""Rewrites copies: they are read through, and moved from behind a map to before it and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from .....models.program.index import Access, Affine, Axis
from .....models.program.operators import NodeKind, Operator
from .....models.program.tensor import Tensor
from .growing import Addition, Growing, is_real_value
from .reading import axes_text, compose, one_type, pointwise, singles

READS_ANYWHERE = (
    "product",
    "product_sum",
    "sum",
    "fused_product",
    "layer_norm",
    "rms_norm",
    "softmax",
    "log_softmax",
    "attention",
)


def moves(op: Operator) -> bool:
    """Whether it copies elements, and each only once."""
    return op.function == "copy" and not op.attributes and not any(i.whole for a in op.inputs for i in a.index)


def reads_within(access: Access, extent: dict[str, int], shape: tuple[int, ...]) -> bool:
    """Whether every point of the axes reads an element of the tensor."""
    box = {n: (0, e) for n, e in extent.items()}
    spans = [i.unclipped_interval(box) for i in access.index]
    return all(low >= 0 and high <= n for (low, high), n in zip(spans, shape, strict=True))


def read_through(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` reads what was copied where it lies."""
    if op.kind is not NodeKind.MAP and op.function not in READS_ANYWHERE or "reversed" in dict(op.attributes):
        return
    if op.kind is NodeKind.ATTENTION and any(g.tensor(a.tensor).dtype == "bool" for a in op.inputs):
        return  # of truth values nothing is known to the checker
    rows = set(op.over)
    for t in dict.fromkeys(a.tensor for a in op.inputs):
        if not is_real_value(g, t):
            continue
        for copy in g.nodes(t):
            if not moves(copy) or len(copy.inputs) != 1 or not reads_inside(g, copy, copy.inputs[0]):
                continue
            reads = [a for a in op.inputs if a.tensor == t]
            extent = axes_text(op)
            if any(i.whole for a in reads for i in a.index) or not all(
                reads_within(a, extent, g.tensor(t).shape) for a in reads
            ):
                continue
            inputs = tuple(_composed(a, copy) if a.tensor == t else a for a in op.inputs)
            if any(rows & {n for n, _ in i.terms} and i.single is None for a in inputs for i in a.index):
                continue  # rows of norms are whole dimensions
            if one_type(g, t, copy.inputs[0].tensor, op.output.tensor):
                yield Addition("read-through-copy", replace(op, inputs=inputs), (op, copy))


def reads_inside(g: Growing, copy: Operator, access: Access) -> bool:
    """Whether an operator reads elements of a tensor only."""
    return reads_within(access, axes_text(copy), g.tensor(access.tensor).shape)


def _composed(access: Access, copy: Operator) -> Access:
    """The access to what a copy reads, where `access` reads the copy."""
    at = dict(zip(copy.output.axes, access.index, strict=True))
    return Access(copy.inputs[0].tensor, tuple(compose(i, at) for i in copy.inputs[0].index))


def map_of_parts(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` is a map of tensors side by side."""
    if op.kind is not NodeKind.MAP or len(op.inputs) != 1 or not pointwise(g, op, 0) or op.spec.logical:
        return
    if not is_real_value(g, op.inputs[0].tensor) or op.function == "cast":
        return
    for copy in g.nodes(op.inputs[0].tensor):
        if not moves(copy) or len(copy.inputs) < 2 or not side_by_side(g, copy):
            continue
        if not one_type(g, op.output.tensor, copy.output.tensor, *(a.tensor for a in copy.inputs)):
            continue
        defined = []
        for k, a in enumerate(copy.inputs):
            t = g.tensor(a.tensor)
            names = tuple(f"d{i}" for i in range(len(t.shape)))
            at = tuple(Affine.axis(n) for n in names)
            tensor = Tensor(f"{op.output.tensor}.part{k}", t.shape, t.dtype)
            axes = tuple(Axis(n, e) for n, e in zip(names, t.shape, strict=True))
            made = Operator("", op.function, axes, (Access(a.tensor, at),), Access(tensor.name, at), op.attributes)
            defined.append((tensor, made))
        inputs = tuple(Access(t.name, a.index) for (t, _), a in zip(defined, copy.inputs, strict=True))
        node = replace(copy, inputs=inputs, output=replace(copy.output, tensor=op.output.tensor))
        yield Addition("map-of-parts", node, (op, copy, *(made for _, made in defined)), tuple(defined))


def side_by_side(g: Growing, copy: Operator) -> bool:
    """Whether the inputs follow each other along one axis, and fill the result."""
    extent, spans = axes_text(copy), list[tuple[int, int]]()
    along: str | None = None
    for a in copy.inputs:
        shape = g.tensor(a.tensor).shape
        names = [i.terms[0][0] if len(i.terms) == 1 and i.terms[0][1] == 1 else None for i in a.index]
        if None in names or tuple(names) != copy.output.axes:
            return False
        moved = [
            (n, -i.offset, size)
            for n, i, size in zip(names, a.index, shape, strict=True)
            if i.offset or size != extent[str(n)]
        ]
        if len(moved) != 1 or along not in (None, moved[0][0]):
            return False
        along = moved[0][0]
        spans.append((moved[0][1], moved[0][1] + moved[0][2]))
    spans.sort()
    follow = all(a[1] == b[0] for a, b in pairwise(spans))
    return along is not None and follow and spans[0][0] == 0 and spans[-1][1] == extent[along]


def map_of_a_part(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` copies a part, or another order, of a map."""
    if not moves(op) or len(op.inputs) != 1 or not reads_inside(g, op, op.inputs[0]):
        return
    if not is_real_value(g, op.inputs[0].tensor):
        return
    for m in g.nodes(op.inputs[0].tensor):
        if m.kind is not NodeKind.MAP or len(m.inputs) != 1 or not pointwise(g, m, 0) or m.spec.logical:
            continue
        x, out = m.inputs[0].tensor, op.output
        if m.function == "cast" or not one_type(g, x, out.tensor) or singles(out) is None:
            continue
        tensor = Tensor(f"{out.tensor}.before", g.tensor(out.tensor).shape, g.tensor(x).dtype)
        part = replace(op, inputs=(replace(op.inputs[0], tensor=x),), output=replace(out, tensor=tensor.name))
        node = Operator("", m.function, op.axes, (Access(tensor.name, out.index),), out, m.attributes)
        yield Addition("map-of-a-part", node, (op, m, part), ((tensor, part),))

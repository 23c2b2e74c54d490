"""Rewrites sums of several terms, sums of products as one operator, and a common factor taken out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....models.program.index import Access, Affine, Axis
from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .growing import Addition, Growing, is_real_value
from .reading import one_type, pointwise, seen_through, singles

SUMS = ("add", "sum_inputs")


def add_many(g: Growing, op: Operator) -> Iterator[Addition]:
    """A term of `op` is a sum itself."""
    if op.function not in SUMS or not all(pointwise(g, op, j) for j in range(len(op.inputs))):
        return
    for j, a in enumerate(op.inputs):
        if [b.tensor for b in op.inputs].count(a.tensor) > 1 or not is_real_value(g, a.tensor):
            continue
        for inner in g.nodes(a.tensor):
            if inner.function not in SUMS or not all(pointwise(g, inner, k) for k in range(len(inner.inputs))):
                continue
            seen = seen_through(op, j, inner, set())
            if seen is not None and one_type(g, op.output.tensor, *(b.tensor for b in (*op.inputs, *inner.inputs))):
                made = replace(op, function="sum_inputs", inputs=(*op.inputs[:j], *seen.inputs, *op.inputs[j + 1 :]))
                if g.pays_beside(a.tensor, op, made):
                    yield Addition("add-many", made, (op, inner))


def add_products(g: Growing, op: Operator) -> Iterator[Addition]:
    """All terms of `op` are products of two factors, summed over as much."""
    parts = _products(g, op)
    if parts is None:
        return
    first, *others = parts
    summed = [a for a in first[0].axes if a.combine]
    inputs = list(first[0].inputs)
    for seen, _ in others:
        mine = [a for a in seen.axes if a.combine]
        if [(a.extent, a.combine, a.splittable) for a in mine] != [(a.extent, a.combine, a.splittable) for a in summed]:
            return
        names = {a.name: b.name for a, b in zip(mine, summed, strict=True)}
        inputs.extend(
            Access(a.tensor, tuple(Affine(tuple((names.get(n, n), c) for n, c in i.terms), i.offset) for i in a.index))
            for a in seen.inputs
        )
    if summed:
        made = Operator("", "product_sum", first[0].axes, tuple(inputs), op.output)
        yield Addition("add-products", made, (op, *(p for _, p in parts)))


def _products(g: Growing, op: Operator) -> list[tuple[Operator, Operator]] | None:
    """The products that `op` adds, in its axes, and as they stand; None where there are others."""
    if op.function not in SUMS or len(op.inputs) < 2 or not all(pointwise(g, op, j) for j in range(len(op.inputs))):
        return None
    if len({a.tensor for a in op.inputs}) < len(op.inputs):
        return None
    out = []
    for j, a in enumerate(op.inputs):
        found = [p for p in g.nodes(a.tensor) if p.function == "product" and not p.attributes and len(p.inputs) == 2]
        found.sort(
            key=lambda p: sum(g.twin(b.tensor) is not None for b in p.inputs)
        )  # of classes that are one, the one
        if not found or not one_type(g, op.output.tensor, a.tensor, *(b.tensor for b in found[0].inputs)):
            return None
        seen = seen_through(op, j, found[0], set(op.output.axes))
        if seen is None or not all(len(i.terms) == 1 and not i.whole for b in seen.inputs for i in b.index):
            return None  # parts of a factor begin at an offset
        out.append((seen, found[0]))
    return out


def distribute(g: Growing, op: Operator) -> Iterator[Addition]:
    """Two products with a common factor: of their terms the other factors are added."""
    if op.function == "product_sum" and len(op.inputs) == 4 and not op.attributes:
        pairs = [((op.inputs[0], op.inputs[1]), (op.inputs[2], op.inputs[3]))]
        yield from _common(g, op, op.axes, pairs[0], (op,))
        return
    parts = _products(g, op)
    if parts is None or len(parts) != 2:
        return
    (one, p), (two, q) = parts
    mine, theirs = ([a for a in o.axes if a.combine] for o in (two, one))
    if [a.extent for a in mine] != [a.extent for a in theirs]:
        return
    names = {a.name: b.name for a, b in zip(mine, theirs, strict=True)}
    second = tuple(
        Access(a.tensor, tuple(Affine(tuple((names.get(n, n), c) for n, c in i.terms), i.offset) for i in a.index))
        for a in two.inputs
    )
    yield from _common(g, op, one.axes, (one.inputs, second), (op, p, q))


def _common(
    g: Growing,
    op: Operator,
    axes: tuple[Axis, ...],
    pairs: tuple[tuple[Access, ...], tuple[Access, ...]],
    place: tuple[Operator, ...],
) -> Iterator[Addition]:
    extent = {a.name: a.extent for a in axes}
    for i in range(2):
        for j in range(2):
            common, b, c = pairs[0][i], pairs[0][1 - i], pairs[1][1 - j]
            read = singles(b)
            if common != pairs[1][j] or b.tensor == c.tensor or read is None or read != singles(c):
                continue
            if not one_type(g, b.tensor, c.tensor, op.output.tensor):
                continue
            made = Operator("", "add", tuple(Axis(n, extent[n]) for n in read), (b, c), Access("", b.index))
            tensor = Tensor(f"{op.output.tensor}.added", g.tensor(b.tensor).shape, g.tensor(b.tensor).dtype)
            made = replace(made, output=Access(tensor.name, b.index))
            product = Operator("", "product", axes, (common, Access(tensor.name, b.index)), op.output)
            yield Addition("distribute", product, (*place, made), ((tensor, made),))

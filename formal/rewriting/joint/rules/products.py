"""Rewrites products of products, associated the other way, and products with tensors side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from .....models.program.index import Access, Affine, Axis, Combine
from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .growing import Addition, Growing, is_real_value
from .layout import moves, side_by_side
from .reading import axes_text, one_type, seen_through, singles

WORSE = 2
"""A chain is associated the other way where that takes at most so many times the products."""
MOST_PARTS = 64


def _plain(op: Operator) -> bool:
    return (
        op.function == "product"
        and not op.attributes
        and len(op.inputs) == 2
        and all(singles(a) is not None for a in op.inputs)
        and all(a.splittable for a in op.axes)
    )


def reassociate(g: Growing, op: Operator) -> Iterator[Addition]:
    """A factor of `op` is a product itself."""
    if not _plain(op) or op.inputs[0].tensor == op.inputs[1].tensor:
        return
    for j in range(2):
        if not is_real_value(g, op.inputs[j].tensor):
            continue
        for inner in g.nodes(op.inputs[j].tensor):
            seen = seen_through(op, j, inner, set(axes_text(op))) if _plain(inner) else None
            if seen is None:
                continue
            c = op.inputs[1 - j]
            for a, b in (seen.inputs, seen.inputs[::-1]):
                made = _other_way(g, op, inner, seen, (a, b, c))
                if made is not None:
                    yield made


def _other_way(
    g: Growing, op: Operator, inner: Operator, seen: Operator, factors: tuple[Access, Access, Access]
) -> Addition | None:
    """a (b c) in place of (a b) c."""
    a, b, c = factors
    if not one_type(g, op.output.tensor, op.inputs[0].tensor, a.tensor, b.tensor, c.tensor):
        return None
    extent = axes_text(seen) | axes_text(op)
    summed = {x.name for x in (*op.axes, *seen.axes) if x.combine}
    first = set(singles(a) or ())
    axes_b, axes_c = singles(b) or (), singles(c) or ()
    together = tuple(dict.fromkeys((*axes_b, *axes_c)))
    inside = tuple(n for n in together if n in summed and n not in first)
    out = tuple(n for n in together if n not in inside)
    if not inside or not out or not set(axes_b) & set(axes_c) & set(inside):
        return None
    outer = tuple(dict.fromkeys((*op.output.axes, *(n for n in (*(singles(a) or ()), *out) if n in summed))))
    before = prod(x.extent for x in op.axes) + prod(x.extent for x in seen.axes)
    if prod(extent[n] for n in together) + prod(extent[n] for n in outer) > WORSE * before:
        return None
    dtype = g.tensor(b.tensor).dtype
    tensor = Tensor(f"{op.output.tensor}.inner", tuple(extent[n] for n in out), dtype)
    at = Access(tensor.name, tuple(Affine.axis(n) for n in out))

    def axes(names: tuple[str, ...], kept: tuple[str, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(n, extent[n], None if n in kept else Combine.SUM) for n in names)

    made = Operator("", "product", axes((*out, *inside), out), (b, c), at)
    node = Operator("", "product", axes(outer, op.output.axes), (a, at), op.output)
    return Addition("reassociate", node, (op, inner, made), ((tensor, made),))


def product_of_parts(g: Growing, op: Operator) -> Iterator[Addition]:
    """A factor of `op` is several tensors side by side along a summed axis: one product per tensor, then added."""
    if not _plain(op) or op.inputs[0].tensor == op.inputs[1].tensor:
        return
    summed = {a.name for a in op.axes if a.combine is not None}
    for j in range(2):
        if not is_real_value(g, op.inputs[j].tensor):
            continue
        for copy in g.nodes(op.inputs[j].tensor):
            if not (moves(copy) and 2 <= len(copy.inputs) <= MOST_PARTS and side_by_side(g, copy)):
                continue
            names = singles(op.inputs[j]) or ()
            whole = g.tensor(copy.output.tensor).shape
            along = next(k for k, n in enumerate(g.tensor(copy.inputs[0].tensor).shape) if n != whole[k])
            kinds = (op.output.tensor, copy.output.tensor, op.inputs[1 - j].tensor)
            if names[along] not in summed or not one_type(g, *kinds, *(a.tensor for a in copy.inputs)):
                continue
            yield _of_parts(g, op, j, copy, along, names[along])


def _of_parts(g: Growing, op: Operator, j: int, copy: Operator, along: int, axis: str) -> Addition:
    """One product per tensor of the copy, which lie along a dimension that the operator reads by an axis."""
    defined = []
    out = g.tensor(op.output.tensor)
    for k, part in enumerate(copy.inputs):
        at, size = -part.index[along].offset, g.tensor(part.tensor).shape[along]
        other = Access(
            op.inputs[1 - j].tensor, tuple(i.shift(at) if i.single == axis else i for i in op.inputs[1 - j].index)
        )
        mine = Access(part.tensor, op.inputs[j].index)
        tensor = Tensor(f"{op.output.tensor}.of{k}", out.shape, out.dtype)
        axes = tuple(replace(a, extent=size) if a.name == axis else a for a in op.axes)
        inputs = (mine, other) if j == 0 else (other, mine)
        defined.append((tensor, Operator("", "product", axes, inputs, Access(tensor.name, op.output.index))))
    axes = tuple(a for a in op.axes if a.combine is None)
    terms = tuple(Access(t.name, op.output.index) for t, _ in defined)
    node = Operator("", "sum_inputs", axes, terms, op.output)
    return Addition("product-of-parts", node, (op, copy, *(made for _, made in defined)), tuple(defined))

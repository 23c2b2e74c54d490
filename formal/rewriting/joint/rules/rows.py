"""Rewrites norms, softmax, pooling and rows of tables: maps and products moved to the other side of them.

Only where nothing else reads what lies between: it would be computed all the same.  In a training step gradients do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Final

from .....models.program.index import Access, Affine, Axis
from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .growing import Addition, Growing, is_real_value
from .layout import moves, reads_inside
from .reading import axes_text, compose, index, one_type, pointwise, singles

NEVER_FALLS: Final = frozenset({"relu", "tanh", "sigmoid", "exp", "softplus", "erf"})
"""Maps f of one operand with x <= y => f(x) <= f(y)."""

NORMS: Final = ("layer_norm", "rms_norm")
WORSE: Final = 2
"""A product moves to another place where that takes at most so many times the products."""


def greatest_of_map(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` takes the greatest of f(x): f of the greatest x, of which there are fewer."""
    if op.function not in ("max_pool", "max") or op.attributes or not is_real_value(g, op.inputs[0].tensor):
        return
    if not g.only_for(op.inputs[0].tensor, op.output.tensor):
        return
    for m in g.nodes(op.inputs[0].tensor):
        if m.function not in NEVER_FALLS or m.attributes or not pointwise(g, m, 0):
            continue
        x, out = m.inputs[0].tensor, op.output
        if not one_type(g, x, op.inputs[0].tensor, out.tensor):
            continue
        shape = g.tensor(out.tensor).shape
        tensor = Tensor(f"{out.tensor}.before", shape, g.tensor(out.tensor).dtype)
        first = replace(op, inputs=(replace(op.inputs[0], tensor=x),), output=replace(out, tensor=tensor.name))
        axes = tuple(Axis(n, e) for n, e in zip(out.axes, shape, strict=True))
        node = Operator("", m.function, axes, (Access(tensor.name, out.index),), out)
        yield Addition("greatest-of-map", node, (op, m, first), ((tensor, first),))


def normal_of_a_part(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` copies a part, or another order, of rows that are normalised: these rows are read where
    they lie.
    """
    if not moves(op) or len(op.inputs) != 1 or not reads_inside(g, op, op.inputs[0]):
        return
    read, out = op.inputs[0], op.output
    if not is_real_value(g, read.tensor) or singles(out) is None or not g.only_for(read.tensor, out.tensor):
        return
    for m in g.nodes(read.tensor):
        if m.function not in ("softmax", "log_softmax", *NORMS) or not pointwise(g, m, 0):
            continue
        at: Mapping[str, Affine] = dict(zip(m.output.axes, read.index, strict=True))
        over = [at[n].single for n in m.over]
        extent = axes_text(op)
        if (
            None in over
            or len(set(over)) < len(over)
            or any(extent[str(at[n].single)] != m.axis(n).extent for n in m.over)
        ):
            continue
        if set(map(str, over)) & {n for k in at if k not in m.over for n, _ in at[k].terms}:
            continue
        x = m.inputs[0].tensor
        if not one_type(g, out.tensor, *(a.tensor for a in m.inputs)):
            continue
        part = Access(x, tuple(compose(i, at) for i in m.inputs[0].index))
        others = tuple(Access(a.tensor, tuple(compose(i, at) for i in a.index)) for a in m.inputs[1:])
        attributes = tuple((k, tuple(map(str, over)) if k == "over" else v) for k, v in m.attributes)
        yield Addition("normal-of-a-part", Operator("", m.function, op.axes, (part, *others), out, attributes), (op, m))


def into_norm(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` multiplies what is normalised by gamma, or adds beta: the norm does."""
    if op.function not in ("multiply", "add"):
        return
    for j in range(2):
        if not pointwise(g, op, j) or not is_real_value(g, op.inputs[j].tensor) or singles(op.inputs[1 - j]) is None:
            continue
        if not g.only_for(op.inputs[j].tensor, op.output.tensor):
            continue
        for m in g.nodes(op.inputs[j].tensor):
            most = {"layer_norm": 3, "rms_norm": 2}.get(m.function, 0)
            if len(m.inputs) != (1 if op.function == "multiply" else 2) or len(m.inputs) >= most:
                continue
            names = dict(zip(op.output.axes, m.output.axes, strict=True))
            other = op.inputs[1 - j]
            more = Access(other.tensor, tuple(index(i, names) for i in other.index))
            inside = set(more.axes) <= set(m.over)  # gamma and beta are of a row
            if inside and one_type(g, op.output.tensor, other.tensor, *(a.tensor for a in m.inputs)):
                node = replace(m, inputs=(*m.inputs, more), output=replace(m.output, tensor=op.output.tensor))
                yield Addition("into-norm", node, (op, m))


def product_of_average(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` is a product of averages over windows, summed over what no window goes along: averages of the product."""
    if op.function != "product" or op.attributes or len(op.inputs) != 2:
        return
    extent = axes_text(op)
    for j in range(2):
        mine, other = op.inputs[j], op.inputs[1 - j]
        if mine.tensor == other.tensor or not is_real_value(g, mine.tensor):
            continue
        if not g.only_for(mine.tensor, op.output.tensor):
            continue
        names = [_alone(i, extent) for i in mine.index]
        for pool in g.nodes(mine.tensor):
            if pool.function != "average_pool" or None in names or len(set(names)) < len(names):
                continue
            made = _averages(g, op, j, pool, [str(n) for n in names])
            if made is not None:
                yield made


def _alone(i: Affine, extent: Mapping[str, int]) -> str | None:
    """The one axis of an index that takes more than one value."""
    kept = [(n, c) for n, c in i.terms if extent[n] > 1]
    if i.whole or i.offset or len(kept) > 1 or (kept and kept[0][1] != 1) or not i.terms:
        return None
    return kept[0][0] if kept else i.terms[0][0]


def _averages(g: Growing, op: Operator, j: int, pool: Operator, names: list[str]) -> Addition | None:
    """The product at every element of what is averaged, and the average of that."""
    x = pool.inputs[0]
    own, shape = dict(zip(pool.output.axes, names, strict=True)), g.tensor(x.tensor).shape
    windows: dict[str, tuple[Affine, int]] = {}
    for k, (i, n) in enumerate(zip(x.index, shape, strict=True)):
        if i.single == pool.output.axes[k] and pool.axis(pool.output.axes[k]).extent == n:
            continue
        windows[names[k]] = (i, n)
    taps = {a.name for a in pool.reduction_axes}
    if any(n not in op.output.axes or op.axis(n).combine is not None for n in windows):
        return None
    if any({n for n, _ in i.terms} - taps - {p for p, q in own.items() if q == n} for n, (i, _) in windows.items()):
        return None
    if any(n in op.inputs[1 - j].axes for n in windows) or taps & {a.name for a in op.axes} & set(op.output.axes):
        return None
    if prod(n for _, n in windows.values()) > WORSE * prod(op.axis(n).extent for n in windows):
        return None
    if not one_type(g, op.output.tensor, x.tensor, *(a.tensor for a in op.inputs)):
        return None
    wide = tuple(replace(a, extent=windows[a.name][1]) if a.name in windows else a for a in op.axes)
    out = op.output
    tensor = Tensor(
        f"{out.tensor}.before",
        tuple(next(a.extent for a in wide if a.name == n) for n in out.axes),
        g.tensor(out.tensor).dtype,
    )
    inputs = tuple(Access(x.tensor, a.index) if i == j else a for i, a in enumerate(op.inputs))
    first = replace(op, axes=wide, inputs=inputs, output=replace(out, tensor=tensor.name))
    fresh = {t: t if t not in out.axes else f"{t}'" for t in taps}
    names_of = {**own, **fresh}
    at = tuple(index(windows[n][0], names_of) if n in windows else Affine.axis(n) for n in out.axes)
    axes = (
        *(Axis(n, op.axis(n).extent) for n in out.axes),
        *(replace(a, name=fresh[a.name]) for a in pool.reduction_axes),
    )
    node = Operator("", "average_pool", axes, (Access(tensor.name, at),), out, pool.attributes)
    return Addition("product-of-average", node, (op, pool, first), ((tensor, first),))


def product_of_rows(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` is a product with rows of a table: rows of the product with the table, where that has not many more."""
    if op.function != "product" or op.attributes or len(op.inputs) != 2:
        return
    for j in range(2):
        mine, other = op.inputs[j], op.inputs[1 - j]
        read, theirs = singles(mine), singles(other)
        if read is None or theirs is None or mine.tensor == other.tensor or not is_real_value(g, mine.tensor):
            continue
        if not g.only_for(mine.tensor, op.output.tensor):
            continue
        for rows in g.nodes(mine.tensor):
            made = _table(g, op, j, rows, read, theirs) if rows.function == "embedding" else None
            if made is not None:
                yield made


def _table(
    g: Growing, op: Operator, j: int, rows: Operator, read: tuple[str, ...], theirs: tuple[str, ...]
) -> Addition | None:
    """The product with the table, and rows of that."""
    table, ids = rows.inputs
    at, own = singles(table), dict(zip(rows.output.axes, read, strict=True))
    where = singles(ids)
    if at is None or where is None or any(n not in own for n in (*at, *where) if n != rows.rows):
        return None
    if any(own[n] not in op.output.axes for n in where) or {own[n] for n in where} & set(theirs):
        return None
    if set(at) & set(where):
        return None
    extent = axes_text(op)
    name = rows.rows if rows.rows not in extent else f"{rows.rows}'"
    size, points = rows.axis(rows.rows).extent, prod(extent[own[n]] for n in where)
    if size > WORSE * points or not one_type(g, op.output.tensor, *(a.tensor for a in op.inputs), table.tensor):
        return None
    kept = tuple(n for n in op.output.axes if n not in {own[n] for n in where})
    tensor = Tensor(f"{op.output.tensor}.rows", (size, *(extent[n] for n in kept)), g.tensor(op.output.tensor).dtype)
    names = {**own, rows.rows: name}
    reading = Access(table.tensor, tuple(index(i, names) for i in table.index))
    summed = tuple(a for a in op.axes if a.combine is not None)
    axes = (Axis(name, size), *(Axis(n, extent[n]) for n in kept), *summed)
    written = Access(tensor.name, (Affine.axis(name), *(Affine.axis(n) for n in kept)))
    factors = (reading, op.inputs[1]) if j == 0 else (op.inputs[0], reading)
    first = Operator("", "product", axes, factors, written)
    ids_at = Access(ids.tensor, tuple(index(i, own) for i in ids.index))
    row = replace(rows.axis(rows.rows), name=name)
    points_axes = tuple(Axis(n, extent[n]) for n in op.output.axes)
    node = Operator("", "embedding", (*points_axes, row), (written, ids_at), op.output, (("rows", name),))
    return Addition("product-of-rows", node, (op, rows, first), ((tensor, first),))

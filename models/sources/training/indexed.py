"""Derivatives of what reads and writes where data says: through the values, none through the
positions.

scatter_add       grad x[b, j] = g[ids[b], j]                                            (a gather)
scatter_max, min  the same, shared evenly by the x[b, j] that attain the extreme:  h[b, j] = [x[b, j] = y[ids[b], j]],
                  grad x[b, j] = h[b, j] (g / n)[ids[b], j],   n[v, j] = SUM over b with ids[b] = v of h[b, j]
grouped_product   grad A_j = SUM over the axes that A_j does not have, ids[s] = e, of  g * (the other factors)

Ties follow PyTorch (`scatter_reduce` with amax).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from ...program.graph import GraphError
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator, Value
from .adjoint import pull
from .backward import Backward
from .contributions import Pending


def _plain(b: Backward, op: Operator, position: int) -> tuple[str, ...]:
    """The axes of an input that is read axis by axis, or at its beginning.  Raises `GraphError` for any other."""
    a = op.inputs[position]
    names = tuple(i.single for i in a.index if i != Affine())
    extents = tuple(n for n, i in zip(b.tensors[a.tensor].shape, a.index, strict=True) if i != Affine())
    if None in names or len(set(names)) < len(names) or tuple(op.axis(str(n)).extent for n in names) != extents:
        raise GraphError(
            f"operator {op.name!r}", f"no gradient of {op.function} through an input that is not read axis by axis"
        )
    return tuple(str(n) for n in names)


def _give(
    b: Backward,
    op: Operator,
    position: int,
    function: str,
    axes: tuple[Axis, ...],
    inputs: tuple[Access, ...],
    attributes: tuple[tuple[str, Value], ...],
) -> None:
    """The gradient of an input over the axes it is read by (the parallel ones), then its place in the input."""
    a, names = op.inputs[position], tuple(x.name for x in axes if x.combine is None)
    if len(names) == len(a.index):
        b.give(op, position, Pending(op.name, function, axes, inputs, names, attributes))
        return
    dtype = b.tensors[a.tensor].dtype
    part = b.emit(f"grad:{op.name}/input{position}", function, axes, inputs, names, attributes, dtype)
    own = tuple(x for x in axes if x.combine is None)
    pull(b, replace(op, axes=own, output=access(part, *names)), position, part)


def _axes(op: Operator, kept: tuple[str, ...]) -> tuple[Axis, ...]:
    """The operator's axes, those of the result first; the others are summed."""
    parallel = [replace(op.axis(n), combine=None) for n in kept]
    return (*parallel, *(replace(a, combine=Combine.SUM) for a in op.axes if a.name not in kept))


def _grouped(b: Backward, op: Operator) -> None:
    ids = b.forward(op.inputs[-1])
    kept = tuple((k, v) for k, v in op.attributes if k in ("rows", "load"))
    for j in range(len(op.inputs) - 1):
        if b.wants(op, j):
            names = _plain(b, op, j)
            others = [b.forward(x) for i, x in enumerate(op.inputs[:-1]) if i != j]
            inputs = (b.incoming(op), *others, ids)
            _give(b, op, j, "grouped_product", _axes(op, names), inputs, kept)


def _added(b: Backward, op: Operator) -> None:
    if b.wants(op, 0):
        names, ids = _plain(b, op, 0), b.forward(op.inputs[1])
        _give(b, op, 0, "embedding", _axes(op, names), (b.incoming(op), ids), (("rows", op.rows),))


def _extreme(b: Backward, op: Operator) -> None:
    if not b.wants(op, 0):
        return
    names, x, ids = _plain(b, op, 0), b.forward(op.inputs[0]), b.forward(op.inputs[1])
    dtype, rows, place = b.tensors[x.tensor].dtype, (("rows", op.rows),), f"grad:{op.name}"
    if {a.name for a in op.axes} != {*names, op.rows}:
        raise GraphError(f"operator {op.name!r}", f"no gradient of {op.function} of values that are repeated")
    own, out = _axes(op, names), op.output.axes
    parallel = own[: len(names)]
    reached = b.emit(f"{place}/reached", "embedding", own, [b.forward(op.output), ids], names, rows, dtype)
    hit = b.emit(f"{place}/hit", "equal", parallel, [x, access(reached, *names)], names, (), "bool")
    one = b.emit(f"{place}/one", "cast", parallel, [access(hit, *names)], names, (("dtype", dtype),), dtype)
    count = b.emit(f"{place}/count", "scatter_add", _summed(op), [access(one, *names), ids], out, rows, dtype)
    result = tuple(replace(op.axis(a), combine=None) for a in out)
    least = b.emit(f"{place}/least", "clip", result, [access(count, *out)], out, (("low", 1.0),), dtype)
    share = b.emit(f"{place}/share", "divide", result, [b.incoming(op), access(least, *out)], out, (), dtype)
    back = b.emit(f"{place}/back", "embedding", own, [access(share, *out), ids], names, rows, dtype)
    inputs = (access(back, *names), access(hit, *names))
    _give(b, op, 0, "mask_fill", parallel, inputs, (("value", 0.0),))


def _summed(op: Operator) -> tuple[Axis, ...]:
    """The operator's axes, summed where it takes extremes."""
    return tuple(a if a.combine is None else replace(a, combine=Combine.SUM) for a in op.axes)


INDEXED: Final[Mapping[str, Callable[[Backward, Operator], None]]] = MappingProxyType(
    {"grouped_product": _grouped, "scatter_add": _added, "scatter_max": _extreme, "scatter_min": _extreme}
)
"""Function -> rule."""

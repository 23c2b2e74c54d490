"""Derivatives of what reads and writes where data says: through the values, none through the positions.

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
from ...program.index import Axis, Combine, access
from ...program.operators import Operator
from .backward import Backward
from .contributions import Pending


def _plain(b: Backward, op: Operator, position: int) -> tuple[str, ...]:
    """The axes of an input that is read axis by axis.  Raises `GraphError` for any other."""
    a = op.inputs[position]
    names = tuple(str(i.single) for i in a.index)
    whole = all(i.single is not None for i in a.index) and len(set(names)) == len(names)
    if not whole or tuple(op.axis(n).extent for n in names) != b.tensors[a.tensor].shape:
        raise GraphError(
            f"operator {op.name!r}", f"no gradient of {op.function} through an input that is not read axis by axis"
        )
    return names


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
            b.give(op, j, Pending(op.name, "grouped_product", _axes(op, names), inputs, names, kept))


def _added(b: Backward, op: Operator) -> None:
    if b.wants(op, 0):
        names, ids = _plain(b, op, 0), b.forward(op.inputs[1])
        attributes = (("rows", op.rows),)
        b.give(op, 0, Pending(op.name, "embedding", _axes(op, names), (b.incoming(op), ids), names, attributes))


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
    b.give(op, 0, Pending(op.name, "mask_fill", parallel, inputs, names, (("value", 0.0),)))


def _summed(op: Operator) -> tuple[Axis, ...]:
    """The operator's axes, summed where it takes extremes."""
    return tuple(a if a.combine is None else replace(a, combine=Combine.SUM) for a in op.axes)


INDEXED: Final[Mapping[str, Callable[[Backward, Operator], None]]] = MappingProxyType(
    {"grouped_product": _grouped, "scatter_add": _added, "scatter_max": _extreme, "scatter_min": _extreme}
)
"""Function -> rule."""

"""Computes operators of array programs: constants, updates of a part of an array, and the user's own
kernels.

constant    values in row-major order, attribute `values` (integers, or floats as hexadecimal text)
update      out[o] = value[..] where start <= o < stop in every dimension, else old[o]           (the assignment x[a:b]
            = v)
opaque      the function named by attribute `kernel`, called with every operand's part for the box
            (`models.program.opaque`)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from ...models.program.graph import Graph
from ...models.program.opaque import OpaqueError, resolve
from ...models.program.operators import Operator
from .blocks import Array, Block, KernelError, align, cover, execution_dtype, lengths, spread, view


def constant(xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]]) -> Array:
    """The part of the constant inside the box."""
    tensor, values = graph.tensor(op.output.tensor), op.attribute("values", ())
    if not isinstance(values, tuple) or len(values) != tensor.elements:
        raise KernelError(f"operator {op.name!r}", f"attribute values must list {tensor.elements} numbers")
    numbers = [float.fromhex(v) if isinstance(v, str) else v for v in values]
    whole = xp.asarray(numbers, dtype=execution_dtype(tensor.dtype)).reshape(tensor.shape)
    return whole[tuple(slice(*box[a]) for a in op.output.axes)].copy()  # type: ignore[no-any-return]


def update(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    """The old block with the value written over the part that lies inside."""
    out, place = op.output.axes, f"operator {op.name!r}, input"
    old, value = op.inputs
    start, stop = op.attribute("start", ()), op.attribute("stop", ())
    if not isinstance(start, tuple) or not isinstance(stop, tuple) or len(start) != len(out) or len(stop) != len(out):
        raise KernelError(f"operator {op.name!r}", "attributes start and stop need one index per dimension")
    result: Array = spread(
        xp,
        align(view(xp, operands[0], old, box, graph.tensor(old.tensor).shape, 0, f"{place} 0"), old.axes, out),
        lengths(box, out),
    ).copy()
    inside = {
        a: (max(box[a][0], int(str(lo))), min(box[a][1], int(str(hi))))
        for a, lo, hi in zip(out, start, stop, strict=True)
    }
    if 0 in lengths(inside, out):
        return result
    new = align(
        view(xp, operands[1], value, inside, graph.tensor(value.tensor).shape, 0, f"{place} 1"), value.axes, out
    )
    result[tuple(slice(inside[a][0] - box[a][0], inside[a][1] - box[a][0]) for a in out)] = new
    return result


def opaque(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    """The user's function on exactly what the box touches; zeros where the box is empty."""
    name, shape = str(op.attribute("kernel", "")), lengths(box, op.output.axes)
    dtype = execution_dtype(graph.tensor(op.output.tensor).dtype)
    if 0 in lengths(box, [a.name for a in op.axes]):
        return xp.zeros(shape, dtype=dtype)  # type: ignore[no-any-return]
    try:
        function = resolve(name)
    except OpaqueError as error:
        raise KernelError(f"operator {op.name!r}", str(error)) from None
    parts = []
    for j, (access, block) in enumerate(zip(op.inputs, operands, strict=True)):
        extents = graph.tensor(access.tensor).shape
        spans = [i.interval(box, n) for i, n in zip(access.index, extents, strict=True)]
        parts.append(
            cover(
                xp,
                block,
                [lo for lo, _ in spans],
                [hi for _, hi in spans],
                extents,
                0,
                f"operator {op.name!r}, input {j}",
            )
        )
    result = xp.asarray(function(*parts))
    if result.shape != shape:
        raise KernelError(
            f"operator {op.name!r}",
            f"{name} returned an array of shape {result.shape}, its reference one of shape {shape}",
        )
    floating = any(b.array.dtype.kind == "f" for b in operands)
    kept = result if floating and result.dtype.kind == "f" else result.astype(dtype)
    return xp.ascontiguousarray(kept).reshape(shape)  # type: ignore[no-any-return]

"""What losses read: one element per position, `gather`, and which elements are no numbers.

gather   out[i, j, k] = table[i, index[i, j, k], k]  along the middle dimension; the index may be shorter than the
         table in the others, whose beginning is read.  An embedding whose table and ids share axes.
isnan    x != x
"""

from __future__ import annotations

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Unsupported, letters, part_of
from .context import Context, Handler, Node, Ref, dimension, uniform_along
from .pointwise import elementwise


def gather(c: Context, node: Node) -> None:
    """gather along one dimension."""
    table, index = node.ref("self"), node.ref("index")
    number = c.uniform(table)
    if number is not None:
        c.fill(node, number)
        return
    shape, places = c.shapes[table], c.shapes[index]
    if not shape or not places:
        raise Unsupported("a scalar")
    dim = dimension(node, node.integer("dim", 0), len(shape))
    names = letters(len(places))
    rows = "v" if "v" not in names else "v'"
    columns = [rows if k == dim else a for k, a in enumerate(names)]
    first = tuple(n if k == dim else m for k, (n, m) in enumerate(zip(shape, places, strict=True)))
    tensor, read = _read(c, table, columns, {dim})
    if first != shape:
        tensor = part_of(c, node, "begin", c.tensor(table), first, {})
        read = [Affine.axis(a) for a in columns]
    ids, at = _read(c, index, names, set())
    axes = [*(Axis(a, n) for a, n in zip(names, places, strict=True)), Axis(rows, shape[dim], Combine.SUM)]
    reads = [Access(tensor, tuple(read)), Access(ids, tuple(at))]
    c.put(node, c.operator(node, "", "embedding", axes, reads, names, {"rows": rows}))


def _read(c: Context, value: Ref, names: list[str], kept: set[int]) -> tuple[str, list[Affine]]:
    """Tensor and index of a value over its dimensions; of a constant only the dimensions along which it changes."""
    found = c.constants.get(value)
    if found is None:
        return c.tensor(value), [Affine.axis(a) for a in names]
    long = [k for k in range(found.ndim) if k in kept or not uniform_along(found, k)]
    if not long:
        return c.tensor(value), [Affine.axis(a) for a in names]
    part = Ref(f"{value.node}/picked", value.result)
    c.constants[part] = found[tuple(slice(None) if k in long else 0 for k in range(found.ndim))]
    c.shapes[part], c.dtypes[part] = c.constants[part].shape, c.dtypes[value]
    return c.tensor(part), [Affine.axis(names[k]) for k in long]


def is_nan(c: Context, node: Node) -> None:
    """isnan: what is different from itself."""
    x = node.ref("self")
    elementwise(c, node, "not_equal", [x, x])


HANDLERS: dict[str, Handler] = {"gather": gather, "isnan": is_nan}

"""Translates StableHLO's operators that take or write parts of arrays: slices, gathers, scatters, top_k.

A gather pushes its starts inside the array, and so does a dynamic part; a scatter drops what lies outside.  Where JAX
fills (`mode="fill"`) it writes a `where` around the gather, which is read as it stands.

Source: the StableHLO specification, `gather`, `scatter`, `dynamic_slice`, `dynamic_update_slice`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...program.index import Axis
from ...program.operators import Value as Attribute
from ..numpy.array import TracedArray
from ..numpy.elementwise import elementwise
from ..numpy.recorder import TraceError
from .ir import Op, body, dialect, integer, integers, returns_argument
from .operators import Array, Machine, Value, apply, uniform
from .windows import pad_array


def slice_of(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """A part with constant bounds and steps."""
    bounds = (integers(op, n) for n in ("start_indices", "limit_indices", "strides"))
    return [Value(operands[0].array[tuple(slice(*b) for b in zip(*bounds, strict=True))])]


def _starts(m: Machine, x: Array, sizes: tuple[int, ...], starts: list[Value]) -> list[int]:
    """Where a dynamic part begins, pushed inside as the specification has it."""
    found = []
    for n, size, s in zip(x.shape, sizes, starts, strict=True):
        if isinstance(s.array, TracedArray) and n != size:
            raise TraceError(m.place, "a part whose place depends on an argument; use jnp.take or a mask")
        found.append(0 if n == size else max(0, min(int(s.array), n - size)))
    return found


def dynamic_slice(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """A part whose place is known when the program is read (the turn of a loop)."""
    x, sizes = operands[0].array, integers(op, "slice_sizes")
    if m.watch is not None and (made := m.watch.slice(operands[0], sizes)) is not None:
        return made
    at = _starts(m, x, sizes, operands[1:])
    return [Value(x[tuple(slice(a, a + n) for a, n in zip(at, sizes, strict=True))])]


def dynamic_update(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """A copy with one part, whose place is known, overwritten."""
    x, part = operands[0].array, operands[1].array
    if m.watch is not None and (made := m.watch.update(operands[0], operands[1])) is not None:
        return made
    if tuple(part.shape) == tuple(x.shape):
        return [operands[1]]
    return _overwritten(m, x, part, _starts(m, x, tuple(part.shape), operands[2:]))


def _overwritten(m: Machine, x: Array, part: Array, at: list[int]) -> list[Value]:
    place = tuple(slice(a, a + n) for a, n in zip(at, part.shape, strict=True))
    if not isinstance(x, TracedArray) and not isinstance(part, TracedArray):
        made = np.array(x)
        made[place] = part
        return [Value(made)]
    array = TracedArray.of(m.recorder, m.view(x))
    array[place] = part if isinstance(part, TracedArray) else TracedArray.of(m.recorder, m.view(part))
    return [Value(array)]


def pad(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Elements around an array; negative ones cut it.  Between elements: refused."""
    x, value = operands[0].array, uniform(operands[1].array)
    low, high, inner = (integers(op, n) for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    if any(inner) or value is None:
        raise TraceError(m.place, "padding between elements, or with an array")
    cut = x[tuple(slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(low, high, x.shape, strict=True))]
    width = [(max(0, a), max(0, b)) for a, b in zip(low, high, strict=True)]
    if not any(a or b for a, b in width):
        return [Value(cut)]
    return [Value(pad_array(cut, width, value.item()))]


def scatter(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """One part, whose place is known, overwritten (`x.at[:, 1].set`), or left out where it lies outside; where places
    are data: refused.
    """
    d = dialect().ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    if len(operands) != 3 or not returns_argument(op, 1):
        told = ", ".join(body(op)) or "nothing"
        raise TraceError(m.place, f"a scatter that combines by a region of {told}; write it with jax.nn.one_hot")
    x, at, part = (v.array for v in operands)
    along, batched = list(d.scattered_dims_to_operand_dims), [*d.input_batching_dims, *d.scatter_indices_batching_dims]
    if isinstance(at, TracedArray) or at.size != len(along) or batched:
        raise TraceError(m.place, "a scatter to places that are data; write it with jax.nn.one_hot")
    start = [0] * x.ndim
    for k, n in zip(along, at.reshape(-1).tolist(), strict=True):
        start[k] = int(n)
    sizes = iter([part.shape[k] for k in d.update_window_dims])
    shape = [1 if k in list(d.inserted_window_dims) else next(sizes) for k in range(x.ndim)]
    if any(a < 0 or a + n > size for a, n, size in zip(start, shape, x.shape, strict=True)):
        return [operands[0]]
    return _overwritten(m, x, part if tuple(shape) == tuple(part.shape) else apply(np.reshape, part, shape), start)


def gather(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Rows along one dimension (`x[ids]`, `jnp.take`), or one element per position (`take_along_axis`)."""
    d = dialect().GatherDimensionNumbers(op.attributes["dimension_numbers"])
    (table, ids), sizes = (v.array for v in operands), integers(op, "slice_sizes")
    along, batched = list(d.start_index_map), list(d.operand_batching_dims)
    whole = [k for k, n in enumerate(sizes) if n == table.shape[k] and k not in (*along, *batched)]
    if len(along) != 1 or sizes[along[0]] != 1 or len(whole) + len(batched) + 1 != table.ndim:
        raise TraceError(m.place, "a gather of something else than rows along one dimension")
    if d.index_vector_dim < ids.ndim:
        ids = apply(np.reshape, ids, [n for k, n in enumerate(ids.shape) if k != d.index_vector_dim])
    dim, collapsed = along[0], list(d.collapsed_slice_dims)
    ids = _inside(m, operands[1], ids, table.shape[dim])
    if not batched and collapsed == [dim]:
        table = table if isinstance(table, TracedArray) else TracedArray.of(m.recorder, m.view(table))
        rows = apply(np.take, table, ids, axis=dim)
        picked = list(range(dim, dim + ids.ndim))
        order, rest = [-1] * rows.ndim, [k for k in range(rows.ndim) if k not in picked]
        for k, place in zip(rest, d.offset_dims, strict=True):
            order[place] = k
        for k, place in zip(picked, [p for p in range(rows.ndim) if order[p] < 0], strict=True):
            order[place] = k
        return [Value(rows if order == sorted(order) else apply(np.transpose, rows, order), "gather")]
    if (
        whole
        or list(d.start_indices_batching_dims) != list(range(len(batched)))
        or batched != list(range(table.ndim - 1))
    ):
        raise TraceError(m.place, "a gather with batch dimensions that are not the first ones")
    made = m.pick(table, ids)
    shape = tuple(op.results[0].type.shape)
    return [Value(made if tuple(made.shape) == shape else apply(np.reshape, made, shape), "gather")]


def _inside(m: Machine, given: Value, ids: Array, extent: int) -> Array:
    """Indices pushed inside 0 .. extent - 1, as they are where they lie there anyhow."""
    if not isinstance(ids, TracedArray):
        return np.clip(ids, 0, extent - 1)
    while given.kind in (*_SAME, "convert"):
        given = given.operands[0]
    if given.kind == "clamp":
        low, high = (uniform(given.operands[k].array) for k in (0, 2))
        if low is not None and high is not None and low.item() >= 0 and high.item() < extent:
            return ids
    if given.kind == "top_k" and given.detail[0] <= extent:
        return ids
    within = {"low": 0, "high": extent - 1}
    return TracedArray.of(m.recorder, elementwise(m.recorder, "clip", "clip", [ids.view], ids.dtype, within))


_SAME: Final = ("broadcast_in_dim", "reshape")


def top_k(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """The k largest of the last dimension in descending order, equal ones by position, and their positions."""
    (x,), k = operands, integer(op, "k")
    array = x.array if isinstance(x.array, TracedArray) else TracedArray.of(m.recorder, m.view(x.array))
    names = [f"i{n}" for n in range(array.ndim)]
    axes = [Axis(a, n, splittable=a != names[-1]) for a, n in zip(names, array.shape, strict=True)]
    attributes: dict[str, Attribute] = {"over": (names[-1],), "descending": 1}
    reads = [array.view.access(names)]
    order = m.recorder.emit("argsort", "order", axes, reads, names, np.dtype("int32"), attributes)
    first = TracedArray.of(m.recorder, order)[..., :k]
    return [Value(m.pick(array, first), "top_k values"), Value(first, "top_k", (), (array.shape[-1],))]

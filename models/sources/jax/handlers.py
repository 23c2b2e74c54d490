"""This module says what every StableHLO operator does, in terms of NumPy functions on traced arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_letters
from typing import Final

import numpy as np

from ...program.index import Axis
from ..numpy.array import TracedArray
from ..numpy.recorder import TraceError
from .ir import Op, Plain, body, dialect, elements, integer, integers
from .operators import Array, Handler, Machine, Value, apply, dtype_of, once_each, stretched, uniform
from .windows import convolution, padded, reduce_window


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _plain(function: Callable[..., object]) -> Handler:
    """An operator that is one NumPy function of its operands; numbers stay numbers, so that `2 x` is a scaling."""

    def handle(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
        arrays = [v.array for v in operands]
        if any(isinstance(a, TracedArray) for a in arrays):
            made = _array(function(*[m.traced(v) if (n := uniform(v.array)) is None else n for v in operands]))
        else:
            found = np.asarray(function(*[once_each(a) for a in arrays if not isinstance(a, TracedArray)]))
            made = np.broadcast_to(found, arrays[0].shape)
        return [Value(made, _short(op.name), tuple(operands), again=function)]

    return handle


def _array(found: object) -> Array:
    return found if isinstance(found, TracedArray) else np.asarray(found)


def _mapped(function: str, known: Callable[..., object]) -> Handler:
    """A function of the table that NumPy lacks; `known` computes it on constants."""

    def handle(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
        array = operands[0].array
        made: Array = m.map(function, [array]) if isinstance(array, TracedArray) else np.asarray(known(array))
        return [Value(made, _short(op.name), tuple(operands))]

    return handle


def _erf(x: Plain) -> object:
    from math import erf

    return np.vectorize(erf)(x).astype(x.dtype)


def erfc(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """1 - erf(x); of -x, as `jax.nn.gelu` has it, 1 + erf(x)."""
    (x,) = operands
    if not isinstance(x.array, TracedArray):
        return [Value(apply(np.subtract, 1, _erf(x.array)))]
    if x.kind == "multiply" and x.operands[0].kind == "negate":
        factor = uniform(x.operands[1].array)
        if factor is not None:
            inner = apply(np.multiply, x.operands[0].operands[0].array, factor)
            return [Value(1 + m.map("erf", [inner]), "erfc", (x,))]
    return [Value(1 - m.map("erf", [x.array]), "erfc", (x,))]


def subtract(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """x - y, and the end of a log_softmax."""
    x, log = operands[0], stretched(operands[1])
    if x.kind == "subtract" and log.kind == "log":
        total = stretched(log.operands[0])
        summed = total.kind == "add over" and total.operands[0].kind == "exponential"
        if summed and total.operands[0].operands[0] is x and (source := _above_maximum(x, total.detail)) is not None:
            return [Value(_normalised(m, "log_softmax", source, total.detail))]
    return _plain(np.subtract)(m, op, operands)


def divide(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """x / y, and the end of a softmax.  Integers are rounded towards zero, constants only."""
    x, total = operands[0], stretched(operands[1])
    own = x.kind == "exponential" and total.kind == "add over" and total.operands[0] is x
    if own and (source := _above_maximum(x.operands[0], total.detail)) is not None:
        return [Value(_normalised(m, "softmax", source, total.detail))]
    if dtype_of(op.results[0].type).startswith("int"):
        if any(isinstance(v.array, TracedArray) for v in operands):
            raise TraceError(m.place, "a quotient of integers that depend on an argument")
        whole = np.trunc(apply(np.divide, *(v.array for v in operands)))
        return [Value(whole.astype(operands[0].array.dtype))]
    return _plain(np.divide)(m, op, operands)


def _above_maximum(x: Value, dims: tuple[int, ...]) -> TracedArray | None:
    """s where x = s - max of s over `dims`, perhaps with the maximum bounded below by -inf."""
    if x.kind != "subtract":
        return None
    most = stretched(x.operands[1])
    if most.kind == "maximum":
        lowest = [uniform(v.array) for v in most.operands]
        bound = [k for k, v in enumerate(lowest) if v is not None and float(str(v)) == -np.inf]
        most = most.operands[1 - bound[0]] if bound else most
    source = x.operands[0]
    same = most.kind == "maximum over" and most.detail == dims and most.operands[0] is source
    return source.array if same and isinstance(source.array, TracedArray) else None


def _normalised(m: Machine, function: str, x: TracedArray, dims: tuple[int, ...]) -> TracedArray:
    names = [f"i{k}" for k in range(len(x.shape))]
    axes = [Axis(a, n) for a, n in zip(names, x.shape, strict=True)]
    over = {"over": tuple(names[d] for d in dims)}
    return TracedArray.of(
        m.recorder, m.recorder.emit(function, function, axes, [x.view.access(names)], names, x.dtype, over)
    )


def constant(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """A constant; one number everywhere is kept once."""
    kind = op.results[0].type
    return [Value(elements(op, "value", dtype_of(kind), kind.shape))]


def iota(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Positions along a dimension."""
    kind, dim = op.results[0].type, integer(op, "iota_dimension")
    shape = tuple(kind.shape)
    run = np.arange(shape[dim], dtype=dtype_of(kind)).reshape([-1 if k == dim else 1 for k in range(len(shape))])
    return [Value(np.broadcast_to(run, shape))]


def broadcast(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """broadcast_in_dim: dimension k of the operand lies at dims[k] of the result."""
    (x,), dims, shape = operands, integers(op, "broadcast_dimensions"), tuple(op.results[0].type.shape)
    middle = [1] * len(shape)
    for d, n in zip(dims, x.array.shape, strict=True):
        middle[d] = n

    def wide(array: Array) -> object:
        return np.broadcast_to(
            apply(np.reshape, array, middle) if tuple(middle) != tuple(array.shape) else array, shape
        )

    return [Value(_array(wide(x.array)), "broadcast_in_dim", (x,), again=wide)]


def reshape(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """The same elements in another shape."""
    shape = tuple(op.results[0].type.shape)
    return [Value(apply(np.reshape, operands[0].array, shape), "reshape", tuple(operands))]


def transpose(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Dimensions in another order."""
    return [Value(apply(np.transpose, operands[0].array, integers(op, "permutation")))]


def convert(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Another element type; towards zero from real to integer."""
    (x,), dtype = operands, dtype_of(op.results[0].type)
    if x.array.dtype == np.dtype(dtype):
        return [x]
    if isinstance(x.array, TracedArray):
        if dtype == "bool":
            return [Value(x.array != 0)]
        return [Value(m.map_cast(x.array, dtype))]
    return [Value(x.array.astype(dtype))]


def dot_general(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Batch dimensions, then the others of the left and of the right operand; contracted ones are summed."""
    d = dialect().DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = operands[0].array, operands[1].array
    a = list(ascii_letters[: left.ndim])
    b = list(ascii_letters[left.ndim : left.ndim + right.ndim])
    for i, j in (
        *zip(d.lhs_batching_dimensions, d.rhs_batching_dimensions, strict=True),
        *zip(d.lhs_contracting_dimensions, d.rhs_contracting_dimensions, strict=True),
    ):
        b[j] = a[i]
    batch = [a[i] for i in d.lhs_batching_dimensions]
    gone = {*batch, *(a[i] for i in d.lhs_contracting_dimensions)}
    out = [*batch, *(n for n in a if n not in gone), *(n for n in b if n not in gone)]
    return [Value(apply(np.einsum, f"{''.join(a)},{''.join(b)}->{''.join(out)}", left, right))]


_REDUCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "stablehlo.add": np.sum,
    "stablehlo.maximum": np.max,
    "stablehlo.minimum": np.min,
    "stablehlo.and": np.all,
    "stablehlo.or": np.any,
}


def reduce(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Sums, maxima, minima, and, or over dimensions, from the neutral element on."""
    inside = body(op)
    if len(operands) != 2 or len(inside) != 2 or inside[0] not in _REDUCTIONS:
        raise TraceError(m.place, f"reduces with {', '.join(inside[:-1])} of {len(operands) // 2} operands")
    (x, start), dims = operands, integers(op, "dimensions")
    first = uniform(start.array)
    neutral = {"add": 0, "maximum": -np.inf, "minimum": np.inf, "and": 1, "or": 0}[_short(inside[0])]
    if first is None or (float(str(first.astype(float))) != neutral and x.array.dtype.kind == "f"):
        raise TraceError(m.place, "a reduction that starts from something else than nothing")
    made = _REDUCTIONS[inside[0]](x.array, axis=dims)
    if not isinstance(made, TracedArray):
        made = np.asarray(made, dtype=x.array.dtype)
    return [Value(made, f"{_short(inside[0])} over", (x,), dims)]


_COMPARISONS: Final[Mapping[str, Callable[..., object]]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def compare(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Comparisons."""
    how = dialect().ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    return _plain(_COMPARISONS[str(how)])(m, op, operands)


def select(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """where(p, x, y); rows picked inside a table, else NaN, are the rows."""
    p, x, y = operands
    if not isinstance(p.array, TracedArray):
        known = uniform(p.array)
        if known is not None:
            return [x if bool(known) else y]
    other = uniform(y.array)
    if stretched(x).kind == "gather" and other is not None and other.dtype.kind == "f" and bool(np.isnan(other)):
        return [x]
    condition = p.array
    if condition.ndim == 0:
        condition = apply(np.broadcast_to, condition, x.array.shape) if x.array.ndim else condition
    numbers = [uniform(v.array) for v in (x, y)]
    if x.array.dtype == bool and all(n is not None for n in numbers) and bool(numbers[0]) and not bool(numbers[1]):
        return [p] if p.array.shape == x.array.shape else [Value(_array(condition))]
    if not any(isinstance(v.array, TracedArray) for v in operands):
        return [Value(np.where(condition, x.array, y.array))]
    arrays = [m.traced(v) if n is None else n for v, n in zip((x, y), numbers, strict=True)]
    if all(n is not None for n in numbers):
        arrays[0] = TracedArray.of(m.recorder, m.view(x.array))
    mask = m.traced(p) if p.array.ndim else condition
    return [Value(apply(np.where, mask, *arrays))]


def clamp(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """min(max(x, low), high)."""
    low, x, high = (v.array for v in operands)
    bounds = [b if (n := uniform(b)) is None else n for b in (low, high)]
    return [Value(apply(np.minimum, np.maximum(x, bounds[0]), bounds[1]))]


def power(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """x to a number."""
    exponent = uniform(operands[1].array)
    if isinstance(operands[0].array, TracedArray) and exponent is None:
        raise TraceError(m.place, "an exponent that is not one number")
    return _plain(np.power)(m, op, operands)


def concatenate(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Arrays one behind another."""
    arrays = [v.array for v in operands]
    if any(isinstance(a, TracedArray) for a in arrays):
        arrays = [a if isinstance(a, TracedArray) else TracedArray.of(m.recorder, m.view(a)) for a in arrays]
    return [Value(apply(np.concatenate, arrays, axis=integer(op, "dimension")))]


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
    return [Value(padded(cut, width, value.item()))]


def scatter(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """One part, whose place is known, overwritten (`x.at[:, 1].set`); where places are data: refused."""
    d = dialect().ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    inside = body(op)
    x, at, part = (v.array for v in operands)
    if isinstance(at, TracedArray) or at.size != len(d.scattered_dims_to_operand_dims) or len(inside) != 1:
        raise TraceError(m.place, "a scatter to places that are data, or that adds up; write it with jax.nn.one_hot")
    start = [0] * x.ndim
    for k, n in zip(d.scattered_dims_to_operand_dims, at.reshape(-1).tolist(), strict=True):
        start[k] = int(n)
    sizes = iter(part.shape)
    shape = [1 if k in list(d.inserted_window_dims) else next(sizes) for k in range(x.ndim)]
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
    if not batched and collapsed == [dim]:
        table = table if isinstance(table, TracedArray) else TracedArray.of(m.recorder, m.view(table))
        rows = apply(np.take, table, ids, axis=dim)
        picked = list(range(dim, dim + ids.ndim))
        order, rest = [-1] * rows.ndim, [k for k in range(rows.ndim) if k not in picked]
        for k, place in zip(rest, d.offset_dims, strict=True):
            order[place] = k
        for k, place in zip(picked, [p for p in range(rows.ndim) if order[p] < 0], strict=True):
            order[place] = k
        return [Value(rows if order == sorted(order) else apply(np.transpose, rows, order), "gather", tuple(operands))]
    if (
        whole
        or list(d.start_indices_batching_dims) != list(range(len(batched)))
        or batched != list(range(table.ndim - 1))
    ):
        raise TraceError(m.place, "a gather with batch dimensions that are not the first ones")
    made = m.picked(table, ids)
    shape = tuple(op.results[0].type.shape)
    return [Value(made if tuple(made.shape) == shape else apply(np.reshape, made, shape), "gather", tuple(operands))]


HANDLERS: Final[Mapping[str, Handler]] = {
    **{
        f"stablehlo.{name}": _plain(function)
        for name, function in (
            ("abs", np.absolute),
            ("add", np.add),
            ("and", np.logical_and),
            ("cosine", np.cos),
            ("exponential", np.exp),
            ("exponential_minus_one", lambda x: np.exp(x) - 1),
            ("log_plus_one", lambda x: np.log(x + 1)),
            ("floor", np.floor),
            ("log", np.log),
            ("maximum", np.maximum),
            ("minimum", np.minimum),
            ("multiply", np.multiply),
            ("negate", np.negative),
            ("not", np.logical_not),
            ("or", np.logical_or),
            ("sign", np.sign),
            ("sine", np.sin),
            ("sqrt", np.sqrt),
            ("tanh", np.tanh),
        )
    },
    "stablehlo.rsqrt": _mapped("rsqrt", lambda x: 1 / np.sqrt(x)),
    "stablehlo.logistic": _mapped("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    "chlo.erf": _mapped("erf", _erf),
    "chlo.erfc": erfc,
    "chlo.square": _plain(np.square),
    "stablehlo.subtract": subtract,
    "stablehlo.divide": divide,
    "stablehlo.power": power,
    "stablehlo.constant": constant,
    "stablehlo.iota": iota,
    "stablehlo.broadcast_in_dim": broadcast,
    "stablehlo.reshape": reshape,
    "stablehlo.transpose": transpose,
    "stablehlo.convert": convert,
    "stablehlo.dot_general": dot_general,
    "stablehlo.reduce": reduce,
    "stablehlo.compare": compare,
    "stablehlo.select": select,
    "stablehlo.clamp": clamp,
    "stablehlo.concatenate": concatenate,
    "stablehlo.slice": slice_of,
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update,
    "stablehlo.pad": pad,
    "stablehlo.gather": gather,
    "stablehlo.scatter": scatter,
    "stablehlo.convolution": convolution,
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.optimization_barrier": lambda m, op, operands: operands,
}
"""Operator -> what carries it out."""

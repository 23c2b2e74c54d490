"""What every StableHLO operator does, in terms of NumPy functions on traced arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_letters
from typing import Final

import numpy as np

from ...program.index import Axis
from ...program.operators import Value as Attribute
from ..numpy.array import TracedArray
from ..numpy.elementwise import elementwise
from ..numpy.recorder import TraceError
from .indexed import dynamic_slice, dynamic_update, gather, pad, scatter, slice_of, top_k
from .ir import Op, Plain, body, combined_by, dialect, elements, integer, integers
from .operators import Array, Handler, Machine, Value, apply, broadcast_source, dtype_of, once_each, summed_in, uniform
from .windows import convolution, neutral, reduce_window


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _plain(function: Callable[..., object]) -> Handler:
    """An operator that is one NumPy function of its operands; numbers stay numbers, so that `2 x` is a scaling."""

    def handle(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
        arrays = [v.array for v in operands]
        if any(isinstance(a, TracedArray) for a in arrays):
            made = _array(function(*[m.trace_value(v) if (n := uniform(v.array)) is None else n for v in operands]))
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


def _logical(function: Callable[..., object], bits: Callable[..., object]) -> Handler:
    """A function of truth values; of whole numbers it takes bits, of constants only."""

    def handle(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
        if dtype_of(op.results[0].type) == "bool":
            return _plain(function)(m, op, operands)
        if any(isinstance(v.array, TracedArray) for v in operands):
            raise TraceError(m.place, "bits of whole numbers that depend on an argument; truth values are read")
        return _plain(bits)(m, op, operands)

    return handle


def is_finite(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Neither infinite nor NaN: |x| is less than infinite."""
    (x,) = operands
    if not isinstance(x.array, TracedArray):
        return [Value(np.isfinite(x.array))]
    return [Value(apply(np.less, np.absolute(x.array), float("inf")), "is_finite", (x,))]


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
    x, log = operands[0], broadcast_source(operands[1])
    if x.kind == "subtract" and log.kind == "log":
        total = broadcast_source(log.operands[0])
        summed = total.kind == "add over" and total.operands[0].kind == "exponential"
        if summed and total.operands[0].operands[0] is x and (source := _above_maximum(x, total.detail)) is not None:
            return [Value(_normalised(m, "log_softmax", source, total.detail))]
    return _plain(np.subtract)(m, op, operands)


def divide(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """x / y, and the end of a softmax.  Integers are rounded towards zero, constants only."""
    x, total = operands[0], broadcast_source(operands[1])
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
    most = broadcast_source(x.operands[1])
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
    """Another element type; from real to integer towards zero, the nearest there is, 0 for NaN (`cast` likewise)."""
    (x,), dtype = operands, dtype_of(op.results[0].type)
    if x.array.dtype == np.dtype(dtype):
        return [x]
    if isinstance(x.array, TracedArray):
        if dtype == "bool":
            return [Value(x.array != 0)]
        return [Value(m.map_cast(x.array, dtype), "convert", (x,))]
    return [Value(saturate(x.array, dtype))]


def dot_general(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Batch dimensions, then the others of the left and of the right operand; contracted ones are summed."""
    d = dialect().DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = (summed_in(m, op, x) for x in operands)
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


def saturate(x: Plain, dtype: str) -> Plain:
    """A constant in another element type, as XLA has it.

    >>> saturate(np.array([np.nan, 3e9, -1.5]), "int32").tolist()
    [0, 2147483647, -1]
    """
    kind = np.dtype(dtype)
    if x.dtype.kind != "f" or kind.kind not in "iu":
        return x.astype(kind)
    ends = np.iinfo(kind)
    wide = np.where(np.isnan(x), 0, x).astype(np.float64)
    inside = np.where((wide > float(ends.min)) & (wide < float(ends.max)), wide, 0).astype(kind)
    return np.where(wide >= float(ends.max), ends.max, np.where(wide <= float(ends.min), ends.min, inside)).astype(kind)


_REDUCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "stablehlo.add": np.sum,
    "stablehlo.maximum": np.max,
    "stablehlo.minimum": np.min,
    "stablehlo.and": np.all,
    "stablehlo.or": np.any,
}


def reduce(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Sums, maxima, minima, and, or over dimensions, from the neutral element on."""
    how = combined_by(op)
    if len(operands) != 2 or how is None or how not in _REDUCTIONS:
        raise TraceError(
            m.place,
            f"reduces {len(operands) // 2} operands by a region of {', '.join(body(op)) or 'nothing'}; read are sums, "
            "maxima, minima, and, or of one",
        )
    (x, start), dims = operands, integers(op, "dimensions")
    first = uniform(start.array)
    logical = how in ("stablehlo.and", "stablehlo.or")
    if logical and x.array.dtype != bool:
        raise TraceError(m.place, f"{_short(how)} of the bits of {x.array.dtype.name}; truth values are read")
    if first is None or first.item() != neutral(_short(how), x.array.dtype):
        raise TraceError(m.place, "a reduction that starts from something else than nothing")
    made = _REDUCTIONS[how](x.array, axis=dims)
    if not isinstance(made, TracedArray):
        made = np.asarray(made, dtype=x.array.dtype)
    return [Value(made, f"{_short(how)} over", (x,), dims)]


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
    if "compare_type" in op.attributes and "TOTALORDER" in str(op.attributes["compare_type"]):
        raise TraceError(m.place, "a comparison in the total order of floats (-0 below 0, NaN above all)")
    return _plain(_COMPARISONS[str(how)])(m, op, operands)


def select(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """where(p, x, y)."""
    p, x, y = operands
    if not isinstance(p.array, TracedArray):
        known = uniform(p.array)
        if known is not None:
            return [x if bool(known) else y]
    condition = p.array
    if condition.ndim == 0:
        condition = apply(np.broadcast_to, condition, x.array.shape) if x.array.ndim else condition
    numbers = [uniform(v.array) for v in (x, y)]
    if x.array.dtype == bool and all(n is not None for n in numbers) and bool(numbers[0]) and not bool(numbers[1]):
        return [p] if p.array.shape == x.array.shape else [Value(_array(condition))]
    if not any(isinstance(v.array, TracedArray) for v in operands):
        return [Value(np.where(condition, x.array, y.array))]
    arrays = [m.trace_value(v) if n is None else n for v, n in zip((x, y), numbers, strict=True)]
    if all(n is not None for n in numbers):
        arrays[0] = TracedArray.of(m.recorder, m.view(x.array))
    mask = m.trace_value(p) if p.array.ndim else condition
    return [Value(apply(np.where, mask, *arrays))]


def clamp(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """min(max(x, low), high)."""
    low, x, high = (v.array for v in operands)
    if x.dtype == bool:
        raise TraceError(
            m.place, "a clamp of truth values, which XLA carries out in several ways; write it with & and |"
        )
    bounds = [b if (n := uniform(b)) is None else n for b in (low, high)]
    return [Value(apply(np.minimum, np.maximum(x, bounds[0]), bounds[1]), "clamp", tuple(operands))]


def power(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """x to a number."""
    exponent = uniform(operands[1].array)
    if isinstance(operands[0].array, TracedArray) and exponent is None:
        raise TraceError(m.place, "an exponent that is not one number")
    base = operands[0].array
    if isinstance(base, TracedArray) and exponent is not None:
        to: dict[str, Attribute] = {"exponent": exponent.item()}
        made = elementwise(m.recorder, "power", "power", [base.view], base.dtype, to)
        return [Value(TracedArray.of(m.recorder, made), "power", tuple(operands))]
    return _plain(np.power)(m, op, operands)


def concatenate(m: Machine, op: Op, operands: list[Value]) -> list[Value]:
    """Arrays one behind another."""
    arrays = [v.array for v in operands]
    if any(isinstance(a, TracedArray) for a in arrays):
        arrays = [a if isinstance(a, TracedArray) else TracedArray.of(m.recorder, m.view(a)) for a in arrays]
    return [Value(apply(np.concatenate, arrays, axis=integer(op, "dimension")))]


HANDLERS: Final[Mapping[str, Handler]] = {
    **{
        f"stablehlo.{name}": _plain(function)
        for name, function in (
            ("abs", np.absolute),
            ("add", np.add),
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
            ("sign", np.sign),
            ("sine", np.sin),
            ("sqrt", np.sqrt),
            ("tanh", np.tanh),
        )
    },
    "stablehlo.and": _logical(np.logical_and, np.bitwise_and),
    "stablehlo.or": _logical(np.logical_or, np.bitwise_or),
    "stablehlo.xor": _logical(np.not_equal, np.bitwise_xor),
    "stablehlo.not": _logical(np.logical_not, np.invert),
    "stablehlo.is_finite": is_finite,
    "chlo.top_k": top_k,
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

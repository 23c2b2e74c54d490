"""Says what every local operator of StableHLO is in the words of `models.equality.program`.

Source: the StableHLO specification (openxla.org/stablehlo/spec), operator by operator.  What has no translation, or is
asked for in a way that is not read here, is refused by name with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from ...equality.program import Word
from ..jax.ir import Op, Type, body, combined_by, dialect, elements, integer, integers
from ..jax.windows import neutral
from .writer import Writer

Handler = Callable[[Writer, Op, Sequence[int]], Sequence[int]]

TYPES: Final[Mapping[str, str]] = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "ui64": "uint64",
    "ui32": "uint32",
    "ui8": "uint8",
    "i1": "bool",
}
"""StableHLO element type -> PyTorch's name of it."""


def made_of(w: Writer, kind: Type) -> tuple[tuple[int, ...], str]:
    """Shape and element type of a tensor type.  Raises `Unreadable` for others."""
    told = str(getattr(kind, "element_type", kind))  # a token, or a tuple, has none
    found = TYPES.get(told)
    if found is None:
        raise w.refuse(f"element type {told} is not known here")
    return tuple(int(n) for n in kind.shape), found


def _made(w: Writer, op: Op) -> tuple[tuple[int, ...], str]:
    return made_of(w, op.results[0].type)


def _one(name: str) -> Handler:
    def handle(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
        shape, dtype = _made(w, op)
        return [w.step(name, (given[0],), {}, shape, dtype)]

    return handle


def _two(name: str, logical: str = "") -> Handler:
    def handle(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
        shape, dtype = _made(w, op)
        if dtype != "bool":
            if name.startswith("logical"):
                return [_bits(w, name, given, dtype)]
            return [w.two(name, given[0], given[1], dtype)]
        if not (logical or name).startswith("logical"):
            raise w.refuse(f"{name} of truth values")
        return [w.step(logical or name, tuple(given), {}, shape, dtype)]

    return handle


def _bits(w: Writer, name: str, given: Sequence[int], dtype: str) -> int:
    """And, or, of bits of whole numbers that are known, such as the rank's own (remainders by powers of two)."""
    a, b = (w.known.get(n) for n in given)
    if a is None or b is None:
        raise w.refuse("bits of whole numbers; truth values are read")
    return w.constant((np.bitwise_and if name == "logical_and" else np.bitwise_or)(a, b), dtype)


def square(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """The product of a tensor and itself."""
    return [w.two("mul", given[0], given[0], _made(w, op)[1])]


def _real(w: Writer, number: int) -> bool:
    return w.dtype(number).startswith(("float", "bfloat"))


def divide(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """x / y; whole numbers towards zero."""
    a, b = given
    dtype = w.dtype(a)
    return [w.two("div", a, b, dtype) if _real(w, a) else _quotient(w, a, b)]


def _quotient(w: Writer, a: int, b: int) -> int:
    x, y, dtype = w.known.get(a), w.known.get(b), w.dtype(a)
    if x is not None and y is not None and bool((y != 0).all()):
        signs = np.sign(x.astype(np.int64)) * np.sign(y.astype(np.int64))
        return w.constant(signs * (np.abs(x.astype(np.int64)) // np.abs(y.astype(np.int64))), dtype)
    return w.step("trunc", (w.two("div", a, b, dtype),), {}, w.shape(a), dtype)


def remainder(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """x - y trunc(x / y)."""
    a, b = given
    dtype, shape = w.dtype(a), w.shape(a)
    whole = w.step("trunc", (w.two("div", a, b, dtype),), {}, shape, dtype) if _real(w, a) else _quotient(w, a, b)
    return [w.two("sub", a, w.two("mul", whole, b, dtype), dtype)]


def negative_of_bits(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """`not` of truth values."""
    shape, dtype = _made(w, op)
    if dtype != "bool":
        raise w.refuse("bits of whole numbers; truth values are read")
    return [w.step("logical_not", (given[0],), {}, shape, dtype)]


def exclusive_or(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """`xor` of truth values."""
    shape, dtype = _made(w, op)
    if dtype != "bool":
        raise w.refuse("bits of whole numbers (random numbers of JAX are made of them); truth values are read")
    return [w.step("ne", tuple(given), {}, shape, dtype)]


def is_finite(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """|x| is below infinity."""
    shape, dtype = _made(w, op)
    size = w.step("abs", (given[0],), {}, shape, w.dtype(given[0]))
    return [w.step("lt", (size,), {"number": float("inf")}, shape, dtype)]


def cube_root(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Refused: negative numbers have one, and `pow` gives them none."""
    raise w.refuse("a cube root")


def error_function_rest(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """1 - erf(x)."""
    shape, dtype = _made(w, op)
    found = w.step("erf", (given[0],), {}, shape, dtype)
    return [w.step("sub", (found,), {"number": 1.0, "reverse": True}, shape, dtype)]


def constant(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """A constant."""
    shape, dtype = _made(w, op)
    numpy_name = "float32" if dtype in ("bfloat16", "float16") else dtype
    try:
        return [w.constant(elements(op, "value", numpy_name, shape), dtype)]
    except (TypeError, ValueError) as error:
        raise w.refuse(f"a constant of {dtype}: {error}") from error


def iota(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Positions along a dimension."""
    (shape, dtype), dim = _made(w, op), integer(op, "iota_dimension")
    if dtype.startswith(("int", "uint")) and shape[dim] - 1 > np.iinfo(dtype).max:
        raise w.refuse(f"an iota of {shape[dim]} positions, of which {dtype} does not hold the last")
    words: dict[str, Word] = {"n": shape[dim], "start": 0.0, "step": 1.0, "dtype": dtype}
    run = w.step("iota", (), words, (shape[dim],), dtype)
    wide = tuple(n if k == dim else 1 for k, n in enumerate(shape))
    return [w.expand(w.reshape(run, wide), shape)]


def broadcast(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """broadcast_in_dim: dimension k of the operand lies at dims[k] of the result."""
    (shape, dtype), dims = _made(w, op), integers(op, "broadcast_dimensions")
    if (value := w.uniform(given[0])) is not None:
        return [w.full(shape, value, dtype)]
    number = given[0]
    if list(dims) != sorted(dims):
        order = sorted(range(len(dims)), key=lambda k: dims[k])
        number = w.permute(number, order)
    wide = [1] * len(shape)
    for d, n in zip(sorted(dims), w.shape(number), strict=True):
        wide[d] = n
    return [w.expand(w.reshape(number, tuple(wide)), shape)]


def reshape(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """The same elements in another shape."""
    return [w.reshape(given[0], _made(w, op)[0])]


def bitcast(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """XLA's bitcast behind its last passes: the same elements, in the order in which they lie, in another shape that
    lies otherwise (layouts: dimensions from the innermost on).
    """
    (shape, dtype), (number,) = _made(w, op), given
    if dtype != w.dtype(number):
        raise w.refuse("bits of numbers as another type")
    lies = [_outermost(op, name, len(s)) for name, s in (("source_layout", w.shape(number)), ("result_layout", shape))]
    flat = w.reshape(w.permute(number, lies[0]), tuple(shape[d] for d in lies[1]))
    return [w.permute(flat, [lies[1].index(d) for d in range(len(shape))])]


def _outermost(op: Op, name: str, many: int) -> list[int]:
    """Dimensions from the outermost on."""
    if name not in op.attributes:
        return list(range(many))
    return [int(n) for n in np.asarray(op.attributes[name]).reshape(-1)][::-1]


def transpose(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Dimensions in another order."""
    return [w.permute(given[0], integers(op, "permutation"))]


def convert(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Another element type; from real to whole numbers towards zero."""
    return [w.cast(given[0], _made(w, op)[1])]


def same(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """What it is given: it says nothing about numbers."""
    return list(given)


def slice_of(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """A part, or every n-th."""
    number = given[0]
    rows = zip(*(integers(op, n) for n in ("start_indices", "limit_indices", "strides")), strict=True)
    for dim, (start, stop, step) in enumerate(rows):
        number = w.slice(number, dim, start, stop, step)
    return [number]


def concatenate(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """One behind another."""
    dim = integer(op, "dimension")
    filled = [n for n in given if w.shape(n)[dim]]
    return [w.cat(filled or list(given[:1]), dim)]


def reverse(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Positions in the opposite order."""
    number = given[0]
    for dim in integers(op, "dimensions"):
        many = w.shape(number)[dim]
        number = w.cat([w.slice(number, dim, i, i + 1) for i in reversed(range(many))], dim)
    return [number]


def product(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """dot_general: batch dimensions, then the others of the left and of the right operand; contracted ones are summed,
    as one matrix product per batch.
    """
    if op.name == "stablehlo.dot":
        left = [len(w.shape(given[0])) - 1]
        dims: tuple[list[int], ...] = ([], [], left, [0])
    else:
        d = dialect().DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        dims = (
            [int(k) for k in d.lhs_batching_dimensions],
            [int(k) for k in d.rhs_batching_dimensions],
            [int(k) for k in d.lhs_contracting_dimensions],
            [int(k) for k in d.rhs_contracting_dimensions],
        )
    (shape, dtype), (a, b) = _made(w, op), given
    a, b = w.cast(a, dtype), w.cast(b, dtype)
    batch = tuple(w.shape(a)[k] for k in dims[0])
    inner = prod(w.shape(a)[k] for k in dims[2])
    rest_a = [k for k in range(len(w.shape(a))) if k not in (*dims[0], *dims[2])]
    rest_b = [k for k in range(len(w.shape(b))) if k not in (*dims[1], *dims[3])]
    many, left_n, right_n = prod(batch), prod(w.shape(a)[k] for k in rest_a), prod(w.shape(b)[k] for k in rest_b)
    front: tuple[int, ...] = (many,) if batch else ()
    x = w.reshape(w.permute(a, [*dims[0], *rest_a, *dims[2]]), (*front, left_n, inner))
    y = w.reshape(w.permute(b, [*dims[1], *dims[3], *rest_b]), (*front, inner, right_n))
    return [w.reshape(w.step("matmul", (x, y), {}, (*front, left_n, right_n), dtype), shape)]


REDUCTIONS: Final[Mapping[str, str]] = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "amax",
    "stablehlo.minimum": "amin",
}


def reduce_one(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Sums, greatest and least elements, from the neutral element on; and, or of truth values."""
    how, (shape, dtype), dims = combined_by(op), _made(w, op), integers(op, "dimensions")
    if len(given) == 2 and dtype == "bool" and how in ("stablehlo.and", "stablehlo.or"):
        if w.uniform(given[1]) != (how == "stablehlo.and"):
            raise w.refuse(f"a reduction of truth values by {how} that starts from something else than nothing")
        kept = w.step("cast", (given[0],), {"dtype": "int32", "was": "bool"}, w.shape(given[0]), "int32")
        name = "amin" if how.endswith("and") else "amax"
        found = w.step(name, (kept,), {"dims": dims, "keep": False}, shape, "int32")
        return [w.step("cast", (found,), {"dtype": "bool", "was": "int32"}, shape, "bool")]
    if len(given) != 2 or how is None or how not in REDUCTIONS:
        told = ", ".join(body(op)) or "nothing"
        raise w.refuse(f"reduces {len(given) // 2} operands by a region of {told}")
    start = w.uniform(given[1])
    kind = np.dtype("float32" if dtype in ("bfloat16", "float16") else dtype)
    if start is None or start != neutral(how.rpartition(".")[2], kind):
        raise w.refuse("a reduction that starts from something else than nothing")
    return [w.step(REDUCTIONS[how], (given[0],), {"dims": dims, "keep": False}, shape, dtype)]


COMPARISONS: Final[Mapping[str, str]] = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def compare(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Comparisons."""
    how = str(dialect().ComparisonDirectionAttr(op.attributes["comparison_direction"]).value)
    if "compare_type" in op.attributes and "TOTALORDER" in str(op.attributes["compare_type"]):
        raise w.refuse("a comparison in the total order of floats")
    a, b = given
    whole = w.dtype(a).startswith(("int", "uint"))
    if whole and (decided := _decided(how, w.bounds(a), w.bounds(b))) is not None:
        return [w.full(w.shape(a), decided, "bool")]
    reals = [w.uniform(n) for n in (a, b)]
    if reals[0] is None and reals[1] is not None and not isinstance(reals[1], bool):
        return [w.step(COMPARISONS[how], (a,), {"number": reals[1]}, w.shape(a), "bool")]
    return [w.step(COMPARISONS[how], (a, b), {}, w.shape(a), "bool")]


def _decided(how: str, a: tuple[float, float], b: tuple[float, float]) -> bool | None:
    """What a comparison of numbers between these bounds is, if it is the same for all.

    >>> _decided("LT", (0.0, 3.0), (4.0, 4.0)), _decided("LT", (0.0, 3.0), (2.0, 2.0))
    (True, None)
    """
    if how in ("GT", "GE"):
        return _decided({"GT": "LT", "GE": "LE"}[how], b, a)
    if how == "LT":
        return True if a[1] < b[0] else False if a[0] >= b[1] > float("-inf") else None
    if how == "LE":
        return True if a[1] <= b[0] < float("inf") else False if a[0] > b[1] else None
    return None


def select(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """where(p, x, y)."""
    p, x, y = given
    if (known := w.uniform(p)) is not None:
        return [x if known else y]
    shape, dtype = _made(w, op)
    return [w.step("where", (w.expand(w.reshape(p, w.shape(p) or (1,) * len(shape)), shape), x, y), {}, shape, dtype)]


def clamp(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """min(max(x, low), high)."""
    low, x, high = given
    (shape, dtype) = _made(w, op)
    wide = [w.expand(w.reshape(n, w.shape(n) or (1,) * len(shape)), shape) for n in (low, high)]
    return [w.two("minimum", w.two("maximum", x, wide[0], dtype), wide[1], dtype)]


def pad(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Elements around and between; a negative edge cuts."""
    number, dtype = given[0], w.dtype(given[0])
    value = w.uniform(given[1])
    if value is None:
        raise w.refuse("a padding with a number that depends on data")
    rows = zip(*(integers(op, n) for n in ("edge_padding_low", "edge_padding_high", "interior_padding")), strict=True)
    for dim, (low, high, between) in enumerate(rows):
        many = w.shape(number)[dim]
        if between and many > 1:
            number = _written(w, number, dim, (many - 1) * (between + 1) + 1, 0, between + 1, value, dtype)
        number = w.slice(number, dim, max(0, -low), w.shape(number)[dim] - max(0, -high))
        low, high = max(0, low), max(0, high)
        if low or high:
            number = _written(w, number, dim, w.shape(number)[dim] + low + high, low, 1, value, dtype)
    return [number]


def _written(w: Writer, number: int, dim: int, many: int, start: int, step: int, value: float, dtype: str) -> int:
    """A tensor written into a longer one of one number."""
    was = w.shape(number)
    shape = (*was[:dim], many, *was[dim + 1 :])
    stop = start + (was[dim] - 1) * step + 1
    words: dict[str, Word] = {"dim": dim, "start": start, "stop": stop, "step": step}
    return w.step("slice_scatter", (w.full(shape, value, dtype), number), words, shape, dtype)


HANDLERS: Final[Mapping[str, Handler]] = {
    **{
        f"stablehlo.{theirs}": _one(ours)
        for theirs, ours in (
            *(("negate", "neg"), ("exponential", "exp"), ("log", "log"), ("sqrt", "sqrt"), ("rsqrt", "rsqrt")),
            *(("abs", "abs"), ("sign", "sign"), ("tanh", "tanh"), ("logistic", "sigmoid"), ("sine", "sin")),
            *(("cosine", "cos"), ("floor", "floor"), ("ceil", "ceil"), ("round_nearest_even", "round")),
            *(("log_plus_one", "log1p"), ("exponential_minus_one", "expm1")),
        )
    },
    "chlo.erf": _one("erf"),
    "mhlo.erf": _one("erf"),
    "chlo.erfc": error_function_rest,
    "chlo.square": square,
    "stablehlo.add": _two("add", "logical_or"),
    "stablehlo.subtract": _two("sub"),
    "stablehlo.multiply": _two("mul", "logical_and"),
    "stablehlo.maximum": _two("maximum", "logical_or"),
    "stablehlo.minimum": _two("minimum", "logical_and"),
    "stablehlo.power": _two("pow"),
    "stablehlo.and": _two("logical_and"),
    "stablehlo.or": _two("logical_or"),
    "stablehlo.divide": divide,
    "stablehlo.remainder": remainder,
    "stablehlo.not": negative_of_bits,
    "stablehlo.xor": exclusive_or,
    "stablehlo.is_finite": is_finite,
    "stablehlo.cbrt": cube_root,
    "stablehlo.constant": constant,
    "stablehlo.iota": iota,
    "stablehlo.broadcast_in_dim": broadcast,
    "stablehlo.reshape": reshape,
    "mhlo.bitcast": bitcast,
    "stablehlo.transpose": transpose,
    "stablehlo.convert": convert,
    "stablehlo.slice": slice_of,
    "stablehlo.concatenate": concatenate,
    "stablehlo.reverse": reverse,
    "stablehlo.dot_general": product,
    "stablehlo.dot": product,
    "stablehlo.compare": compare,
    "stablehlo.select": select,
    "stablehlo.clamp": clamp,
    "stablehlo.pad": pad,
    "stablehlo.optimization_barrier": same,
    "mhlo.copy": same,
    "sdy.sharding_constraint": same,
}

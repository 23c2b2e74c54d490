"""Translates universal functions: elementwise calls, reductions and in-place results, as operators of the
function table.

A Python number stays an attribute of its operator (`x + 1` is `shift`, `x > 0` is `greater` with value 0); an array
that is not traced becomes a constant.  Element types follow NumPy's promotion, with a `cast` where an operand has
another type than the result.  Integer arithmetic with numbers uses constants, because attributes are floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, log
from types import MappingProxyType
from typing import Final

import numpy as np

from ...program.graph import UnsupportedOperators
from ...program.index import Axis
from ...program.operators import Value
from .array import TracedArray
from .contract import matmul
from .elementwise import LOGICAL, Number, cast, elementwise, number, view_of
from .recorder import HINT, Recorder, TraceError, place
from .reductions import REDUCE, cumulative, ufunc_reduce
from .views import View, broadcast, insert_dimensions
from .write import assign

UNARY: Final[Mapping[np.ufunc, str]] = MappingProxyType(
    {
        np.negative: "negate",
        np.exp: "exp",
        np.tanh: "tanh",
        np.sqrt: "sqrt",
        np.log: "log",
        np.cos: "cos",
        np.sin: "sin",
        np.arctan: "atan",
        np.absolute: "abs",
        np.fabs: "abs",
        np.sign: "sign",
        np.floor: "floor",
        np.reciprocal: "reciprocal",
        np.logical_not: "logical_not",
        np.invert: "logical_not",
    }
)
BINARY: Final[Mapping[np.ufunc, str]] = MappingProxyType(
    {
        np.add: "add",
        np.subtract: "subtract",
        np.multiply: "multiply",
        np.divide: "divide",
        np.maximum: "maximum",
        np.minimum: "minimum",
        np.logical_and: "logical_and",
        np.logical_or: "logical_or",
        np.bitwise_and: "logical_and",
        np.bitwise_or: "logical_or",
    }
)
COMPARE: Final[Mapping[np.ufunc, tuple[str, str]]] = MappingProxyType(
    {
        np.equal: ("equal", "equal"),
        np.not_equal: ("not_equal", "not_equal"),
        np.less: ("less", "greater"),
        np.less_equal: ("less_equal", "greater_equal"),
        np.greater: ("greater", "less"),
        np.greater_equal: ("greater_equal", "less_equal"),
    }
)
"""Ufunc -> function, and the function with its operands exchanged."""
OTHERS: Final = frozenset(
    {
        np.square,
        np.power,
        np.float_power,
        np.remainder,
        np.fmax,
        np.fmin,
        np.matmul,
        np.positive,
        np.log1p,
        np.expm1,
        np.rint,
    }
)
SUPPORTED: Final = (*UNARY, *BINARY, *COMPARE, np.square, np.power, np.remainder, np.matmul, np.positive)


def ufunc_result(ufunc: np.ufunc, operands: Sequence[object]) -> np.dtype[np.generic]:
    """Element type by NumPy's own promotion, Python numbers weak."""
    samples = [
        np.ones(1, dtype=x.dtype)
        if isinstance(x, TracedArray)
        else np.ones(1, dtype=x.dtype)
        if isinstance(x, np.ndarray) and x.ndim
        else x
        for x in operands
    ]
    try:
        with np.errstate(all="ignore"):
            dtype: np.dtype[np.generic] = np.asarray(ufunc(*samples)).dtype
    except TypeError as error:
        raise TraceError(place(), str(error)) from None
    return dtype


def ufunc(
    recorder: Recorder, function: np.ufunc, method: str, inputs: Sequence[object], options: Mapping[str, object]
) -> object:
    """`__array_ufunc__` of traced arrays."""
    rest = dict(options)
    out = rest.pop("out", None)
    target = out[0] if isinstance(out, tuple) else out
    if rest.pop("where", True) is not True:
        raise TraceError(place(), f"np.{function.__name__} with where= is not supported; use np.where")
    rest.pop("casting", None)
    dtype = rest.pop("dtype", None)
    if dtype is not None and method in ("reduce", "accumulate"):  # NumPy computes in it
        kind: np.dtype[np.generic] = np.dtype(str(np.dtype(dtype)))  # type: ignore[call-overload]
        inputs = [TracedArray.of(recorder, cast(recorder, view_of(recorder, inputs[0]), kind)), *inputs[1:]]
    if method == "__call__" and not rest and is_translated(function):
        result = _call(recorder, function, inputs)
    elif method == "reduce" and function in REDUCE:
        result = ufunc_reduce(recorder, function, inputs, rest)
    elif method == "outer" and len(inputs) == 2 and is_translated(function):
        left, right = view_of(recorder, inputs[0]), view_of(recorder, inputs[1])
        wide = insert_dimensions(left, range(len(left.shape), len(left.shape) + len(right.shape)))
        result = _call(recorder, function, [TracedArray.of(recorder, wide), TracedArray.of(recorder, right)])
    elif method == "reduceat" and function is np.add:
        from .gather import reduceat

        result = reduceat(recorder, *inputs, **rest)  # type: ignore[arg-type]
    elif method == "accumulate" and function is np.add:
        result = cumulative(recorder, inputs[0], int(str(rest.get("axis", 0))))
    else:
        name = f"np.{function.__name__}" + ("" if method == "__call__" else f".{method}")
        return note_unsupported(recorder, name, getattr(function, method), inputs, options)
    if dtype is not None:
        result = cast(recorder, result, np.dtype(str(np.dtype(dtype))))  # type: ignore[call-overload]
    if target is not None:
        if not isinstance(target, TracedArray):
            raise TraceError(place(), "out= is not a traced array; make it with np.empty_like")
        if not np.can_cast(recorder.dtype(result), target.dtype, "same_kind"):
            raise TraceError(
                place(),
                f"np.{function.__name__}: cannot write {recorder.dtype(result).name} into an array of "
                f"{target.dtype.name}",
            )
        written = cast(recorder, result, target.dtype)
        if target.scalar:
            return TracedArray.result(recorder, written)
        assign(target, TracedArray.of(recorder, written))
        return target
    return TracedArray.result(recorder, result)


def is_translated(function: np.ufunc) -> bool:
    """Whether there is a translation of its calls."""
    return function in UNARY or function in BINARY or function in COMPARE or function in OTHERS


def note_unsupported(
    recorder: Recorder,
    name: str,
    function: Callable[..., object],
    args: Sequence[object],
    options: Mapping[str, object],
) -> object:
    """Remember the function; go on with the shape that NumPy gives it, so that all such functions are found in one
    run.
    """
    recorder.miss(name)

    def sample(x: object) -> object:
        if isinstance(x, TracedArray):
            if x.size > 1 << 20:
                raise TraceError(place(), f"{name} is not supported")
            return np.ones(x.shape, dtype=x.dtype)
        return [sample(y) for y in x] if isinstance(x, (list, tuple)) else x

    try:
        with np.errstate(all="ignore"):
            result = function(*[sample(x) for x in args], **{k: sample(v) for k, v in options.items() if k != "out"})
    except (ValueError, TypeError, ArithmeticError, IndexError, np.linalg.LinAlgError):
        raise UnsupportedOperators(
            recorder.unsupported, HINT
        ) from None  # the shape of the result is unknown, so the trace ends here
    if isinstance(result, np.ndarray) and result.size:
        stand_in = recorder.emit(
            "iota", name, [Axis("i0", 1)], [], ["i0"], result.dtype, {"along": "i0", "start": 1, "step": 0}
        )
        return TracedArray.of(
            recorder, broadcast(stand_in, result.shape) if result.ndim else stand_in.map_dimensions((), [((), 0)])
        )
    return result


def _call(recorder: Recorder, function: np.ufunc, inputs: Sequence[object]) -> View:
    dtype = ufunc_result(function, inputs)
    base = function.__name__
    if function in (np.fmax, np.fmin):
        return _passing_nan(recorder, function, inputs, dtype)
    if function is np.reciprocal and dtype.kind != "f":
        raise TraceError(place(), "np.reciprocal of integers (0 beyond 1); cast to float first")
    if function is np.matmul:
        return matmul(recorder, *[cast(recorder, view_of(recorder, x), dtype) for x in inputs])
    if function in COMPARE:
        return _compare(recorder, function, inputs)
    if function in UNARY:
        if function is np.invert and dtype != bool:
            raise TraceError(place(), "~ is supported for boolean arrays only")
        view = view_of(recorder, inputs[0])
        return elementwise(
            recorder, UNARY[function], base, [view if function in LOGICAL else cast(recorder, view, dtype)], dtype
        )
    if function in (np.square, np.positive, np.log1p, np.expm1, np.rint):
        return _composed(recorder, function, cast(recorder, view_of(recorder, inputs[0]), dtype), dtype)
    numbers = [number(x) for x in inputs]
    if function in (np.power, np.float_power, np.remainder):
        return _with_number(recorder, function, inputs, numbers, dtype)
    if dtype.kind == "f" and function not in LOGICAL and any(n is not None for n in numbers):
        return _scalar(recorder, function, inputs, numbers, dtype)
    views = [view_of(recorder, x) for x in inputs]
    if function in (np.bitwise_and, np.bitwise_or) and dtype != bool:
        raise TraceError(place(), f"np.{base} is supported for boolean arrays only")
    if function not in LOGICAL:
        views = [cast(recorder, v, dtype) for v in views]
    return elementwise(recorder, BINARY[function], base, views, dtype)


def _compare(recorder: Recorder, function: np.ufunc, inputs: Sequence[object]) -> View:
    straight, exchanged = COMPARE[function]
    for j, name in ((1, straight), (0, exchanged)):
        value = number(inputs[j])
        if value is not None:
            return elementwise(
                recorder, name, straight, [view_of(recorder, inputs[1 - j])], np.dtype(bool), {"value": value + 0}
            )
    return elementwise(recorder, straight, straight, [view_of(recorder, x) for x in inputs], np.dtype(bool))


def _passing_nan(recorder: Recorder, function: np.ufunc, inputs: Sequence[object], dtype: np.dtype[np.generic]) -> View:
    """fmax, fmin: the other operand where one is NaN."""
    name = "maximum" if function is np.fmax else "minimum"
    x, y = (cast(recorder, view_of(recorder, v), dtype) for v in inputs)
    made = elementwise(recorder, name, function.__name__, [x, y], dtype)
    if dtype.kind == "f":
        for own, other in ((x, y), (y, x)):
            there = elementwise(recorder, "equal", function.__name__, [own, own], np.dtype(bool))
            made = elementwise(recorder, "where", function.__name__, [there, made, other], dtype)
    return made


def _scalar(
    recorder: Recorder,
    function: np.ufunc,
    inputs: Sequence[object],
    numbers: Sequence[Number | None],
    dtype: np.dtype[np.generic],
) -> View:
    """An array of floats and a number."""
    j = 0 if numbers[0] is None else 1
    x, found = cast(recorder, view_of(recorder, inputs[j]), dtype), numbers[1 - j]
    if found is None:
        raise TraceError(place(), "two arrays and no number")
    c, base = float(found), function.__name__

    def step(name: str, operand: View, **attributes: Value) -> View:
        return elementwise(recorder, name, base, [operand], dtype, attributes)

    if function is np.add:
        return step("shift", x, shift=c)
    if function is np.subtract:
        return step("shift", x, shift=-c) if j == 0 else step("shift", step("negate", x), shift=c)
    if function is np.multiply:
        return step("scale", x, scale=c)
    if function is np.divide:
        if j == 1:
            inverse = step("reciprocal", x)
            return inverse if c == 1.0 else step("scale", inverse, scale=c)
        if c == 0.0:
            raise TraceError(place(), "division by zero")
        return step("scale", x, scale=1.0 / c)
    if function is np.maximum:
        return step("relu", x) if c == 0.0 else step("clip", x, low=c)
    return step("clip", x, high=c)


def _with_number(
    recorder: Recorder,
    function: np.ufunc,
    inputs: Sequence[object],
    numbers: Sequence[Number | None],
    dtype: np.dtype[np.generic],
) -> View:
    """Powers and remainders: the right side must be a number (or the left side of a power)."""
    base = function.__name__
    if function is np.remainder:
        if numbers[1] is None or dtype.kind != "f":
            raise TraceError(place(), "np.remainder is supported for floats and a number on the right")
        x, c = cast(recorder, view_of(recorder, inputs[0]), dtype), float(numbers[1])
        return elementwise(recorder, "remainder", base, [x], dtype, {"value": c})
    if numbers[1] is not None:
        given = view_of(recorder, inputs[0])
        if recorder.dtype(given) == bool:
            raise TraceError(place(), "powers of truth values; cast to a number first")
        x = cast(recorder, given, dtype)
        if dtype.kind != "f" and numbers[1] != 2:
            raise TraceError(place(), "powers of integers are supported for exponent 2 only")
        if numbers[1] == 0.5 and x.shape:  # what NumPy computes of arrays: NaN of -inf
            return elementwise(recorder, "sqrt", base, [x], dtype)
        return elementwise(recorder, "power", base, [x], dtype, {"exponent": float(numbers[1])})
    if numbers[0] is not None and 0 < numbers[0] < inf and dtype.kind == "f":
        exponent = cast(recorder, view_of(recorder, inputs[1]), dtype)
        if numbers[0] == 1:  # to NaN, too
            return elementwise(recorder, "fill", base, [exponent], dtype, {"value": 1.0})
        y = elementwise(recorder, "scale", base, [exponent], dtype, {"scale": log(numbers[0])})
        y = elementwise(recorder, "exp", base, [y], dtype)
        return _whole_powers(recorder, base, exponent, y, dtype) if float(numbers[0]).is_integer() else y
    raise TraceError(place(), "np.power needs a number on one side")


def _whole_powers(recorder: Recorder, base: str, x: View, y: View, dtype: np.dtype[np.generic]) -> View:
    """y = c^x by logarithms for a whole number c: powers that are whole numbers exactly, with the gradient of y."""

    def step(name: str, *operands: View, dtype: np.dtype[np.generic] = dtype, **attributes: Value) -> View:
        return elementwise(recorder, name, base, operands, dtype, attributes)

    truth = np.dtype(bool)
    counts = step(
        "logical_and",
        step("equal", step("round", x), x, dtype=truth),
        step("greater_equal", x, dtype=truth, value=0.0),
        dtype=truth,
    )
    exact = step("logical_and", counts, step("less", y, dtype=truth, value=2.0**48), dtype=truth)
    missing = step("mask_fill", step("subtract", step("round", y), y), exact, value=0.0)
    return step("add", y, step("stop_gradient", missing))


def _composed(recorder: Recorder, function: np.ufunc, x: View, dtype: np.dtype[np.generic]) -> View:
    base = function.__name__
    if function is np.square:
        return elementwise(recorder, "power", base, [x], dtype, {"exponent": 2.0})
    if function is np.positive:
        return x
    if function is np.log1p:
        return elementwise(
            recorder, "log", base, [elementwise(recorder, "shift", base, [x], dtype, {"shift": 1.0})], dtype
        )
    if function is np.expm1:
        return elementwise(
            recorder, "shift", base, [elementwise(recorder, "exp", base, [x], dtype)], dtype, {"shift": -1.0}
        )
    raise TraceError(place(), f"np.{base} is not supported")

"""Between which numbers the elements of a tensor lie, as far as the operators that make them say,
known as interval analysis.

An index counts from the front here; PyTorch and NumPy count negative ones from the end.  What is shown to be at least
zero needs no remainder by the extent.  Integers that are shown to fit a narrower type need no cast to it.

Of floating-point numbers, which round, sums and products have a sign alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, inf, isfinite, isnan, prod
from types import MappingProxyType
from typing import Final

from ...program.graph import Tensor
from ...program.operators import Operator
from .exact import DIGITS, INTEGERS

Interval = tuple[float, float]
"""The least and the greatest; whole numbers of integers, infinite where nothing is known."""

ANY: Final = (-inf, inf)
_DEEP: Final = 64
"""Operators that are followed back."""


def of_type(dtype: str) -> Interval:
    """What an element type holds.

    >>> of_type("int8"), of_type("bool"), of_type("float32")
    ((-128, 127), (0, 1), (-inf, inf))
    """
    return (0, 1) if dtype == "bool" else INTEGERS.get(dtype, ANY)


def inside(interval: Interval, dtype: str) -> bool:
    """Whether an element type holds every number of an interval."""
    low, high = of_type(dtype)
    return low <= interval[0] and interval[1] <= high


def exactly(interval: Interval, dtype: str) -> bool:
    """Whether a floating-point type has every whole number of an interval."""
    most = 1 << DIGITS.get(dtype, 0)
    return -most <= interval[0] and interval[1] <= most


def _number(op: Operator, name: str, default: float | None = None) -> float | None:
    value = op.attribute(name, "")
    if not isinstance(value, (int, float)) or isnan(value):
        return default
    return int(value) if isfinite(value) and float(value).is_integer() else value


def _hull(*parts: Interval) -> Interval:
    return min(p[0] for p in parts), max(p[1] for p in parts)


def _plus(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _outward(a: Interval) -> Interval:
    return floor(a[0]) if isfinite(a[0]) else a[0], ceil(a[1]) if isfinite(a[1]) else a[1]


def _times(a: Interval, b: Interval) -> Interval:
    ends = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def _over(op: Operator, names: Sequence[str]) -> int:
    return prod(op.axis(n).extent for n in names)


def _each(op: Operator, r: Sequence[Interval]) -> Interval:
    return r[0]


def _sum(op: Operator, r: Sequence[Interval]) -> Interval:
    many = _over(op, [a.name for a in op.reduction_axes])
    by = _number(op, "scale", 1)
    return _times(_times(r[0], (many, many)), (by, by)) if by is not None else ANY


def _running(op: Operator, r: Sequence[Interval]) -> Interval:
    return _hull((0, 0), r[0], _times(r[0], (_over(op, op.over),) * 2))


def _scattered(op: Operator, r: Sequence[Interval]) -> Interval:
    return _hull((0, 0), _times(r[0], (_over(op, [a.name for a in op.reduction_axes]),) * 2))


def _picked(op: Operator, r: Sequence[Interval]) -> Interval:
    bags = _over(op, [a.name for a in op.reduction_axes if a.name != op.rows])
    return _hull((0, 0), _times(r[0], (bags, bags)))


def _copied(op: Operator, r: Sequence[Interval]) -> Interval:
    """The sum of what lies in range, of which parts side by side have one each, and nothing else."""
    total: Interval = (0, 0)
    for part in r:
        total = _plus(total, _hull((0, 0), part))
    return total


def _multiplied(op: Operator, r: Sequence[Interval]) -> Interval:
    many = _over(op, [a.name for a in op.reduction_axes])
    total: Interval = (many, many)
    for part in r:
        total = _times(total, part)
    return total


def _iota(op: Operator, r: Sequence[Interval]) -> Interval:
    start, step = _number(op, "start", 0), _number(op, "step", 1)
    if start is None or step is None:
        return ANY
    last = start + step * (op.axis(str(op.attribute("along", ""))).extent - 1)
    return min(start, last), max(start, last)


def _constant(op: Operator, r: Sequence[Interval]) -> Interval:
    values = op.attribute("values", ())
    whole = [v for v in values if isinstance(v, int)] if isinstance(values, tuple) else []
    return (min(whole), max(whole)) if whole and isinstance(values, tuple) and len(whole) == len(values) else ANY


def _by_number(name: str, combine: Callable[[Interval, Interval], Interval]) -> _Rule:
    def rule(op: Operator, r: Sequence[Interval]) -> Interval:
        by = _number(op, name)
        return ANY if by is None else combine(r[0], (by, by))

    return rule


def _clipped(op: Operator, r: Sequence[Interval]) -> Interval:
    low, high = _number(op, "low", -inf), _number(op, "high", inf)
    if low is None or high is None:
        return ANY
    return min(max(r[0][0], low), high), min(max(r[0][1], low), high)


def _size(op: Operator, r: Sequence[Interval]) -> Interval:
    low, high = r[0]
    return max(low, -high, 0), max(abs(low), abs(high))


def _power(op: Operator, r: Sequence[Interval]) -> Interval:
    exponent = _number(op, "exponent", 1)
    if exponent is None or not 0 < exponent < 64 or not float(exponent).is_integer() or not all(map(isfinite, r[0])):
        return ANY
    ends = [x ** int(exponent) for x in r[0]]
    return _hull((0, 0), (min(ends), max(ends)))


def _divisor(op: Operator, r: Sequence[Interval]) -> Interval:
    by = _number(op, "value", 1)
    return r[1] if len(r) > 1 else (by, by) if by is not None else ANY


def _rest(op: Operator, r: Sequence[Interval]) -> Interval:
    """Of the sign of the divisor, and smaller."""
    low, high = _divisor(op, r)
    return min(low, 0), max(high, 0)


def _cut_rest(op: Operator, r: Sequence[Interval]) -> Interval:
    """Of the sign of the dividend, and no larger."""
    return _hull((0, 0), r[0])


def _quotient(op: Operator, r: Sequence[Interval]) -> Interval:
    low, high = _divisor(op, r)
    if not low > 0 or not all(map(isfinite, r[0])):
        return (0, inf) if low > 0 and r[0][0] >= 0 else ANY
    return _hull(
        *((x // y, x // y) for x in r[0] for y in (low, high) if isfinite(y)), *([(-1, 0)] if high == inf else [])
    )


_Rule = Callable[[Operator, Sequence[Interval]], Interval]

_RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
        **dict.fromkeys(("cast", "identity", "stop_gradient", "max", "min"), _each),
        **dict.fromkeys(("floor", "ceil", "round", "trunc"), lambda op, r: _outward(r[0])),
        "argsort": lambda op, r: (0, _over(op, op.over) - 1),
        "abs": _size,
        "relu": lambda op, r: (max(r[0][0], 0), max(r[0][1], 0)),
        "negate": lambda op, r: (-r[0][1], -r[0][0]),
        "sign": lambda op, r: (-1 if r[0][0] < 0 else 0, 1 if r[0][1] > 0 else 0),
        "sum": _sum,
        "cumulative_sum": _running,
        "embedding": _picked,
        "scatter_add": _scattered,
        "copy": _copied,
        "update": lambda op, r: _hull(*r),
        "add": lambda op, r: _plus(r[0], r[1]),
        "sum_inputs": lambda op, r: (sum(x[0] for x in r), sum(x[1] for x in r)),
        "subtract": lambda op, r: _plus(r[0], (-r[1][1], -r[1][0])),
        "multiply": lambda op, r: _times(r[0], r[1]),
        "product": _multiplied,
        "minimum": lambda op, r: (min(r[0][0], r[1][0]), min(r[0][1], r[1][1])),
        "maximum": lambda op, r: (max(r[0][0], r[1][0]), max(r[0][1], r[1][1])),
        "where": lambda op, r: _hull(r[1], r[2]),
        "mask_fill": _by_number("value", lambda x, by: _hull(x, by)),
        "fill": _by_number("value", lambda x, by: by),
        "scale": _by_number("scale", _times),
        "shift": _by_number("shift", _plus),
        "clip": _clipped,
        "power": _power,
        "iota": _iota,
        "constant": _constant,
        "remainder": _rest,
        "fmod": _cut_rest,
        "floor_divide": _quotient,
    }
)
_ROUNDED: Final = frozenset(
    {"sum", "cumulative_sum", "embedding", "scatter_add", "copy", "add", "sum_inputs", "subtract", "multiply"}
    | {"product", "scale", "shift", "power", "remainder", "floor_divide"}
)
"""Functions that compute, and so round, floating-point numbers."""


def result_interval(op: Operator, reads: Sequence[Interval]) -> Interval:
    """Between which numbers an operator's results lie before an element type holds them."""
    rule = _RULES.get(op.function)
    low, high = ANY if rule is None else rule(op, reads)
    return (low, high) if low <= high else ANY


def stored_interval(interval: Interval, op: Operator, dtype: str) -> Interval:
    """Between which numbers they lie in it: integers that it does not hold wrap around."""
    low, high = interval
    if dtype in INTEGERS or dtype == "bool":
        low, high = _outward(interval)
        return (low, high) if inside((low, high), dtype) else of_type(dtype)
    if op.function in _ROUNDED or (op.function == "cast" and not exactly(interval, dtype)):
        return (0 if low >= 0 else -inf), (0 if high <= 0 else inf)
    return low, high


def interval(
    operators: Sequence[Operator],
    tensors: Mapping[str, Tensor],
    name: str,
    given: Mapping[str, Interval] = MappingProxyType({}),
) -> Interval:
    """Between which numbers the elements of a tensor lie; `given`: of some tensors that no operator makes.

    >>> from .builder import Builder
    >>> g = Builder("g")
    >>> place = g.iota("place", (4,), 0, dtype="int64")
    >>> twice = g.map("twice", "scale", place, dtype="int64", scale=2)
    >>> interval(g.operators, g.tensors, twice), interval(g.operators, g.tensors, g.input("i", (4,), "int8"))
    ((0, 6), (-128, 127))
    """
    writer = {op.output.tensor: op for op in operators}
    known: dict[str, Interval] = {}

    def of(tensor: str, depth: int) -> Interval:
        if tensor not in known:
            op, dtype = writer.get(tensor), tensors[tensor].dtype
            known[tensor] = given.get(tensor, of_type(dtype))
            if op is not None and op.function in _RULES and depth < _DEEP:
                reads = [of(a.tensor, depth + 1) for a in op.inputs]
                known[tensor] = _saturated(op, reads, tensors) or stored_interval(result_interval(op, reads), op, dtype)
        return known[tensor]

    return of(name, 0)


def _saturated(op: Operator, reads: Sequence[Interval], tensors: Mapping[str, Tensor]) -> Interval | None:
    """Of real numbers that become integers: the nearest there are, 0 for NaN."""
    dtype = tensors[op.output.tensor].dtype
    if op.function != "cast" or dtype not in INTEGERS or "float" not in tensors[op.inputs[0].tensor].dtype:
        return None
    low, high = INTEGERS[dtype]
    ends = [low if x <= low else high if x >= high else int(x) for x in reads[0]]
    return min(ends[0], 0), max(ends[1], 0)


def never_negative(operators: Sequence[Operator], tensors: Mapping[str, Tensor], name: str) -> bool:
    """Whether no element of an integer tensor can be negative.

    >>> from .builder import Builder
    >>> g = Builder("g")
    >>> place, given = g.iota("place", (4,), 0, dtype="int64"), g.input("i", (4,), "int64")
    >>> never_negative(g.operators, g.tensors, place), never_negative(g.operators, g.tensors, given)
    (True, False)
    """
    return interval(operators, tensors, name)[0] >= 0

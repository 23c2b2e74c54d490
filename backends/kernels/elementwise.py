"""Computes elementwise functions: one row per `map` name of the function table, y = f(x_1, .., x_n) point
by point.

    relu_gradient(g, x) = 0 where x <= 0, else g          (x: the input or the output of relu, the mask is the same)
    where(c, a, b)      = a where c != 0, else b
    batch_norm(x, gamma, beta, mean, variance) = (x - mean) / sqrt(variance + epsilon) * gamma + beta   (inference)
    silu(x)             = x sigmoid(x);  softplus(x) = log(1 + exp(x)), in the form that cannot overflow
    mask_fill(x, mask)  = x where mask != 0, else attribute `value`
    equal(x, y), ..     = a bool; with one operand the other is attribute `value`
    remainder(x, y)     = x - y floor(x / y);  fmod(x, y) = x - y trunc(x / y);  y as for equal
    gelu(x)             = x (1 + erf(x / sqrt 2)) / 2;  attribute approximate = "tanh": the tanh formula

NumPy has no erf.  In double precision `erf` is the rational approximation of fdlibm's s_erf.c (error below 1 ulp); in
single precision one quotient of polynomials for all arguments,

    erf(x) = x P(x^2) / Q(x^2),  |x| <= 4, and +-1 beyond;    | quotient / erf - 1 | <= 2.6e-8 before rounding

both evaluated on whole arrays with functions that cupy has too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, pi, sqrt
from types import MappingProxyType, ModuleType
from typing import Final

import numpy as np

from ...models.program.graph import ELEMENT_BYTES
from ...models.program.operators import Operator
from .blocks import Array, KernelError, execution_dtype

Elementwise = Callable[[ModuleType, Sequence[Array], Operator], Array]


def number(op: Operator, name: str, default: float) -> float:
    """A numeric attribute, a whole one that no float is as it stands; `KernelError` if it is something else."""
    value = op.attribute(name, default)
    if isinstance(value, (int, float)):
        return value if isinstance(value, int) and int(float(value)) != value else float(value)
    raise KernelError(f"operator {op.name!r}", f"attribute {name} must be a number, not {value!r}")


def fitting(x: Array, value: float) -> float:
    """A number as it meets an array: whole where both are, since floats do not tell integers beyond 2 to the 53 apart.

    >>> import numpy
    >>> fitting(numpy.zeros(2, "int64"), 3.0), fitting(numpy.zeros(2), 3.0)
    (3, 3.0)
    """
    whole = x.dtype.kind == "i" and x.dtype.itemsize == 8 and float(value).is_integer()
    return int(value) if whole and -(1 << 63) <= int(value) < 1 << 63 else value


def in_type_of(x: Array, value: float) -> float:
    """A whole number in the element type of integers, where it wraps around; every other as it is.

    >>> import numpy
    >>> int(in_type_of(numpy.zeros(2, "int8"), 200.0)), in_type_of(numpy.zeros(2), 200.0)
    (-56, 200.0)
    """
    if x.dtype.kind not in "iu" or not float(value).is_integer():
        return value
    bits = 8 * x.dtype.itemsize
    low = -(1 << bits - 1) if x.dtype.kind == "i" else 0
    return x.dtype.type((int(value) - low) % (1 << bits) + low)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    out = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        out = out * x + c
    return out


# fdlibm s_erf.c: numerators and denominators on |x| < 0.84375, < 1.25, < 1/0.35, beyond (lowest power first)
_ERX = 8.45062911510467529297e-01
_PP = (
    1.28379167095512558561e-01,
    -3.25042107247001499370e-01,
    -2.84817495755985104766e-02,
    -5.77027029648944159157e-03,
    -2.37630166566501626084e-05,
)
_QQ = (
    1.0,
    3.97917223959155352819e-01,
    6.50222499887672944485e-02,
    5.08130628187576562776e-03,
    1.32494738004321644526e-04,
    -3.96022827877536812320e-06,
)
_PA = (
    -2.36211856075265944077e-03,
    4.14856118683748331666e-01,
    -3.72207876035701323847e-01,
    3.18346619901161753674e-01,
    -1.10894694282396677476e-01,
    3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)
_QA = (
    1.0,
    1.06420880400844228286e-01,
    5.40397917702171048937e-01,
    7.18286544141962662868e-02,
    1.26171219808761642112e-01,
    1.36370839120290507362e-02,
    1.19844998467991074170e-02,
)
_RA = (
    -9.86494403484714822705e-03,
    -6.93858572707181764372e-01,
    -1.05586262253232909814e01,
    -6.23753324503260060396e01,
    -1.62396669462573470355e02,
    -1.84605092906711035994e02,
    -8.12874355063065934246e01,
    -9.81432934416914548592e00,
)
_SA = (
    1.0,
    1.96512716674392571292e01,
    1.37657754143519042600e02,
    4.34565877475229228821e02,
    6.45387271733267880336e02,
    4.29008140027567833386e02,
    1.08635005541779435134e02,
    6.57024977031928170135e00,
    -6.04244152148580987438e-02,
)
_RB = (
    -9.86494292470009928597e-03,
    -7.99283237680523006574e-01,
    -1.77579549177547519889e01,
    -1.60636384855821916062e02,
    -6.37566443368389627722e02,
    -1.02509513161107724954e03,
    -4.83519191608651397019e02,
)
_SB = (
    1.0,
    3.03380607434824582924e01,
    3.25792512996573918826e02,
    1.53672958608443695994e03,
    3.19985821950859553908e03,
    2.55305040643316442583e03,
    4.74528541206955367215e02,
    -2.24409524465858183362e01,
)


_P = (
    1.128379140874697,
    0.19344597696050062,
    0.05308696477615305,
    0.0038786268489729675,
    2.8438320608265233e-04,
    1.986556721911883e-06,
)
"""P and Q in single precision: weighted least squares towards the smallest relative error (Lawson's iteration, 50
digits, 300 Chebyshev points in x on [0, 4])."""
_Q = (
    1.0,
    0.5047696179036395,
    0.11530752336973771,
    0.015197875545240137,
    0.0011842833637760752,
    3.740823054486741e-05,
)


def _erf_single(xp: ModuleType, x: Array) -> Array:
    """Within 8 units of the last place (5.9 measured), in five arrays."""
    near = xp.clip(x, -4.0, 4.0)  # erf(4) rounds to 1
    square = near * near
    top, bottom = square * _P[-1], square * _Q[-1]
    for p, q in zip(_P[-2:0:-1], _Q[-2:0:-1], strict=True):
        top += p
        top *= square
        bottom += q
        bottom *= square
    top += _P[0]
    bottom += _Q[0]
    top *= near
    top /= bottom
    return xp.clip(top, -1.0, 1.0)  # type: ignore[no-any-return]


def erf(xp: ModuleType, x: Array) -> Array:
    """The error function, element by element.

    >>> import numpy
    >>> erf(numpy, numpy.array([0.0, 0.5, 3.0])).round(6).tolist()
    [0.0, 0.5205, 0.999978]
    """
    if x.dtype == "float32":
        return _erf_single(xp, x)
    near_x = xp.clip(x, -6.0, 6.0)  # erf(6) rounds to 1
    size = xp.abs(near_x)
    small = size * size
    near = near_x + near_x * _polynomial(small, _PP) / _polynomial(small, _QQ)
    s = size - 1.0
    middle = _ERX + _polynomial(s, _PA) / _polynomial(s, _QA)
    large = xp.maximum(size, 1.25)
    t = 1.0 / (large * large)
    ratio = xp.where(
        large < 1 / 0.35, _polynomial(t, _RA) / _polynomial(t, _SA), _polynomial(t, _RB) / _polynomial(t, _SB)
    )
    far = 1.0 - xp.exp(-large * large - 0.5625 + ratio) / large
    tail = xp.sign(x) * xp.where(size < 1.25, middle, far)
    return xp.where(xp.isnan(x), x, xp.where(size < 0.84375, near, tail)).astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def _gelu(xp: ModuleType, x: Array, op: Operator) -> Array:
    if op.attribute("approximate", "none") == "tanh":
        return 0.5 * x * (1.0 + xp.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))  # type: ignore[no-any-return]
    out = erf(xp, x * sqrt(0.5))
    out += 1.0
    out *= x
    out *= 0.5
    return out


def _sum_inputs(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    out = a[0]
    for x in a[1:]:
        out = out + x
    return out


def _bounded(xp: ModuleType, x: Array, op: Operator) -> Array:
    low, high = (fitting(x, number(op, n, default)) for n, default in (("low", -inf), ("high", inf)))
    if isinstance(low, float) and isinstance(high, float):
        return xp.clip(x, low, high).astype(x.dtype, copy=False)  # type: ignore[no-any-return]
    x = x if low == -inf else xp.maximum(x, low).astype(x.dtype, copy=False)
    return x if high == inf else xp.minimum(x, high).astype(x.dtype, copy=False)


def sigmoid(xp: ModuleType, x: Array) -> Array:
    """1 / (1 + exp(-x)), in the form that cannot overflow, exact to the last places also where it is small.

    >>> import numpy
    >>> sigmoid(numpy, numpy.array([-800.0, -50.0, 0.0])).tolist()
    [0.0, 1.9287498479639178e-22, 0.5]
    """
    less = xp.exp(-xp.abs(x))
    return xp.where(x < 0, less, xp.asarray(1, dtype=x.dtype)) / (1 + less)  # type: ignore[no-any-return]


def _cast(xp: ModuleType, x: Array, op: Operator) -> Array:
    dtype = str(op.attribute("dtype", ""))
    if dtype not in ELEMENT_BYTES:
        raise KernelError(f"operator {op.name!r}", f"attribute dtype must be an element type, not {dtype!r}")
    kind = execution_dtype(dtype)
    return saturate(xp, x, kind) if x.dtype.kind == "f" and kind.startswith(("int", "uint")) else x.astype(kind)


def saturate(xp: ModuleType, x: Array, dtype: str) -> Array:
    """Real numbers as integers, towards zero; the nearest there is where x lies beyond them, 0 for NaN: as XLA and
    CUDA have it.

    >>> import numpy
    >>> saturate(numpy, numpy.array([numpy.nan, 3e9, -1.5]), "int32").tolist()
    [0, 2147483647, -1]
    """
    ends = xp.iinfo(dtype)
    low, high = float(ends.min), float(ends.max)
    wide = xp.where(xp.isnan(x), 0.0, x.astype("float64"))
    whole = xp.where((wide > low) & (wide < high), wide, 0.0).astype(dtype)
    ended = xp.where(wide >= high, xp.asarray(ends.max, dtype), xp.asarray(ends.min, dtype))
    return xp.where((wide > low) & (wide < high), whole, ended)  # type: ignore[no-any-return]


def _fill(xp: ModuleType, x: Array, mask: Array, op: Operator) -> Array:
    return xp.where(mask != 0, x, xp.asarray(in_type_of(x, number(op, "value", 0.0)), dtype=x.dtype))  # type: ignore[no-any-return]


def _power(xp: ModuleType, x: Array, op: Operator) -> Array:
    exponent = number(op, "exponent", 1.0)
    if exponent == 2.0:  # squares are exact to the last place, and by far the most frequent
        return x * x
    if exponent == 0.5:  # a root, but for -inf, of which NumPy makes NaN
        return xp.where(x == -inf, inf, xp.sqrt(x)).astype(x.dtype, copy=False)  # type: ignore[no-any-return]
    counts = x.dtype.kind in "iu" and exponent >= 0 and float(exponent).is_integer()
    return (x ** (int(exponent) if counts else exponent)).astype(x.dtype, copy=False)


def _scaled(x: Array, factor: float) -> Array:
    """x times a number, in the element type of x: whole numbers times a whole number stay exact."""
    return x * in_type_of(x, factor)


def _remainder(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    """Of whole numbers that are all below the divisor, themselves: two passes in place of a division each."""
    divisor = _divisor(xp, a, op)
    whole = xp is np and divisor.ndim == 0 and a[0].dtype.kind in "iu" and a[0].size > 0
    if whole and a[0].min() >= 0 and a[0].max() < divisor:
        return a[0]
    return xp.remainder(a[0], divisor)  # type: ignore[no-any-return]


def _divisor(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    """The second operand, or the attribute `value` in the element type of the first."""
    return a[1] if len(a) > 1 else xp.asarray(in_type_of(a[0], number(op, "value", 1.0)), dtype=a[0].dtype)


def _compared(name: str) -> Elementwise:
    """NumPy's comparison `name`, the second operand possibly the attribute `value`."""

    def compare(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
        if len(a) > 1:
            return getattr(xp, name)(a[0], a[1])  # type: ignore[no-any-return]
        value = number(op, "value", 0.0)
        exact = isinstance(op.attribute("value", 0.0), int)
        return getattr(xp, name)(a[0], fitting(a[0], value) if exact else value)  # type: ignore[no-any-return]

    return compare


def where_allowed(update: Elementwise, operands: int) -> Elementwise:
    """An update of its first operand, which stays where a truth value after the `operands` others is false."""

    def conditional(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
        new = update(xp, a[:operands], op)
        return new if len(a) == operands else xp.where(a[operands], new, a[0])

    return conditional


def _where_positive(xp: ModuleType, g: Array, x: Array) -> Array:
    """g, but 0 where x <= 0.  Bits of g are kept or cleared on the host, where choosing takes 13 times as long."""
    if xp is not np or g.dtype.name not in ("float32", "float64"):
        return xp.where(x <= 0, xp.zeros((), dtype=g.dtype), g)  # type: ignore[no-any-return]
    whole = g.dtype.str.replace("f", "i")
    kept = np.subtract(np.less_equal(x, 0).view(np.int8), 1, dtype=whole)  # all bits, or none
    return np.asarray(kept & g.view(whole)).view(g.dtype)


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

MAPS: Final = MappingProxyType[str, Elementwise](
    {
        "relu": lambda xp, a, op: xp.maximum(a[0], 0),
        "negate": lambda xp, a, op: -a[0],
        "identity": lambda xp, a, op: a[0],
        "to_host": lambda xp, a, op: a[0],  # of ranks that are on a host: `backends.verbs.run` refuses others
        "from_host": lambda xp, a, op: a[0],
        "stop_gradient": lambda xp, a, op: a[0],
        "relu_gradient_mask": lambda xp, a, op: (a[0] > 0).astype(a[0].dtype, copy=False),
        "scale": lambda xp, a, op: _scaled(a[0], number(op, "scale", 1.0)),
        "tanh": lambda xp, a, op: xp.tanh(a[0]),
        "sigmoid": lambda xp, a, op: sigmoid(xp, a[0]),
        "exp": lambda xp, a, op: xp.exp(a[0]),
        "erf": lambda xp, a, op: erf(xp, a[0]),
        "sqrt": lambda xp, a, op: xp.sqrt(a[0]),
        "rsqrt": lambda xp, a, op: 1 / xp.sqrt(a[0]),
        "log": lambda xp, a, op: xp.log(a[0]),
        "cos": lambda xp, a, op: xp.cos(a[0]),
        "sin": lambda xp, a, op: xp.sin(a[0]),
        "atan": lambda xp, a, op: xp.arctan(a[0]),
        "abs": lambda xp, a, op: xp.abs(a[0]),
        "sign": lambda xp, a, op: xp.sign(a[0]),
        "floor": lambda xp, a, op: xp.floor(a[0]),
        "ceil": lambda xp, a, op: xp.ceil(a[0]),
        "round": lambda xp, a, op: xp.rint(a[0]),
        "trunc": lambda xp, a, op: xp.trunc(a[0]),
        "remainder": lambda xp, a, op: _remainder(xp, a, op),
        "fmod": lambda xp, a, op: xp.fmod(a[0], _divisor(xp, a, op)),
        "reciprocal": lambda xp, a, op: 1 / a[0],
        "shift": lambda xp, a, op: (a[0] + in_type_of(a[0], number(op, "shift", 0.0))).astype(a[0].dtype, copy=False),
        "clip": lambda xp, a, op: _bounded(xp, a[0], op),
        "cast": lambda xp, a, op: _cast(xp, a[0], op),
        "power": lambda xp, a, op: _power(xp, a[0], op),
        "softplus": lambda xp, a, op: xp.maximum(a[0], 0) + xp.log1p(xp.exp(-xp.abs(a[0]))),
        "silu": lambda xp, a, op: a[0] * sigmoid(xp, a[0]),
        "gelu": lambda xp, a, op: _gelu(xp, a[0], op),
        "add": lambda xp, a, op: a[0] + a[1],
        "subtract": lambda xp, a, op: a[0] - a[1],
        "multiply": lambda xp, a, op: a[0] * a[1],
        "divide": lambda xp, a, op: a[0] / a[1],
        "maximum": lambda xp, a, op: xp.maximum(a[0], a[1]),
        "minimum": lambda xp, a, op: xp.minimum(a[0], a[1]),
        "mask_fill": lambda xp, a, op: _fill(xp, a[0], a[1], op),
        **{name: _compared(name) for name in (*_COMPARISONS, "logical_and", "logical_or")},
        "floor_divide": lambda xp, a, op: xp.floor_divide(a[0], _divisor(xp, a, op)),
        "logical_not": lambda xp, a, op: xp.logical_not(a[0]),
        "relu_gradient": lambda xp, a, op: _where_positive(xp, a[0], a[1]),
        "where": lambda xp, a, op: xp.where(a[0] != 0, a[1], a[2]),
        "fused_scale_shift": lambda xp, a, op: a[0] * a[1] + a[2],
        "batch_norm": lambda xp, a, op: (a[0] - a[3]) / xp.sqrt(a[4] + number(op, "epsilon", 1e-5)) * a[1] + a[2],
        "sum_inputs": _sum_inputs,
        "sgd_update": where_allowed(lambda xp, a, op: a[0] - number(op, "rate", 0.01) * a[1], 2),
    }
)
"""Name -> function of (xp, operands aligned to the output axes, operator).  A test holds it equal to the function
table.
"""

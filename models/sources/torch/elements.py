"""Translates core ATen operators that are a few elementwise operators here, or a few steps of them.

elu(x)             scale relu(x) + alpha scale (exp(a min(x, 0)) - 1)
leaky_relu(x)      relu(x) + slope min(x, 0), whose gradient at 0 is the slope
logsigmoid(x)      -softplus(-x)
logit(x)           2 (log sqrt x - log sqrt(1 - x)), whose gradient outside of [0, 1] is NaN as well
hardsigmoid(x)     min(max(x + 3, 0), 6) / 6, and hardswish x times that; no gradient of it at -3 and 3
expm1, log2, tan, atanh, ..   by exp, log, sin, cos
sinh, cosh         (e^(x/2) e^(x/2) -+ e^(-x/2) e^(-x/2)) / 2, which is finite wherever they are, and so are their
                   gradients, as every e^(x/2) is an operator of its own
asinh(x)           log(y + sqrt(y^2 + 1)), y = x cut to [-1, 1], and with z = max(|x|, 1), where no square overflows and
                   nothing cancels, sign(x) (log z + log(1 + sqrt(1 + z^-2)) - asinh 1)
acosh(x)           log x + log(1 + sign(x) sqrt(1 - x^-2)), whose gradient below -1 is PyTorch's, of a NaN
isinf(x)           |x| = inf
cumprod            y[i] = y[i] y[i - 2^k], k = 0, 1, ..;   prod multiplies halves
cdist(x, y)        (sum |x - y|^2)^(1/2)
xlogy(x, y)        x log y, and 0 where x = 0 and y is no positive number
"""

from __future__ import annotations

from collections.abc import Callable
from math import asinh, inf, log, pi, sqrt

import numpy as np

from ...program.operators import Value
from ..building.exact import INTEGERS
from ..building.flat import Folding, Unsupported, concatenate, part_of, pointwise, reduce_dimensions
from .context import Constant, Context, Handler, Node, Ref, dimension
from .pointwise import power as pointwise_power
from .pointwise import spread
from .promoted import cast

Step = Callable[..., str]
"""Adds an elementwise operator over tensors of the node's shape."""


def _start(c: Context, node: Node) -> tuple[str, Step]:
    """The operand in the element type of the result, and a function that adds operators over its shape."""
    x = node.ref("self")
    tensor, shape = c.operand(cast(c, node, x, node.dtype) or x)

    def step(function: str, *tensors: str, part: str | None = None, **attributes: Value) -> str:
        return pointwise(
            c, node, function if part is None else part, function, [(t, shape) for t in tensors], None, **attributes
        )

    return tensor, step


def elu(c: Context, node: Node) -> None:
    """elu with alpha, scale and input_scale (celu and selu become it)."""
    x, step = _start(c, node)
    alpha, scale, steep = (node.number(k, 1.0) for k in ("alpha", "scale", "input_scale"))
    up, down = step("relu", x), step("clip", x, low=-inf, high=0.0)
    if steep != 1.0:
        down = step("scale", down, part="steep", scale=steep)
    down = step("shift", step("exp", down), shift=-1.0)
    if alpha * scale != 1.0:
        down = step("scale", down, part="alpha", scale=alpha * scale)
    if scale != 1.0:
        up = step("scale", up, scale=scale)
    c.put(node, step("add", up, down, part=""))


def leaky(c: Context, node: Node) -> None:
    """leaky_relu."""
    x, step = _start(c, node)
    low = step("scale", step("clip", x, high=0.0), scale=node.number("negative_slope", 0.01))
    c.put(node, step("add", step("relu", x), low, part=""))


def log_sigmoid(c: Context, node: Node) -> None:
    """log_sigmoid_forward; its buffer is for the backward pass alone."""
    c.require_unused(node, 1)
    x, step = _start(c, node)
    c.put(node, step("negate", step("softplus", step("negate", x, part="opposite")), part=""))


def sign(c: Context, node: Node) -> None:
    """sign, which PyTorch has at 0 for NaN as well."""
    x = c.operand(node.ref("self"))
    real = c.dtypes[node.ref("self")].startswith(("float", "bfloat"))
    y = pointwise(c, node, "sign" if real else "", "sign", [x], node.dtype)
    if real:
        number = pointwise(c, node, "number", "equal", [x, x], "bool"), x[1]
        y = pointwise(c, node, "", "mask_fill", [(y, x[1]), number], node.dtype, value=0.0)
    c.put(node, y)


def sinc(c: Context, node: Node) -> None:
    """sinc(x) = sin(pi x) / (pi x), and at 0 one, without a gradient: there nothing is divided by 0."""
    x, step = _start(c, node)
    away = pointwise(c, node, "away", "not_equal", [(x, node.shape)], "bool", value=0.0)
    angle = step("mask_fill", step("scale", x, scale=pi), away, part="angle", value=1.0)
    c.put(node, step("mask_fill", step("divide", step("sin", angle), angle), away, part="", value=1.0))


def logit(c: Context, node: Node) -> None:
    """logit, of numbers that are first moved into [eps, 1 - eps] where `eps` is given."""
    x, step = _start(c, node)
    eps = node.number("eps", -1.0)
    if eps > 0.5:
        raise Unsupported(f"eps={eps:g} (at most 0.5)")
    if eps >= 0.0:
        x = step("clip", x, low=eps, high=1.0 - eps)
    more = step("log", step("sqrt", x, part="root"))
    rest = step("shift", step("negate", x), part="rest", shift=1.0)
    less = step("log", step("sqrt", rest, part="rest_root"), part="rest_log")
    c.put(node, step("scale", step("subtract", more, less), part="", scale=2.0))


def hard_gate(c: Context, node: Node) -> None:
    """hardsigmoid, hardswish."""
    x, step = _start(c, node)
    gate = step("clip", step("shift", x, shift=3.0), low=0.0, high=6.0, tie=0.0)
    if "hardswish" in node.kind:
        gate = step("multiply", x, gate)
    c.put(node, step("scale", gate, part="", scale=1.0 / 6.0))


def _of_exponentials(function: str) -> Handler:
    def convert(c: Context, node: Node) -> None:
        x, step = _start(c, node)
        # one exponential squared would have the gradient e^x, which may be infinite
        factors = [step("exp", step("scale", x, scale=scale)) for scale in (0.5, 0.5, -0.5, -0.5)]
        more, less = (step("multiply", step("scale", a, scale=0.5), b) for a, b in (factors[:2], factors[2:]))
        c.put(node, step(function, more, less, part=""))

    return convert


def less_one(c: Context, node: Node) -> None:
    """expm1: exp(x) - 1."""
    x, step = _start(c, node)
    c.put(node, step("shift", step("exp", x), part="", shift=-1.0))


def _logarithm(base: float) -> Handler:
    def convert(c: Context, node: Node) -> None:
        x, step = _start(c, node)
        c.put(node, step("scale", step("log", x), part="", scale=1.0 / log(base)))

    return convert


def tangent(c: Context, node: Node) -> None:
    """tan: sin / cos."""
    x, step = _start(c, node)
    c.put(node, step("divide", step("sin", x), step("cos", x), part=""))


def area_sine(c: Context, node: Node) -> None:
    """asinh: see above."""
    x, step = _start(c, node)
    near = step("clip", x, part="near", low=-1.0, high=1.0)
    square = step("shift", step("power", near, exponent=2.0), shift=1.0)
    inner = step("log", step("add", near, step("sqrt", square)), part="inner")
    far = step("clip", step("abs", x), part="far", low=1.0, tie=0.0)
    small = step("power", step("reciprocal", far), part="small", exponent=2.0)
    more = step("shift", step("sqrt", step("shift", small, part="more", shift=1.0)), part="more", shift=1.0)
    outer = step("add", step("log", far), step("log", more), part="outer")
    beyond = step("shift", outer, part="beyond", shift=-asinh(1.0))
    c.put(node, step("add", inner, step("multiply", step("sign", x), beyond), part=""))


def area_cosine(c: Context, node: Node) -> None:
    """acosh: see above."""
    x, step = _start(c, node)
    square = step("power", step("reciprocal", x), part="small", exponent=2.0)
    root = step("sqrt", step("shift", step("negate", square), part="less", shift=1.0), part="root")
    more = step("shift", step("multiply", step("sign", x), root), part="more", shift=1.0)
    c.put(node, step("add", step("log", x), step("log", more), part=""))


def area_tangent(c: Context, node: Node) -> None:
    """atanh: (log(1 + x) - log(1 - x)) / 2."""
    x, step = _start(c, node)
    above = step("log", step("shift", x, part="above", shift=1.0), part="log_above")
    below = step("log", step("shift", step("negate", x), part="below", shift=1.0), part="log_below")
    c.put(node, step("scale", step("subtract", above, below), part="", scale=0.5))


def arc(c: Context, node: Node) -> None:
    """With s = sqrt(1 - x) and m = sqrt(1 + x), s^2 + m^2 = 2:  asin(x) = 2 atan(x / (1 + s m)) and
    acos(x) = 4 atan(s / (m + sqrt 2)).  No divisor is 0, so that the derivatives at -1 and 1 are infinite and not NaN.
    """
    x, step = _start(c, node)
    s = step("sqrt", step("shift", step("negate", x), part="less", shift=1.0), part="less_root")
    m = step("sqrt", step("shift", x, part="more", shift=1.0), part="more_root")
    acos = "acos" in node.kind
    base = step("shift", m, shift=sqrt(2.0)) if acos else step("shift", step("multiply", s, m), shift=1.0)
    angle = step("atan", step("divide", s if acos else x, base))
    c.put(node, step("scale", angle, part="", scale=4.0 if acos else 2.0))


def infinite(c: Context, node: Node) -> None:
    """isinf of floating-point numbers."""
    x = node.ref("self")
    if not c.dtypes[x].startswith(("float", "bfloat")):
        c.fill(node, 0.0)
        return
    tensor, shape = c.operand(x)
    size = pointwise(c, node, "abs", "abs", [(tensor, shape)])
    c.put(node, pointwise(c, node, "", "equal", [(size, shape)], value=inf))


def either(c: Context, node: Node) -> None:
    """logical_xor, and bitwise_xor of masks."""
    if node.dtype != "bool" or any(c.dtypes[node.ref(k)] != "bool" for k in ("self", "other")):
        raise Unsupported("integers")
    c.put(node, pointwise(c, node, "", "not_equal", [c.operand(node.ref(k)) for k in ("self", "other")]))


def _slice(c: Context, node: Node, part: str, tensor: str, k: int, low: int, count: int) -> str:
    shape = c.g.tensors[tensor].shape
    return part_of(c, node, part, tensor, [*shape[:k], count, *shape[k + 1 :]], {k: (1, low)})


def _times(c: Context, node: Node, a: str, b: str) -> str:
    return pointwise(c, node, "multiply", "multiply", [(t, c.g.tensors[t].shape) for t in (a, b)], _whole_type(node))


def _whole_type(node: Node) -> str | None:
    """The element type of the result, if it is one of integers: what fits a narrower one may be in a wider one."""
    return node.dtype if node.dtype in INTEGERS else None


def running_product(c: Context, node: Node) -> None:
    """cumprod along one dimension."""
    y, _ = _start(c, node)
    k, by = dimension(node, node.integer("dim", 0), len(node.shape)), 1
    n = node.shape[k]
    while by < n:
        later, earlier = _slice(c, node, "later", y, k, by, n - by), _slice(c, node, "earlier", y, k, 0, n - by)
        y = concatenate(c, node, "", [_slice(c, node, "done", y, k, 0, by), _times(c, node, later, earlier)], k)
        by *= 2
    c.put(node, y)


def whole_product(c: Context, node: Node) -> None:
    """prod over one dimension, or all."""
    y, _ = _start(c, node)
    given = node.arguments.get("dim")
    if given is None:
        y = c.view(node, "flat", y, (c.g.tensors[y].elements,))
    k = 0 if given is None else dimension(node, node.integer("dim", 0), len(c.g.tensors[y].shape))
    while (n := c.g.tensors[y].shape[k]) > 1:
        half = n // 2
        rest = [_slice(c, node, "rest", y, k, 2 * half, 1)] if n % 2 else []
        both = _times(c, node, _slice(c, node, "first", y, k, 0, half), _slice(c, node, "second", y, k, half, half))
        y = concatenate(c, node, "", [both, *rest], k) if rest else both
    c.put(node, c.view(node, "drop", y, node.shape or (1,)))


def distances(c: Context, node: Node) -> None:
    """_cdist_forward with p = 2, whose gradient is 0 where points agree."""
    if node.number("p", 2.0) != 2.0:
        raise Unsupported(f"p={node.number('p', 2.0):g}")
    (x, left), (y, right) = (c.operand(node.ref(k)) for k in ("x1", "x2"))
    rows, columns = (*left[:-1], 1, left[-1]), (*right[:-2], 1, *right[-2:])
    x, y = c.view(node, "rows", x, rows), c.view(node, "columns", y, columns)
    apart = pointwise(c, node, "apart", "subtract", [(x, rows), (y, columns)])
    shape = c.g.tensors[apart].shape
    square = pointwise(c, node, "square", "power", [(apart, shape)], exponent=2.0)
    total = reduce_dimensions(c, node, "sum", square, shape, [len(shape) - 1], Folding("sum"))
    c.put(node, pointwise(c, node, "", "sqrt", [(total, node.shape)], flat=1))


def times_logarithm(c: Context, node: Node) -> None:
    """xlogy: where nothing is multiplied by the logarithm of what has none, that is 0."""
    x, y = node.ref("self"), node.arguments["other"]
    left = c.operand(cast(c, node, x, node.dtype) or x)
    if not isinstance(y, Ref):
        if not (number := node.number("other", 1.0)) > 0.0:
            raise Unsupported(f"other={number:g}")
        c.put(node, spread(c, node, pointwise(c, node, "", "scale", [left], node.dtype, scale=log(number)), left[1]))
        return
    right = c.operand(cast(c, node, y, node.dtype) or y)
    something = pointwise(c, node, "something", "not_equal", [left], "bool", value=0.0), left[1]
    ends = {"positive": ("greater", 0.0), "finite": ("not_equal", inf)}
    more, less = ((pointwise(c, node, p, f, [right], "bool", value=v), right[1]) for p, (f, v) in ends.items())
    usual = pointwise(c, node, "usual", "logical_and", [more, less], "bool"), right[1]
    no_number = pointwise(c, node, "nan", "not_equal", [right, right], "bool"), right[1]
    usual = pointwise(c, node, "known", "logical_or", [usual, no_number], "bool"), right[1]
    kept = pointwise(c, node, "kept", "logical_or", [something, usual], "bool")
    logarithm = pointwise(c, node, "log", "log", [right], node.dtype), right[1]
    shape = c.g.tensors[kept].shape
    chosen = pointwise(c, node, "chosen", "mask_fill", [logarithm, (kept, shape)], node.dtype, value=0.0), shape
    c.put(node, spread(c, node, pointwise(c, node, "", "multiply", [left, chosen], node.dtype), shape))


def power(c: Context, node: Node) -> None:
    """pow by a number, of known positive numbers, and by known whole exponents (squares of squares, chosen by bits)."""
    base, exponent = node.arguments["self"], node.arguments["exponent"]
    known, whole = c.constant_of(base), c.constant_of(exponent)
    if isinstance(base, Ref) and c.uniform(exponent) is not None:
        pointwise_power(c, node)
    elif isinstance(exponent, Ref) and known is not None and bool(np.all(known == 1)) and "int" not in node.dtype:
        c.fill(node, 1.0)
    elif isinstance(exponent, Ref) and known is not None and _has_logarithm(known) and "int" not in node.dtype:
        logs = Ref(f"{node.name}/log")
        c.constants[logs] = np.log(known.astype("float64"))
        c.shapes[logs], c.dtypes[logs] = known.shape, node.dtype
        y = c.operand(cast(c, node, exponent, node.dtype) or exponent)
        turned = pointwise(c, node, "logarithm", "multiply", [y, c.operand(logs)])
        c.put(node, pointwise(c, node, "", "exp", [(turned, node.shape)]))
    elif isinstance(base, Ref) and whole is not None and _counts(whole):
        square, total, bits = c.operand(cast(c, node, base, node.dtype) or base), None, whole.astype("int64")
        element = _whole_type(node)
        for bit in range(int(bits.max()).bit_length()):
            if bit:
                square = pointwise(c, node, "square", "power", [square], element, exponent=2.0), square[1]
            mask = Ref(f"{node.name}/bit{bit}")
            c.constants[mask] = (bits >> bit) % 2 == 1
            c.shapes[mask], c.dtypes[mask] = bits.shape, "bool"
            factor = pointwise(c, node, "factor", "mask_fill", [square, c.operand(mask)], value=1.0), node.shape
            total = (
                factor if total is None else (pointwise(c, node, "", "multiply", [total, factor], element), node.shape)
            )
        if total is None:
            c.fill(node, 1.0)
        else:
            c.put(node, total[0])
    else:
        raise Unsupported("a computed exponent of a base that may be negative (write exp(y * log(x)))")


def _has_logarithm(base: Constant) -> bool:
    """Whether base ** y is exp(y log base) for every y, NaN and infinities among them: 1 ** NaN is 1."""
    number = np.asarray(base, dtype=np.float64)
    return bool(np.all((number > 0) & (number != 1) & np.isfinite(number)))


def _counts(exponent: Constant) -> bool:
    """Whether all are whole numbers from 0 to 65535."""
    number = np.asarray(exponent, dtype=np.float64)
    return bool(np.all((number >= 0) & (number < 1 << 16) & (number == np.floor(number))))


HANDLERS: dict[str, Handler] = {
    "pow": power,
    "elu": elu,
    "leaky_relu": leaky,
    "log_sigmoid_forward": log_sigmoid,
    "logit": logit,
    "sinc": sinc,
    "sign": sign,
    **dict.fromkeys(("hardsigmoid", "hardswish"), hard_gate),
    "expm1": less_one,
    "log2": _logarithm(2.0),
    "log10": _logarithm(10.0),
    "tan": tangent,
    "sinh": _of_exponentials("subtract"),
    "cosh": _of_exponentials("add"),
    "asinh": area_sine,
    "acosh": area_cosine,
    "atanh": area_tangent,
    **dict.fromkeys(("asin", "acos"), arc),
    "isinf": infinite,
    **dict.fromkeys(("logical_xor", "bitwise_xor"), either),
    "cumprod": running_product,
    "prod": whole_product,
    "_cdist_forward": distances,
    "xlogy": times_logarithm,
}

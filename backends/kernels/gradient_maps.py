"""Computes elementwise functions of training: local gradients, losses, optimizer updates.

`g` is the incoming gradient and comes first.  Kinks follow PyTorch: see `models.sources.training.maps`.

    gelu_gradient(g, x)     g (Phi(x) + x phi(x));  attribute approximate = "tanh": the derivative of the tanh formula
    silu_gradient(g, x)     g s (1 + x (1 - s)),  s = sigmoid(x)
    clip_gradient(g, x)     g where low < x < high, tie g where x = low or x = high;  attribute tie: 1
    maximum_gradient(g, x, y)   g where x > y, tie g where x = y;  attribute tie: 1/2        (minimum_gradient: <)
                            of NaN both pass g where ties are divided, nothing where one operand has them
    abs_gradient(g, x)      g sign(x), 0 of NaN
    power_gradient(g, x)    g e x^(e - 1), 0 for e = 0;  attribute flat = 1: 0 where x = 0 (norms)
    divide_gradient(g, q, y)    - g q / y,  q = x / y
    sqrt_gradient(g, y)     g / 2 y;  attribute flat = 1: 0 where y = 0 (norms)
    remainder_gradient(g, x, y)   - g floor(x / y)           fmod_gradient(g, x, y)   - g trunc(x / y)
    adam_moment1(m, g)      b1 m + (1 - b1) g          adam_moment2(v, g)    b2 v + (1 - b2) g^2
    adam_update(w, m, v)    w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon),   m, v: the new moments, t =
                            step;  adamw_update: w (1 - rate decay) in the place of w
    lion_update(w, m, g)    w (1 - rate decay) - rate sign(b1 m + (1 - b1) g)
    momentum(m, g)          momentum m + g              decayed_gradient(g, w)    g + decay w
                            updates and moments take a truth value last: where it is false their first operand stays
    clip_factor(n2)         min(1, clip / (sqrt(n2) + 1e-6)),   n2: sum of the squares of all gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, pi, sqrt
from types import MappingProxyType, ModuleType
from typing import Final

from ...models.program.operators import Operator
from .blocks import Array
from .elementwise import Elementwise, erf, number, sigmoid, where_allowed


def _gelu(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    g, x = a
    if op.attribute("approximate", "none") == "tanh":
        c = sqrt(2 / pi)
        t = xp.tanh(c * (x + 0.044715 * x * x * x))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x))  # type: ignore[no-any-return]
    below = erf(xp, x * sqrt(0.5))
    below += 1.0
    below *= 0.5
    density = x * x
    density *= -0.5
    density = xp.exp(density)
    density *= x
    density *= 1 / sqrt(2 * pi)
    below += density
    return g * below


def _silu(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    g, x = a
    s = sigmoid(xp, x)
    return g * s * (1 + x * (1 - s))


def _clip(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    g, x = a
    low, high = number(op, "low", -inf), number(op, "high", inf)
    share = number(op, "tie", 1.0)
    inside, zero = (x >= low) & (x <= high), xp.zeros((), dtype=g.dtype)
    if share != 1.0:
        ends = [number(op, end, 0.0) for end in ("low", "high") if end in dict(op.attributes)]
        at = sum((x == end for end in ends), xp.zeros(x.shape, dtype=bool))
        zero = xp.where(at, (share * g).astype(g.dtype), zero)
        inside &= ~at
    if share not in (0.0, 1.0):
        inside |= xp.isnan(x)
    return xp.where(inside, g, zero)  # type: ignore[no-any-return]


def _larger(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    x, y = a[1:] if op.function == "maximum_gradient" else (a[2], a[1])
    share = number(op, "tie", 0.5)
    more = x > y if share in (0.0, 1.0) else ~((x < y) | (x == y))
    return a[0] * (more + share * (x == y)).astype(a[0].dtype)  # type: ignore[no-any-return]


def _power(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    g, x = a
    e = number(op, "exponent", 1.0)
    if e == 0.0:
        return xp.zeros_like(g)  # type: ignore[no-any-return]
    slope = x if e == 2.0 else x ** (e - 1)
    found = (g * (e * slope)).astype(g.dtype)
    flat: Array = xp.where(x == 0, xp.zeros((), dtype=g.dtype), found) if number(op, "flat", 0) else found
    return flat


def _sqrt(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    g, y = a
    if not number(op, "flat", 0):
        return 0.5 * g / y
    zero = y == 0
    return xp.where(zero, xp.zeros((), dtype=g.dtype), 0.5 * g / xp.where(zero, xp.ones((), dtype=y.dtype), y))  # type: ignore[no-any-return]


def _moment1(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    b = number(op, "beta1", 0.9)
    return (b * a[0] + (1 - b) * a[1]).astype(a[0].dtype)


def _moment2(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    b = number(op, "beta2", 0.999)
    return (b * a[0] + (1 - b) * (a[1] * a[1])).astype(a[0].dtype)


def _adam(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    w, m, v = a
    t = number(op, "step", 1)
    mean, spread = m / (1 - number(op, "beta1", 0.9) ** t), v / (1 - number(op, "beta2", 0.999) ** t)
    return (w - number(op, "rate", 0.001) * mean / (xp.sqrt(spread) + number(op, "epsilon", 1e-8))).astype(w.dtype)  # type: ignore[no-any-return]


def _adamw(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    shrunk = a[0] * (1 - number(op, "rate", 0.001) * number(op, "decay", 0.01))
    return _adam(xp, (shrunk.astype(a[0].dtype), a[1], a[2]), op)


def _lion(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    w, m, g = a
    rate, b = number(op, "rate", 0.0001), number(op, "beta1", 0.9)
    return (w * (1 - rate * number(op, "decay", 0.0)) - rate * xp.sign(b * m + (1 - b) * g)).astype(w.dtype)  # type: ignore[no-any-return]


def _clip_factor(xp: ModuleType, a: Sequence[Array], op: Operator) -> Array:
    return xp.minimum(number(op, "clip", 1.0) / (xp.sqrt(a[0]) + 1e-6), 1.0).astype(a[0].dtype)  # type: ignore[no-any-return]


GRADIENT_MAPS: Final = MappingProxyType[str, Elementwise](
    {
        "fill": lambda xp, a, op: xp.full_like(a[0], number(op, "value", 0.0)),
        "mask_clear": lambda xp, a, op: xp.where(a[1] != 0, xp.zeros((), dtype=a[0].dtype), a[0]),
        "squared_difference": lambda xp, a, op: (a[0] - a[1]) * (a[0] - a[1]),
        "squared_difference_gradient": lambda xp, a, op: 2 * a[0] * (a[1] - a[2]),
        "abs_gradient": lambda xp, a, op: a[0] * xp.where(xp.isnan(a[1]), 0, xp.sign(a[1])).astype(a[1].dtype),
        "clip_gradient": _clip,
        "sqrt_gradient": _sqrt,
        "remainder_gradient": lambda xp, a, op: -a[0] * xp.floor_divide(a[1], a[2]),
        "fmod_gradient": lambda xp, a, op: -a[0] * xp.trunc(a[1] / a[2]),
        "rsqrt_gradient": lambda xp, a, op: -0.5 * a[0] * a[1] * a[1] * a[1],
        "reciprocal_gradient": lambda xp, a, op: -a[0] * a[1] * a[1],
        "tanh_gradient": lambda xp, a, op: a[0] * (1 - a[1] * a[1]),
        "sigmoid_gradient": lambda xp, a, op: a[0] * a[1] * (1 - a[1]),
        "erf_gradient": lambda xp, a, op: a[0] * (2 / sqrt(pi)) * xp.exp(-a[1] * a[1]),
        "cos_gradient": lambda xp, a, op: -a[0] * xp.sin(a[1]),
        "sin_gradient": lambda xp, a, op: a[0] * xp.cos(a[1]),
        "atan_gradient": lambda xp, a, op: a[0] / (1 + a[1] * a[1]),
        "softplus_gradient": lambda xp, a, op: a[0] * sigmoid(xp, a[1]),
        "gelu_gradient": _gelu,
        "silu_gradient": _silu,
        "power_gradient": _power,
        "maximum_gradient": _larger,
        "minimum_gradient": _larger,
        "divide_gradient": lambda xp, a, op: -a[0] * a[1] / a[2],
        "batch_norm_gradient": lambda xp, a, op: a[0] * a[1] / xp.sqrt(a[2] + number(op, "epsilon", 1e-5)),
        "batch_norm_scale_gradient": lambda xp, a, op: (
            a[0] * (a[1] - a[2]) / xp.sqrt(a[3] + number(op, "epsilon", 1e-5))
        ),
        "adam_moment1": where_allowed(_moment1, 2),
        "adam_moment2": where_allowed(_moment2, 2),
        "adam_update": where_allowed(_adam, 3),
        "adamw_update": where_allowed(_adamw, 3),
        "lion_update": where_allowed(_lion, 3),
        "momentum": where_allowed(lambda xp, a, op: (number(op, "momentum", 0.0) * a[0] + a[1]).astype(a[0].dtype), 2),
        "decayed_gradient": lambda xp, a, op: (a[0] + number(op, "decay", 0.0) * a[1]).astype(a[0].dtype),
        "clip_factor": _clip_factor,
    }
)
"""Name -> function, as in `elementwise.MAPS`; a test holds both together equal to the function table."""

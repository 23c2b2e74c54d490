"""Scalar CUDA expressions of training: local gradients, losses, optimizer updates; see
`kernels/gradient_maps.py` for the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from types import MappingProxyType
from typing import Final

from ..kernels.elementwise import number
from .scalar import Row, Scalar, sigmoid, smaller


def _gelu(a: Sequence[str], c: Scalar) -> str:
    g, x, one, half = a[0], a[1], c.lit(1.0), c.lit(0.5)
    if c.operator.attribute("approximate", "none") == "tanh":
        k = c.lit(sqrt(2 / pi))
        t = f"tanh{c.f}({k} * ({x} + {c.lit(0.044715)} * {x} * {x} * {x}))"
        return (
            f"({g} * ({half} * ({one} + {t}) + {half} * {x} * ({one} - {t} * {t}) * {k} * ({one} + "
            f"{c.lit(3 * 0.044715)} * {x} * {x})))"
        )
    normal = f"exp{c.f}({c.lit(-0.5)} * {x} * {x}) / {c.lit(sqrt(2 * pi))}"
    return f"({g} * ({half} * ({one} + erf{c.f}({x} * {c.lit(sqrt(0.5))})) + {x} * {normal}))"


def _silu(a: Sequence[str], c: Scalar) -> str:
    s, one = sigmoid(a[1], c), c.lit(1.0)
    return f"({a[0]} * {s} * ({one} + {a[1]} * ({one} - {s})))"


def _clip(a: Sequence[str], c: Scalar) -> str:
    named, share, zero = dict(c.operator.attributes), number(c.operator, "tie", 1.0), c.lit(0.0)
    bounds = [(sign, c.number(end, 0.0)) for sign, end in ((">", "low"), ("<", "high")) if end in named]
    if not bounds:
        return a[0]
    equal = "=" * (share == 1.0)
    inside = " && ".join(f"{a[1]} {sign}{equal} {bound}" for sign, bound in bounds)
    if share not in (0.0, 1.0):
        at = " || ".join(f"{a[1]} == {bound}" for _, bound in bounds)
        zero = f"({at} ? {c.lit(share)} * {a[0]} : {zero})"
        inside = f"({inside}) || {a[1]} != {a[1]}"
    return f"({inside} ? {a[0]} : {zero})"


def _power(a: Sequence[str], c: Scalar) -> str:
    e = number(c.operator, "exponent", 1.0)
    if e == 0.0:
        return c.lit(0.0)
    slope = a[1] if e == 2.0 else f"pow{c.f}({a[1]}, {c.lit(e - 1)})"
    found = f"({a[0]} * ({c.lit(e)} * {slope}))"
    return f"({a[1]} == 0 ? {c.lit(0.0)} : {found})" if number(c.operator, "flat", 0) else found


def _sqrt(a: Sequence[str], c: Scalar) -> str:
    slope = f"{c.lit(0.5)} * {a[0]} / {a[1]}"
    return f"({a[1]} == 0 ? {c.lit(0.0)} : {slope})" if number(c.operator, "flat", 0) else f"({slope})"


def _extreme(sign: str) -> Row:
    def row(a: Sequence[str], c: Scalar) -> str:
        share = number(c.operator, "tie", 0.5)
        more = f"{a[1]} {sign} {a[2]}" if share in (0.0, 1.0) else f"!({a[1]} {'<' if sign == '>' else '>'} {a[2]})"
        return f"({a[1]} == {a[2]} ? {c.lit(share)} * {a[0]} : {more} ? {a[0]} : {c.lit(0.0)} * {a[0]})"

    return row


def _moment(name: str, default: float, square: bool) -> Row:
    def row(a: Sequence[str], c: Scalar) -> str:
        b = number(c.operator, name, default)
        return f"({c.lit(b)} * {a[0]} + {c.lit(1 - b)} * {f'({a[1]} * {a[1]})' if square else a[1]})"

    return row


def _shrunk(w: str, c: Scalar, rate: float, decay: float) -> str:
    """The weight after its decay, by default of these numbers."""
    return f"({w} * {c.lit(1 - number(c.operator, 'rate', rate) * number(c.operator, 'decay', decay))})"


def _lion(a: Sequence[str], c: Scalar) -> str:
    b = number(c.operator, "beta1", 0.9)
    u = f"({c.lit(b)} * {a[1]} + {c.lit(1 - b)} * {a[2]})"
    sign = f"({u} > 0 ? {c.lit(1.0)} : {u} < 0 ? {c.lit(-1.0)} : {u})"
    return f"({_shrunk(a[0], c, 0.0001, 0.0)} - {c.number('rate', 0.0001)} * {sign})"


def _adam(a: Sequence[str], c: Scalar) -> str:
    t = number(c.operator, "step", 1)
    mean = f"{a[1]} / {c.lit(1 - number(c.operator, 'beta1', 0.9) ** t)}"
    spread = f"{a[2]} / {c.lit(1 - number(c.operator, 'beta2', 0.999) ** t)}"
    return f"({a[0]} - {c.number('rate', 0.001)} * ({mean}) / (sqrt{c.f}({spread}) + {c.number('epsilon', 1e-8)}))"


TRAINING: Final = MappingProxyType[str, Row](
    {
        "fill": lambda a, c: c.number("value", 0.0),
        "mask_clear": lambda a, c: f"({a[1]} != 0 ? {c.lit(0.0)} : {a[0]})",
        "squared_difference": lambda a, c: f"(({a[0]} - {a[1]}) * ({a[0]} - {a[1]}))",
        "squared_difference_gradient": lambda a, c: f"({c.lit(2.0)} * {a[0]} * ({a[1]} - {a[2]}))",
        "abs_gradient": lambda a, c: (
            f"({a[0]} * ({a[1]} > 0 ? {c.lit(1.0)} : {a[1]} < 0 ? {c.lit(-1.0)} : {c.lit(0.0)}))"
        ),
        "clip_gradient": _clip,
        "sqrt_gradient": _sqrt,
        "fmod_gradient": lambda a, c: f"(-{a[0]} * trunc{c.f}({a[1]} / {a[2]}))",
        "rsqrt_gradient": lambda a, c: f"({c.lit(-0.5)} * {a[0]} * {a[1]} * {a[1]} * {a[1]})",
        "reciprocal_gradient": lambda a, c: f"(-{a[0]} * {a[1]} * {a[1]})",
        "tanh_gradient": lambda a, c: f"({a[0]} * ({c.lit(1.0)} - {a[1]} * {a[1]}))",
        "sigmoid_gradient": lambda a, c: f"({a[0]} * {a[1]} * ({c.lit(1.0)} - {a[1]}))",
        "erf_gradient": lambda a, c: f"({a[0]} * {c.lit(2 / sqrt(pi))} * exp{c.f}(-{a[1]} * {a[1]}))",
        "cos_gradient": lambda a, c: f"(-{a[0]} * sin{c.f}({a[1]}))",
        "sin_gradient": lambda a, c: f"({a[0]} * cos{c.f}({a[1]}))",
        "atan_gradient": lambda a, c: f"({a[0]} / ({c.lit(1.0)} + {a[1]} * {a[1]}))",
        "softplus_gradient": lambda a, c: f"({a[0]} * {sigmoid(a[1], c)})",
        "gelu_gradient": _gelu,
        "silu_gradient": _silu,
        "power_gradient": _power,
        "maximum_gradient": _extreme(">"),
        "minimum_gradient": _extreme("<"),
        "divide_gradient": lambda a, c: f"(-{a[0]} * {a[1]} / {a[2]})",
        "batch_norm_gradient": lambda a, c: f"({a[0]} * {a[1]} / sqrt{c.f}({a[2]} + {c.number('epsilon', 1e-5)}))",
        "batch_norm_scale_gradient": lambda a, c: (
            f"({a[0]} * ({a[1]} - {a[2]}) / sqrt{c.f}({a[3]} + {c.number('epsilon', 1e-5)}))"
        ),
        "adam_moment1": _moment("beta1", 0.9, False),
        "adam_moment2": _moment("beta2", 0.999, True),
        "adam_update": _adam,
        "adamw_update": lambda a, c: _adam([_shrunk(a[0], c, 0.001, 0.01), *a[1:]], c),
        "lion_update": _lion,
        "momentum": lambda a, c: f"({c.number('momentum', 0.0)} * {a[0]} + {a[1]})",
        "decayed_gradient": lambda a, c: f"({a[0]} + {c.number('decay', 0.0)} * {a[1]})",
        "clip_factor": lambda a, c: smaller(
            f"{c.number('clip', 1.0)} / (sqrt{c.f}({a[0]}) + {c.lit(1e-6)})", c.lit(1.0)
        ),
    }
)
"""Name -> text, as in `expressions.EXPRESSIONS`, which holds these too."""

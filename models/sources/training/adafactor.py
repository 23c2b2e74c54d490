"""Adafactor: Adam's second moment of a matrix kept as its row and column means, with a rate relative
to the weight.

    q = t^-power;   R := (1 - q) R + q mean over columns of g^2;   C := (1 - q) C + q mean over rows of g^2
    V = R C / max(mean of R, e);      of vectors and numbers   V := (1 - q) V + q g^2
    u = g / sqrt(max(V, e^2));        u := u / max(1, rms(u) / d)
    w := (1 - rate decay) w - max(e2, rms(w)) min(rate, 1 / sqrt(t)) u

with rms(x) = |x| / sqrt(elements), of the weight before it shrinks; e is `epsilon`, or the distance of 1 from the next
number of the element type.  Weights of more dimensions have R and C for every matrix of their last two.  What is
remembered is rows + columns numbers for rows times columns; V is a value of the step.  t is `step`: q and the rate are
numbers of the graph of that step.

Source: Shazeer and Stern, Adafactor: adaptive learning rates with sublinear memory cost (ICML 2018), in the form of
torch.optim.Adafactor of PyTorch 2.13.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Final

from ...program.index import Axis, Combine, access
from .settings import Settings
from .updates import Update, WeightUpdate, dimensions_of

_NEXT_TO_ONE: Final = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def adafactor(made: WeightUpdate, gradient: str, settings: Settings) -> Update:
    """The update of one weight."""
    weight, w, kept = made.weight, made.weight.name, made.wide
    name = f"{w}.adafactor"

    def number(key: str) -> float:
        return settings.number("adafactor", key)

    least = number("epsilon") or _NEXT_TO_ONE[weight.dtype]
    passed = 1.0 - settings.step ** -number("power")
    rate, decay = min(number("rate"), 1 / sqrt(settings.step)), number("decay")
    found = dimensions_of(weight, made.names, 2)
    if found is None:
        v, _ = made.state_tensor("adafactor_v")
        variance = made.operator(f"{v}.next", "adam_moment2", (v, gradient), kept, beta2=passed)
    else:
        variance = _factored(made, gradient, found, passed, least)
    clamped = made.operator(f"{name}.clamped", "clip", (variance,), kept, low=least * least)
    root = made.operator(f"{name}.root", "rsqrt", (clamped,), kept)
    u = made.operator(f"{name}.scaled", "multiply", (root, gradient), kept)
    denominator = _rms(made, f"{name}.length", u, 1 / number("d"), 1.0)
    size = _rms(made, f"{name}.size", w, 1.0, number("epsilon2"))
    factor = made.operator_result(f"{name}.factor", "divide", (), [access(size), access(denominator)], (), kept)
    axes = [Axis(a, n) for a, n in made.extents.items()]
    u = made.operator_result(f"{name}.u", "multiply", axes, [access(u, *made.names), access(factor)], made.names, kept)
    if decay and rate:
        shrink = number("rate") * decay / rate
        u = made.operator(f"{name}.decayed", "decayed_gradient", (u, w), kept, decay=shrink)
    made.operator(f"{w}.next", "sgd_update", (w, u), weight.dtype, rate=rate)
    return made.done()


def _factored(
    made: WeightUpdate, gradient: str, found: tuple[tuple[str, ...], ...], passed: float, least: float
) -> str:
    """V of a matrix (or of many) from its rows and columns, which are remembered."""
    w, kept, extent = made.weight.name, made.wide, made.extents
    batch, rows, columns = found
    sides = {}
    for side, has, summed in (("row", rows, columns), ("column", columns, rows)):
        out = tuple(a for a in made.names if a in batch or a in has)
        state, _ = made.state_tensor(f"adafactor_{side}", out)
        axes = [Axis(a, n, Combine.SUM if a in summed else None) for a, n in extent.items()]
        reads = [access(gradient, *made.names)] * 2
        total = made.operator_result(f"{w}.adafactor.{side}", "product", axes, reads, out, kept)
        part = [Axis(a, extent[a]) for a in out]
        count = prod(extent[a] for a in summed)
        mean = made.operator_result(
            f"{w}.adafactor.{side}_mean", "scale", part, [access(total, *out)], out, kept, scale=1 / count
        )
        reads = [access(state, *out), access(mean, *out)]
        made.operator_result(f"{state}.next", "adam_moment1", part, reads, out, kept, beta1=passed)
        sides[side] = access(f"{state}.next", *out)
    of_rows = [Axis(a, extent[a], Combine.SUM if a in rows else None) for a in made.names if a not in columns]
    count = prod(extent[a] for a in rows)
    mean = made.operator_result(f"{w}.adafactor.mean", "sum", of_rows, [sides["row"]], batch, kept, scale=1 / count)
    each = [Axis(a, extent[a]) for a in batch]
    mean = made.operator_result(f"{w}.adafactor.divisor", "clip", each, [access(mean, *batch)], batch, kept, low=least)
    out = tuple(a.name for a in of_rows)
    part = [Axis(a, extent[a]) for a in out]
    share = made.operator_result(
        f"{w}.adafactor.share", "divide", part, [sides["row"], access(mean, *batch)], out, kept
    )
    axes = [Axis(a, n) for a, n in extent.items()]
    reads = [access(share, *out), sides["column"]]
    return made.operator_result(f"{w}.adafactor.v", "multiply", axes, reads, made.names, kept)


def _rms(made: WeightUpdate, name: str, tensor: str, scale: float, least: float) -> str:
    """max(least, scale rms(tensor)), a number."""
    kept, extent = made.wide, made.extents
    axes = [Axis(a, n, Combine.SUM) for a, n in extent.items()]
    squares = made.operator_result(f"{name}.squares", "product", axes, [access(tensor, *made.names)] * 2, (), kept)
    root = made.operator_result(f"{name}.root", "sqrt", (), [access(squares)], (), kept)
    scaled = made.operator_result(
        f"{name}.scaled", "scale", (), [access(root)], (), kept, scale=scale / sqrt(prod(extent.values()))
    )
    return made.operator_result(name, "clip", (), [access(scaled)], (), kept, low=least)

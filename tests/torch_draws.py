"""Programs of PyTorch drawn at random, imported and compared with PyTorch in float64; of a part the gradients as well.

    python tests/torch_draws.py FIRST COUNT [--gradients] [--seconds S]

A draw is one call with its keywords on shapes that hold 1 and numbers that hold ties, negative zeros, infinities and NaN
(none of the last where gradients are taken), integers of every type at its ends, and real numbers up to 1e300.  `PACK` of them make one module, for an export costs more than a call; a
pack that is refused or differs is halved.
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, GraphError, Role, UnsupportedOperators
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.training import build_step

F = nn.functional
PACK = 48
UNKNOWN: set[str] = set()
"""Calls of operators without a handler, which need not be tried again."""
TOLERANCE = 1e-7
"""Relative: constants of a program are float32 where PyTorch's defaults are."""
SINGLE = 1e-6
"""Of results in float32."""


@dataclass(frozen=True)
class Call:
    """A call, what it is given, and its words."""

    words: str
    function: Callable[..., Any]
    given: tuple[Tensor, ...]


class Draw:
    """Draws of one seed."""

    def __init__(self, seed: int, special: bool) -> None:
        self.random, self.special = np.random.default_rng(seed), special
        self.fixed: list[int] | None = None

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def shape(self, low: int = 1, high: int = 4) -> list[int]:
        if self.fixed is not None:
            return self.fixed
        return [int(self.pick(1, 2, 3, 4, 5)) for _ in range(self.integer(low, high))]

    def dim(self, shape: Sequence[int]) -> int:
        return self.integer(-len(shape), len(shape) - 1)

    def dims(self, shape: Sequence[int]) -> list[int]:
        return [k - self.pick(0, len(shape)) for k in range(len(shape)) if self.chance()] or [self.dim(shape)]

    def x(self, shape: Sequence[int], special: bool = True) -> Tensor:
        """Numbers with ties, and at times the ends of arithmetic."""
        a = np.round(self.random.standard_normal(tuple(shape)) * 2, self.pick(0, 1, 6)) + 0.0
        if special and self.special and self.chance(0.25):
            odd = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 0.5, -0.5, 2.5])
            a = np.where(self.random.random(a.shape) < 0.3, self.random.choice(odd, a.shape), a)
        return torch.tensor(a, dtype=torch.float64)

    def positive(self, shape: Sequence[int]) -> Tensor:
        return self.x(shape, False).abs() + 0.25

    def part(self, shape: Sequence[int]) -> Tensor:
        return torch.sigmoid(self.x(shape, False))

    def whole(self, shape: Sequence[int], low: int = -4, high: int = 4) -> Tensor:
        return torch.tensor(self.random.integers(low, high + 1, tuple(shape)))

    def mask(self, shape: Sequence[int]) -> Tensor:
        return torch.tensor(self.random.random(tuple(shape)) < self.pick(0.0, 0.3, 0.7, 1.0))

    def wider(self, shape: Sequence[int]) -> list[int]:
        """A shape that broadcasts with another."""
        kept = [n if self.chance(0.7) else 1 for n in shape]
        return kept[self.integer(0, len(kept)) :] if self.chance(0.3) else kept


def call(words: str, function: Callable[..., Any], *given: Tensor) -> Call:
    return Call(words, function, given)


UNARY = {
    n: getattr(torch, n)
    for n in [
        "abs",
        "neg",
        "exp",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "tanh",
        "atan",
        "asin",
        "acos",
        "sinh",
        "cosh",
        "erf",
        "sigmoid",
        "relu",
        "reciprocal",
        "square",
        "floor",
        "ceil",
        "round",
        "trunc",
        "frac",
        "sign",
        "sgn",
        "isnan",
        "isinf",
        "isfinite",
        "logical_not",
        "nan_to_num",
        "logit",
        "atanh",
        "asinh",
        "acosh",
        "erfc",
        "exp2",
        "signbit",
        "deg2rad",
        "sinc",
        "positive",
    ]
} | {
    n: getattr(F, n)
    for n in [
        "gelu",
        "silu",
        "mish",
        "softplus",
        "hardswish",
        "hardsigmoid",
        "relu6",
        "selu",
        "elu",
        "celu",
        "leaky_relu",
        "hardtanh",
        "softshrink",
        "hardshrink",
        "tanhshrink",
        "logsigmoid",
        "softsign",
        "threshold",
    ]
    if n != "threshold"
}


def unary(d: Draw) -> Call:
    name = d.pick(*UNARY)
    return call(name, UNARY[name], d.x(d.shape(0)))


def parametric(d: Draw) -> Call:
    shape = d.shape(1)
    name, options = d.pick(
        ("gelu", {"approximate": "tanh"}),
        ("elu", {"alpha": d.pick(0.5, 2.0)}),
        ("celu", {"alpha": d.pick(0.5, 2.0)}),
        ("leaky_relu", {"negative_slope": d.pick(0.2, -0.5, 0.0)}),
        ("hardtanh", {"min_val": d.pick(-2.0, 0.0), "max_val": d.pick(0.5, 1.0)}),
        ("softplus", {"beta": d.pick(0.5, 2.0), "threshold": d.pick(1, 20)}),
        ("softshrink", {"lambd": d.pick(0.0, 1.0)}),
        ("hardshrink", {"lambd": d.pick(0.0, 1.0)}),
        ("threshold", {"threshold": d.pick(0.0, 1.0), "value": d.pick(-3.0, 0.0)}),
        ("softmax", {"dim": d.dim(shape)}),
        ("log_softmax", {"dim": d.dim(shape)}),
        ("softmin", {"dim": d.dim(shape)}),
        ("normalize", {"dim": d.dim(shape), "p": d.pick(1.0, 2.0, 3.0), "eps": d.pick(1e-12, 0.1)}),
    )
    return call(f"{name} {options}", lambda x: getattr(F, name)(x, **options), d.x(shape))


def binary(d: Draw) -> Call:
    shape = d.shape(0)
    name = d.pick(*["add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "pow", "remainder", "fmod", "floor_divide", "atan2", "hypot", "logaddexp"],
                  *["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "copysign", "heaviside", "ldexp", "xlogy", "rsub", "true_divide"])  # fmt: skip
    a, b = d.x(shape), d.x(d.wider(shape))
    if d.chance(0.2):
        a, b = d.whole(shape), d.whole(b.shape)
    elif d.chance(0.15):
        b = d.whole(b.shape)
    if d.chance():
        a, b = b, a
    if not b.is_floating_point() and name in ("remainder", "fmod", "floor_divide"):
        b = torch.where(b == 0, 3, b)
    options = {"alpha": d.pick(2, -1)} if name in ("add", "sub", "rsub") and d.chance(0.3) else {}
    return call(f"{name} {options}", lambda x, y: getattr(torch, name)(x, y, **options), a, b)


def with_number(d: Draw) -> Call:
    names = ("add", "sub", "mul", "div", "pow", "remainder", "fmod", "floor_divide", "rsub", "eq", "lt", "ge")
    name = d.pick(*names, "maximum", "minimum")
    number = d.pick(0, 1, 2, -1, 0.5, -2.5, 3)
    if name in ("maximum", "minimum"):
        return call(
            f"{name} {number}", lambda x: getattr(torch, name)(x, torch.tensor(number, dtype=x.dtype)), d.x(d.shape(0))
        )
    if name in ("div", "remainder", "fmod", "floor_divide") and number == 0:
        number = 2
    x = d.x(d.shape(0)) if d.chance(0.8) else d.whole(d.shape(0))
    flipped = d.chance(0.3) and name in ("add", "sub", "mul", "div", "pow", "remainder")
    if flipped and name == "pow" and number in (0, -1, -2.5):
        number = 2
    symbol = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "remainder": "%"}.get(name, "")
    if flipped:
        return call(f"{number} {symbol} x", lambda x: eval(f"n {symbol} x", {"n": number, "x": x}), x)
    return call(f"{name} {number}", lambda x: getattr(torch, name)(x, number), x)


def rounded(d: Draw) -> Call:
    shape, mode = d.shape(0), d.pick("floor", "trunc", None)
    a, b = (d.x(shape), d.x(d.wider(shape))) if d.chance(0.7) else (d.whole(shape), d.whole(shape, 1, 4))
    return call(f"div rounding_mode={mode}", lambda x, y: torch.div(x, y, rounding_mode=mode), a, b)


def clamped(d: Draw) -> Call:
    shape, low, high = d.shape(0), d.pick(None, -1.0, 0.0, 0.5), d.pick(1.0, 0.25, None, -2.0)
    if low is None and high is None:
        low = 0.0
    if d.chance(0.3):
        return call("clamp tensors", lambda x, a, b: torch.clamp(x, a, b), d.x(shape), d.x(d.wider(shape)), d.x(shape))
    return call(f"clamp {low} {high}", lambda x: torch.clamp(x, low, high), d.x(shape))


def chosen(d: Draw) -> Call:
    shape, way = d.shape(0), d.integer(0, 5)
    m = d.mask(d.wider(shape))
    match way:
        case 0:
            return call("where", torch.where, m, d.x(shape), d.x(d.wider(shape)))
        case 1:
            number = d.pick(0.0, 1.5, float("-inf"))
            return call(f"masked_fill {number}", lambda x, m: x.masked_fill(m, number), d.x(shape), m)
        case 2:
            return call("where number", lambda m, x: torch.where(m, x, 0.5), m, d.x(shape))
        case 3:
            return call("lerp", lambda a, b, w: torch.lerp(a, b, w), d.x(shape), d.x(shape), d.part(shape))
        case 4:
            v = d.pick(1, 0.5, -2)
            return call(
                f"addcmul {v}", lambda a, b, c: torch.addcmul(a, b, c, value=v), *(d.x(shape) for _ in range(3))
            )
        case _:
            v = d.pick(1, 0.5, -2)
            return call(
                f"addcdiv {v}",
                lambda a, b, c: torch.addcdiv(a, b, c, value=v),
                d.x(shape),
                d.x(shape),
                d.positive(shape),
            )


def reduced(d: Draw) -> Call:
    shape, keep = d.shape(1), d.chance()
    name = d.pick(*["sum", "mean", "amax", "amin", "prod", "var", "std", "logsumexp", "norm", "max", "min", "any", "all", "cumsum", "cumprod", "argmax", "argmin", "median"],
                  *["count_nonzero", "nansum", "var_mean", "std_mean", "aminmax", "logcumsumexp", "cummax", "cummin", "nanmean"])  # fmt: skip
    x = d.x(shape) if d.chance(0.85) or name in ("logsumexp", "norm", "median") else d.whole(shape)
    if name in ("any", "all") and d.chance():
        x = d.mask(shape)
    if name in ("mean", "var", "std", "var_mean", "std_mean", "nanmean", "logcumsumexp") and not x.is_floating_point():
        x = d.x(shape)
    one, some = d.dim(shape), d.dims(shape)
    match name:
        case "var" | "std" | "var_mean" | "std_mean":
            c = d.pick(0, 1)
            return call(
                f"{name} {some} {keep} {c}", lambda x: getattr(torch, name)(x, dim=some, keepdim=keep, correction=c), x
            )
        case "norm":
            p = d.pick(1, 2, 3, 0.5, float("inf"), float("-inf"), 0)
            return call(f"norm {p} {some} {keep}", lambda x: torch.linalg.vector_norm(x, p, dim=some, keepdim=keep), x)
        case "cumsum" | "cumprod" | "logcumsumexp":
            return call(f"{name} {one}", lambda x: getattr(torch, name)(x, one), x)
        case "cummax" | "cummin":
            return call(f"{name} {one}", lambda x: getattr(torch, name)(x, one)[0], x)
        case "max" | "min" | "median":
            if d.chance(0.3):
                return call(name, getattr(torch, name), x)
            k = d.integer(0, 1) if name != "median" else 0
            return call(f"{name} {one} {keep} [{k}]", lambda x: getattr(torch, name)(x, one, keepdim=keep)[k], x)
        case "argmax" | "argmin" | "prod" | "any" | "all" | "aminmax":
            if d.chance(0.2) and name != "aminmax":
                return call(name, getattr(torch, name), x)
            return call(f"{name} {one} {keep}", lambda x: getattr(torch, name)(x, dim=one, keepdim=keep), x)
        case "count_nonzero":
            return call(f"{name} {some}", lambda x: torch.count_nonzero(x, some), x)
        case _:
            if d.chance(0.2) and name in ("sum", "mean", "nansum", "nanmean"):
                return call(name, getattr(torch, name), x)
            return call(f"{name} {some} {keep}", lambda x: getattr(torch, name)(x, dim=some, keepdim=keep), x)


def norms(d: Draw) -> Call:
    shape = [d.integer(1, 3), d.pick(2, 4), *(d.pick(1, 2, 3) for _ in range(d.integer(1, 2)))]
    c, eps = shape[1], d.pick(1e-5, 0.1)
    w, b = d.x([c], False), d.x([c], False)
    match d.integer(0, 5):
        case 0:
            last = shape[d.integer(1, len(shape) - 1) :]
            with_scale = d.chance()
            return call(
                f"layer_norm {last} {eps} {with_scale}",
                lambda x, w, b: F.layer_norm(x, last, *((w, b) if with_scale else ()), eps=eps),
                d.x(shape, False), d.x(last, False), d.x(last, False),
            )  # fmt: skip
        case 1:
            last = shape[-1:]
            return call(
                f"rms_norm {eps}", lambda x, w: F.rms_norm(x, last, w, eps), d.x(shape, False), d.x(last, False)
            )
        case 2:
            g = d.pick(1, 2, c)
            return call(f"group_norm {g} {eps}", lambda x, w, b: F.group_norm(x, g, w, b, eps), d.x(shape, False), w, b)
        case 3:
            if int(np.prod(shape[2:])) == 1:
                shape[2] = 2
            return call(
                f"instance_norm {eps}",
                lambda x, w, b: F.instance_norm(x, None, None, w, b, eps=eps),
                d.x(shape, False),
                w,
                b,
            )
        case 4:
            shape[0] = max(shape[0], 2)
            return call(
                f"batch_norm training {eps}",
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, eps),
                d.x(shape, False),
                w,
                b,
            )
        case _:
            return call(
                f"batch_norm {eps}", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False, 0.1, eps),
                d.x(shape, False), d.x([c], False), d.positive([c]), w, b,
            )  # fmt: skip


def convolved(d: Draw) -> Call:
    rank, g = d.integer(1, 2), d.pick(1, 1, 2)
    inside, out = g * d.integer(1, 2), g * d.integer(1, 2)
    kernel, size = [d.integer(1, 3) for _ in range(rank)], [d.integer(3, 7) for _ in range(rank)]
    batch = [] if d.chance(0.1) else [d.integer(1, 2)]
    x = d.x([*batch, inside, *size], False)
    bias = d.chance()
    if d.chance(0.3):
        stride = [d.integer(1, 3) for _ in range(rank)]
        options = {
            "stride": stride,
            "padding": [d.integer(0, k - 1) for k in kernel],
            "dilation": [d.integer(1, 2)] * rank,
        }
        options["output_padding"] = [d.integer(0, max(s, options["dilation"][0]) - 1) for s in stride]
        f, w = getattr(F, f"conv_transpose{rank}d"), d.x([inside, out // g, *kernel], False)
    else:
        options = {"stride": [d.integer(1, 3) for _ in range(rank)], "dilation": [d.integer(1, 2) for _ in range(rank)]}
        options["padding"] = d.pick([d.integer(0, 2) for _ in range(rank)], "same", "valid")
        if options["padding"] == "same":
            options["stride"] = [1] * rank
        f, w = getattr(F, f"conv{rank}d"), d.x([out, inside // g, *kernel], False)
    words = f"{f.__name__} {tuple(x.shape)} {tuple(w.shape)} groups={g} {options} bias={bias}"
    return call(words, lambda x, w, b: f(x, w, b if bias else None, groups=g, **options), x, w, d.x([out], False))


def pooled(d: Draw) -> Call:
    rank = d.integer(1, 2)
    kernel, size = [d.integer(1, 3) for _ in range(rank)], [d.integer(3, 7) for _ in range(rank)]
    x = d.x([*([] if d.chance(0.1) else [d.integer(1, 2)]), d.integer(1, 3), *size], False)
    options: dict[str, Any] = {"kernel_size": kernel, "ceil_mode": d.chance()}
    options["stride"] = d.pick(None, [d.integer(1, 3) for _ in range(rank)])
    options["padding"] = [d.integer(0, k // 2) for k in kernel]
    match d.integer(0, 3):
        case 0:
            options["dilation"] = [d.integer(1, 2) for _ in range(rank)]
            f = getattr(F, f"max_pool{rank}d")
        case 1:
            options["count_include_pad"] = d.chance()
            if rank == 2 and d.chance(0.3):
                options["divisor_override"] = d.pick(1, 3)
            f = getattr(F, f"avg_pool{rank}d")
        case 2:
            options = {"output_size": [d.integer(1, n) for n in size] if rank == 2 else d.integer(1, size[0])}
            f = getattr(F, f"adaptive_{d.pick('avg', 'max')}_pool{rank}d")
        case _:
            options = {
                "norm_type": d.pick(1.0, 2.0),
                "kernel_size": kernel if rank == 2 else kernel[0],
                "ceil_mode": d.chance(),
            }
            f = getattr(F, f"lp_pool{rank}d")
            x = x.abs() + 0.1
    return call(f"{f.__name__} {tuple(x.shape)} {options}", lambda x: f(x, **options), x)


def padded(d: Draw) -> Call:
    mode = d.pick("constant", "reflect", "replicate", "circular")
    rank = d.integer(1, 2)
    shape = [d.integer(1, 2), d.integer(1, 2), *(d.integer(3, 5) for _ in range(rank))]
    pad = [d.integer(-1 if mode == "constant" else 0, 2) for _ in range(2 * rank)]
    value = d.pick(0.0, 1.5, float("-inf")) if mode == "constant" else None
    return call(f"pad {shape} {pad} {mode} {value}", lambda x: F.pad(x, pad, mode, value), d.x(shape))


def resampled(d: Draw) -> Call:
    rank = d.integer(1, 2)
    mode = d.pick(
        "nearest", "nearest-exact", "linear" if rank == 1 else "bilinear", "area", *(("bicubic",) if rank == 2 else ())
    )
    shape = [d.integer(1, 2), d.integer(1, 2), *(d.integer(1, 5) for _ in range(rank))]
    corners = d.pick(None, False, True) if "linear" in mode or mode == "bicubic" else None
    if d.chance():
        where: dict[str, Any] = {"size": [d.integer(1, 7) for _ in range(rank)]}
    else:
        where = {"scale_factor": d.pick(2.0, 0.5, 1.5, 3.0) if min(shape[2:]) > 1 else 2.0}
    return call(f"interpolate {shape} {mode} {corners} {where}", lambda x: F.interpolate(x, mode=mode, align_corners=corners, **where), d.x(shape, False))  # fmt: skip


def moved(d: Draw) -> Call:
    shape = d.shape(1)
    k, x = d.dim(shape), d.x(shape)
    n = shape[k]
    perm = [int(p) for p in d.random.permutation(len(shape))]
    dims, shift = d.dims(shape), d.integer(-3, 3)
    start, step = d.integer(0, n - 1), d.integer(1, 3)
    stop = d.integer(start + 1, n + 2)
    reps = [d.integer(1, 2) for _ in range(len(shape) + d.integer(0, 1))]
    diagonal, pieces = d.integer(-2, 2), d.integer(1, 3)
    ways: list[tuple[str, Callable[..., Any]]] = [
        (f"permute {perm}", lambda x: x.permute(perm)),
        (f"transpose {k} {dims[0]}", lambda x: x.transpose(k, dims[0])),
        (f"flip {dims}", lambda x: x.flip(dims)),
        (f"roll {shift} {k}", lambda x: x.roll(shift, k)),
        (f"roll {shift}", lambda x: x.roll(shift)),
        (f"slice {k} {start}:{stop}:{step}", lambda x: x.movedim(k, 0)[start:stop:step]),
        (f"select {k} {start - n}", lambda x: x.select(k, start - n)),
        (f"narrow {k}", lambda x: x.narrow(k, start, min(stop, n) - start)),
        (f"repeat {reps}", lambda x: x.repeat(reps)),
        (f"tile {reps}", lambda x: torch.tile(x, tuple(reps))),
        (f"repeat_interleave {pieces} {k}", lambda x: x.repeat_interleave(pieces, k)),
        (f"unsqueeze {k}", lambda x: x.unsqueeze(k)),
        (f"squeeze {dims}", lambda x: x.squeeze(dims)),
        ("squeeze", lambda x: x.squeeze()),
        ("flatten", lambda x: x.flatten()),
        (f"chunk {pieces} {k}", lambda x: x.chunk(pieces, k)),
        (f"split {pieces} {k}", lambda x: x.split(pieces, k)),
        (f"unbind {k}", lambda x: x.unbind(k)),
        (f"cat {k}", lambda x: torch.cat((x, x * 2), k)),
        (f"stack {k}", lambda x: torch.stack((x, -x), k)),
        (f"unfold {k}", lambda x: x.unfold(k, min(2, n), step)),
        (f"diff {k}", lambda x: torch.diff(x, dim=k) if n > 1 else x + 1),
        (f"movedim {k} {dims[0]}", lambda x: x.movedim(k, dims[0])),
        (f"rot90 {diagonal}", lambda x: torch.rot90(x, diagonal, (0, 1)) if x.dim() > 1 else x + 1),
        (f"triu {diagonal}", lambda x: torch.triu(x, diagonal) if x.dim() > 1 else x + 1),
        (f"tril {diagonal}", lambda x: torch.tril(x, diagonal) if x.dim() > 1 else x + 1),
        (f"diagonal {diagonal % 2}", lambda x: x.diagonal(0, -2, -1) if x.dim() > 1 else torch.diag(x)),
        ("expand", lambda x: x.unsqueeze(0).expand(3, *shape) * 2),
        ("meshgrid", lambda x: torch.meshgrid(x.flatten(), x.flatten()[:2], indexing="ij")[0]),
        ("to int", lambda x: torch.nan_to_num(x, 0.0, 9.0, -9.0).clamp(-9, 9).to(torch.int64)),
        ("to bool", lambda x: x.bool()),
        ("pixel", lambda x: F.pixel_unshuffle(x[(None,) * (4 - x.dim())].repeat(1, 1, 2, 2), 2)),
    ]
    words, f = d.pick(*ways)
    return call(f"{words} {shape}", f, x)


def indexed(d: Draw) -> Call:
    shape = d.shape(1, 3)
    k = d.dim(shape)
    n, x = shape[k], d.x(shape)
    ids = d.whole([d.integer(1, 4)], 0, n - 1)
    signed = d.whole([d.integer(1, 4)], -shape[0], shape[0] - 1)
    like = d.whole(shape, 0, n - 1)
    source = d.x([*shape[: k % len(shape)], len(ids), *shape[k % len(shape) + 1 :]])
    m = d.mask(shape)
    how, inside = d.pick("sum", "amax", "amin", "mean"), d.chance()
    largest, count = d.chance(), d.integer(1, n)
    table = d.x([d.integer(2, 5), 3], False)
    words = d.whole(d.shape(1, 2), 0, len(table) - 1)
    padding = d.pick(None, 0, 1, -1)
    ways: list[tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = [
        (f"index_select {k}", lambda x, i: x.index_select(k, i), (x, ids)),
        ("x[ids]", lambda x, i: x[i], (x, signed)),
        ("x[ids] of two", lambda x, i: x[i, i % 1] if x.dim() > 1 else x[i], (x, signed)),
        (f"gather {k}", lambda x, i: x.gather(k, i), (x, like)),
        (f"take_along_dim {k}", lambda x, i: torch.take_along_dim(x, i, k), (x, like)),
        (f"scatter {k}", lambda x, i: x.scatter(k, i[..., :1], 5.0) if k in (-1, len(shape) - 1) else x.scatter(k, i, 5.0), (x, like)),
        (f"scatter_add {k}", lambda x, i, s: x.scatter_add(k, i, s), (x, like, d.x(shape))),
        (f"scatter_reduce {k} {how} {inside}", lambda x, i, s: x.scatter_reduce(k, i, s, how, include_self=inside), (x, like, d.x(shape))),
        (f"index_add {k}", lambda x, i, s: x.index_add(k, i, s, alpha=2), (x, ids, source)),
        (f"index_copy {k}", lambda x, i, s: x.index_copy(k, i, s), (x, torch.arange(n)[: len(ids)], source[(slice(None),) * (k % len(shape)) + (slice(0, min(n, len(ids))),)])),
        (f"index_fill {k}", lambda x, i: x.index_fill(k, i, -1.0), (x, ids)),
        (f"embedding {padding}", lambda t, i: F.embedding(i, t, padding_idx=padding), (table, words)),
        ("one_hot", lambda i: F.one_hot(i, 6), (words,)),
        ("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), (x, m, d.x(shape))),
        (f"topk {count} {k} {largest}", lambda x: x.topk(count, k, largest=largest)[0], (d.x(shape),)),
        (f"sort {k} {largest}", lambda x: x.sort(k, descending=largest)[0], (d.x(shape),)),
        (f"argsort {k} {largest}", lambda x: x.argsort(k, descending=largest, stable=True), (d.x(shape),)),
        (f"bucketize {largest}", lambda x, b: torch.bucketize(x, b.sort()[0], right=largest), (d.x(shape), d.x([4], False))),
        (f"searchsorted {largest}", lambda x, b: torch.searchsorted(b.sort()[0], x, right=largest), (d.x(shape), d.x([4], False))),
        ("index_put", lambda x, i, s: x.index_put((i,), s, accumulate=True), (x, signed, d.x([len(signed), *shape[1:]]))),
        (f"select_scatter {k}", lambda x, s: x.select_scatter(s, k, 0), (x, d.x([*shape[: k % len(shape)], *shape[k % len(shape) + 1 :]]))),
        (f"diagonal {k}", lambda x: torch.diag_embed(x), (x,)),
        ("write a part", lambda x: _written(x, k), (x,)),
    ]  # fmt: skip
    name, f, given = d.pick(*ways)
    return call(f"{name} {shape}", f, *given)


def _written(x: Tensor, k: int) -> Tensor:
    y = x.clone().movedim(k, 0)
    y[0] = y[-1] * 2
    y[-1:] += 1
    return y


def products(d: Draw) -> Call:
    m, n, k = (d.pick(1, 2, 3) for _ in range(3))
    lead = d.shape(0, 2)
    alpha, beta = d.pick(1, 0.5, 0), d.pick(1, 2.0, 0)
    a, b = d.x([*d.wider(lead), m, k], False), d.x([*d.wider(lead), k, n], False)
    batch = d.integer(1, 3)
    equation, shapes = d.pick(
        ("ij,jk->ik", ([m, k], [k, n])), ("bij,bkj->bik", ([batch, m, k], [batch, n, k])), ("ii->i", ([m, m],)), ("ij->ji", ([m, n],)),
        ("bhid,bhjd->bhij", ([batch, 2, m, k], [batch, 2, n, k])), ("i,j->ij", ([m], [n])), ("ij,ij->", ([m, n], [m, n])), ("...ij,...jk->...ik", ([batch, m, k], [k, n])),
        ("ij,jk,kl->il", ([m, k], [k, n], [n, 2])), ("ii", ([m, m],)), ("bi,ij,bj->b", ([batch, m], [m, n], [batch, n])),
    )  # fmt: skip
    ways: list[tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = [
        ("matmul", torch.matmul, (a, b)),
        ("matmul of vectors", torch.matmul, (d.x([k], False), d.x([k], False))),
        ("matmul of a row", torch.matmul, (d.x([k], False), b)),
        ("matmul of a column", torch.matmul, (a, d.x([k], False))),
        ("addmm", lambda c, x, y: torch.addmm(c, x, y, alpha=alpha, beta=beta), (d.x(d.pick([m, n], [n], [1, n], [m, 1]), False), d.x([m, k], False), d.x([k, n], False))),
        ("baddbmm", lambda c, x, y: torch.baddbmm(c, x, y, alpha=alpha, beta=beta), (d.x([batch, m, n], False), d.x([batch, m, k], False), d.x([batch, k, n], False))),
        ("addmv", lambda c, x, y: torch.addmv(c, x, y, alpha=alpha, beta=beta), (d.x([m], False), d.x([m, k], False), d.x([k], False))),
        ("linear", F.linear, (a, d.x([n, k], False), d.x([n], False))),
        ("bilinear", F.bilinear, (d.x([batch, m], False), d.x([batch, n], False), d.x([2, m, n], False), d.x([2], False))),
        (f"einsum {equation}", lambda *t: torch.einsum(equation, *t), tuple(d.x(s, False) for s in shapes)),
        ("outer", torch.outer, (d.x([m], False), d.x([n], False))),
        ("kron", torch.kron, (d.x([m, 2], False), d.x([n, 1], False))),
        ("tensordot", lambda x, y: torch.tensordot(x, y, dims=1), (d.x([m, k], False), d.x([k, n], False))),
        ("cosine", lambda x, y: F.cosine_similarity(x, y, dim=-1), (d.x([m, k], False), d.x([m, k], False))),
        ("cross", lambda x, y: torch.linalg.cross(x, y), (d.x([m, 3], False), d.x([m, 3], False))),
        ("pairwise", lambda x, y: F.pairwise_distance(x, y), (d.x([m, k], False), d.x([m, k], False))),
    ]  # fmt: skip
    name, f, given = d.pick(*ways)
    return call(f"{name} {alpha} {beta} {[tuple(t.shape) for t in given]}", f, *given)


def losses(d: Draw) -> Call:
    how = d.pick("mean", "sum", "none")
    rows, classes = d.integer(1, 4), d.integer(2, 4)
    shape = d.shape(1, 3)
    x, y, p = d.x(shape, False), d.x(shape, False), d.part(shape)
    ignored, smoothing = d.pick(-100, 0, 1), d.pick(0.0, 0.1)
    more = d.pick([], [2], [2, 3])
    logits, labels = d.x([rows, classes, *more], False), d.whole([rows, *more], 0, classes - 1)
    weight = d.positive([classes])
    beta, log_target = d.pick(1.0, 0.5, 2.0), d.chance()
    if ignored >= 0 and bool((labels == ignored).all()):
        ignored = -100
    ways: list[tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = [
        ("mse", lambda x, y: F.mse_loss(x, y, reduction=how), (x, y)),
        ("l1", lambda x, y: F.l1_loss(x, y, reduction=how), (x, y)),
        (f"smooth_l1 {beta}", lambda x, y: F.smooth_l1_loss(x, y, reduction=how, beta=beta), (x, y)),
        (f"huber {beta}", lambda x, y: F.huber_loss(x, y, reduction=how, delta=beta), (x, y)),
        ("bce", lambda x, y: F.binary_cross_entropy(x, y, reduction=how), (p, d.part(shape))),
        ("bce logits", lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w, reduction=how), (x, p, d.positive(shape[-1:]))),
        (f"nll {ignored}", lambda x, i, w: F.nll_loss(F.log_softmax(x, 1), i, w, ignore_index=ignored, reduction=how), (logits, labels, weight)),
        (f"cross_entropy {ignored} {smoothing}", lambda x, i, w: F.cross_entropy(x, i, w, ignore_index=ignored, reduction=how, label_smoothing=smoothing), (logits, labels, weight)),
        (f"cross_entropy {ignored} {smoothing} plain", lambda x, i: F.cross_entropy(x, i, ignore_index=ignored, reduction=how, label_smoothing=smoothing), (logits, labels)),
        (f"cross_entropy of chances {smoothing}", lambda x, t: F.cross_entropy(x, t.softmax(1), reduction=how, label_smoothing=smoothing), (logits, d.x([rows, classes, *more], False))),
        (f"kl_div {log_target}", lambda x, y: F.kl_div(F.log_softmax(x, -1), y.log() if log_target else y, reduction=how, log_target=log_target), (x, p)),
        ("cosine", lambda a, b: F.cosine_embedding_loss(a, b, torch.ones(a.shape[0]), margin=0.1, reduction=how), (d.x([rows, 3], False), d.x([rows, 3], False))),
        ("margin", lambda a, b, t: F.margin_ranking_loss(a, b, t, margin=0.5, reduction=how), (x, y, torch.sign(d.x(shape, False)) + 0.0)),
        ("hinge", lambda a, t: F.hinge_embedding_loss(a, t, margin=1.0, reduction=how), (x, torch.where(y > 0, 1.0, -1.0).double())),
        ("triplet", lambda a, b, c: F.triplet_margin_loss(a, b, c, reduction=how), tuple(d.x([rows, 3], False) for _ in range(3))),
        ("gaussian", lambda a, b, v: F.gaussian_nll_loss(a, b, v, reduction=how), (x, y, d.positive(shape))),
        ("poisson", lambda a, b: F.poisson_nll_loss(a, b, reduction=how), (x, p)),
        ("soft margin", lambda a, t: F.soft_margin_loss(a, t, reduction=how), (x, torch.where(y > 0, 1.0, -1.0).double())),
        ("multilabel", lambda a, t: F.multilabel_soft_margin_loss(a, t, reduction=how), (d.x([rows, classes], False), d.part([rows, classes]))),
    ]  # fmt: skip
    name, f, given = d.pick(*ways)
    return call(f"{name} {how} {[tuple(t.shape) for t in given]}", f, *given)


def attended(d: Draw) -> Call:
    b, h, s, t, e = d.integer(1, 2), d.pick(1, 2, 4), d.integer(1, 4), d.integer(1, 4), d.pick(1, 2, 4)
    shared = d.pick(*(n for n in (1, 2, 4) if h % n == 0)) if d.chance(0.3) else h
    scale, causal = d.pick(None, 0.5), d.chance()
    q, k, v = d.x([b, h, s, e], False), d.x([b, shared, t, e], False), d.x([b, shared, t, d.pick(e, 3)], False)
    given: tuple[Tensor, ...] = (q, k, v)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": shared != h}
    if causal:
        options["is_causal"] = True
    elif d.chance():
        seen = d.mask(d.pick([s, t], [b, 1, s, t], [1, t]))
        seen[..., 0] = True
        given = (*given, seen if d.chance() else torch.where(seen, 0.5, float("-inf")).double())
    words = f"sdpa {[tuple(x.shape) for x in given]} {options}"
    return call(words, lambda q, k, v, m=None: F.scaled_dot_product_attention(q, k, v, m, **options), *given)


WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
NUMBERS = (0, 1, 2, 3, -1, -3, 7, 100, 127, 128, 200, 255, 300, -129, 40000, 1 << 24, (1 << 31) - 1, 1 << 31, 1 << 40,
           (1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 62)  # fmt: skip


def typed(d: Draw, shape: Sequence[int], dtype: torch.dtype, small: bool = False) -> Tensor:
    """Integers of a type: small ones, its ends, those that floating-point numbers do not tell apart."""
    info = torch.iinfo(dtype)
    near = d.random.integers(max(info.min, -9), 10, tuple(shape))
    if small or d.chance(0.3):
        return torch.tensor(near).to(dtype)
    ends = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, *(n for n in NUMBERS if info.min <= n <= info.max)]
    ends += [-n for n in NUMBERS if info.min <= -n]
    far = d.random.integers(info.min, info.max, tuple(shape), endpoint=True, dtype=np.int64)
    chosen = d.random.choice(np.array(ends, dtype=np.int64), tuple(shape))
    return torch.tensor(np.where(d.random.random(tuple(shape)) < 0.5, chosen, far)).to(dtype)


def _step(d: Draw, shape: Sequence[int]) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    """Of integers x and others y, something that has the shape of x."""
    t, n, k = d.pick(*WHOLE), d.pick(*NUMBERS), d.dim(shape)
    divisor, edge = d.pick(2, 3, 7, -3, 100, 300, (1 << 53) + 1), d.pick(3, -2, 0, 100, 2.5, -0.5, 16777216.0, 1e9)
    ways: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
        (f"to {t}", lambda x, y: x.to(t)),
        (f"to {t}", lambda x, y: x.to(t)),
        (f"to {t}", lambda x, y: x.to(t)),
        (f"bool to {t}", lambda x, y: x.bool().to(t)),
        (f"real to {t}", lambda x, y: (x.double().clamp(-2e9, 2e9) * 0.75).to(t)),
        (f"{t} of a part", lambda x, y: (torch.sigmoid(x.double()) * 300 - 20).to(t)),
        ("long", lambda x, y: x.long()),
        (f"+ {n}", lambda x, y: x + n),
        (f"- {n}", lambda x, y: x - n),
        (f"{n} -", lambda x, y: n - x),
        (f"* {n}", lambda x, y: x * n),
        ("+ y", lambda x, y: x + y),
        ("- y", lambda x, y: x - y),
        ("* y", lambda x, y: x * y),
        (f"+ y alpha {n}", lambda x, y: torch.add(x, y, alpha=n)),
        ("neg", lambda x, y: -x),
        ("abs", lambda x, y: x.abs()),
        ("square", lambda x, y: x.square()),
        ("cube", lambda x, y: x**3),
        ("sign", lambda x, y: x.sign()),
        ("relu", lambda x, y: x.relu()),
        ("floor", lambda x, y: x.floor()),
        (f"// {divisor}", lambda x, y: x // divisor),
        (f"% {divisor}", lambda x, y: x % divisor),
        (f"fmod {divisor}", lambda x, y: torch.fmod(x, divisor)),
        (f"trunc {divisor}", lambda x, y: torch.div(x, divisor, rounding_mode="trunc")),
        ("% y", lambda x, y: x % y.clamp(2, 50)),
        ("// y", lambda x, y: x // y.clamp(2, 50)),
        ("trunc y", lambda x, y: torch.div(x, y.clamp(2, 50), rounding_mode="trunc")),
        (f"{n} // x", lambda x, y: n // x.clamp(1, 100)),
        (f"clamp {n}", lambda x, y: x.clamp(max=n)),
        (f"clamp from {n}", lambda x, y: x.clamp(min=n)),
        ("clamp y", lambda x, y: torch.clamp(x, min=y)),
        ("maximum", lambda x, y: torch.maximum(x, y)),
        ("minimum", lambda x, y: torch.minimum(x, y)),
        (f"mask {n}", lambda x, y: x.masked_fill(y > 2, n)),
        (f"where {n}", lambda x, y: torch.where(y > 2, x, n)),
        ("where y", lambda x, y: torch.where(x > 2, x, y)),
        (f"less {edge}", lambda x, y: (x < edge).to(t) * y),
        (f"equals {edge}", lambda x, y: x * (x == edge)),
        ("equals y", lambda x, y: x + (x == y)),
        ("equals real y", lambda x, y: x + (x >= y.to(d_real)).to(t)),
        (f"greater {n}", lambda x, y: x - (x >= n).to(t)),
        ("cumsum", lambda x, y: x.cumsum(k)),
        (f"cumsum {t}", lambda x, y: x.cumsum(k, dtype=t)),
        ("cumprod", lambda x, y: x.cumprod(k)),
        ("sum", lambda x, y: x + x.sum(k, keepdim=True)),
        (f"sum {t}", lambda x, y: y + x.sum(k, keepdim=True, dtype=t)),
        ("prod", lambda x, y: x - x.prod(k, keepdim=True)),
        ("amax", lambda x, y: x + x.amax(k, keepdim=True)),
        ("min", lambda x, y: x * x.min(k, keepdim=True)[1]),
        ("sort", lambda x, y: x.sort(k, descending=True)[0]),
        ("argsort", lambda x, y: x.argsort(dim=k, stable=True).to(t)),
        (f"places to {t}", lambda x, y: (x.argsort(dim=k, stable=True) * 25).to(t)),
        (f"powers {t}", lambda x, y: x.to(t) ** torch.tensor(powers)[: x.shape[-1]].to(t)),
        ("flip", lambda x, y: x.flip(k)),
        ("roll", lambda x, y: x.roll(1, k)),
        ("cat", lambda x, y: torch.cat((x, y), k).narrow(k, 1, x.shape[k])),
        ("stack", lambda x, y: torch.stack((y, x)).sum(0)),
        (f"pad {n}", lambda x, y: F.pad(x, (1, 0), value=n)[..., : x.shape[-1]]),
        ("scatter_add", lambda x, y: x.scatter_add(k, (y.long() % x.shape[k]), x)),
        ("index_add", lambda x, y: x.index_add(k, torch.zeros(x.shape[k], dtype=torch.int64), x, alpha=3)),
        ("gather", lambda x, y: x.gather(k, y.long() % x.shape[k])),
        (f"scatter {n}", lambda x, y: x.scatter(k, y.long() % x.shape[k], n)),
        ("write", lambda x, y: _written(x, k)),
        (f"full {n}", lambda x, y: x + torch.full_like(x, n)),
        (f"arange {n}", lambda x, y: x + torch.arange(n, n + x.shape[-1])),
        (f"arange {t}", lambda x, y: x * torch.arange(x.shape[-1], dtype=t)),
        (f"constant {t}", lambda x, y: x - torch.tensor(held).to(t)[: x.shape[-1]]),
        ("matmul", lambda x, y: x @ y.mT if x.dim() > 1 and x.dtype == y.dtype and x.shape[-1] == x.shape[-2] else x),
        ("addcmul", lambda x, y: torch.addcmul(x, x, y, value=3)),
    ]
    d_real = d.pick(torch.float32, torch.float64)
    powers = [d.integer(0, 9) for _ in range(5)]
    held = [d.pick(*NUMBERS) * d.pick(1, -1) for _ in range(5)]
    return d.pick(*ways)


def whole(d: Draw) -> Call:
    """Casts to, and arithmetic in, all integer types."""
    shape, one, other = d.shape(1, 3), d.pick(*WHOLE), d.pick(*WHOLE)
    steps = [_step(d, shape) for _ in range(d.integer(1, 4))]
    ending = d.pick("", "", "", "float", "double", "half", "bool", "sum")

    def function(x: Tensor, y: Tensor) -> Tensor:
        for _, step in steps:
            x = step(x, y)
        match ending:
            case "float":
                return x.float() * 0.5
            case "double":
                return x.double() / 3
            case "half":
                return x / 2
            case "bool":
                return x.bool()
            case "sum":
                return x.sum()
            case _:
                return x

    words = f"{steps[0][0].split()[0]}|{' | '.join(w for w, _ in steps)} {ending} of {one} {other} {shape}"
    return call(words, function, typed(d, shape, one), typed(d, shape, other))


def far(d: Draw) -> Call:
    """Functions that are logarithms of squares, or exponentials, at numbers from 1e-8 to 1e300."""
    name = d.pick("asinh", "asinh", "acosh", "atanh", "sinh", "cosh", "tanh", "expm1", "log1p", "logit", "atan", "tan")
    shape = d.shape(1, 2)
    size = 10.0 ** d.random.uniform(-8, d.pick(2, 9, 160, 300), tuple(shape))
    if name in ("sinh", "cosh"):
        size = d.random.uniform(0, 710, tuple(shape))
    if name in ("atanh", "logit"):
        size = 1 - 10.0 ** d.random.uniform(-12, 0, tuple(shape))
    if name == "acosh":
        size = 1 + size
    if name in ("tan", "expm1"):
        size = np.minimum(size, 100.0)
    signs = d.random.choice([1.0, -1.0], tuple(shape)) if name not in ("acosh", "log1p", "logit") else 1.0
    return call(f"{name} far", getattr(torch, name), torch.tensor(size * signs))


def chained(d: Draw) -> Call:
    """A call of what another one gives."""
    first = d.pick(unary, binary, reduced, moved, moved, indexed, products, pooled, norms, padded)(d)
    made = next(t for t in _leaves(first.function(*first.given)) if t.is_floating_point())
    d.fixed = list(made.shape)
    second = d.pick(unary, parametric, with_number, clamped, reduced, reduced, moved, moved)(d)

    def both(*given: Tensor) -> Any:
        inner = next(t for t in _leaves(first.function(*given[: len(first.given)])) if t.is_floating_point())
        return second.function(inner, *given[len(first.given) :])

    return call(f"{first.words.split()[0]}>{second.words} of {first.words}", both, *first.given, *second.given[1:])


MAKERS = (
    chained, chained, chained, chained, chained, chained, unary, unary, parametric, binary, binary, with_number, rounded, clamped, chosen, reduced, reduced, reduced, norms, convolved,
    pooled, pooled, padded, resampled, moved, moved, indexed, indexed, products, losses, losses, attended,
    whole, whole, whole, whole, whole, whole, whole, whole, far, far,
)  # fmt: skip


def drawn(seed: int, gradients: bool = False) -> Call | None:
    """The call of a seed; None where PyTorch itself refuses it or gives nothing."""
    d = Draw(seed, not gradients)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = MAKERS[int(d.random.integers(len(MAKERS)))](d)
            out = found.function(*found.given)
            if gradients:
                leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in found.given]
                smooth = [t.sum() for t in _leaves(found.function(*leaves)) if t.requires_grad]
                torch.stack(smooth).sum().backward()
    except Exception:  # noqa: BLE001
        return None
    results = _leaves(out)
    if not results or any(t.numel() == 0 or t.is_complex() for t in results):
        return None
    return Call(f"seed {seed}: {found.words}", found.function, found.given)


def _leaves(out: object) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_flatten(out)[0] if isinstance(t, Tensor)]


class One(nn.Module):
    """A call, whose operators bear its number in a pack."""

    def __init__(self, made: Call) -> None:
        super().__init__()
        self.made = made

    def forward(self, *given: Tensor) -> list[Tensor]:
        return _leaves(self.made.function(*given))


class Packed(nn.Module):
    """Calls side by side; with gradients their floating operands are parameters, and the result is one number."""

    def __init__(self, calls: Sequence[Call], gradients: bool) -> None:
        super().__init__()
        self.calls, self.gradients = tuple(calls), gradients
        self.part = nn.ModuleList(One(c) for c in calls)
        own = [t for c in calls for t in c.given if gradients and t.is_floating_point()]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(t.shape, dtype=t.dtype)) for t in own)

    def forward(self, *given: Tensor) -> Any:
        fed, own = iter(given), iter(self.weights)
        outs = []
        for c, one in zip(self.calls, self.part, strict=True):
            operands = [next(own) if self.gradients and t.is_floating_point() else next(fed) for t in c.given]
            outs.append(one(*operands))
        if not self.gradients:
            return tuple(t for listed in outs for t in listed)
        total = torch.zeros((), dtype=torch.float64)
        for k, t in enumerate(t for listed in outs for t in listed if t.is_floating_point()):
            total = (
                total + (t * (0.5 + k % 3) * t.shape[0] if t.dim() else t).sum() + (t.flatten()[0] if t.numel() else 0)
            )
        return total


def judged(calls: Sequence[Call], gradients: bool = False) -> str:
    """Empty where all numbers agree; `refused` and why; else the first difference."""
    return _judged(calls, gradients)[0]


def _judged(calls: Sequence[Call], gradients: bool) -> tuple[str, dict[int, str]]:
    """What `judged` says, and which of the calls are refused or differ, and why."""
    fed = [t for c in calls for t in c.given if not (gradients and t.is_floating_point())]
    own = [t for c in calls for t in c.given if gradients and t.is_floating_point()]
    try:
        found = convert(build(lambda: (Packed(calls, gradients), tuple(fed)), "drawn"))
        graph = with_constants(found.graph, found.stated)
        step = build_step(graph, "sgd") if gradients else None
    except UnsupportedOperators as error:
        kinds = [(p.split("."), kind) for kind, places in error.missing.items() for p in places]
        apart = {int(at[1]): f"refused: {kind}" for at, kind in kinds if at[0] == "part" and at[1].isdigit()}
        return f"refused: {str(error)[23:150]}", apart
    except (TorchError, GraphError) as error:
        found = f"refused: {type(error).__name__} {str(error)[:170]}"
        return found, {int(at): found for at in re.findall(r"\(in part\.(\d+)", str(error))}
    except Exception as error:  # noqa: BLE001  # which is a fault
        return f"{type(error).__name__} {str(error)[:200]}", {}
    graph = graph if step is None else step.graph
    values = {f"given_{k}": t.numpy() for k, t in enumerate(fed)} | {
        f"weights.{k}": t.numpy() for k, t in enumerate(own)
    }
    names = {k: v for k, v in values.items()}
    names |= {k: np.asarray(v) for k, v in found.stated.items()}
    module = Packed(calls, gradients)
    for p, t in zip(module.weights, own, strict=True):
        p.data = t.clone()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = module(*[t.clone() for t in fed])
        return _compared(graph, names, module, theirs, step)


def _compared(
    graph: Graph, names: dict[str, np.ndarray], module: Packed, theirs: Any, step: Any
) -> tuple[str, dict[int, str]]:
    """The first difference, and of every call that differs its own."""
    try:
        feed = {t.name: names[t.name].reshape(t.shape) for t in graph.tensors if t.role is not Role.VALUE}
    except KeyError as error:
        return f"refused: reads {error}", {}  # random numbers
    try:
        got = run_graph(graph, feed, keep=[] if step is None else [g for _, g in step.trained])
    except Exception as error:  # noqa: BLE001
        return f"run: {type(error).__name__} {str(error)[:200]}", {}
    if step is None:
        if len(theirs) != len(graph.outputs):
            return f"refused: {len(graph.outputs)} outputs of {len(theirs)}", {}  # constants, or one tensor twice
        pairs = [(f"output {k}", got[o], t) for k, (o, t) in enumerate(zip(graph.outputs, theirs, strict=True))]
    else:
        theirs.backward()
        weights = dict(module.named_parameters())
        trained = dict(step.trained)
        pairs = [("loss", got[graph.outputs[0]], theirs)]
        for name, p in weights.items():
            wanted = torch.zeros_like(p) if p.grad is None else p.grad
            pairs.append((f"gradient of {name}", got[trained[name]] if name in trained else np.zeros(p.shape), wanted))
    first, found = "", dict[int, str]()
    if step is None:
        owners = [k for k, c in enumerate(module.calls) for _ in _leaves(c.function(*c.given))]
    else:
        owners = [-1, *(k for k, c in enumerate(module.calls) for t in c.given if t.is_floating_point())]
    for owner, (words, mine, wanted) in zip(owners, pairs, strict=True):
        told = _difference(words, mine, wanted)
        first = first or told
        if told and owner >= 0:
            found.setdefault(owner, told)
    return first, found


def _difference(words: str, mine: np.ndarray, wanted: Tensor) -> str:
    y = wanted.detach().numpy(force=True)  # a gradient may be a ZeroTensor
    if mine.size != y.size:
        return f"{words} has shape {mine.shape}, wanted {y.shape}"
    x = mine.reshape(y.shape)
    if x.dtype.kind in "iub" and y.dtype.kind in "iub":
        same = x == y
    else:
        bar = TOLERANCE if y.dtype.itemsize == 8 else SINGLE
        x, y = x.astype(np.float64), y.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= bar * np.maximum(1.0, np.abs(y)))
    if not bool(np.all(same)):
        at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(~same)))[: x.ndim]
        return f"{words} at {at}: {x[at]!r}, wanted {y[at]!r}"
    return ""


def outcomes(calls: Sequence[Call], gradients: bool = False) -> list[tuple[Call, str]]:
    """What is said of every call: of a pack at once where it agrees."""
    found, apart = _judged(calls, gradients)
    if not found or len(calls) == 1:
        return [(c, found) for c in calls]
    if apart and len(apart) < len(calls):
        rest = [c for k, c in enumerate(calls) if k not in apart]
        return [*((calls[k], why) for k, why in apart.items()), *outcomes(rest, gradients)]
    half = len(calls) // 2
    return [*outcomes(calls[:half], gradients), *outcomes(calls[half:], gradients)]


def _kind(made: Call) -> str:
    return made.words.split()[2]


def main(arguments: list[str]) -> int:
    """Print every difference, and the count of each outcome."""
    first, count = int(arguments[0]), int(arguments[1])
    gradients = "--gradients" in arguments
    limit = float(arguments[arguments.index("--seconds") + 1]) if "--seconds" in arguments else 1e9
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    start, pack, last = time.process_time(), [], first
    for seed in range(first, first + count):
        last = seed
        made = drawn(seed, gradients)
        counts["drawn"] += 1
        if made is None:
            counts["no program"] += 1
        elif _kind(made) in UNKNOWN:
            counts["refused as before"] += 1
        else:
            pack.append(made)
        if len(pack) == PACK or seed == first + count - 1:
            for c, found in outcomes(pack, gradients) if pack else []:
                counts["equal" if not found else "refused" if found.startswith("refused") else "different"] += 1
                if found.startswith("refused"):
                    reasons[found[:60]] += 1
                    if found.startswith("refused: aten.") and " with " not in found:
                        UNKNOWN.add(_kind(c))
                elif found:
                    print(f"{c.words[:300]}\n    {found}", flush=True)
            pack = []
            if time.process_time() - start > limit:
                break
    print(f"to seed {last}, {time.process_time() - start:.0f} s of the processor: {dict(counts)}", flush=True)
    for reason, n in reasons.most_common(60):
        print(f"  {n} {reason}")
    return counts["different"]


if __name__ == "__main__":
    raise SystemExit(min(1, main(sys.argv[1:])))

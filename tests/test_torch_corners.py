"""Gradients at corners, where a function has several and PyTorch chooses one: ours are its choice.

Operators times numbers: zeros of both signs, ties, bounds, negatives, in both precisions; and those that say what they
do with infinities and NaN at these.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch_draws import Call, outcomes

F = nn.functional
FINITE = torch.tensor(
    [[0, 0, 0], [0, -0.0, 0], [1, 1, -1], [2, 0, 2], [-3, -3, -3], [-1, -2, 0], [6, 3, -3], [1, -1, 0.5], [20, -0.5, 1e-30]],
    dtype=torch.float64,
)  # fmt: skip
INFINITE = torch.tensor(
    [[inf, 1, 2], [-inf, 0, 1], [inf, inf, -1], [inf, -inf, 0], [-inf, -inf, -inf], [-inf, 1, -inf]],
    dtype=torch.float64,
)
UNKNOWN = torch.tensor([[nan, 1, 2], [0, nan, nan], [nan, nan, nan], [1, 1, 0]], dtype=torch.float64)

Function = Callable[..., Any]
WORDS = (
    "abs neg exp expm1 log log1p log2 log10 sqrt rsqrt sin cos tan tanh atan asin acos sinh cosh erf sigmoid relu "
    "reciprocal square floor ceil round trunc frac sign sgn nan_to_num logit atanh asinh acosh deg2rad sinc"
)
LAYERS = (
    "gelu silu mish softplus hardswish hardsigmoid relu6 selu elu celu leaky_relu hardtanh softshrink hardshrink "
    "tanhshrink logsigmoid softsign"
)
ONE: dict[str, Function] = {n: getattr(torch, n) for n in WORDS.split()} | {n: getattr(F, n) for n in LAYERS.split()}
ONE |= {f"x ** {e}": lambda x, e=e: x**e for e in (-2.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3)}
ONE |= {f"{b} ** x": lambda x, b=b: torch.pow(b, x) for b in (2.0, 1.0)}
for p in (0, 0.5, 1, 1.5, 2, 3, 4, -1, inf, -inf):
    ONE[f"vector_norm {p}"] = lambda x, p=p: torch.linalg.vector_norm(x, p, dim=-1)
    ONE[f"vector_norm {p} of all"] = lambda x, p=p: torch.linalg.vector_norm(x[:2], p)
    ONE[f"norm {p}"] = lambda x, p=p: torch.norm(x, p, dim=1)
    ONE[f"normalize {p}"] = lambda x, p=p: F.normalize(x, p, dim=-1)
for p in (0, 1, 2, 3, inf):
    ONE[f"pairwise_distance {p}"] = lambda x, p=p: F.pairwise_distance(x, x.flip(1), p)
ONE |= {f"renorm {p}": lambda x, p=p: torch.renorm(x, p, 0, 1.0) for p in (0.5, 1, 2, 3)}
for d in (0, 1):
    for n in ("softmax", "log_softmax", "softmin"):
        ONE[f"{n} {d}"] = lambda x, n=n, d=d: getattr(F, n)(x, dim=d)
    for n in (
        "logsumexp",
        "cumsum",
        "cumprod",
        "amax",
        "amin",
        "prod",
        "sum",
        "mean",
        "nansum",
        "nanmean",
        "var",
        "std",
    ):
        ONE[f"{n} {d}"] = lambda x, n=n, d=d: getattr(torch, n)(x, d)
    for n in ("max", "min", "median", "sort", "aminmax"):
        ONE[f"{n} {d}"] = lambda x, n=n, d=d: getattr(torch, n)(x, dim=d)[0]
ONE |= {
    f"{n} of all": getattr(torch, n) for n in ("amax", "amin", "max", "min", "median", "prod", "mean", "std", "var")
}
ONE |= {f"clamp {a} {b}": lambda x, a=a, b=b: torch.clamp(x, a, b) for a, b in ((None, 1), (0, None), (-1, 1), (1, -1))}
for v in (0.0, 1.0):
    ONE[f"maximum {v}"] = lambda x, v=v: torch.maximum(x, torch.tensor(v, dtype=x.dtype))
    ONE[f"minimum {v}"] = lambda x, v=v: torch.minimum(x, torch.tensor(v, dtype=x.dtype))
ONE |= {
    "logsumexp of all": lambda x: torch.logsumexp(x, (0, 1)),
    "matrix norm": torch.linalg.matrix_norm,
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(1), dim=1),
    "cdist": lambda x: torch.cdist(x, x.flip(1)),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "where of a logarithm": lambda x: torch.where(x > 0, torch.log(x), 0.0),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "max_pool": lambda x: F.max_pool1d(x[None], 2, 1),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 2, 1),
    "lp_pool": lambda x: F.lp_pool1d(x[None], 3.0, 2, 1),
    "xlogy of one": lambda x: torch.xlogy(x, x),
    "xlogy of a number": lambda x: torch.xlogy(x, 2.5),
    "square of relu": lambda x: F.relu(x) ** 2,
    "largest of absolutes": lambda x: x.abs().max(),
    **{
        f"scatter_reduce {how} {own}": lambda x, how=how, own=own: x.scatter_reduce(
            1, torch.zeros(x.shape, dtype=torch.long), x, how, include_self=own
        )
        for how, own in (("amax", True), ("amin", True), ("mean", True), ("mean", False))
    },
    "index_reduce": lambda x: x.index_reduce(0, torch.tensor([0, 0, 1]), x[:3], "amin"),
}
TWO: dict[str, Function] = {
    n: getattr(torch, n)
    for n in ("add", "sub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "logaddexp", "xlogy")
} | {n: getattr(F, n) for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")}
TWO |= {
    "where": lambda a, b: torch.where(a > b, a, b),
    "where of a quotient": lambda a, b: torch.where(a == 0, b, 1 / a),
    "clamp from": lambda a, b: torch.clamp(a, min=b),
    "clamp to": lambda a, b: torch.clamp(a, max=b),
    "clamp between": lambda a, b: torch.clamp(a, b, b + 1),
    "clamp between equals": lambda a, b: torch.clamp(a, b, b * 1.0),
    "clamp crossed": lambda a, b: torch.clamp(a, b, b - 1),
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "kl_div": lambda a, b: F.kl_div(a, b, reduction="sum"),
    "kl_div of logarithms": lambda a, b: F.kl_div(a, b, reduction="sum", log_target=True),
    "cosine_similarity": lambda a, b: F.cosine_similarity(a, b, dim=-1),
    "pairwise_distance": F.pairwise_distance,
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "margin_ranking_loss": lambda a, b: F.margin_ranking_loss(a, b, torch.sign(b)),
    "triplet_margin_loss": lambda a, b: F.triplet_margin_loss(a, b, a.flip(0)),
    "cross_entropy": lambda a, b: F.cross_entropy(a, b.softmax(1)),
    "prelu": lambda a, b: F.prelu(a, b[0, :1]),
}
BEYOND = (
    "abs", "neg", "exp", "log", "sqrt", "rsqrt", "sin", "tanh", "sigmoid", "relu", "reciprocal", "sign", "sgn", "x ** 0", "x ** 2",
    "vector_norm 1", "vector_norm inf", "vector_norm -inf", "amax 0", "amax 1", "amin 1", "max 1", "min 0", "max of all", "min of all", "softmax 1",
    "logsumexp 1", "sum 0", "clamp None 1", "clamp 0 None", "clamp -1 1", "clamp 1 -1", "maximum 0.0", "minimum 1.0", "masked_fill",
    "where of a logarithm", "largest of absolutes", "elu", "selu",
)  # fmt: skip
"""Functions of one operand whose gradients are PyTorch's at infinities and NaN too."""
BEYOND_OF_TWO = (
    "add", "sub", "maximum", "minimum", "where", "clamp from", "clamp to", "clamp between", "clamp crossed", "l1_loss",
)  # fmt: skip


def told(calls: list[Call]) -> dict[str, str]:
    """What differs, and what is refused that PyTorch differentiates."""
    known = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for c in calls:
            leaves = [t.clone().requires_grad_() for t in c.given]
            made = c.function(*leaves)
            if made.requires_grad:
                made.sum().backward()
                known.append(c)
    assert len(known) > 0.9 * len(calls)
    return {c.words: found for c, found in outcomes(known, gradients=True) if found}


def _calls(x: Any, one: list[str], two: list[str]) -> list[Call]:
    pairs = (x, x.flip(0)), (x[:2], x[:2].clone()), (x, x.clone())
    calls = [Call(f"x: {n}", ONE[n], (x,)) for n in one]
    return calls + [Call(f"x: {n}, {k}", TWO[n], pair) for n in two for k, pair in enumerate(pairs)]


def test_what_was_wrong_at_zeros_and_ties() -> None:
    """They were NaN, or another share."""
    norms = [n for n in ONE if n.startswith(("vector_norm", "normalize")) and n.split()[1] in ("0.5", "1.5", "3", "-1")]
    one = [*norms, "norm 0.5", "renorm 0.5", "x ** 0", "cdist", "xlogy of one", "scatter_reduce amax True", "lp_pool"]
    assert told(_calls(FINITE, one, ["xlogy", "clamp crossed"])) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_at_zeros_ties_and_bounds(dtype: str) -> None:
    one, two = list(ONE), list(TWO)
    if dtype == "float32":  # what there is to round is not at issue
        one = [n for n in ONE if n.startswith(("vector", "max", "min", "clamp", "xlogy", "scatter"))]
        two = [n for n in TWO if n.startswith(("max", "min", "clamp", "xlogy", "where"))]
    assert told(_calls(FINITE.to(getattr(torch, dtype)), one, two)) == {}


def test_at_infinities_and_nan() -> None:
    rows = torch.cat((INFINITE, UNKNOWN))
    calls = [Call(f"x: {n} {k}", ONE[n], (x,)) for n in BEYOND for k, x in enumerate((INFINITE, UNKNOWN, FINITE[:2]))]
    calls += [Call(f"x: {n}", TWO[n], (rows, FINITE[:1].expand(10, 3) + 1.0)) for n in BEYOND_OF_TWO]
    calls += [Call(f"x: {n} turned", TWO[n], (FINITE[5:6].expand(10, 3) * 1.0, rows)) for n in BEYOND_OF_TWO]
    calls += [Call(f"x: {n} of itself", TWO[n], (rows, rows * 1.0)) for n in BEYOND_OF_TWO]
    assert told(calls) == {}


def test_where_a_function_is_near_the_greatest_number() -> None:
    """sinh and cosh of 710: e^710 is infinite, its half is not, and neither is the gradient (found by drawn programs)."""
    far = torch.tensor([710.0, -710.0, 709.9, -709.9, 1.0], dtype=torch.float64)
    assert told([Call(f"x: {n}", ONE[n], (far,)) for n in ("sinh", "cosh")]) == {}

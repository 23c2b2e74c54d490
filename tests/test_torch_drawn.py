"""Drawn calls of PyTorch: what is imported has PyTorch's numbers, and its gradients; a sample, and by name what was found.

`python tests/torch_draws.py 0 20000` is the whole of it, `--gradients` that of gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch_draws import Call, drawn, judged, outcomes

from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.program import build


def double(*numbers: float) -> Any:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
def test_drawn_calls_have_the_numbers_of_pytorch(gradients: bool) -> None:
    first, count = (100_000, 24) if gradients else (1_000, 24)
    calls = [made for seed in range(first, first + count) if (made := drawn(seed, gradients)) is not None]
    found = [(c.words, said) for c, said in outcomes(calls, gradients)]
    assert [f for f in found if f[1] and not f[1].startswith("refused")] == []
    assert sum(not said for _, said in found) > 0.7 * len(found)


FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "quotient by zero, floored": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        (double(1.0, -1.0, 0.0, 7.0), double(0.0, 0.0, 0.0, 2.0)),
    ),
    "floor_divide by zero": (torch.floor_divide, (double(1.0, -7.0), double(0.0, 2.0))),
    "floor_divide by the number zero": (lambda x: torch.div(x, 0.0, rounding_mode="floor"), (double(1.0, -7.0),)),
}


NAN = float("nan")
ROWS = torch.stack([double(1.0, NAN, 2.0, NAN), double(3.0, 1.0, 3.0, 1.0), double(NAN, NAN, NAN, NAN)])
ODD = double(NAN, float("inf"), float("-inf"), 0.2, -0.0, 2.0)
EDGES = double(-1.0, 1.0, 0.0, -0.0, 1e-9, 0.3, 1.0 - 1e-12, 1e-12 - 1.0, 2.0, NAN)

FOUND |= {
    "argmax of NaN": (lambda x: x.argmax(1), (ROWS,)),
    "argmin of NaN": (lambda x: x.argmin(1), (ROWS,)),
    "argmax of all with NaN": (torch.argmax, (ROWS,)),
    "max and where, of NaN": (lambda x: x.max(1), (ROWS,)),
    "min and where, of NaN": (lambda x: x.min(1), (ROWS,)),
    "median of NaN": (lambda x: x.median(1)[0], (ROWS,)),
    "where the median of NaN is": (lambda x: x[::2].median(1)[1], (ROWS,)),
    "median of all with NaN": (torch.median, (ROWS,)),
    "softshrink of NaN": (nn.functional.softshrink, (ODD,)),
    "hardshrink of NaN": (nn.functional.hardshrink, (ODD,)),
    "sinc of NaN": (torch.sinc, (ODD,)),
    "sign of NaN": (torch.sign, (ODD,)),
    "sgn of NaN": (torch.sgn, (ODD,)),
    "zero times NaN and infinity": (lambda x: x * 0, (ODD,)),
    "bucketize of NaN": (lambda x: torch.bucketize(x, double(-1.0, 0.0, 1.0)), (ODD,)),
    "bucketize of NaN, right": (lambda x: torch.bucketize(x, double(-1.0, 0.0, 1.0), right=True), (ODD,)),
    "adaptive pool of one example": (lambda x: nn.functional.adaptive_max_pool2d(x[None], (2, 3)), (ROWS[:2],)),
    "asin at its ends": (torch.asin, (EDGES,)),
    "acos at its ends": (torch.acos, (EDGES,)),
    **{
        name: (getattr(nn.functional, name), (ODD,))
        for name in ("leaky_relu", "logsigmoid", "hardsigmoid", "hardswish", "relu6")
    },
}


FAR = double(
    -1e300, -1e200, -1e154, -1e100, -1e30, -1e16, -1e8, -1e7, -5.0, -1.0, -1e-3, 0.0, 1e-6, 1.0, 1.0 + 1e-9, 2.0
)
FAR = torch.cat((FAR, double(1e8, 1e154, 1e200, 1.7e308, float("inf"), float("-inf"), NAN, 709.9, -710.2, 710.4)))
FOUND |= {name: (getattr(torch, name), (FAR,)) for name in ("asinh", "acosh", "atanh", "sinh", "cosh")}
FOUND |= {
    "asinh in single precision": (torch.asinh, (FAR.float(),)),
    "acosh in single precision": (torch.acosh, (FAR.float(),)),
    "sinh in single precision": (torch.sinh, (torch.tensor([89.0, -89.2, 88.9, 1.0]),)),
    "one over asinh": (lambda x: 1 / torch.asinh(x), (double(1e-6, -1e-6, 1e300, -1e300),)),
    "logarithm of a small sigmoid": (lambda x: torch.log(torch.sigmoid(x)), (double(-700.0, -50.0, -38.0, 0.0, 40.0),)),
    "the last above": (lambda x: x.topk(1)[0], (torch.tensor([1, 0, 255], dtype=torch.uint8),)),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_draws_found(name: str) -> None:
    function, given = FOUND[name]
    assert judged([Call(f"x: {name}", function, given)]) == ""


WIDE = double(NAN, float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.0, 7.0)
INTEGERS, TRUTH = torch.tensor([-2, 0, 3, 7]), torch.tensor([True, False])

ENDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        f"{x.dtype} {name} {number}": (lambda x, f=f, n=number: f(x, n), (x,))
        for x in (TRUTH, INTEGERS, WIDE)
        for name, f in {"%": operator.mod, "//": operator.floordiv}.items()
        for number in (2, -1, 1.5)
    },
    "truth values by infinity": (lambda x: x % float("inf"), (TRUTH,)),
    "floored quotients of all signs": (lambda x, y: torch.div(x[:, None], y, rounding_mode="floor"), (WIDE, WIDE)),
    "a number over computed ones": (lambda x: 7.5 // x, (WIDE,)),
    "2 to numbers": (lambda x: 2.0**x, (WIDE,)),
    "1 to numbers": (lambda x: torch.stack((1.0**x, x)), (WIDE,)),
}
NOT_READ: dict[str, tuple[Callable[..., Any], Any]] = {
    "a quotient by inf": (lambda x: torch.stack((x / float("inf"), x)), WIDE),
    "a quotient by 9.9": (lambda x: x / 1e-320, WIDE),
    "a rounded quotient by -inf": (lambda x: x // float("-inf"), WIDE),
    "a computed exponent": (lambda x: 2**x, INTEGERS),
    "computed exponent": (lambda x: 2**x, TRUTH),
    "exponent": (lambda x: float("inf") ** x, WIDE),
}
"""What is refused in these words."""


def test_numbers_at_their_ends() -> None:
    said = {c.words: found for c, found in outcomes([Call(k, f, x) for k, (f, x) in ENDS.items()])}
    assert {k: v for k, v in said.items() if v} == {}


@pytest.mark.parametrize("words", NOT_READ)
def test_numbers_that_are_refused(words: str) -> None:
    function, given = NOT_READ[words]
    found = judged([Call("x", function, (given,))])
    assert found.startswith("refused: aten.") and words in found


CORNERS = double(-3.0, 3.0, -1.0, 1.0, 0.0, 6.0, 0.5, -0.5, 2.0, -2.0)
TIES = torch.randint(0, 3, (2, 2, 5, 7), generator=torch.Generator().manual_seed(0)).double()

DERIVED: dict[str, tuple[Callable[..., Any], Any]] = {
    **{
        name: (getattr(nn.functional, name), CORNERS)
        for name in ("hardtanh", "relu6", "hardswish", "hardsigmoid", "leaky_relu", "logsigmoid", "softshrink")
    },
    "hardtanh of other bounds": (lambda x: nn.functional.hardtanh(x, -2.0, 2.0), CORNERS),
    "hardtanh from 0": (lambda x: nn.functional.hardtanh(x, 0.0, float("inf")), CORNERS),
    "clamp": (lambda x: x.clamp(0, 1), CORNERS),
    "clamp from 0": (lambda x: x.clamp(min=0), CORNERS),
    "hinge": (lambda x: nn.functional.hinge_embedding_loss(x, -torch.ones(10, dtype=torch.float64)), CORNERS),
    "cross entropy of logits 0": (
        lambda x: nn.functional.binary_cross_entropy_with_logits(x * 0.5, torch.full((10,), 0.3, dtype=torch.float64)),
        CORNERS,
    ),
    "asin at its ends": (torch.asin, double(-1.0, 1.0, 0.0, 0.3)),
    "acos at its ends": (torch.acos, double(-1.0, 1.0, 0.0, 0.3)),
    "adaptive max pool of unequal windows": (lambda x: nn.functional.adaptive_max_pool2d(x, (2, 3)), TIES),
    "adaptive max pool of one window": (lambda x: nn.functional.adaptive_max_pool2d(x, 1), TIES),
    "adaptive max pool of one dimension": (lambda x: nn.functional.adaptive_max_pool1d(x[0], 3), TIES),
    "adaptive max pool of rows": (lambda x: nn.functional.adaptive_max_pool2d(x, (2, 7)), TIES),
    "max along a dimension": (lambda x: x.max(2)[0], TIES),
    "min along a dimension": (lambda x: x.min(-1, keepdim=True)[0], TIES),
    "max and where": (lambda x: x.max(1)[0] * x.max(1)[1], TIES),
    "max along a merged dimension": (lambda x: x.permute(0, 3, 1, 2).flatten(1, 2).max(1)[0], TIES),
    "max along a divided dimension": (lambda x: x[:, :, :4].unflatten(2, (2, 2)).max(3)[0].min(2)[0], TIES),
    "max along a dimension of a part": (lambda x: (x[:, :, 1:] * 0.5).transpose(1, 3).max(1)[0], TIES),
    "max of all": (torch.max, TIES),
    "amax": (lambda x: x.amax((1, 3)), TIES),
    "median of all": (torch.median, TIES),
    "median along a dimension": (lambda x: x.median(2)[0], TIES),
    "maximum with a number": (lambda x: torch.maximum(x, torch.zeros((), dtype=torch.float64)), CORNERS),
    "minimum with a number": (lambda x: torch.minimum(x, torch.tensor(-1.0, dtype=torch.float64)), CORNERS),
    "maximum of two": (lambda x: torch.maximum(x, x[:, :, :1]), TIES),
    "clamp by tensors": (lambda x: torch.clamp(x, x[:, :, :1], x[..., :1] + 1.0), TIES),
    "clamp by equal tensors": (lambda x: torch.clamp(x, x[:, :, :1], x[:, :, :1] * 1.0), TIES),
    "clamp by crossed tensors": (lambda x: torch.clamp(x, x[:, :, :1], x[..., :1]), TIES),
    "clamp from a tensor": (lambda x: torch.clamp(x, min=x[:, :, :1]), TIES),
    "sinc at 0": (torch.sinc, CORNERS),
    "logit": (torch.logit, double(-2.0, -0.5, 0.0, 0.25, 1.0, 1.5)),
    "logit of moved numbers": (lambda x: torch.logit(x, 0.25), double(-2.0, 0.0, 0.25, 0.3, 0.75, 1.5)),
    "deviation of one element": (lambda x: x[..., :1].std(3, correction=0), TIES),
    "deviation of equal elements": (lambda x: torch.stack((x[..., 0], x[..., 0], x[..., 1] * 0)).std(0)[0], TIES),
    "quotient by zero, floored": (lambda x: torch.div(x + 1.0, x, rounding_mode="floor"), CORNERS),
    "asinh": (torch.asinh, double(-1e300, -1e154, -1e8, -5.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 1e8, 1e200)),
    "acosh": (torch.acosh, double(-3.0, -1.5, -1.0, -0.5, 0.0, 1.0, 1.0001, 1.5, 2.0, 1e8, 1e154, 1e200)),
    "sinh": (torch.sinh, CORNERS * 200.0),
    "cosh": (torch.cosh, CORNERS * 200.0),
    "quotient of two, floored": (lambda x: torch.div(x, x[:, :1], rounding_mode="floor"), TIES),
}
"""Functions at their corners, where PyTorch chooses one of the possible gradients."""


def test_gradients_at_corners() -> None:
    said = {
        c.words: found for c, found in outcomes([Call(k, f, (x,)) for k, (f, x) in DERIVED.items()], gradients=True)
    }
    assert {k: v for k, v in said.items() if v} == {}


def _quantized(make: Callable[[Any], Any]) -> Callable[[], Any]:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", make(torch.ones(4, 4)))
            self.offset = make(torch.randn(4, 4))

        def forward(self, x: Any) -> Any:
            return x @ self.scale @ self.offset

    return lambda: (Held(), (torch.zeros(2, 4),))


@pytest.mark.parametrize(
    "change",
    [lambda q: q, lambda q: q.detach().clone(), lambda q: q.view(2, 8).view(4, 4)],
    ids=["itself", "copied", "viewed"],
)
def test_quantized_buffers_are_refused_where_they_are_read(change: Callable[[Any], Any]) -> None:
    """The meta device says that they are float32."""
    with pytest.raises(TorchError, match="'scale': is read by the forward pass, and is a quantized tensor"):
        build(_quantized(lambda w: change(torch.quantize_per_tensor(w, 0.1, 0, torch.qint8))), "held")
    build(_quantized(lambda w: change(torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)).dequantize()), "plain")


def test_quantized_examples_are_refused() -> None:
    with pytest.raises(TorchError, match="example input .* is a quantized tensor"):
        build(lambda: (nn.Identity(), (torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),)), "fed")

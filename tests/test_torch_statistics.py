"""Statistics that losses use, with their gradients against PyTorch's: covariances, deviations, medians, buckets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch_training import compare_gradients

from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.program import build

F, nn, Tensor = torch.nn.functional, torch.nn, torch.Tensor
pytestmark = pytest.mark.torch

EDGES = torch.linspace(-1.0, 1.0, 5)


class Measured(nn.Module):
    """A statistic of a linear layer's output, and rows of a table where it gives positions."""

    def __init__(self, statistic: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.table, self.statistic = nn.Linear(6, 5), nn.Embedding(8, 3), statistic

    def forward(self, x: Tensor) -> Tensor:
        y = self.statistic(self.linear(x), x)
        return (self.table(y) if y.dtype in (torch.int64, torch.int32) else y).pow(2).sum()


CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "covariance": lambda y, x: torch.cov(y.T),
    "covariance of the whole": lambda y, x: y.T.cov(correction=0),
    "variance of a row": lambda y, x: torch.cov(y[:, 0]),
    "correlation": lambda y, x: torch.corrcoef(y.T),
    "deviation of everything": lambda y, x: y.std() + y.var(correction=0),
    "median": lambda y, x: y.median(),
    "medians": lambda y, x: y.median(1).values + y.median(dim=-1, keepdim=True).values,
    "median of an even number": lambda y, x: y.median(0).values,
    "position of the median": lambda y, x: y.median(1).indices,
    "buckets": lambda y, x: torch.bucketize(x, EDGES),
    "buckets, closed on the right": lambda y, x: torch.bucketize(x, EDGES, right=True, out_int32=True),
    "places among boundaries": lambda y, x: torch.searchsorted(EDGES, x, side="right"),
}


@pytest.mark.parametrize("name", CASES)
def test_statistics_and_their_gradients(name: str) -> None:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn((8, 6), generator=draw, dtype=torch.float64)
    x[0, :2] = torch.tensor([-0.5, 1.0])  # boundaries themselves
    compare_gradients(lambda: (Measured(CASES[name]), {"x": torch.zeros(8, 6)}), {"x": x})


class Penalised(nn.Module):
    """The gradient penalty of a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)
        return (slope.norm(2, -1) - 1).pow(2).mean()


def test_gradients_inside_a_forward_pass_are_refused_by_name() -> None:
    with pytest.raises(TorchError, match=r"asks for gradients inside its forward pass \(torch.autograd.grad\)"):
        build(lambda: (Penalised(), {"x": torch.zeros(8, 6)}), "model")


class Guarded(nn.Module):
    """A test of contents beside one of shapes, which does nothing but raise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2 and torch.any(x.abs() > 1e6):
            raise ValueError("too large")
        return self.linear(x).pow(2).sum()


def test_guards_of_several_parts_are_passed() -> None:
    compare_gradients(lambda: (Guarded(), {"x": torch.zeros(8, 6)}), {"x": torch.randn(8, 6, dtype=torch.float64)})

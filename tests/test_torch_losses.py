"""Losses of PyTorch in imported programs: the same number, and the same gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch_training import compare_gradients

F, nn, Tensor = torch.nn.functional, torch.nn, torch.Tensor
pytestmark = pytest.mark.torch

BATCH, PLACES, CLASSES = 3, 4, 5


class Model(nn.Module):
    def __init__(self, loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.loss = nn.Linear(6, CLASSES), loss
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5, 1.25, 3.0]), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self, self.linear(x), y)


def rows(z: Tensor) -> Tensor:
    return z.reshape(-1, CLASSES)


def entropy(**options: object) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    return lambda m, z, y: F.cross_entropy(
        rows(z), y.reshape(-1), **{k: m.weight if v == "weight" else v for k, v in options.items()}
    )


LABELS = {
    "mean": entropy(),
    "sum": entropy(reduction="sum"),
    "none": lambda m, z, y: (F.cross_entropy(rows(z), y.reshape(-1), reduction="none") ** 2).mean(),
    "ignored": entropy(ignore_index=1),
    "smooth": entropy(label_smoothing=0.1),
    "weights": entropy(weight="weight"),
    "weights-sum": entropy(weight="weight", reduction="sum"),
    "weights-smooth": entropy(weight="weight", label_smoothing=0.2),
    "images": lambda m, z, y: F.cross_entropy(z.permute(0, 2, 1), y),
    "nll": lambda m, z, y: F.nll_loss(F.log_softmax(rows(z), -1), y.reshape(-1)),
    "next-token": lambda m, z, y: F.cross_entropy(
        rows(z), F.pad(y, (0, 1), value=-100)[:, 1:].contiguous().reshape(-1), ignore_index=-100
    ),
    "margin": lambda m, z, y: (1 + z.max(-1).values - z.gather(2, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)).mean(),
    "shorter": lambda m, z, y: z.gather(2, y[:2, :3, None].clamp(min=0)).pow(2).sum(),
    "middle": lambda m, z, y: z.gather(1, y.clamp(0, 3)[:, :2, None].expand(-1, -1, CLASSES)).tanh().sum(),
}
TARGETS = {
    "probabilities": lambda m, z, y: F.cross_entropy(rows(z), rows(y).softmax(-1)),
    "binary": lambda m, z, y: F.binary_cross_entropy_with_logits(z, y.sigmoid()),
    "binary-positive": lambda m, z, y: F.binary_cross_entropy_with_logits(z, y.sigmoid(), pos_weight=m.weight),
    "binary-weights": lambda m, z, y: F.binary_cross_entropy_with_logits(
        z, y.sigmoid(), weight=m.weight, reduction="sum"
    ),
    "binary-probabilities": lambda m, z, y: F.binary_cross_entropy(z.sigmoid(), y.sigmoid()),
    "squares": lambda m, z, y: F.mse_loss(z, y),
    "squares-sum": lambda m, z, y: F.mse_loss(z, y, reduction="sum"),
    "absolute": lambda m, z, y: F.l1_loss(z, y),
    "smooth-l1": lambda m, z, y: F.smooth_l1_loss(z, y),
    "smooth-l1-sum": lambda m, z, y: F.smooth_l1_loss(z, y, beta=0.3, reduction="sum"),
    "huber": lambda m, z, y: F.huber_loss(z, y, delta=0.7),
    "divergence": lambda m, z, y: F.kl_div(F.log_softmax(z, -1), y.softmax(-1), reduction="batchmean"),
    "divergence-zero": lambda m, z, y: F.kl_div(F.log_softmax(z, -1), y.relu(), reduction="sum"),
    "divergence-logarithms": lambda m, z, y: F.kl_div(
        F.log_softmax(z, -1), y.log_softmax(-1), reduction="sum", log_target=True
    ),
    "poisson": lambda m, z, y: F.poisson_nll_loss(z, y.exp()),
    "soft-margin": lambda m, z, y: F.soft_margin_loss(z, y.sign()),
}


@pytest.mark.parametrize("name", sorted(LABELS))
def test_losses_of_labels(name: str) -> None:
    draw = torch.Generator().manual_seed(5)
    y = torch.randint(0, CLASSES, (BATCH, PLACES), generator=draw)
    y[0, 1] = y[2, 3] = -100
    if name == "ignored":
        y = y.clamp(min=0)
    x = torch.randn(BATCH, PLACES, 6, generator=draw, dtype=torch.float64)
    compare_gradients(lambda: (Model(LABELS[name]), (x.float(), y)), {"x": x, "y": y})


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_losses_of_targets(name: str) -> None:
    draw = torch.Generator().manual_seed(6)
    x, y = (torch.randn(BATCH, PLACES, n, generator=draw, dtype=torch.float64) for n in (6, CLASSES))
    compare_gradients(lambda: (Model(TARGETS[name]), (x.float(), y.float())), {"x": x, "y": y})

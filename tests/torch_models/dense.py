"""Perceptrons, DLRM, XDL and CANDLE-Uno as plain PyTorch; sizes and defaults follow `models/sources/zoo`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def perceptron(widths: Sequence[int], last: nn.Module | None = None) -> nn.Sequential:
    """Dense layers without bias, relu between them, `last` behind the last one."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(a, b, bias=False))
        layers.append(nn.ReLU() if i < len(widths) - 2 else last or nn.Identity())
    return nn.Sequential(*layers)


def mlp_unity(batch: int = 64, inputs: int = 784, hidden: int = 512, classes: int = 10, dtype: str = "float32"):
    """Unity's classifier."""
    return perceptron([inputs, hidden, classes]).to(getattr(torch, dtype)), (
        torch.zeros(batch, inputs, dtype=getattr(torch, dtype)),
    )


def mlp_8192(batch: int = 64, width: int = 8192, layers: int = 16, dtype: str = "float32"):
    """Unity's large perceptron."""
    return perceptron([width] * (layers + 1)).to(getattr(torch, dtype)), (
        torch.zeros(batch, width, dtype=getattr(torch, dtype)),
    )


class Dlrm(nn.Module):
    """Sums of table rows beside a bottom perceptron, concatenated, then a top perceptron."""

    def __init__(self, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = perceptron(bottom, nn.ReLU()) if bottom else None
        self.top = perceptron(top, nn.Sigmoid())

    def forward(self, dense: Tensor | None, *sparse: Tensor) -> Tensor:
        parts = [] if self.bottom is None else [self.bottom(dense)]
        parts += [table(ids) for table, ids in zip(self.tables, sparse, strict=True)]
        return self.top(torch.cat(parts, dim=1))


def dlrm(
    batch: int = 16384,
    tables: int = 8,
    rows: int = 1_000_000,
    width: int = 64,
    bag: int = 1,
    dense: int = 64,
    bottom: str = "512-512-64",
    top: str = "1024-1024-1024-1",
    dtype: str = "float32",
):
    """DLRM."""
    low, high = ([int(n) for n in text.split("-")] for text in (bottom, top))
    module = Dlrm(tables, rows, width, [dense, *low], [low[-1] + tables * width, *high]).to(getattr(torch, dtype))
    ids = [torch.zeros(batch, bag, dtype=torch.int64) for _ in range(tables)]
    return module, (torch.zeros(batch, dense, dtype=getattr(torch, dtype)), *ids)


class Xdl(Dlrm):
    """Tables and the top perceptron only."""

    def forward(self, *sparse: Tensor) -> Tensor:
        return super().forward(None, *sparse)


def xdl(
    batch: int = 16384,
    tables: int = 4,
    rows: int = 1_000_000,
    width: int = 64,
    bag: int = 1,
    top: str = "256-256-2",
    dtype: str = "float32",
):
    """XDL."""
    module = Xdl(tables, rows, width, [], [tables * width, *(int(n) for n in top.split("-"))]).to(getattr(torch, dtype))
    return module, tuple(torch.zeros(batch, bag, dtype=torch.int64) for _ in range(tables))


UNO = (
    ("cell_rnaseq", 942),
    ("dose1", 1),
    ("dose2", 1),
    ("drug1_descriptors", 5270),
    ("drug1_fingerprints", 2048),
    ("drug2_descriptors", 5270),
    ("drug2_fingerprints", 2048),
)


class Uno(nn.Module):
    """A tower per feature (doses go in as they are), concatenated, then dense layers and one number."""

    def __init__(self, sizes: Sequence[int], width: int, tower: int, layers: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Identity() if n == 1 else perceptron([n, *[width] * tower], nn.ReLU()) for n in sizes
        )
        features = sum(1 if n == 1 else width for n in sizes)
        self.dense = perceptron([features, *[width] * layers], nn.ReLU())
        self.growth = nn.Linear(width, 1, bias=False)

    def forward(self, *features: Tensor) -> Tensor:
        parts = [tower(x) for tower, x in zip(self.towers, features, strict=True)]
        return self.growth(self.dense(torch.cat(parts, dim=1)))


def candle_uno(
    batch: int = 4096,
    width: int = 4192,
    tower: int = 8,
    layers: int = 4,
    features_percent: int = 100,
    dtype: str = "float32",
):
    """CANDLE-Uno."""
    sizes = [n if n == 1 else max(1, n * features_percent // 100) for _, n in UNO]
    return Uno(sizes, width, tower, layers).to(getattr(torch, dtype)), tuple(
        torch.zeros(batch, n, dtype=getattr(torch, dtype)) for n in sizes
    )


class Everything(nn.Module):
    """Not a model: pointwise functions and reductions that no model of the zoo uses, each on the same tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        positive = x.abs() + 0.5
        return (
            x.clamp(-0.5, 0.7),
            positive.pow(1.5),
            positive.log(),
            torch.rsqrt(positive),
            x.cos() + x.sin(),
            2.0 - x,
            3.0 / positive,
            torch.where(x > 0, x, -x),
            x.masked_fill(x < 0.1, 7.0),
            F.silu(x),
            F.softplus(x),
            F.gelu(x, approximate="tanh"),
            F.hardtanh(x),
            x.amax(1),
            x.amin((0, 2), keepdim=True),
            x.mean((1, 2)),
            x.sum(),
            x.var(1),
            x.cumsum(1),
            (x > 0).any(2).to(x.dtype),
            F.pad(x, (1, 2, 0, 1)),
            x.roll(2, 1),
            x[:, ::2],
            x[:, 1],
            torch.stack([x, x * 2], 1),
            x.repeat(1, 2, 1),
            x.flip(2)[:, :, :1],
            F.group_norm(x, 2),
            x.softmax(1),
            x.log_softmax(-1),
            F.layer_norm(x, x.shape[1:]),
            torch.maximum(x, x.transpose(0, 0) * 0.5),
            x.reshape(-1)[torch.tensor([0, 3, 2])],
            torch.baddbmm(x, x @ x.transpose(1, 2), x, beta=0.5, alpha=2.0),
        )


def everything():
    """Three dimensions of small, different extents."""
    return Everything(), (torch.zeros(3, 6, 2, dtype=torch.float64),)

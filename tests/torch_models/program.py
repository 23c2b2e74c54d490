"""A small decoder for the tests of exported programs: with its loss inside, with logits, and with numbers for results.

A job runs this file alone.  `net` makes what is planned; `loss` what one process minimises; `FIXED` the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, LENGTH, WORDS, WIDTH = 8, 6, 24, 16


class Block(nn.Module):
    """Attention and a perceptron; `scores`: attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.f1, self.f2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Batch, positions, width."""
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (m(y).view(b, t, 2, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class Decoder(nn.Module):
    """`labels`: the loss is computed inside."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.embed, self.inside = nn.Embedding(WORDS, WIDTH), inside
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Loss or logits."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        y = self.head(self.norm(x))
        if not self.inside or labels is None:
            return y
        return F.cross_entropy(y.flatten(0, 1).float(), labels.flatten())


class Numbers(nn.Module):
    """A perceptron with numbers for results."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Perceptron(), Perceptron()])
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Batch, width to batch, 4."""
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Perceptron(nn.Module):
    """Two layers and what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.f1, self.f2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Batch, width."""
        return x + self.f2(torch.tanh(self.f1(self.norm(x))))


def net(kind: str = "inside") -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module and its inputs; labels that do not count stand in the first example only."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    if kind == "numbers":
        return Numbers(), (torch.randn(BATCH, WIDTH, generator=draw),)
    ids = torch.randint(0, WORDS, (BATCH, LENGTH), generator=draw)
    labels = ids.roll(-1, 1)
    labels[0, 1:] = -100
    module = Decoder(kind == "inside")
    return module, ((ids, labels) if kind == "inside" else (ids,))


def target(kind: str) -> Tensor | None:
    """What the plan's loss compares with, where the model does not return it."""
    draw = torch.Generator().manual_seed(2)
    if kind == "numbers":
        return torch.randn(BATCH, 4, generator=draw)
    return torch.randint(0, WORDS, (BATCH, LENGTH), generator=draw) if kind == "logits" else None


def loss(module: nn.Module, kind: str, inputs: tuple[Tensor, ...]) -> Tensor:
    """Of one process."""
    out = module(*inputs)
    if kind == "inside":
        return out
    wanted = target(kind)
    assert wanted is not None
    if kind == "numbers":
        return F.mse_loss(out.float(), wanted)
    return F.cross_entropy(out.flatten(0, 1).float(), wanted.flatten())

"""A recurrent language model with its loss."""

from __future__ import annotations

import torch
from torch import nn


class Gated(nn.Module):
    """Embedding, two layers of GRU, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.cells = nn.GRU(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 50)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.cells(self.embedding(tokens))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gru() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and a batch of eight."""
    return Gated(), (torch.randint(0, 50, (8, 6)), torch.randint(0, 50, (8, 6)))

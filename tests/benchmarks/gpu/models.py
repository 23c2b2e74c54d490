"""Language models whose training steps are measured on a GPU and predicted by plans: plain PyTorch, attention by
`scaled_dot_product_attention`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Queries, keys and values, perhaps with groups of heads; a causal mask where asked for."""

    def __init__(self, width: int, heads: int, shared: int, causal: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.size, self.causal = heads, shared, width // heads, causal
        self.query, self.out = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.key, self.value = (nn.Linear(width, shared * self.size, bias) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, width)."""
        batch, positions, width = x.shape
        q, k, v = (
            f(x).view(batch, positions, n, self.size).transpose(1, 2)
            for f, n in ((self.query, self.heads), (self.key, self.shared), (self.value, self.shared))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.heads != self.shared)
        return self.out(mixed.transpose(1, 2).reshape(batch, positions, width))


class Layer(nn.Module):
    """Pre-norm transformer layer: GELU or SwiGLU."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int, causal: bool, gated: bool) -> None:
        super().__init__()
        norm = (lambda: nn.RMSNorm(width)) if gated else (lambda: nn.LayerNorm(width))
        self.first, self.second = norm(), norm()
        self.attention = Attention(width, heads, shared, causal, not gated)
        self.up, self.down = nn.Linear(width, hidden, not gated), nn.Linear(hidden, width, not gated)
        self.gate = nn.Linear(width, hidden, bias=False) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, width)."""
        x = x + self.attention(self.first(x))
        y = self.second(x)
        y = F.silu(self.gate(y)) * self.up(y) if self.gate is not None else F.gelu(self.up(y))
        return x + self.down(y)


class Language(nn.Module):
    """Embeddings, layers, a head of its own, and the loss."""

    def __init__(
        self, layers: int, width: int, heads: int, shared: int, hidden: int, words: int, positions: int, causal: bool, gated: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.layers = nn.ModuleList(Layer(width, heads, shared, hidden, causal, gated) for _ in range(layers))
        self.norm = nn.RMSNorm(width) if gated else nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(batch, positions) both; a scalar."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


STEPS = {
    "bert-large": ((24, 1024, 16, 16, 4096, 30522, 512, False, False), ((8, 512), (32, 512), (32, 128))),
    "gpt2": ((12, 768, 12, 12, 3072, 50304, 1024, True, False), ((8, 1024), (32, 1024))),
    "gpt2-xl-12": ((12, 1600, 25, 25, 6400, 50304, 1024, True, False), ((8, 1024),)),
    "llama-8b-2": ((2, 4096, 32, 8, 14336, 32000, 8192, True, True), ((1, 2048), (1, 4096), (1, 8192), (2, 4096))),
    "llama-8b-4": ((4, 4096, 32, 8, 14336, 32000, 8192, True, True), ((1, 4096), (2, 4096))),
    "llama-1b-8": ((8, 2048, 32, 8, 8192, 32000, 8192, True, True), ((4, 2048), (2, 8192))),
}
"""Name -> sizes of `Language`, and (batch, positions) of its cases."""


def language(name: str) -> Language:
    """One of `STEPS`."""
    return Language(*STEPS[name][0])

"""A Llama-like decoder and a mixture of experts as plain PyTorch; sizes and defaults follow `models/sources/zoo`."""

from __future__ import annotations

from math import log, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASKED = -1e30


class RmsNorm(nn.Module):
    """x over the root of its mean square, times a gain."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def rotary_tables(sequence: int, head: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines [s, 1, i] and signed sines [s, r, i]."""
    exact = dtype if dtype == torch.float64 else torch.float32
    frequency = torch.exp(torch.arange(head // 2, dtype=exact) * (-2 * log(theta) / head))
    angle = torch.arange(sequence, dtype=exact)[:, None] * frequency
    sine = angle.sin()[:, None, :] * (torch.arange(2, dtype=exact) * 2 - 1)[:, None]
    return angle.cos()[:, None, :].to(dtype), sine.to(dtype)


class CausalAttention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, width: int, heads: int, kv_heads: int, theta: float) -> None:
        super().__init__()
        self.kv, self.group, self.head, self.theta = kv_heads, heads // kv_heads, width // heads, theta
        self.query, self.output = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, kv_heads * self.head, bias=False) for _ in range(2))

    def rotated(self, x: Tensor) -> Tensor:
        """x[b, s, h, d] with its halves turned."""
        cosine, sine = rotary_tables(x.shape[1], self.head, self.theta, x.dtype)
        halves = x.unflatten(-1, (2, -1))
        return (halves * cosine[:, None] + halves.flip(-2) * sine[:, None]).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        q = self.rotated(self.query(x).view(batch, sequence, -1, self.head)).transpose(1, 2)
        k = self.rotated(self.key(x).view(batch, sequence, -1, self.head)).transpose(1, 2)
        v = self.value(x).view(batch, sequence, -1, self.head).transpose(1, 2)
        k, v = (t.repeat_interleave(self.group, dim=1) for t in (k, v))
        hidden = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / sqrt(self.head)).masked_fill(hidden, MASKED)
        return self.output((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    """down(silu(x gate) * (x up))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """GShard's mixture of experts: tokens are dispatched to places by a product, and combined by another."""

    def __init__(self, width: int, hidden: int, experts: int, chosen: int, capacity: int) -> None:
        super().__init__()
        self.chosen, self.capacity = chosen, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.zeros(experts, width, hidden)) for _ in range(2))
        self.down = nn.Parameter(torch.zeros(experts, hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.router(x), -1)
        chosen = torch.zeros_like(p, dtype=torch.bool).scatter(-1, p.topk(self.chosen, -1).indices, True)
        kept = p.masked_fill(~chosen, 0.0)
        gate = kept / kept.sum(-1, keepdim=True)
        place = chosen.cumsum(1, dtype=torch.int32) - chosen.to(torch.int32)
        here = place[..., None] == torch.arange(self.capacity, dtype=torch.int32)
        combine = gate[..., None].masked_fill(~here, 0.0)
        dispatch = (combine > 0).to(x.dtype)
        inside = torch.einsum("bsec,bsm->ebcm", dispatch, x)
        y = F.silu(torch.einsum("ebcm,emf->ebcf", inside, self.gate)) * torch.einsum("ebcm,emf->ebcf", inside, self.up)
        outside = torch.einsum("ebcf,efm->ebcm", y, self.down)
        return torch.einsum("bsec,ebcm->bsm", combine, outside)


class Decoder(nn.Module):
    """Pre-norm layers; `ffn` makes the feed-forward half of a layer."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, vocabulary: int, theta: float, ffn) -> None:
        super().__init__()
        self.embedding, self.logits = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.attention = nn.ModuleList(CausalAttention(width, heads, kv_heads, theta) for _ in range(layers))
        self.ffn = nn.ModuleList(ffn() for _ in range(layers))
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(2 * layers + 1))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for i, (attention, ffn) in enumerate(zip(self.attention, self.ffn, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + ffn(self.norms[2 * i + 1](x))
        return self.logits(self.norms[-1](x))


def llama(
    batch: int = 32,
    layers: int = 32,
    sequence: int = 8192,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    hidden: int = 14336,
    vocabulary: int = 128_256,
    theta: int = 500_000,
    dtype: str = "bfloat16",
):
    """Llama 3 8B."""
    module = (
        Decoder(layers, width, heads, kv_heads, vocabulary, float(theta), lambda: SwiGlu(width, hidden))
        .to(getattr(torch, dtype))
        .eval()
    )
    return module, (torch.zeros(batch, sequence, dtype=torch.int32),)


def moe(
    batch: int = 32,
    layers: int = 32,
    sequence: int = 4096,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    hidden: int = 14336,
    experts: int = 8,
    chosen: int = 2,
    capacity_percent: int = 125,
    vocabulary: int = 32_000,
    theta: int = 1_000_000,
    dtype: str = "bfloat16",
):
    """Mixtral 8x7B in GShard's formulation."""
    capacity = max(1, -(-capacity_percent * chosen * sequence // (100 * experts)))
    module = (
        Decoder(
            layers,
            width,
            heads,
            kv_heads,
            vocabulary,
            float(theta),
            lambda: Experts(width, hidden, experts, chosen, capacity),
        )
        .to(getattr(torch, dtype))
        .eval()
    )
    return module, (torch.zeros(batch, sequence, dtype=torch.int32),)

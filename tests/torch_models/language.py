"""BERT, the encoder-decoder Transformer and an RNN language model as plain PyTorch; sizes and defaults follow
`models/sources/zoo`.

Every factory returns (module, example inputs): `shardproof plan tests/torch_models/language.py:bert --machine ..`.
"""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention of `queries` over `memory`, without mask, from its formula or as PyTorch's function."""

    def __init__(self, model: int, heads: int, bias: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.query, self.key, self.value, self.output = (nn.Linear(model, model, bias) for _ in range(4))

    def forward(self, queries: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (
            layer(x).view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)
            for layer, x in ((self.query, queries), (self.key, memory), (self.value, memory))
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.transpose(-1, -2) / sqrt(q.shape[-1]), dim=-1) @ v
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two dense layers with an activation between."""

    def __init__(self, model: int, hidden: int, bias: bool, activation: str) -> None:
        super().__init__()
        self.up, self.down, self.activation = (
            nn.Linear(model, hidden, bias),
            nn.Linear(hidden, model, bias),
            getattr(F, activation),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class EncoderLayer(nn.Module):
    """x = norm(x + attention(x)); x = norm(x + feed_forward(x))."""

    def __init__(self, model: int, heads: int, hidden: int, bias: bool, activation: str, fused: bool) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(model, heads, bias, fused), FeedForward(model, hidden, bias, activation)
        self.norm1, self.norm2 = nn.LayerNorm(model, 1e-12), nn.LayerNorm(model, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.ffn(x))


class DecoderLayer(nn.Module):
    """Self attention, attention over the encoder's output, feed-forward, each added and normalised."""

    def __init__(self, model: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attention, self.cross = Attention(model, heads, False, True), Attention(model, heads, False, False)
        self.ffn = FeedForward(model, hidden, False, "relu")
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(model, 1e-12) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attention(x, x))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm3(x + self.ffn(x))


class Bert(nn.Module):
    """Word, type and position embeddings, normalised, then encoder layers; returns the last hidden state."""

    def __init__(
        self, layers: int, model: int, heads: int, hidden: int, vocabulary: int, sequence: int, fused: bool
    ) -> None:
        super().__init__()
        self.word, self.segment, self.position = (
            nn.Embedding(vocabulary, model),
            nn.Embedding(2, model),
            nn.Embedding(sequence, model),
        )
        self.norm = nn.LayerNorm(model, 1e-12)
        self.register_buffer("places", torch.arange(sequence).unsqueeze(0), persistent=False)
        self.layers = nn.ModuleList(EncoderLayer(model, heads, hidden, True, "gelu", fused) for _ in range(layers))

    def forward(self, words: Tensor, types: Tensor) -> Tensor:
        x = self.norm(self.word(words) + self.segment(types) + self.position(self.places))
        for layer in self.layers:
            x = layer(x)
        return x


def bert_large(batch: int = 8, layers: int = 24, sequence: int = 512, dtype: str = "bfloat16"):
    """BERT-Large."""
    module = Bert(layers, 1024, 16, 4096, 30522, sequence, fused=True).to(getattr(torch, dtype)).eval()
    return module, tuple(torch.zeros(batch, sequence, dtype=torch.int32) for _ in range(2))


def bert_tiny(batch: int = 8, layers: int = 2, sequence: int = 16, dtype: str = "float64"):
    """The zoo's bert-tiny; attention from its formula."""
    module = Bert(layers, 64, 8, 256, 96, sequence, fused=False).to(getattr(torch, dtype)).eval()
    return module, tuple(torch.zeros(batch, sequence, dtype=torch.int32) for _ in range(2))


class Transformer(nn.Module):
    """Encoder and decoder with their own embeddings; returns probabilities over the vocabulary."""

    def __init__(self, layers: int, sequence: int, model: int, heads: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder_words, self.decoder_words = nn.Embedding(vocabulary, model), nn.Embedding(vocabulary, model)
        self.encoder_places, self.decoder_places = (nn.Parameter(torch.zeros(sequence, model)) for _ in range(2))
        self.encoder = nn.ModuleList(EncoderLayer(model, heads, hidden, False, "relu", True) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(model, heads, hidden) for _ in range(layers))
        self.logits = nn.Linear(model, vocabulary, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder_words(source) + self.encoder_places
        for layer in self.encoder:
            memory = layer(memory)
        x = self.decoder_words(target) + self.decoder_places
        for layer in self.decoder:
            x = layer(x, memory)
        return torch.softmax(self.logits(x), dim=-1)


def transformer(
    batch: int = 64,
    layers: int = 6,
    sequence: int = 256,
    width: int = 512,
    heads: int = 8,
    hidden: int = 2048,
    vocabulary: int = 50000,
    dtype: str = "float32",
):
    """PaSE's Transformer."""
    module = Transformer(layers, sequence, width, heads, hidden, vocabulary).to(getattr(torch, dtype)).eval()
    return module, tuple(torch.zeros(batch, sequence, dtype=torch.int32) for _ in range(2))


class Lstm(nn.Module):
    """One LSTM layer, unrolled; the input's projection is one product over all steps."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.input, self.recurrent, self.width = (
            nn.Linear(inputs, 4 * width),
            nn.Linear(width, 4 * width, bias=False),
            width,
        )

    def forward(self, x: Tensor) -> Tensor:
        steps = self.input(x).view(x.shape[0], x.shape[1], 4, self.width)
        hidden = cell = None
        states = []
        for t in range(x.shape[1]):
            z = steps[:, t]
            if hidden is not None:
                z = z + self.recurrent(hidden).view(x.shape[0], 4, self.width)
            fresh = torch.sigmoid(z[:, 0]) * torch.tanh(z[:, 2])
            cell = fresh if cell is None else torch.sigmoid(z[:, 1]) * cell + fresh
            hidden = torch.sigmoid(z[:, 3]) * torch.tanh(cell)
            states.append(hidden)
        return torch.cat([s.unsqueeze(1) for s in states], dim=1)


class Rnnlm(nn.Module):
    """Embedding, LSTM layers, log-probabilities of the next word."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.logits = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.layers = nn.ModuleList(Lstm(width, width) for _ in range(layers))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return torch.log_softmax(self.logits(x), dim=-1)


def rnnlm(
    batch: int = 64,
    steps: int = 256,
    width: int = 2048,
    layers: int = 2,
    vocabulary: int = 100_000,
    dtype: str = "float32",
):
    """PaSE's RNNLM."""
    module = Rnnlm(width, layers, vocabulary).to(getattr(torch, dtype)).eval()
    return module, (torch.zeros(batch, steps, dtype=torch.int32),)

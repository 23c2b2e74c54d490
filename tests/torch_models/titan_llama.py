"""The structure of torchtitan's Llama, written again from its description: blocks in a ModuleDict, grouped queries,
rotary positions as complex numbers in a buffer, RMS norms, a gated feed-forward layer.  Sizes of its debug model but
for the layers and the keys' heads.
"""

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"layers": 2, "width": 256, "heads": 16, "kv_heads": 8, "hidden": 768, "vocabulary": 2048, "theta": 500_000}
SEQUENCE = 32


def rotated(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[: x.shape[1]].view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head_dim, self.groups = width // heads, heads // kv_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, turns):
        b, s, _ = x.shape
        q, k, v = (m(x).view(b, s, -1, self.head_dim) for m in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = (y.repeat_interleave(self.groups, 2) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, turns):
        h = x + self.attention(self.attention_norm(x), turns)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, layers, width, heads, kv_heads, hidden, vocabulary, theta):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        half = width // heads // 2
        angles = torch.outer(torch.arange(SEQUENCE).float(), theta ** (-torch.arange(half).float() / half))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.layers = nn.ModuleDict({str(i): TransformerBlock(width, heads, kv_heads, hidden) for i in range(layers)})
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        return self.output(self.norm(h))


def net():
    return Transformer(**SIZES)

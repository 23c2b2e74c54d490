"""Builds GPT-2 and GPT-3: a decoder with learned positions, layer norms before each half, biases, and one
table for words in and out.

    x = x + attention(norm(x));   x = x + down(gelu(up(norm(x))));        at the end norm(x) times the table of words

Attention is causal: masked scores are set to -10^30, whose exponentials are exactly zero.  (GPT-3 alternates dense and
banded layers; here all are dense.)  Source: Brown et al., Language Models are Few-Shot Learners (2020), section 2.1.
"""

from __future__ import annotations

from math import sqrt

from ...program.graph import Graph
from ..building.builder import Builder
from . import layers
from .decoder import MASKED
from .layers import Width


def _attention(g: Builder, name: str, x: str, mask: str, w: Width) -> str:
    """Causal multi-head attention of x[b, s, m] over itself."""
    q = layers.heads(g, f"{name}.query", x, "s", w)
    q = g.map(f"{name}.query.scale", "scale", q, text="b s h d -> b s h d", scale=1.0 / sqrt(w.head))
    k, v = (layers.heads(g, f"{name}.{part}", x, "t", w) for part in ("key", "value"))
    scores = g.contract(f"{name}.scores", "b s h d, b t h d -> b h s t", q, k)
    scores = g.map(f"{name}.mask", "mask_fill", scores, mask, text="b h s t, s t -> b h s t", value=MASKED)
    p = g.normalise(f"{name}.softmax", "softmax", "b h s t -> b h s t", scores, over=("t",))
    mixed = g.contract(f"{name}.context", "b h s t, b t h d -> b s h d", p, v)
    weight = g.parameter(f"{name}.output.weight", (w.heads, w.head, w.model), source_shape=(w.heads * w.head, w.model))
    return layers.project(g, f"{name}.output", mixed, "b s h d, h d m -> b s m", weight, w)


def gpt(
    batch: int = 8,
    depth: int = 12,
    sequence: int = 1024,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50_257,
    dtype: str = "bfloat16",
    tables: int = 1,
) -> Graph:
    """GPT-2 small: 124,439,808 parameters; output: logits [b, s, v].  `tables` = 2: another table for words out, so
    that the model can be cut into stages.
    """
    g, w = Builder("gpt", dtype), Width(width, heads, 4 * width, epsilon=1e-5)
    words = g.input("words", (batch, sequence), "int32")
    table = g.parameter("embedding.table", (vocabulary, width))
    x = g.embedding("embedding", "v m, b s -> b s m", table, words)
    x = g.map("position_add", "add", x, g.parameter("position.table", (sequence, width)), text="b s m, s m -> b s m")
    queries, keys = (g.iota(f"mask.{n}", (sequence,), 0, dtype="int32") for n in ("query", "key"))
    mask = g.map("mask.causal", "greater_equal", queries, keys, text="s, t -> s t")
    for i in range(depth):
        y = _attention(g, f"layer{i}.attention", layers.layer_norm(g, f"layer{i}.attention.norm", x, w), mask, w)
        x = g.map(f"layer{i}.attention.add", "add", x, y, text="b s m, b s m -> b s m")
        y = layers.feed_forward(g, f"layer{i}.ffn", layers.layer_norm(g, f"layer{i}.ffn.norm", x, w), w)
        x = g.map(f"layer{i}.ffn.add", "add", x, y, text="b s m, b s m -> b s m")
    x = layers.layer_norm(g, "norm", x, w)
    out = table if tables == 1 else g.parameter("logits.weight", (vocabulary, width))
    return g.build(g.contract("logits", "b s m, v m -> b s v", x, out))

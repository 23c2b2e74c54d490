"""Builds transformers: BERT, the encoder-decoder of PaSE, one layer, one attention block.

Heads are explicit digits everywhere; no mask is applied (all sequences have full length, and PaSE's graph has none).
"""

from __future__ import annotations

from ...program.graph import Graph, GraphError
from ..building.builder import Builder
from . import layers
from .layers import Width, decoder_layer, encoder_layer


def _width(name: str, model: int, heads: int, hidden: int, activation: str = "gelu", bias: bool = True) -> Width:
    if heads < 1 or model % heads:
        raise GraphError(f"model {name!r}", f"width {model} is not a multiple of heads={heads}; choose a divisor")
    return Width(model, heads, hidden, activation, bias)


def _bert(name: str, batch: int, layer_count: int, sequence: int, width: Width, vocabulary: int, dtype: str) -> Graph:
    """Embeddings (word + position + type, normalised), then encoder layers; output: the last hidden state [b, s, m]."""
    g = Builder(name, dtype)
    words, types = g.input("words", (batch, sequence), "int32"), g.input("types", (batch, sequence), "int32")
    x = g.embedding(
        "embedding.word", "v m, b s -> b s m", g.parameter("embedding.word.table", (vocabulary, width.model)), words
    )
    y = g.embedding("embedding.type", "v m, b s -> b s m", g.parameter("embedding.type.table", (2, width.model)), types)
    x = g.map("embedding.add_type", "add", x, y, text="b s m, b s m -> b s m")
    position = g.parameter("embedding.position.table", (sequence, width.model))
    x = g.map("embedding.add_position", "add", x, position, text="b s m, s m -> b s m")
    x = layers.layer_norm(g, "embedding.norm", x, width)
    for i in range(layer_count):
        x = encoder_layer(g, f"layer{i}", x, width)
    return g.build(x)


def bert_large(batch: int = 8, layers: int = 24, sequence: int = 512, dtype: str = "bfloat16") -> Graph:
    """BERT-Large: 24 layers, width 1024 = 16 heads x 64, feed-forward 4096 with gelu, vocabulary 30522 (Devlin et al.,
    2019).

    Unity (OSDI 2022), section 6.1, has 4 sequences per GPU: the default batch is that for two.
    """
    return _bert("bert-large", batch, layers, sequence, Width(1024, 16, 4096), 30522, dtype)


def bert_tiny(batch: int = 8, layers: int = 2, sequence: int = 16, dtype: str = "float64") -> Graph:
    """The structure of BERT-Large scaled down to run in moments: width 64 = 8 heads x 8, feed-forward 256,
    vocabulary 96.
    """
    return _bert("bert-tiny", batch, layers, sequence, Width(64, 8, 256), 96, dtype)


def transformer(
    batch: int = 64,
    layers: int = 6,
    sequence: int = 256,
    width: int = 512,
    heads: int = 8,
    hidden: int = 2048,
    vocabulary: int = 50000,
    dtype: str = "float32",
) -> Graph:
    """PaSE's Transformer: 6 encoder and 6 decoder layers, 256 tokens, width 512 = 8 heads x 64, feed-forward 2048
    (relu, no biases), vocabulary 50000, positions added to the embeddings, softmax over the vocabulary at the end.

    Source of the sizes: the published PaSE graph; batch 64 as in the paper's Table I.
    """
    w = _width("transformer", width, heads, hidden, "relu", bias=False)
    g = Builder("transformer", dtype)

    def embedding_of(side: str) -> str:
        ids = g.input(f"{side}.words", (batch, sequence), "int32")
        x = g.embedding(
            f"{side}.embedding", "v m, b s -> b s m", g.parameter(f"{side}.embedding.table", (vocabulary, width)), ids
        )
        position = g.parameter(f"{side}.position.table", (sequence, width))
        return g.map(f"{side}.add_position", "add", x, position, text="b s m, s m -> b s m")

    memory = embedding_of("encoder")
    for i in range(layers):
        memory = encoder_layer(g, f"encoder{i}", memory, w)
    x = embedding_of("decoder")
    for i in range(layers):
        x = decoder_layer(g, f"decoder{i}", x, memory, w)
    logits = g.contract("logits", "b s m, m v -> b s v", x, g.parameter("logits.weight", (width, vocabulary)))
    return g.build(g.normalise("softmax", "softmax", "b s v -> b s v", logits, over=("v",)))


def transformer_layer(
    batch: int = 1, tokens: int = 16, width: int = 8192, heads: int = 64, dtype: str = "bfloat16"
) -> Graph:
    """One encoder layer, feed-forward width 4 x `width`."""
    g = Builder("transformer-layer", dtype)
    x = g.input("x", (batch, tokens, width))
    return g.build(encoder_layer(g, "layer", x, _width("transformer-layer", width, heads, 4 * width)))


def attention(batch: int = 4, tokens: int = 16, width: int = 64, heads: int = 8, dtype: str = "float32") -> Graph:
    """One self-attention block with its four projections."""
    g = Builder("attention", dtype)
    x = g.input("x", (batch, tokens, width))
    return g.build(layers.attention(g, "attention", x, x, _width("attention", width, heads, width)))

"""Layers: short functions over `Builder` that add operators and return the name of the result.

Axis letters, the same in every model, so that strategies and explanations read alike:

    b  batch                 s  sequence (queries, features)      t  sequence of keys and values
    m  model width           h  head          d  element of a head      f  hidden width of the feed-forward half
    n, k  columns and rows of a dense weight      v  vocabulary      c, y, x  channel, row, column of an image

A head is a digit of the weight's columns: the flat matrix [m, h*d] is stored as [m, h, d] (`source_shape` keeps the
flat one).  Repeated blocks are built by the same function, so they are equal up to the prefix of their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from ..building.builder import Builder


def dense(g: Builder, name: str, x: str, features: int, bias: bool = True) -> str:
    """x[b, k] -> x W + bias, [b, n] with n = `features`."""
    w = g.parameter(f"{name}.weight", (g.tensors[x].shape[1], features))
    y = g.contract(name, "b k, k n -> b n", x, w)
    if not bias:
        return y
    return g.map(f"{name}.bias_add", "add", y, g.parameter(f"{name}.bias", (features,)), text="b n, n -> b n")


def relu(g: Builder, name: str, x: str) -> str:
    """Rectified linear unit of x[b, n]."""
    return g.map(name, "relu", x, text="b n -> b n")


def convolution(
    g: Builder, name: str, x: str, channels: int, kernel: int, stride: int = 1, pad: int = 0, bias: bool = True
) -> str:
    """x[b, c, y, x] -> relu(convolution + bias), `channels` channels, square window."""
    w = g.parameter(f"{name}.weight", (channels, g.tensors[x].shape[1], kernel, kernel))
    y = g.convolution(name, x, w, (stride, stride), (pad, pad))
    if bias:
        y = g.map(f"{name}.bias_add", "add", y, g.parameter(f"{name}.bias", (channels,)), text="b c y x, c -> b c y x")
    return g.map(f"{name}.relu", "relu", y, text="b c y x -> b c y x")


@dataclass(frozen=True)
class Width:
    """Sizes of a transformer layer: model width = `heads` x `head`; `hidden` is the width inside the feed-forward
    half.
    """

    model: int
    heads: int
    hidden: int
    activation: str = "gelu"
    bias: bool = True
    epsilon: float = 1e-12

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.model // self.heads


def layer_norm(g: Builder, name: str, x: str, width: Width) -> str:
    """Layer normalisation of x[b, s, m] over m, with scale and shift."""
    gamma, beta = (g.parameter(f"{name}.{p}", (width.model,)) for p in ("gamma", "beta"))
    return g.normalise(name, "layer_norm", "b s m, m, m -> b s m", x, gamma, beta, over=("m",), epsilon=width.epsilon)


def heads(g: Builder, name: str, x: str, sequence: str, w: Width) -> str:
    """Projection to heads: x[b, s, m] W[m, h, d] + bias[h, d] -> [b, s, h, d] (`sequence` is the letter used for s)."""
    flat = (w.model, w.heads * w.head)
    weight = g.parameter(f"{name}.weight", (w.model, w.heads, w.head), source_shape=flat)
    y = g.contract(name, f"b {sequence} m, m h d -> b {sequence} h d", x, weight)
    if not w.bias:
        return y
    bias = g.parameter(f"{name}.bias", (w.heads, w.head), source_shape=flat[1:])
    return g.map(f"{name}.bias_add", "add", y, bias, text=f"b {sequence} h d, h d -> b {sequence} h d")


def project(g: Builder, name: str, x: str, text: str, weight: str, w: Width) -> str:
    """Contraction back to the model width (`text` ends in b s m), plus bias."""
    y = g.contract(name, text, x, weight)
    if not w.bias:
        return y
    return g.map(f"{name}.bias_add", "add", y, g.parameter(f"{name}.bias", (w.model,)), text="b s m, m -> b s m")


def attention(g: Builder, name: str, queries: str, memory: str, w: Width) -> str:
    """Multi-head attention of `queries`[b, s, m] over `memory`[b, t, m], without mask -> [b, s, m].

    The factor 1/sqrt(d) multiplies the queries, which are smaller than the scores.
    """
    q = heads(g, f"{name}.query", queries, "s", w)
    q = g.map(f"{name}.query.scale", "scale", q, text="b s h d -> b s h d", scale=1.0 / sqrt(w.head))
    k = heads(g, f"{name}.key", memory, "t", w)
    v = heads(g, f"{name}.value", memory, "t", w)
    scores = g.contract(f"{name}.scores", "b s h d, b t h d -> b h s t", q, k)
    p = g.normalise(f"{name}.softmax", "softmax", "b h s t -> b h s t", scores, over=("t",))
    mixed = g.contract(f"{name}.context", "b h s t, b t h d -> b s h d", p, v)
    weight = g.parameter(f"{name}.output.weight", (w.heads, w.head, w.model), source_shape=(w.heads * w.head, w.model))
    return project(g, f"{name}.output", mixed, "b s h d, h d m -> b s m", weight, w)


def feed_forward(g: Builder, name: str, x: str, w: Width) -> str:
    """Two dense layers m -> f -> m with the activation between."""
    y = g.contract(f"{name}.up", "b s m, m f -> b s f", x, g.parameter(f"{name}.up.weight", (w.model, w.hidden)))
    if w.bias:
        y = g.map(
            f"{name}.up.bias_add", "add", y, g.parameter(f"{name}.up.bias", (w.hidden,)), text="b s f, f -> b s f"
        )
    y = g.map(f"{name}.{w.activation}", w.activation, y, text="b s f -> b s f")
    down = g.parameter(f"{name}.down.weight", (w.hidden, w.model))
    return project(g, f"{name}.down", y, "b s f, f m -> b s m", down, w)


def _add_norm(g: Builder, name: str, x: str, y: str, w: Width) -> str:
    """layer_norm(x + y)."""
    return layer_norm(g, f"{name}.norm", g.map(f"{name}.add", "add", x, y, text="b s m, b s m -> b s m"), w)


def encoder_layer(g: Builder, name: str, x: str, w: Width) -> str:
    """Post-norm encoder layer: x = norm(x + attention(x)); x = norm(x + feed_forward(x))."""
    x = _add_norm(g, f"{name}.attention", x, attention(g, f"{name}.attention", x, x, w), w)
    return _add_norm(g, f"{name}.ffn", x, feed_forward(g, f"{name}.ffn", x, w), w)


def decoder_layer(g: Builder, name: str, x: str, memory: str, w: Width) -> str:
    """Post-norm decoder layer: self attention, attention over the encoder's `memory`, feed-forward."""
    x = _add_norm(g, f"{name}.self", x, attention(g, f"{name}.self", x, x, w), w)
    x = _add_norm(g, f"{name}.cross", x, attention(g, f"{name}.cross", x, memory, w), w)
    return _add_norm(g, f"{name}.ffn", x, feed_forward(g, f"{name}.ffn", x, w), w)

"""Builds decoders that predict the next token: grouped-query attention, rotary positions, RMS norm, gated
feed-forward; dense or with experts.

    x = x + attention(rms_norm(x));   x = x + ffn(rms_norm(x));        at the end rms_norm and the vocabulary projection

Heads are two digits: k key-value heads x g query heads that share one.  An element of a head is two digits as well,
halves r x i, because rotary positions turn pairs (x[0, i], x[1, i]) by the angle  s theta^(-2i/d)  at position s:

    turned[r, i] = x[r, i] cos(s, i) + x[1 - r, i] sin(s, i) (-1 for r = 0, +1 for r = 1)

The tables of cosines and sines and the causal mask are computed from positions (`iota`), once for all layers, in single
precision.  Masked scores are set to -10^30: their exponentials are exactly zero.

Feed-forward (SwiGLU):  down( silu(x gate) * (x up) ).   Sources: Llama 3 (Grattafiori et al., 2024, Table 3: 8B); Su et
al., RoFormer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

from ...keywords import keywords_of
from ...program.graph import Graph, GraphError
from ...program.index import Affine, Axis, access
from ..building.builder import Builder

MASKED = -1e30
"""Score of a key that a query must not see."""

FeedForward = Callable[[Builder, str, str, "Sizes"], str]
"""(builder, name, normalised x[b, s, m], sizes) -> [b, s, m]."""


@dataclass(frozen=True)
class Sizes:
    """Model width, heads (`kv` key-value heads, each for `group` query heads), elements of a head, hidden width of
    the feed-forward half.
    """

    model: int
    kv: int
    group: int
    head: int
    hidden: int
    theta: float
    epsilon: float = 1e-5

    @property
    def half(self) -> int:
        """Half the elements of a head."""
        return self.head // 2


@dataclass(frozen=True)
class Tables:
    """Tensors shared by all layers: cosines [s, i], signed sines [s, r, i], mask [s, t]."""

    cosine: str
    sine: str
    mask: str


def sizes(name: str, width: int, heads: int, kv_heads: int, hidden: int, theta: int) -> Sizes:
    """Checked sizes.  Raises `GraphError` if heads do not divide the width, or key-value heads the heads."""
    if width % heads or (width // heads) % 2:
        raise GraphError(f"model {name!r}", f"width {width} must be heads={heads} times an even number")
    if heads % kv_heads:
        raise GraphError(f"model {name!r}", f"heads={heads} is not a multiple of kv_heads={kv_heads}")
    return Sizes(width, kv_heads, heads // kv_heads, width // heads, hidden, float(theta))


def tables(g: Builder, sequence: int, w: Sizes) -> Tables:
    """Rotary tables and the causal mask."""
    exact = g.dtype if g.dtype == "float64" else "float32"
    place = g.iota("rotary.position", (sequence,), 0, dtype=exact)
    power = g.iota("rotary.power", (w.half,), 0, step=-2 * log(w.theta) / w.head, dtype=exact)
    frequency = g.map("rotary.frequency", "exp", power, text="i -> i", dtype=exact)
    angle = g.map("rotary.angle", "multiply", place, frequency, text="s, i -> s i", dtype=exact)
    cosine = g.map("rotary.cosine", "cos", angle, text="s i -> s i", dtype=exact)
    sign = g.iota("rotary.sign", (2,), 0, start=-1, step=2, dtype=exact)
    sine = g.map("rotary.sine", "sin", angle, text="s i -> s i", dtype=exact)
    sine = g.map("rotary.signed", "multiply", sine, sign, text="s i, r -> s r i", dtype=exact)
    if g.dtype != exact:
        cosine = g.map("rotary.cosine.cast", "cast", cosine, text="s i -> s i")
        sine = g.map("rotary.signed.cast", "cast", sine, text="s r i -> s r i")
    queries, keys = (g.iota(f"mask.{n}", (sequence,), 0, dtype="int32") for n in ("query", "key"))
    return Tables(cosine, sine, g.map("mask.causal", "greater_equal", queries, keys, text="s, t -> s t"))


def rms_norm(g: Builder, name: str, x: str, w: Sizes) -> str:
    """x[b, s, m] over the root of its mean square, scaled."""
    gamma = g.parameter(f"{name}.gamma", (w.model,))
    return g.normalise(name, "rms_norm", "b s m, m -> b s m", x, gamma, over=("m",), epsilon=w.epsilon)


def rotate(g: Builder, name: str, x: str, heads: str, position: str, at: Tables) -> str:
    """Rotary positions on x[b, position, heads.., r, i]."""
    letters = f"b {position} {heads} r i"
    names = letters.split()
    axes = [Axis(a, n) for a, n in zip(names, g.tensors[x].shape, strict=True)]
    upper, lower = (access(x, *(Affine.axis(a).shift(d) if a == "r" else a for a in names)) for d in (1, -1))
    swapped = g.operator(f"{name}.swap", "copy", axes, [upper, lower], names)
    turned = g.map(f"{name}.sine", "multiply", swapped, at.sine, text=f"{letters}, {position} r i -> {letters}")
    return g.map(
        f"{name}.rotary",
        "fused_scale_shift",
        x,
        at.cosine,
        turned,
        text=f"{letters}, {position} i, {letters} -> {letters}",
    )


def attention(g: Builder, name: str, x: str, w: Sizes, at: Tables) -> str:
    """Causal grouped-query attention of x[b, s, m] over itself."""
    heads, flat = w.kv * w.group, w.kv * w.head
    weight_q = g.parameter(
        f"{name}.query.weight", (w.model, w.kv, w.group, 2, w.half), source_shape=(w.model, heads * w.head)
    )
    weight_k = g.parameter(f"{name}.key.weight", (w.model, w.kv, 2, w.half), source_shape=(w.model, flat))
    weight_v = g.parameter(f"{name}.value.weight", (w.model, w.kv, w.head), source_shape=(w.model, flat))
    q = rotate(
        g, f"{name}.query", g.contract(f"{name}.query", "b s m, m k g r i -> b s k g r i", x, weight_q), "k g", "s", at
    )
    k = rotate(g, f"{name}.key", g.contract(f"{name}.key", "b t m, m k r i -> b t k r i", x, weight_k), "k", "t", at)
    v = g.contract(f"{name}.value", "b t m, m k d -> b t k d", x, weight_v)
    q = g.map(f"{name}.query.scale", "scale", q, text="b s k g r i -> b s k g r i", scale=1.0 / sqrt(w.head))
    scores = g.contract(f"{name}.scores", "b s k g r i, b t k r i -> b k g s t", q, k)
    scores = g.map(f"{name}.mask", "mask_fill", scores, at.mask, text="b k g s t, s t -> b k g s t", value=MASKED)
    p = g.normalise(f"{name}.softmax", "softmax", "b k g s t -> b k g s t", scores, over=("t",))
    mixed = g.contract(f"{name}.context", "b k g s t, b t k d -> b s k g d", p, v)
    weight_o = g.parameter(
        f"{name}.output.weight", (w.kv, w.group, w.head, w.model), source_shape=(heads * w.head, w.model)
    )
    return g.contract(f"{name}.output", "b s k g d, k g d m -> b s m", mixed, weight_o)


def swiglu(g: Builder, name: str, x: str, w: Sizes) -> str:
    """Gated feed-forward half."""
    gate = g.contract(f"{name}.gate", "b s m, m f -> b s f", x, g.parameter(f"{name}.gate.weight", (w.model, w.hidden)))
    up = g.contract(f"{name}.up", "b s m, m f -> b s f", x, g.parameter(f"{name}.up.weight", (w.model, w.hidden)))
    y = g.map(f"{name}.silu", "silu", gate, text="b s f -> b s f")
    y = g.map(f"{name}.gated", "multiply", y, up, text="b s f, b s f -> b s f")
    return g.contract(f"{name}.down", "b s f, f m -> b s m", y, g.parameter(f"{name}.down.weight", (w.hidden, w.model)))


def decoder(
    name: str, batch: int, layers: int, sequence: int, w: Sizes, vocabulary: int, dtype: str, ffn: FeedForward
) -> Graph:
    """The whole model; output: logits [b, s, v]."""
    g = Builder(name, dtype)
    words = g.input("words", (batch, sequence), "int32")
    x = g.embedding("embedding", "v m, b s -> b s m", g.parameter("embedding.table", (vocabulary, w.model)), words)
    at = tables(g, sequence, w)
    for i in range(layers):
        y = attention(g, f"layer{i}.attention", rms_norm(g, f"layer{i}.attention.norm", x, w), w, at)
        x = g.map(f"layer{i}.attention.add", "add", x, y, text="b s m, b s m -> b s m")
        y = ffn(g, f"layer{i}.ffn", rms_norm(g, f"layer{i}.ffn.norm", x, w), w)
        x = g.map(f"layer{i}.ffn.add", "add", x, y, text="b s m, b s m -> b s m")
    x = rms_norm(g, "norm", x, w)
    return g.build(g.contract("logits", "b s m, m v -> b s v", x, g.parameter("logits.weight", (w.model, vocabulary))))


@dataclass(frozen=True)
class LlamaSizes:
    """See `llama`."""

    batch: int = 32
    layers: int = 32
    sequence: int = 8192
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336
    vocabulary: int = 128_256
    theta: int = 500_000
    dtype: str = "bfloat16"


@keywords_of(LlamaSizes)
def llama(of: LlamaSizes) -> Graph:
    """Llama 3 8B: 8,030,261,248 parameters; 8192 tokens as in its training, batch 32 (the paper's 4 million tokens
    per step are 16 of these).
    """
    return decoder(
        "llama",
        of.batch,
        of.layers,
        of.sequence,
        sizes("llama", of.width, of.heads, of.kv_heads, of.hidden, of.theta),
        of.vocabulary,
        of.dtype,
        swiglu,
    )

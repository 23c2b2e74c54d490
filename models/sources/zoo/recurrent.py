"""Builds PaSE's RNNLM: two LSTM layers over a sequence, unrolled in time.

    z_t = x_t W + h_{t-1} U + bias           four gates of n each: z[b, q, n], q = input, forget, cell, output
    c_t = sigmoid(z_f) c_{t-1} + sigmoid(z_i) tanh(z_g);      h_t = sigmoid(z_o) tanh(c_t)

The gates are a digit of the weights' columns (flat order i, f, g, o), so that splitting n splits all gates alike and
the state stays where it is.  x W is one contraction over all steps of a layer; then the steps follow one another.  c_0
and h_0 are zero and not in the graph.

Source: PaSE (IPDPS 2021): 2 layers, width 2048, vocabulary 100000, softmax over the vocabulary; batch 64 as in the
paper's Table I (its published graph, whose LSTM is one vertex, has batch 128), 256 steps as in that graph.
"""

from __future__ import annotations

from ...program.graph import Graph
from ...program.index import Access, Affine, Axis, access
from ..building.builder import Builder

_GATES = (("input", "sigmoid"), ("forget", "sigmoid"), ("cell", "tanh"), ("output", "sigmoid"))


def _pick(g: Builder, name: str, x: str, position: int, letters: str) -> str:
    """x[b, i, ..] at i = `position`; `letters` name the dimensions of the result."""
    names = letters.split()
    shape = g.tensors[x].shape
    extents = (shape[0], *shape[2:])
    index = (Affine.axis(names[0]), Affine((), position), *(Affine.axis(a) for a in names[1:]))
    return g.operator(
        name, "copy", [Axis(a, n) for a, n in zip(names, extents, strict=True)], [Access(x, index)], names
    )


def _step(g: Builder, name: str, z: str, cell: str) -> tuple[str, str]:
    """(c_t, h_t) from the gates before their functions and c_{t-1} (empty: zero)."""
    gate = {
        part: g.map(f"{name}.{part}.{function}", function, _pick(g, f"{name}.{part}", z, i, "b n"), text="b n -> b n")
        for i, (part, function) in enumerate(_GATES)
        if cell or part != "forget"
    }
    fresh = g.map(f"{name}.fresh", "multiply", gate["input"], gate["cell"], text="b n, b n -> b n")
    if cell:
        fresh = g.map(f"{name}.state", "fused_scale_shift", gate["forget"], cell, fresh, text="b n, b n, b n -> b n")
    return fresh, g.map(
        f"{name}.hidden",
        "multiply",
        gate["output"],
        g.map(f"{name}.tanh", "tanh", fresh, text="b n -> b n"),
        text="b n, b n -> b n",
    )


def _lstm(g: Builder, name: str, x: str, width: int) -> str:
    """x[b, t, k] -> all hidden states [b, t, n]."""
    _, steps, inputs = g.tensors[x].shape
    w = g.parameter(f"{name}.weight", (inputs, 4, width), source_shape=(inputs, 4 * width))
    bias = g.parameter(f"{name}.bias", (4, width), source_shape=(4 * width,))
    gates = g.contract(f"{name}.input", "b t k, k q n -> b t q n", x, w)
    gates = g.map(f"{name}.input.bias_add", "add", gates, bias, text="b t q n, q n -> b t q n")
    u = g.parameter(f"{name}.recurrent", (width, 4, width), source_shape=(width, 4 * width)) if steps > 1 else ""
    cell, hidden, states = "", "", []
    for t in range(steps):
        z = _pick(g, f"{name}.step{t}.gates", gates, t, "b q n")
        if hidden:
            z = g.map(
                f"{name}.step{t}.add",
                "add",
                z,
                g.contract(f"{name}.step{t}", "b k, k q n -> b q n", hidden, u),
                text="b q n, b q n -> b q n",
            )
        cell, hidden = _step(g, f"{name}.step{t}", z, cell)
        states.append(hidden)
    return _stack(g, f"{name}.states", states)


def _stack(g: Builder, name: str, parts: list[str]) -> str:
    """parts[t][b, n] as one tensor [b, t, n]: each gets an axis t of extent 1, then they are put one behind the
    other.
    """
    batch, width = g.tensors[parts[0]].shape
    one, out = [Axis("b", batch), Axis("t", 1), Axis("n", width)], ["b", "t", "n"]
    rows = [g.operator(f"{name}.{t}", "copy", one, [access(p, "b", "n")], out) for t, p in enumerate(parts)]
    axes = [Axis("b", batch), Axis("t", len(rows)), Axis("n", width)]
    return g.operator(
        name, "copy", axes, [access(r, "b", Affine.axis("t").shift(-t), "n") for t, r in enumerate(rows)], out
    )


def rnnlm(
    batch: int = 64,
    steps: int = 256,
    width: int = 2048,
    layers: int = 2,
    vocabulary: int = 100_000,
    dtype: str = "float32",
) -> Graph:
    """Language model of `layers` LSTM layers; output: log-probabilities [b, t, v]."""
    g = Builder("rnnlm", dtype)
    words = g.input("words", (batch, steps), "int32")
    x = g.embedding("embedding", "v k, b t -> b t k", g.parameter("embedding.table", (vocabulary, width)), words)
    for i in range(layers):
        x = _lstm(g, f"lstm{i}", x, width)
    logits = g.contract("logits", "b t n, n v -> b t v", x, g.parameter("logits.weight", (width, vocabulary)))
    return g.build(g.normalise("log_softmax", "log_softmax", "b t v -> b t v", logits, over=("v",)))

"""Loops for tests: small recurrent programs, and what they compute written with NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine, Axis, access
from shardproof.models.sources.building import recurrent
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.scan import Loop, scan

Values = Mapping[str, np.ndarray]


def lstm(turns: int = 5, batch: int = 4, hidden: int = 3, dtype: str = "float64", reverse: bool = False) -> Graph:
    """Outputs y[t, b, n], h[b, n], c[b, n] of an LSTM whose weight is a parameter."""
    g = Builder("lstm", dtype)
    h, c = g.input("h0", (batch, hidden)), g.input("c0", (batch, hidden))
    x, w = g.input("x", (turns, batch, 4, hidden)), g.parameter("w", (4, hidden, hidden))
    reads, wanted = ("b h", "b n", "t b g n", "g n h"), ("each next.h", "last h", "last c")
    loop = Loop(recurrent.lstm(batch, hidden, dtype), 2, reads, ("b",), "t", turns, wanted, reverse)
    return g.build(*scan(g, "loop", loop, [h, c, x, w], {0: "y", 1: "h", 2: "c"}))


def expected(v: Values, reverse: bool = False) -> dict[str, np.ndarray]:
    """What `lstm` gives."""
    h, c, y = v["h0"], v["c0"], np.zeros((*v["x"].shape[:2], v["h0"].shape[1]))
    order = range(len(v["x"]))
    for t in reversed(order) if reverse else order:
        z = v["x"][t] + np.einsum("bk,gnk->bgn", h, v["w"])
        i, f, o = (1 / (1 + np.exp(-z[:, k])) for k in (0, 1, 3))
        c = f * c + i * np.tanh(z[:, 2])
        h = o * np.tanh(c)
        y[t] = h
    return {"y": y, "h": h, "c": c}


def powers(turns: int, batch: int, width: int, dtype: str = "float32") -> Graph:
    """h w^2 relu, turn after turn: products alone, which cost operations as well as bytes, beside one outside."""
    b = Builder("body", dtype)
    h, w = b.input("h", (batch, width)), b.input("w", (width, width))
    twice = b.contract("twice", "b k, k n -> b n", b.contract("once", "b k, k n -> b n", h, w), w)
    body = b.build(b.map("next", "relu", twice))
    g = Builder("powers", dtype)
    given = [g.input("h0", (batch, width)), g.parameter("w0", (width, width))]
    loop = Loop(body, 1, ("b k", "k n"), ("b",), "t", turns, ("last h",))
    (last,) = scan(g, "loop", loop, given, {0: "y"})
    return g.build(g.contract("out", "b k, k n -> b n", last, given[1]))


def selective(turns: int = 6, batch: int = 2, channels: int = 4, states: int = 3, dtype: str = "float64") -> Graph:
    """A diagonal recurrence, as of a state-space model: every axis is a row, also that of the decay, a weight that
    lacks the batch.   s' = a[d, n] s + u[t, b, d] k[t, b, n]
    """
    g = Builder("selective", dtype)
    given = [g.input("s0", (batch, channels, states)), g.input("u", (turns, batch, channels))]
    given += [g.input("k", (turns, batch, states)), g.parameter("a", (channels, states))]
    loop = selective_loop(turns, batch, channels, states, False, dtype)
    (states_,) = scan(g, "loop", loop, given, {0: "states"})
    return g.build(g.contract("y", "t b d n, t b n -> t b d", states_, given[2]))


def selective_loop(turns: int, batch: int, channels: int, states: int, reverse: bool, dtype: str = "float64") -> Loop:
    """The loop of `selective`."""
    b = Builder("body", dtype)
    s, u, k = b.input("s", (batch, channels, states)), b.input("u", (batch, channels)), b.input("k", (batch, states))
    a = b.input("a", (channels, states))
    kept = b.map("kept", "multiply", s, a, text="b d n, d n -> b d n")
    body = b.build(b.map("s'", "add", kept, b.map("in", "multiply", u, k, text="b d, b n -> b d n")))
    reads = ("b d n", "t b d", "t b n", "d n")
    return Loop(body, 1, reads, ("b", "d", "n"), "t", turns, ("each s'",), reverse)


def trained(rng: np.random.Generator) -> Graph:
    """A loop of a random kind, all of whose inputs are parameters: some results are read as copies take them, others
    beside their places, one twice.
    """
    kind = str(rng.choice(["lstm", "projected", "gru", "cell", "selective", "sum", "output"]))
    turns, b, n, p = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    g = Builder("trained", "float64")
    reverse = bool(rng.integers(0, 2))
    order = ["t", "b", "g", "n"] if rng.integers(0, 2) else ["n", "b", "t", "g"]
    gates = {"lstm": 4, "projected": 4, "gru": 3, "cell": 1}.get(kind, 1)
    extent = {"t": turns, "b": b, "g": gates, "n": n}
    x = access("x", *order)
    if kind not in ("selective", "sum", "output"):
        g.parameter("x", [extent[a] for a in order])
    h = n if kind != "projected" else p
    if kind == "selective":
        s, u, k = g.parameter("s", (b, n, p)), g.parameter("u", (turns, b, n)), g.parameter("k", (b, turns, p))
        loop = selective_loop(turns, b, n, p, reverse)
        given: list[str | Access] = [s, u, access(k, "b", "t", "n"), g.parameter("a", (n, p))]
    elif kind == "output":  # a value that no next turn needs
        body = Builder("body", "float64")
        state, value = body.input("s", (b, n)), body.input("v", (b, n))
        following = body.map("s'", "tanh", body.map("both", "multiply", state, value))
        body.map("y", "multiply", following, body.map("gate", "sigmoid", body.map("again", "multiply", value, state)))
        inner = body.build(following)
        loop = Loop(inner, 1, ("b n", "t b n"), ("b", "n"), "t", turns, ("each y", "last s"), reverse)
        given = [access(g.parameter("s", (b, n)), "b", "n"), access(g.parameter("v", (b, turns, n)), "b", "t", "n")]
    elif kind == "sum":
        body = Builder("body", "float64")
        total = body.map("s'", "add", body.input("s", (b, n)), body.input("v", (b, n)))
        loop = Loop(body.build(total), 1, ("b n", "t b n"), ("b", "n"), "t", turns, ("last s", "each s'"), reverse)
        given = [g.parameter("s", (1, n)), g.parameter("v", (b, turns, n))]
        given = [Access("s", (Affine(), Affine.axis("n"))), access("v", "b", "t", "n")]
    else:
        made = {
            "lstm": lambda: recurrent.lstm(b, n, "float64"),
            "projected": lambda: recurrent.lstm(b, n, "float64", p),
            "gru": lambda: recurrent.gru(b, n, "float64", True),
            "cell": lambda: recurrent.cell(b, n, "float64", "tanh"),
        }[kind]()
        reads, given = ["b h", "b n"], [access(g.parameter("h", (h, b)), "h", "b")]
        if gates == 4:
            given.append(g.parameter("c", (b, n)))
        reads = [*reads[: 2 if gates == 4 else 1], "t b g n", "g n h"]
        given += [x, g.parameter("w", (gates, n, h))]
        if kind == "gru":
            reads, given = [*reads, "g n"], [*given, g.parameter("bias", (3, n))]
        if kind == "projected":
            reads, given = [*reads, "h n"], [*given, g.parameter("r", (h, n))]
        wanted = ("last h", "each next.h", *(("last c", "each f") if gates == 4 else ("each next.h",)))
        loop = Loop(made, 2 if gates == 4 else 1, tuple(reads), ("b",), "t", turns, wanted, reverse)
    parts = {k: f"y{k}" for k in range(len(loop.results))}
    taken = scan(g, "loop", loop, given, parts)
    sums = [
        g.reduce(f"sum{k}", " ".join("tbcde"[: len(g.tensors[t].shape)]) + " -> ", t, scale=0.5 + k)
        for k, t in enumerate(taken)
    ]
    squares = [g.map(f"square{k}", "multiply", t, t) for k, t in enumerate(taken)]
    sums += [
        g.reduce(f"more{k}", " ".join("tbcde"[: len(g.tensors[t].shape)]) + " -> ", t) for k, t in enumerate(squares)
    ]
    if rng.integers(0, 2):  # what is read beside the places of the results
        packed = g.tensors["loop"].shape
        axes = [Axis(f"r{k}", e) for k, e in enumerate(packed[:-1])] + [Axis("p", max(1, packed[-1] - 1))]
        read = Access("loop", (*(Affine.axis(a.name) for a in axes[:-1]), Affine.axis("p").shift(1)))
        odd = g.operator("odd", "tanh", axes, [read], [a.name for a in axes], {}, "float64")
        sums.append(g.reduce("odd.sum", " ".join("tbcde"[: len(axes)]) + " -> ", odd))
    return g.build(g.map("total", "sum_inputs", *sums, text=", ".join([""] * len(sums)) + " -> "))

"""Loops for tests: small recurrent programs, and what they compute written with NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardproof.models.program.graph import Graph
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


def selective(turns: int = 6, batch: int = 2, channels: int = 4, states: int = 3, dtype: str = "float64") -> Graph:
    """A diagonal recurrence, as of a state-space model: every axis is a row, also that of the decay, a weight that
    lacks the batch.   s' = a[d, n] s + u[t, b, d] k[t, b, n]
    """
    b = Builder("body", dtype)
    s, u, k = b.input("s", (batch, channels, states)), b.input("u", (batch, channels)), b.input("k", (batch, states))
    a = b.input("a", (channels, states))
    kept = b.map("kept", "multiply", s, a, text="b d n, d n -> b d n")
    body = b.build(b.map("s'", "add", kept, b.map("in", "multiply", u, k, text="b d, b n -> b d n")))
    g = Builder("selective", dtype)
    given = [g.input("s0", (batch, channels, states)), g.input("u", (turns, batch, channels))]
    given += [g.input("k", (turns, batch, states)), g.parameter("a", (channels, states))]
    reads = ("b d n", "t b d", "t b n", "d n")
    loop = Loop(body, 1, reads, ("b", "d", "n"), "t", turns, ("each s'",))
    (states_,) = scan(g, "loop", loop, given, {0: "states"})
    return g.build(g.contract("y", "t b d n, t b n -> t b d", states_, given[2]))

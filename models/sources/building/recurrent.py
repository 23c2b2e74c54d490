"""Builds bodies of recurrent networks: one step of an LSTM, a GRU and a plain cell, for a batch of rows.

    x[b, g, n] comes with the input's product and all biases (of a GRU: its own), so that the loop has
    what needs the state
    z[b, g, n]  =  sum_k h[b, k] w[g, n, k]
    lstm   i, f, o = sigmoid(x + z),  u = tanh(x + z):   c' = f c + i u,   h' = o tanh(c')   [p w_r, where projected]
    gru    z + b,  r, s = sigmoid(x + z),  u = tanh(x + r z):   h' = u + s (h - u)
    cell   h' = tanh(x + z), or relu

Gates stand in the order of PyTorch's weights: i f u o;  r s u.  Source: Hochreiter and Schmidhuber (1997), Cho et al.
(2014) as `torch.nn` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...program.graph import Graph
from ...program.index import Access, Affine, Axis, access
from .builder import Builder


def _gate(g: Builder, name: str, function: str, number: int, *tensors: str) -> str:
    """A map of one gate of each tensor [b, g, n]."""
    b, _, n = g.tensors[tensors[0]].shape
    read = [Access(t, (Affine.axis("b"), Affine(offset=number), Affine.axis("n"))) for t in tensors]
    return g.operator(name, function, [Axis("b", b), Axis("n", n)], read, ("b", "n"), {}, g.dtype)


def lstm(batch: int, hidden: int, dtype: str, projected: int = 0) -> Graph:
    """Inputs h, c, x, w and perhaps r; outputs h' (`next.h`) and c' (`next.c`).

    >>> [t.shape for t in lstm(2, 3, "float32").tensors[:4]]
    [(2, 3), (2, 3), (2, 4, 3), (4, 3, 3)]
    """
    g = Builder("lstm", dtype)
    h, c = g.input("h", (batch, projected or hidden)), g.input("c", (batch, hidden))
    x, w = g.input("x", (batch, 4, hidden)), g.input("w", (4, hidden, projected or hidden))
    r = g.input("r", (projected, hidden)) if projected else ""
    z = g.map("z", "add", x, g.contract("hw", "b k, g n k -> b g n", h, w))
    i, f, o = (_gate(g, name, "sigmoid", k, z) for name, k in (("i", 0), ("f", 1), ("o", 3)))
    kept = g.map("kept", "multiply", f, c)
    c = g.map("next.c", "add", kept, g.map("new", "multiply", i, _gate(g, "u", "tanh", 2, z)))
    h = g.map("out" if projected else "next.h", "multiply", o, g.map("bounded", "tanh", c))
    if projected:
        h = g.contract("next.h", "b n, p n -> b p", h, r)
    return g.build(h, c)


def gru(batch: int, hidden: int, dtype: str, biased: bool) -> Graph:
    """Inputs h, x, w and perhaps the bias b of the state's product; output h' (`next.h`).

    >>> gru(2, 3, "float32", True).outputs
    ('next.h',)
    """
    g = Builder("gru", dtype)
    h, x, w = g.input("h", (batch, hidden)), g.input("x", (batch, 3, hidden)), g.input("w", (3, hidden, hidden))
    z = g.contract("hw", "b k, g n k -> b g n", h, w)
    if biased:
        z = g.map("z", "add", z, g.input("bias", (3, hidden)), text="b g n, g n -> b g n")
    reset, keep = (g.map(n, "sigmoid", _gate(g, f"{n}.z", "add", k, x, z)) for n, k in (("reset", 0), ("keep", 1)))
    seen = g.map("seen", "multiply", reset, _gate(g, "z.u", "identity", 2, z))
    u = g.map("u", "tanh", g.map("both", "add", seen, _gate(g, "x.u", "identity", 2, x)))
    kept = g.map("kept", "multiply", keep, g.map("change", "subtract", h, u))
    return g.build(g.map("next.h", "add", kept, u))


def cell(batch: int, hidden: int, dtype: str, function: str) -> Graph:
    """Inputs h, x, w; output h' (`next.h`); `function`: tanh or relu.

    >>> len(cell(2, 3, "float32", "tanh").operators)
    3
    """
    g = Builder("cell", dtype)
    h, x, w = g.input("h", (batch, hidden)), g.input("x", (batch, 1, hidden)), g.input("w", (1, hidden, hidden))
    z = g.map("z", "add", x, g.contract("hw", "b k, g n k -> b g n", h, w))
    return g.build(_gate(g, "next.h", function, 0, z))


def slices(tensor: str, number: int, names: Sequence[str]) -> Access:
    """Slice `number` of a tensor, the rest axis by axis.

    >>> slices("h0", 1, ["b", "h"]).index[0]
    Affine(terms=(), offset=1, whole=False)
    """
    return Access(tensor, (Affine(offset=number), *access(tensor, *names).index))

"""Translates `nn.LSTM`, `nn.GRU` and `nn.RNN` as loops: one operator per layer and direction, whatever the
number of steps.

    xw[t, b, g, n]  =  sum_k x[t, b, k] w_ih[g, n, k] + b_ih[g, n] + b_hh[g, n]         one product for all steps
    h[t, b, n], ..  =  scan over t of the cell (`building.recurrent`)

The two directions of a layer stand side by side in its output.  Dropout between layers is the identity, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...program.graph import Graph
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.scan import EACH, LAST, results
from ..building.flat import Unsupported, concatenate
from ..building.recurrent import cell, gru, lstm, slices
from ..building.scan import Loop, operator, result_copy
from .context import Context, Handler, Node, Ref


@dataclass(frozen=True)
class _Cell:
    """`gates`, and the states that go from step to step; their body is `_body`."""

    gates: int
    states: tuple[str, ...]


_CELLS = {
    "lstm": _Cell(4, ("h", "c")),
    "gru": _Cell(3, ("h",)),
    "rnn_tanh": _Cell(1, ("h",)),
    "rnn_relu": _Cell(1, ("h",)),
}

KEPT = tuple(_CELLS)
"""ATen operators that stay whole; with packed sequences (overload `data`) they are unrolled by PyTorch."""


def _body(kind: str, batch: int, hidden: int, dtype: str, projected: int, biased: bool) -> Graph:
    if kind == "lstm":
        return lstm(batch, hidden, dtype, projected)
    return gru(batch, hidden, dtype, biased) if kind == "gru" else cell(batch, hidden, dtype, kind.removeprefix("rnn_"))


def recurrent(c: Context, node: Node) -> None:
    """See the module docstring."""
    kind = node.kind.removeprefix("aten.").partition(".")[0]
    if not node.kind.endswith(".input"):
        raise Unsupported("a packed sequence; pad it to one length")
    what, biased = _CELLS[kind], bool(node.integer("has_biases", 1))
    first = node.integer("batch_first", 0)
    states = node.refs("hx") if kind == "lstm" else (node.ref("hx"),)
    directions = 2 if node.integer("bidirectional", 0) else 1
    layers, weights = node.integer("num_layers", 1), list(node.refs("params"))
    each = len(weights) // (layers * directions)
    projected = each > (4 if biased else 2)
    x, shape = c.operand(node.ref("input"))
    if len(shape) != 3:
        raise Unsupported(f"an input of {len(shape)} dimensions")
    names = ("b", "t", "k") if first else ("t", "b", "k")
    ends: list[list[str]] = [[] for _ in what.states]
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            number = layer * directions + direction
            mine = [c.operand(w) for w in weights[number * each : (number + 1) * each]]
            part = f"l{layer}" + (".reverse" if direction else "")
            hidden = mine[0][1][0] // what.gates
            one = _Layer(c, node, kind, part, hidden, biased, projected, bool(direction))
            start = [slices(c.tensor(s), number, ("b", n)) for s, n in zip(states, ("h", "n"), strict=False)]
            out, last = one.add_loop(Access(x, tuple(map(Affine.axis, names))), mine, start, names[:2])
            outs.append(out)
            for known, tensor in zip(ends, last, strict=True):
                known.append(tensor)
        x = outs[0] if directions == 1 else concatenate(c, node, f"l{layer}.both", outs, 2)
    c.put(node, x)
    for k, tensors in enumerate(ends):
        if Ref(node.name, k + 1) in c.read:
            c.put(node, _stacked(c, node, what.states[k], tensors), k + 1)


@dataclass(frozen=True)
class _Layer:
    """One direction of one layer."""

    c: Context
    node: Node
    kind: str
    part: str
    hidden: int
    biased: bool
    projected: bool
    reverse: bool

    def add_loop(
        self,
        x: Access,
        weights: Sequence[tuple[str, tuple[int, ...]]],
        start: Sequence[Access],
        order: tuple[str, str],
    ) -> tuple[str, list[str]]:
        """Its output, turns and batch in this `order`, and the states behind its last step."""
        c, node, what = self.c, self.node, _CELLS[self.kind]
        size = dict(zip(x.axes, c.g.tensors[x.tensor].shape, strict=True))
        batch, turns, gates = size["b"], size["t"], what.gates
        w_ih, w_hh = (self._gates(f"w{k}", weights[k][0]) for k in (0, 1))
        xw = self._product(x, w_ih, size)
        biases = [self._gates(f"bias{k}", weights[k][0]) for k in (2, 3)] if self.biased else []
        inner = [Axis("t", turns), Axis("b", batch), Axis("g", gates), Axis("n", self.hidden)]
        for k, bias in enumerate(biases[:1] if self.kind == "gru" else biases):
            both = [access(xw, "t", "b", "g", "n"), access(bias, "g", "n")]
            xw = c.operator(node, f"{self.part}.bias{k}", "add", inner, both, ("t", "b", "g", "n"))
        size_of_h = weights[-1][1][0] if self.projected else self.hidden
        dtype = c.g.tensors[xw].dtype
        body = _body(self.kind, batch, self.hidden, dtype, size_of_h if self.projected else 0, self.biased)
        named = ["b h", "b n"][: len(what.states)]
        inputs = [*start, access(xw, "t", "b", "g", "n"), access(w_hh, "g", "n", "h")]
        named += ["t b g n", "g n h"]
        if self.kind == "gru" and self.biased:  # the reset gate multiplies it too
            inputs, named = [*inputs, access(biases[1], "g", "n")], [*named, "g n"]
        if self.projected:
            inputs, named = [*inputs, access(weights[-1][0], "h", "n")], [*named, "h n"]
        wanted = [f"{EACH}next.h"]
        wanted += [f"{LAST}{s}" for k, s in enumerate(what.states) if Ref(node.name, k + 1) in c.read]
        loop = Loop(body, len(what.states), tuple(named), ("b",), "t", turns, tuple(wanted), self.reverse)
        op = operator("", loop, inputs)
        given = dict(op.attributes)
        c.operator(node, f"{self.part}.scan", "scan", op.axes, inputs, op.output.axes, given, dtype)
        op = c.g.operators[-1]
        found, taken_parts = results(op, body), {}
        for result, text in zip(found, wanted, strict=True):
            axes, read, out = result_copy(op, result)
            if result.each:
                out = (*order, *out[2:])
                axes = sorted(axes, key=lambda a: out.index(a.name))
            taken_parts[text] = c.operator(node, f"{self.part}.{result.name}", "copy", axes, [read], out, None, dtype)
        return taken_parts[wanted[0]], [taken_parts.get(f"{LAST}{s}", "") for s in what.states]

    def _gates(self, part: str, tensor: str) -> str:
        """A weight with its gates as a dimension."""
        shape = self.c.g.tensors[tensor].shape
        apart = (_CELLS[self.kind].gates, self.hidden, *shape[1:])
        return self.c.view(self.node, f"{self.part}.{part}", tensor, apart)

    def _product(self, x: Access, w: str, size: dict[str, int]) -> str:
        out = ("t", "b", "g", "n")
        extent = {**size, "g": _CELLS[self.kind].gates, "n": self.hidden}
        axes = [*(Axis(a, extent[a]) for a in out), Axis("k", size["k"], Combine.SUM)]
        return self.c.operator(self.node, f"{self.part}.input", "product", axes, [x, access(w, "g", "n", "k")], out)


def _stacked(c: Context, node: Node, part: str, tensors: Sequence[str]) -> str:
    """States of all layers and directions along a first dimension."""
    shape = (1, *c.g.tensors[tensors[0]].shape)
    views = [c.view(node, f"{part}{k}", t, shape) for k, t in enumerate(tensors)]
    return views[0] if len(views) == 1 else concatenate(c, node, f"{part}.all", views, 0)


HANDLERS: dict[str, Handler] = dict.fromkeys(KEPT, recurrent)

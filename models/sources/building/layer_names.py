"""Names operators of functional programs after the layer whose weights they read.

A frontend names an operator by the module that calls it.  Where weights are read by plain functions (JAX, or
`F.linear(x, self.w1[2])`), every product is `mm` or `einsum`, and only the names of weights say what belongs to what:

    reads a weight, itself or what was computed of weights alone      layers.2.wq -> layers.2.wq.einsum
    reads what such an operator of a numbered layer computed          the same path: layers.2.wq.softmax

Of several operands that are no weights the one that was computed last counts.  Results of the program keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from ...program.graph import Graph, Role

_COUNT: Final = re.compile(r"[#_]\d+$")
"""How a frontend tells operators of one function apart."""


def layer_names(graph: Graph, bare: AbstractSet[str]) -> dict[str, str]:
    """Operator -> its name with the path of a layer; `bare`: operators that stand in no module.  Empty for programs
    without numbered layers.

    >>> from .builder import Builder
    >>> g = Builder("mlp")
    >>> x = g.input("x", (4, 8))
    >>> for k in range(2):
    ...     x = g.contract(f"mm#{k}", "b k, k n -> b n", x, g.parameter(f"layers.{k}.up", (8, 8)))
    ...     x = g.map(f"relu#{k}", "relu", x)
    >>> graph = g.build(g.reduce("sum", "b n -> b", x))
    >>> [*layer_names(graph, {op.name for op in graph.operators}).values()]
    ['layers.0.up.mm', 'layers.0.up.relu', 'layers.1.up.mm', 'layers.1.up.relu']
    """
    weights = {t.name: t.name for t in graph.tensors if t.role is Role.PARAMETER}
    if not any(map(_numbered, weights)):
        return {}
    behind: dict[str, str] = {}  # what operators computed -> the weight that they stand behind
    at = {op.output.tensor: k for k, op in enumerate(graph.operators)}
    taken = {t.name for t in graph.tensors} | {op.name for op in graph.operators}
    out: dict[str, str] = {}
    for op in graph.operators:
        read = [a.tensor for a in op.inputs]
        stored = [weights[t] for t in read if t in weights]
        path = next((w for w in stored if _numbered(w)), stored[0] if stored else None)
        if stored and len(stored) == len(read):
            weights[op.output.tensor] = path or stored[0]
        elif path is None:
            last = max((t for t in read if t in at), key=at.__getitem__, default=None)
            path = None if last is None else behind.get(last)
        if op.name not in bare or path is None:
            continue
        if _numbered(path):
            behind[op.output.tensor] = path
        if op.output.tensor not in graph.results:
            out[op.name] = _free(f"{path}.{_COUNT.sub('', op.name)}", taken)
    return out


def with_layer_names(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with operators, and the tensors of their names, renamed."""
    if not names:
        return graph
    written = {op.output.tensor: names[op.name] for op in graph.operators if op.name in names}
    operators = tuple(
        replace(
            op,
            name=names.get(op.name, op.name),
            inputs=tuple(replace(a, tensor=written.get(a.tensor, a.tensor)) for a in op.inputs),
            output=replace(op.output, tensor=written.get(op.output.tensor, op.output.tensor)),
        )
        for op in graph.operators
    )
    tensors = tuple(replace(t, name=written.get(t.name, t.name)) for t in graph.tensors)
    return replace(graph, tensors=tensors, operators=operators)


def _numbered(name: str) -> bool:
    """Whether one of the parts of a name is the number of a layer."""
    return any(part.isdecimal() for part in name.split("."))


def _free(name: str, taken: set[str]) -> str:
    """The name, or with a number that is free; taken from now on."""
    free, k = name, 1
    while free in taken:
        k += 1
        free = f"{name}#{k}"
    taken.add(free)
    return free

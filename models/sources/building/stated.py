"""Constants that a program states: carried by value where they are small, because they are content
and no weights.

up to `LIMIT` elements     an operator `constant` of the graph, with the values
beyond                     an input called `constant.*` with the digest of its values, which lie beside the graph
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.contents import contents_of
from ...program.graph import STATED, Graph, Role
from ...program.index import Axis, access
from ...program.operators import Operator, Value
from .builder import Builder
from .flat import letters

LIMIT: Final = 1 << 16
"""Elements of the largest constant that a graph holds: some 1.5 MB of text."""


def constant_tensor(g: Builder, name: str, array: npt.NDArray[np.generic], dtype: str) -> str | None:
    """The tensor of an operator `name` that makes the constant; None where it is too large or no real number."""
    if not _small(array):
        return None
    shape = array.shape or (1,)
    names = letters(len(shape))
    made = g.operator(
        name,
        "constant",
        [Axis(a, n) for a, n in zip(names, shape, strict=True)],
        [],
        names,
        {"values": _listed(array)},
        dtype,
    )
    if not array.shape:  # a scalar, stored with one element
        g.tensors[made] = replace(g.tensors[made], source_shape=())
    return made


def asked_for(g: Builder, name: str, array: npt.NDArray[np.generic], dtype: str) -> str:
    """An input for a constant that the graph does not hold; `name` begins as `STATED` says."""
    if not name.startswith(STATED):
        raise ValueError(f"{name}: does not say that it is a constant")
    made = g.input(name, array.shape or (1,), dtype, None if array.shape else ())
    if array.size > LIMIT and array.dtype.kind in "fiub":
        g.tensors[made] = replace(g.tensors[made], contents=contents_of(array, dtype))
    return made


def with_constants(graph: Graph, contents: Mapping[str, npt.NDArray[np.generic]]) -> Graph:
    """The graph with the values of small stated inputs in it; digits of a shape are views of it, so values keep their
    order.

    >>> g = Builder("g")
    >>> graph = g.build(g.map("y", "add", g.input("x", (2, 2)), g.input("constant.t", (2, 2)), text="a b, a b -> a b"))
    >>> [(op.function, op.attribute("values", 0)) for op in with_constants(graph, {"constant.t": np.array([[1, 2], [3,
    ...     4]])}).operators]
    [('constant', (1, 2, 3, 4)), ('add', 0)]
    """
    small = {n: a for n, a in contents.items() if _small(a) and graph.tensor(n).elements == a.size}
    if not small:
        return graph
    made = []
    for t in graph.tensors:
        if t.name in small:
            names = letters(len(t.shape))
            axes = tuple(Axis(a, n) for a, n in zip(names, t.shape, strict=True))
            made.append(
                Operator(t.name, "constant", axes, (), access(t.name, *names), (("values", _listed(small[t.name])),))
            )
    tensors = tuple(replace(t, role=Role.VALUE) if t.name in small else t for t in graph.tensors)
    return replace(graph, tensors=tensors, operators=(*made, *graph.operators)).check()


def _small(array: npt.NDArray[np.generic]) -> bool:
    return 0 < array.size <= LIMIT and array.dtype.kind in "fiub"


def _listed(array: npt.NDArray[np.generic]) -> Value:
    flat = array.reshape(-1).tolist()
    return tuple(float(x).hex() for x in flat) if array.dtype.kind == "f" else tuple(int(x) for x in flat)

"""A graph seen from one operator: what is read below it, in its own axes, and as which formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.graph import Graph
from ...program.index import Access, Affine
from ...program.operators import NodeKind, Operator, Value
from . import algebra
from .algebra import Form

Read = tuple[str, tuple[Affine, ...]]
"""A tensor, and the index at which it is read, in axes of the operator at the top of a pattern."""

DEPTH: Final = 9


class View:
    """A graph with its writers and readers, and expressions over it."""

    def __init__(self, graph: Graph, stated: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self.graph, self.stated = graph, stated
        self.found: dict[object, object] = {}  # what patterns have found out that many operators ask for
        self.writer = {op.output.tensor: op for op in graph.operators}
        self.readers: dict[str, list[str]] = {t.name: [] for t in graph.tensors}
        for op in graph.operators:
            for a in op.inputs:
                self.readers[a.tensor].append(op.name)
        self._outputs = frozenset(graph.outputs)
        self._sources: dict[str, tuple[Read, ...]] = {}
        self._near: dict[str, frozenset[str]] = {}

    def reads(self, op: Operator, outer: tuple[Affine, ...] | None = None) -> list[Read]:
        """Operands of `op`, whose output is read at `outer` (default: its own axes)."""
        own = op.output.index if outer is None else outer
        at = {i.single: o for i, o in zip(op.output.index, own, strict=True)}
        return [(a.tensor, tuple(substitute_axes(i, at) for i in a.index)) for a in op.inputs]

    def inner(self, top: Operator, leaf: Read) -> set[str] | None:
        """Operators between `top` and `leaf`, without `top`; None if one of them serves anything else."""
        inside: dict[str, Operator] = {}
        queue, seen = self.reads(top), {leaf}
        while queue:
            read = queue.pop()
            if read in seen:
                continue
            seen.add(read)
            tensor, index = read
            op = self.writer.get(tensor)
            if op is None or len(inside) > 24:
                return None
            inside[op.name] = op
            if op.kind is NodeKind.MAP:
                queue += self.reads(op, index)
        names = {top.name, *inside}
        for op in inside.values():
            if op.output.tensor in self._outputs or not names.issuperset(self.readers[op.output.tensor]):
                return None
        return set(inside)

    def sources(self, top: Operator) -> tuple[Read, ...]:
        """Reads that `top` may be a function of: over all axes of its result, and everything between serves only it.

        Kept, for every pattern asks; and asked before a formula is written out, which is dearer.
        """
        if top.name not in self._sources:
            axes = set(top.output.axes)
            self._sources[top.name] = tuple(
                r for r in self.candidates(top) if set(axes_of(r)) == axes and self.inner(top, r) is not None
            )
        return self._sources[top.name]

    def form(self, read: Read, leaf: str, depth: int = DEPTH) -> Form:
        """Normal form of what is read, down to the tensor `leaf` (or to what is not pointwise)."""
        op = self.writer.get(read[0])
        if read[0] == leaf or op is None or depth == 0 or op.kind is not NodeKind.MAP:
            return algebra.leaf(read)
        arguments = [self.form(r, leaf, depth - 1) for r in self.reads(op, read[1])]
        return form_of(op, arguments) or algebra.leaf(read)

    def candidates(self, top: Operator) -> Iterator[Read]:
        """Reads below `top` that its value may be a function of, nearest first."""
        level, seen = self.reads(top), set()
        for _ in range(DEPTH):
            below: list[Read] = []
            for read in level:
                if read in seen:
                    continue
                seen.add(read)
                yield read
                op = self.writer.get(read[0])
                if op is not None and op.kind is NodeKind.MAP:
                    below += self.reads(op, read[1])
            level = below

    def near(self, top: Operator, functions: frozenset[str]) -> bool:
        """Whether one of the functions occurs near below."""
        if top.name not in self._near:
            writers = (self.writer.get(t) for t, _ in self.candidates(top))
            self._near[top.name] = frozenset(op.function for op in writers if op is not None)
        return not functions.isdisjoint(self._near[top.name])


NARROW: Final = frozenset({"bfloat16", "float16"})
"""Element types of 16 bits: an operator that writes one rounds."""


def rounds(view: View, op: Operator) -> bool:
    """Whether an operator rounds its result to 16 bits."""
    return view.graph.tensor(op.output.tensor).dtype in NARROW


SPECIAL: Final = frozenset({"tanh", "erf", "sigmoid", "exp"})
ROOTS: Final = frozenset({"rsqrt", "sqrt", "power"})


def substitute_axes(index: Affine, at: Mapping[str | None, Affine]) -> Affine:
    """The index with axes replaced; axes of a reduction keep their names (marked, to stay apart)."""
    out = Affine((), index.offset, index.whole)
    for axis, coef in index.terms:
        inner = at.get(axis, Affine.axis(f"'{axis}"))
        out = Affine(
            (*out.terms, *((a, c * coef) for a, c in inner.terms)),
            out.offset + coef * inner.offset,
            out.whole or inner.whole,
        )
    return out


def number(op: Operator, name: str, default: float) -> float:
    value = op.attribute(name, default)
    return float(value) if isinstance(value, (int, float)) else default


def form_of(op: Operator, a: list[Form]) -> Form | None:
    """Normal form of a pointwise operator; None for one that has no algebra."""
    match op.function:
        case "add":
            return algebra.plus(a[0], a[1])
        case "subtract":
            return algebra.plus(a[0], algebra.scale_form(a[1], -1.0))
        case "multiply":
            return algebra.product(a[0], a[1])
        case "divide":
            return algebra.product(a[0], algebra.power(a[1], -1.0))
        case "scale":
            return algebra.scale_form(a[0], number(op, "scale", 1.0))
        case "shift":
            return algebra.plus(a[0], algebra.constant(number(op, "shift", 0.0)))
        case "negate":
            return algebra.scale_form(a[0], -1.0)
        case "power" | "sqrt" | "rsqrt" | "reciprocal":
            exponent = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}.get(op.function, number(op, "exponent", 1.0))
            return algebra.power(a[0], exponent)
        case "silu":
            return algebra.product(a[0], algebra.apply_function("sigmoid", a[0]))
        case "identity":
            return a[0]
        case "cast" if str(op.attribute("dtype", "")).startswith(("float", "bfloat")):
            return a[0]
        case "tanh" | "sigmoid" | "erf" | "exp" | "log":
            return algebra.apply_function(op.function, a[0])
        case _:
            return None


def axes_of(read: Read) -> tuple[str, ...]:
    return Access(*read).axes


def replacement(op: Operator, function: str, inputs: list[Access], attributes: dict[str, Value]) -> Operator:
    """An operator over the output axes of `op` that writes the same tensor."""
    axes = tuple(a for a in op.axes if a.combine is None)
    return Operator(op.name, function, axes, tuple(inputs), op.output, tuple(sorted(attributes.items())))

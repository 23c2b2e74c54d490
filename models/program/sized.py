"""Programs of every size: one graph whose extents grow with a number that has a name, `float64["N", 8]`.

    G(n), n = low, low + step, .., high      given by its two ends, G(low) and G(high)
    extents, dimensions                      equal at both ends, or in proportion to n
    flat lengths of a user's shape           in proportion to n, n^2 or n^3
    integers of attributes                   equal, or in proportion to n
    attribute `scale`                        equal, or c / n with c rational: means divide by what they count

Everything else is the same at both ends: names, operators, accesses, element types.  What grows in another way is
refused by its place: such a program has a plan for each size, and none for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from .graph import Graph
from .operators import Operator, Value
from .tensor import GraphError, Tensor

MOST_POWER: Final = 3
"""Powers of a size that a flat length may grow with."""

BY_SIZE: Final = "'shardproof sweep' plans size by size"
"""What else there is."""

_SHOWN: Final = 60
"""Letters of a value in a message."""

_WHOLE: Final = 1 << 20
"""Denominators up to which what a mean is of is taken for a rational number."""


@dataclass(frozen=True)
class SizedGraph:
    """The programs of the sizes of `name` from `ends[0]` to `ends[1]`, by the graphs of both."""

    name: str
    ends: tuple[int, int]
    low: Graph
    high: Graph

    def at(self, size: int) -> Graph:
        """The program of a size.  Raises `GraphError` where something does not grow as said above."""
        a, b = self.low, self.high
        if (len(a.tensors), len(a.operators)) != (len(b.tensors), len(b.operators)):
            raise self._other(a.name)
        tensors = tuple(self._tensor(x, y, size) for x, y in zip(a.tensors, b.tensors, strict=True))
        operators = tuple(self._operator(x, y, size) for x, y in zip(a.operators, b.operators, strict=True))
        return replace(a, tensors=tensors, operators=operators)

    def check(self) -> SizedGraph:
        """Itself.  Raises `GraphError` where the two ends are not programs of one family."""
        if self.at(self.ends[1]).to_json() != self.high.to_json():
            differing = (
                op.name
                for op, other in zip(self.at(self.ends[1]).operators, self.high.operators, strict=True)
                if op != other
            )
            raise self._other(f"operator {next(differing, self.high.name)!r}")
        return self

    def grown_axes(self) -> dict[str, frozenset[str]]:
        """Operator -> its axes that grow."""
        pairs = zip(self.low.operators, self.high.operators, strict=True)
        return {
            x.name: frozenset(p.name for p, q in zip(x.axes, y.axes, strict=True) if p.extent != q.extent)
            for x, y in pairs
        }

    def grown_dimensions(self) -> dict[str, frozenset[int]]:
        """Tensor -> its dimensions that grow."""
        pairs = zip(self.low.tensors, self.high.tensors, strict=True)
        return {
            x.name: frozenset(k for k, (p, q) in enumerate(zip(x.shape, y.shape, strict=True)) if p != q)
            for x, y in pairs
        }

    def extents(self) -> tuple[int, ...]:
        """At the low end, what grows: extents of axes and of dimensions, each once."""
        axes, dimensions = self.grown_axes(), self.grown_dimensions()
        found = {a.extent for op in self.low.operators for a in op.axes if a.name in axes[op.name]}
        return tuple(sorted(found | {t.shape[k] for t in self.low.tensors for k in dimensions[t.name]}))

    def size_of(self, shapes: Callable[[str], tuple[int, ...] | None]) -> int | None:
        """The size that gives a tensor its shape, if any has one that grows; not whether all of it fits."""
        for t in self.low.tensors:
            shape = shapes(t.name)
            for k in sorted(self.grown_dimensions()[t.name]):
                if shape is not None and len(shape) == len(t.shape):
                    return shape[k] * self.ends[0] // t.shape[k]
        return None

    def _tensor(self, x: Tensor, y: Tensor, size: int) -> Tensor:
        place = f"tensor {x.name!r}"
        if len(x.shape) != len(y.shape):
            raise self._other(place)
        shape = tuple(self._number(p, q, size, 1, place) for p, q in zip(x.shape, y.shape, strict=True))
        if x.source_shape is None or y.source_shape is None or len(x.source_shape) != len(y.source_shape):
            return replace(x, shape=shape)
        pairs = zip(x.source_shape, y.source_shape, strict=True)
        return replace(
            x, shape=shape, source_shape=tuple(self._number(p, q, size, MOST_POWER, place) for p, q in pairs)
        )

    def _operator(self, x: Operator, y: Operator, size: int) -> Operator:
        place = f"operator {x.name!r}"
        if len(x.axes) != len(y.axes) or [n for n, _ in x.attributes] != [n for n, _ in y.attributes]:
            raise self._other(place)
        axes = tuple(
            replace(p, extent=self._number(p.extent, q.extent, size, 1, f"{place}, axis {p.name!r}"))
            for p, q in zip(x.axes, y.axes, strict=True)
        )
        attributes = tuple(
            (name, self._attribute(name, p, q, size, place))
            for (name, p), (_, q) in zip(x.attributes, y.attributes, strict=True)
        )
        return replace(x, axes=axes, attributes=attributes)

    def _attribute(self, name: str, x: Value, y: Value, size: int, place: str) -> Value:
        if x == y and type(x) is type(y):
            return x
        if type(x) is int and type(y) is int:
            return self._number(x, y, size, 1, f"{place}, attribute {name!r}")
        if name == "scale" and isinstance(x, float) and isinstance(y, float):
            counted = (Fraction(x) * self.ends[0]).limit_denominator(_WHOLE)
            if float(counted / self.ends[0]) == x and float(counted / self.ends[1]) == y:
                return float(counted / size)
        raise self._odd(f"{place}, attribute {name!r}", x, y)

    def _number(self, x: int, y: int, size: int, most: int, place: str) -> int:
        """An integer that is `x` and `y` at the ends, in proportion to a power of the size."""
        low, high = self.ends
        for power in range(most + 1):
            if x * high**power == y * low**power:
                grown, unit = x * int(size**power), int(low**power)
                if grown % unit == 0:
                    return grown // unit
        raise self._odd(place, x, y)

    def _other(self, place: str) -> GraphError:
        low, high = self.ends
        return GraphError(place, f"is another one for {self.name} = {high} than for {self.name} = {low}; {BY_SIZE}")

    def _odd(self, place: str, x: Value, y: Value) -> GraphError:
        (low, high), (first, last) = self.ends, (str(v)[:_SHOWN] for v in (x, y))
        ends = f"{first} for {self.name} = {low} and {last} for {self.name} = {high}"
        return GraphError(place, f"is {ends}: neither equal nor in proportion; {BY_SIZE}")

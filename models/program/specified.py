"""Says which tensors of a graph a formula of the user's defines, so that a checker can compare what is
computed with what was specified.

    result[axes]  is  formula(operands),     in tensors of the graph, an axis in one or several dimensions of them

An axis of the formula may be cut into digits: then it lies in several dimensions, most significant first.  A graph made
from another one keeps those whose tensors it has unchanged (`with_specified`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from .tensor import Tensor

if TYPE_CHECKING:
    from .graph import Graph


@dataclass(frozen=True)
class Placed:
    """A tensor of the graph; `axes`: for every axis of the formula's operand, the dimensions that hold it."""

    tensor: str
    axes: tuple[tuple[int, ...], ...]

    @staticmethod
    def plain(tensor: str, rank: int) -> Placed:
        """Axis k in dimension k.

        >>> Placed.plain("x", 2).axes
        ((0,), (1,))
        """
        return Placed(tensor, tuple((k,) for k in range(rank)))


@dataclass(frozen=True)
class Specified:
    """One use of an operator of the user's.  `formula`: as `models.program.formula` has it; `operands`: name, axes and
    place of each; `sizes`: extents of the formula's other axes, in those of operands; `outside`: whether what is read
    outside an operand is 0, else nothing may be.
    """

    name: str
    formula: str
    operands: tuple[tuple[str, tuple[str, ...], Placed], ...]
    sizes: tuple[tuple[str, str], ...]
    outside: bool
    result: Placed

    @property
    def places(self) -> tuple[Placed, ...]:
        """All operands and the result."""
        return (*(p for _, _, p in self.operands), self.result)

    def in_places(self, placed: Sequence[Placed]) -> Specified:
        """The same in other places: of the operands, then of the result."""
        operands = tuple((name, axes, p) for (name, axes, _), p in zip(self.operands, placed, strict=False))
        return replace(self, operands=operands, result=placed[-1])


def wrong_place(placed: Placed, tensors: Mapping[str, Tensor]) -> str:
    """Why a tensor cannot hold the axes so; empty if it can."""
    t = tensors.get(placed.tensor)
    if t is None:
        return f"names {placed.tensor!r}, which there is not"
    held = [k for dims in placed.axes for k in dims]
    rest = [n for k, n in enumerate(t.shape) if k not in held]
    if len(set(held)) != len(held) or any(not 0 <= k < len(t.shape) for k in held) or prod(rest) != 1:
        return f"does not place every dimension of {placed.tensor!r} once"
    return ""


def specified_in(graph: Graph, uses: Sequence[Specified], names: Mapping[str, str]) -> Iterator[Specified]:
    """Uses whose tensors a graph has; `names`: what they are called in it."""
    held = {t.name for t in graph.tensors}
    for use in uses:
        new = [replace(p, tensor=names.get(p.tensor, p.tensor)) for p in use.places]
        if all(p.tensor in held for p in new):
            yield use.in_places(new)


def with_specified(graph: Graph, old: Graph, renamed: Mapping[str, str] | None = None) -> Graph:
    """`graph`, made from `old`, with what was specified of tensors that both have in one shape; `renamed`: names that
    changed.  Element types may be others: what is specified is over the real numbers.
    """
    names = renamed or {}

    def alike(use: Specified) -> bool:
        pairs = [(old.tensor(p.tensor), names.get(p.tensor, p.tensor)) for p in use.places]
        return all(graph.holds(new) and t.shape == graph.tensor(new).shape for t, new in pairs)

    kept = tuple(specified_in(graph, [use for use in old.specified if alike(use)], names))
    return replace(graph, specified=kept) if kept != graph.specified else graph

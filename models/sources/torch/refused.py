"""What cannot be imported, all of it at once: where an operator is refused, the import goes on with
its shapes.

The results of a refused node are inputs of a graph that is thrown away in the end, so that what comes after is
converted and refused by its own reasons.  An error that such an input may have caused is no reason, and is passed over.
Every kind is listed with its number, its first places and the nearest form that is supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import prod
from types import MappingProxyType
from typing import Final

from ...program.graph import UnsupportedOperators
from .context import DTYPES, Context, Node, Ref

NEAREST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nonzero": "a mask and where, or aten.masked_scatter into a tensor of known size",
        "masked_select": "a mask and where, or aten.masked_scatter into a tensor of known size",
        "_unique2": "aten.sort",
        "unique_dim": "aten.sort",
        "unique_consecutive": "aten.sort",
        "bincount": "aten.histc with bins, min and max",
        "histogramdd": "aten.histc",
        "kthvalue": "aten.topk",
        "nanmedian": "aten.median",
        "mode": "aten.sort",
        "cummax": "aten.amax over a triangular mask",
        "cummin": "aten.amin over a triangular mask",
        "cumprod": "aten.exp of aten.cumsum of aten.log, for positive numbers",
        "prod": "aten.exp of aten.sum of aten.log, for positive numbers",
        "logcumsumexp": "aten.log of aten.cumsum of aten.exp",
        "grid_sampler_2d": "aten.index at computed positions",
        "_fft_r2c": "aten.mm with the matrix of the transform",
        "_fft_c2c": "aten.mm with the matrix of the transform",
        "_fft_c2r": "aten.mm with the matrix of the transform",
        "scatter_reduce": "aten.scatter_reduce with sum, mean, amax or amin",
        "_adaptive_avg_pool2d": "aten.avg_pool2d",
        "_cdist_forward": "squares and aten.mm",
        "multinomial": "aten.argmax of given noise",
    }
)
"""ATen operator without overload -> how to write what it computes with supported ones."""


class Refused:
    """What was refused so far.  `supported`: names of the operators that have a handler."""

    def __init__(self, context: Context, supported: Iterable[str]) -> None:
        self.c, self.supported = context, sorted(supported)
        self.missing: dict[str, list[str]] = {}
        self._nearest: dict[str, str] = {}
        self._lost: set[str] = set()

    def touches(self, inputs: Iterable[str]) -> bool:
        """Whether one of the nodes has been refused, or depends on one that was."""
        return not self._lost.isdisjoint(inputs)

    def follow(self, node: Node) -> None:
        """A node behind a refused one: what it raises may be that one's fault."""
        self._lost.add(node.name)

    def add(self, node: Node, place: str, reason: str = "") -> None:
        """A kind of operator, or a variant of one, at a place."""
        kind = f"{node.kind} with {reason}" if reason else node.kind
        self.missing.setdefault(kind, []).append(place)
        if not reason:
            self._nearest.setdefault(kind, self.nearest(node.kind))
        self.stand_in(node)

    def nearest(self, kind: str) -> str:
        """How to write it otherwise; empty if nothing is near."""
        if not kind.startswith("aten."):
            return "its specification in index notation, --operator FILE"
        short = kind.partition(".")[2].partition(".")[0]
        found = get_close_matches(short, self.supported, 1, 0.8)
        return NEAREST.get(short, f"aten.{found[0]}" if found else "")

    def stand_in(self, node: Node) -> None:
        """Let the results of a node be inputs of their shapes."""
        self._lost.add(node.name)
        for k, (shape, dtype) in enumerate(zip(node.shapes, node.dtypes, strict=True)):
            value = Ref(node.name, k)
            if value in self.c.values or value in self.c.constants or prod(shape) == 0 or dtype not in DTYPES:
                continue
            self.c.values[value] = self.c.g.input(self.c.unique(f"refused.{node.name}.{k}"), shape or (1,), dtype)

    def done(self) -> None:
        """Raise `UnsupportedOperators` if anything was refused."""
        if self.missing:
            raise UnsupportedOperators(self.missing, nearest=self._nearest)

"""A library that computes whole chains its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...models.program.graph import Graph
from ..kernels import Array
from ..kernels.library import Library
from ..lowering.program import Fused


@dataclass(frozen=True)
class ChainLibrary(Library):
    """`chain`: the values of a chain's members that are results, from the rank's slots; None: not of such operands."""

    chain: Callable[[Graph, Fused, Mapping[str, Array]], dict[int, Array] | None] = lambda graph, step, slots: None

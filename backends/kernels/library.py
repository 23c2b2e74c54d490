"""Names who computes operators: the kernels of this package, or those of a library on the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Final, Protocol

from ...models.program.graph import Graph
from ...models.program.operators import Operator
from .blocks import Array, Block, Box, StatisticsReducer
from .dispatch import execute
from .elementwise import MAPS, Elementwise
from .gradient_maps import GRADIENT_MAPS
from .moments import Kept


class Execute(Protocol):
    """Computes one operator on a box: `dispatch.execute`."""

    def __call__(
        self,
        xp: ModuleType,
        op: Operator,
        graph: Graph,
        box: Box,
        operands: Sequence[Block],
        collectives: StatisticsReducer | None = None,
        kept: Kept | None = None,
        /,
    ) -> Array:
        """The output block."""
        ...


class Write(Protocol):
    """Computes an elementwise function of operands into memory, which may be that of one of them."""

    def __call__(self, a: Sequence[Array], op: Operator, out: Array, /) -> None:
        """`out`: of the operands' common shape and type, in C order."""
        ...


@dataclass(frozen=True)
class Library:
    """`execute`: computes one operator; `functions`: elementwise ones, on operands aligned to the output axes;
    `passes`: whether these are one pass over memory each, so that chains gain nothing from being cut into chunks;
    `writes`: those of `functions` that write where they are told, with the same numbers.
    """

    execute: Execute
    functions: Mapping[str, Elementwise]
    passes: bool = False
    writes: Mapping[str, Write] = field(default_factory=lambda: MappingProxyType({}))


OURS: Final = Library(execute, MappingProxyType({**MAPS, **GRADIENT_MAPS}))
"""The kernels of this package, for any array module."""

"""This package holds every tuning constant of the search, with its unit and its reason: one frozen dataclass per
phase.

Options decide what is searched, how long, and in what order; none of them can make a wrong answer pass.  Integer
ranges, markers and buffer sizes, on which results do not depend, stay where they are used.  `solve` takes an
`Options` and hands every phase its part; `shardproof solve --options` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from .bound import BoundOptions
from .decomposition import DecompositionOptions
from .dense import DenseOptions
from .elimination import EliminationOptions
from .engines import EngineOptions
from .limits import Limits
from .presolve import PresolveOptions
from .primal import PrimalOptions
from .solve import SolveOptions
from .tree import TreeOptions


@dataclass(frozen=True)
class Options:
    """Options of every phase.

    >>> from dataclasses import replace
    >>> slower = Options(bound=replace(Options().bound, step=0.1))
    >>> slower.bound.step, Options().bound.step
    (0.1, 0.3)
    """

    solve: SolveOptions = field(default_factory=SolveOptions)
    presolve: PresolveOptions = field(default_factory=PresolveOptions)
    elimination: EliminationOptions = field(default_factory=EliminationOptions)
    bound: BoundOptions = field(default_factory=BoundOptions)
    dense: DenseOptions = field(default_factory=DenseOptions)
    primal: PrimalOptions = field(default_factory=PrimalOptions)
    tree: TreeOptions = field(default_factory=TreeOptions)
    decomposition: DecompositionOptions = field(default_factory=DecompositionOptions)
    engines: EngineOptions = field(default_factory=EngineOptions)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Listed:
    """One option as it is shown."""

    name: str
    value: str
    unit: str
    reason: str


def listed(options: Options) -> Iterator[Listed]:
    """Every option by its dotted name.

    >>> next(iter(listed(Options()))).name
    'solve.dense_vertices_with_rows'
    """
    for phase in fields(options):
        part = getattr(options, phase.name)
        for f in fields(part):
            value = getattr(part, f.name)
            text = " ".join(str(v) for v in value) if isinstance(value, tuple) else str(value)
            yield Listed(f"{phase.name}.{f.name}", text, f.metadata["unit"], f.metadata["reason"])


__all__ = [
    "BoundOptions",
    "DecompositionOptions",
    "DenseOptions",
    "EliminationOptions",
    "EngineOptions",
    "Limits",
    "Listed",
    "Options",
    "PresolveOptions",
    "PrimalOptions",
    "SolveOptions",
    "TreeOptions",
    "listed",
]

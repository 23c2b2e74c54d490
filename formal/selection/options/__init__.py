"""Every tuning constant of the search, with its unit and its reason: one frozen dataclass per
phase.

Options decide what is searched, how long, and in what order; none of them can make a wrong answer pass.  Integer
ranges, markers and buffer sizes, on which results do not depend, stay where they are used.  `solve` takes an
`Options` and hands every phase its part; without any it takes those of `use_options`, which reach every problem that a
plan is made of.  `shardproof solve --options` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Final

from .bound import BOUND, BoundOptions
from .decomposition import DECOMPOSITION, DecompositionOptions
from .dense import DENSE, DenseOptions
from .elimination import ELIMINATION, EliminationOptions
from .engines import ENGINES, EngineOptions
from .limits import LIMITS, Limits
from .network import NETWORK, NetworkOptions
from .option import documentation_of, range_of, value_from
from .presolve import PRESOLVE, PresolveOptions
from .primal import PRIMAL, PrimalOptions
from .solve import SOLVE, SolveOptions
from .tree import TREE, TreeOptions


@dataclass(frozen=True)
class Options:
    """Options of every phase.

    >>> from dataclasses import replace
    >>> slower = Options(bound=replace(Options().bound, step=0.01))
    >>> slower.bound.step, Options().bound.step
    (0.01, 0.03)
    """

    solve: SolveOptions = SOLVE
    presolve: PresolveOptions = PRESOLVE
    elimination: EliminationOptions = ELIMINATION
    bound: BoundOptions = BOUND
    dense: DenseOptions = DENSE
    primal: PrimalOptions = PRIMAL
    tree: TreeOptions = TREE
    network: NetworkOptions = NETWORK
    decomposition: DecompositionOptions = DECOMPOSITION
    engines: EngineOptions = ENGINES
    limits: Limits = LIMITS


OPTIONS: Final = Options()
"""The defaults: made once, because making hundreds of constants takes longer than solving a small problem."""


_IN_USE: Final = ContextVar("options of the search", default=OPTIONS)


def options_in_use() -> Options:
    """What a search takes that is given no options: the defaults, or those of the innermost `use_options`."""
    return _IN_USE.get()


@contextmanager
def use_options(options: Options) -> Iterator[None]:
    """Let every search take these options that is given none.

    >>> with use_options(options_with(OPTIONS, [("network.sweeps", "9")])):
    ...     options_in_use().network.sweeps
    9
    >>> options_in_use() is OPTIONS
    True
    """
    before = _IN_USE.set(options)
    try:
        yield
    finally:
        _IN_USE.reset(before)


@dataclass(frozen=True)
class OptionRow:
    """One option as it is shown."""

    name: str
    value: str
    unit: str
    range: str
    reason: str


def list_options(options: Options) -> Iterator[OptionRow]:
    """Every option by its dotted name.

    >>> next(iter(list_options(Options()))).name
    'solve.dense_vertices_with_rows'
    """
    for phase in fields(options):
        part: object = getattr(options, phase.name)
        for name, (said, reason) in documentation_of(type(part)).items():
            value = getattr(part, name)
            text = " ".join(str(v) for v in value) if isinstance(value, tuple) else str(value)
            unit, least, most = range_of(said)
            span = f"{least} and more" if most is None else f"{least} to {most}"
            yield OptionRow(f"{phase.name}.{name}", text, unit, span, reason)


def options_with(options: Options, given: Iterable[tuple[str, str]]) -> Options:
    """`options` with other values: pairs of a dotted name and what is to stand there.

    Raises ValueError with the name of what is none, or is out of its range.

    >>> options_with(OPTIONS, [("network.sweeps", "9")]).network.sweeps
    9
    """
    for name, text in given:
        phase, _, option = name.partition(".")
        part: object = getattr(options, phase, None) if phase in {f.name for f in fields(options)} else None
        said = {} if part is None else documentation_of(type(part))
        if part is None or option not in said:
            near = get_close_matches(name, [row.name for row in list_options(options)], 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"{name}: no option of the search; {hint}'shardproof solve --options' lists them")
        try:
            value = value_from(text, getattr(part, option), said[option][0])
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        options = replace(options, **{phase: replace(part, **{option: value})})  # type: ignore[arg-type, type-var]
    return options


__all__ = [
    "OPTIONS",
    "BoundOptions",
    "DecompositionOptions",
    "DenseOptions",
    "EliminationOptions",
    "EngineOptions",
    "Limits",
    "NetworkOptions",
    "OptionRow",
    "Options",
    "PresolveOptions",
    "PrimalOptions",
    "SolveOptions",
    "TreeOptions",
    "list_options",
    "options_in_use",
    "options_with",
    "use_options",
]

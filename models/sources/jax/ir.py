"""What is used of MLIR's Python bindings, which JAX brings: operators, blocks, types, attributes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Protocol, SupportsInt, cast

import numpy as np
import numpy.typing as npt

Plain = npt.NDArray[np.generic]


class Type(Protocol):
    """A tensor type."""

    shape: Sequence[int]
    element_type: object


class Result(Hashable, Protocol):
    """A value: what an operator makes, or an argument of a block."""

    type: Type


class Attributes(Protocol):
    """Attributes by name."""

    def __getitem__(self, name: str) -> object: ...
    def __contains__(self, name: str) -> bool: ...


class Block(Protocol):
    """Operators one after another."""

    arguments: Sequence[Result]
    operations: Iterable[View]


class Region(Protocol):
    """The body of an operator."""

    blocks: Sequence[Block]


class Op(Protocol):
    """An operator."""

    name: str
    operands: Sequence[Result]
    results: Sequence[Result]
    attributes: Attributes
    regions: Sequence[Region]
    location: object


class View(Protocol):
    """An operator as its dialect shows it."""

    operation: Op


class Module(Protocol):
    """The functions of a program."""

    body: Block


class _Text(Protocol):
    value: object


class _Elements(Protocol):
    is_splat: bool

    def get_splat_value(self) -> _Text: ...
    def __iter__(self) -> Iterator[object]: ...


def dialect() -> ModuleType:
    """The classes of StableHLO's structured attributes."""
    return import_module("jaxlib.mlir.dialects.stablehlo")


def text(op: Op, name: str) -> str:
    """An attribute that is a text or a name."""
    return str(cast("_Text", op.attributes[name]).value)


def integer(op: Op, name: str) -> int:
    """An attribute that is a number."""
    return int(cast("SupportsInt", op.attributes[name]))


def integers(op: Op, name: str) -> tuple[int, ...]:
    """A list of integers among the attributes; () where it is not given."""
    return tuple(int(n) for n in cast("Iterable[int]", op.attributes[name])) if name in op.attributes else ()


def pairs(op: Op, name: str, count: int) -> list[tuple[int, int]]:
    """A table of two columns among the attributes; zeros where it is not given."""
    if name not in op.attributes:
        return [(0, 0)] * count
    return [(int(a), int(b)) for a, b in np.asarray(op.attributes[name]).reshape(count, 2)]


def elements(op: Op, name: str, dtype: str, shape: Sequence[int]) -> Plain:
    """The array that an attribute holds; one number everywhere is kept once."""
    held = cast("_Elements", op.attributes[name])
    if held.is_splat:
        return np.broadcast_to(np.asarray(held.get_splat_value().value).astype(dtype), tuple(shape))
    found: Plain = np.asarray(list(held) if dtype == "bool" else held).astype(dtype).reshape(tuple(shape))
    return found


def body(op: Op) -> list[str]:
    """Names of the operators in the first region, without its end."""
    return [o.operation.name for o in op.regions[0].blocks[0].operations][:-1]


def combined_by(op: Op) -> str | None:
    """The operator that a region is: one that takes its two arguments, in any order, and whose result is returned;
    None for every other region.
    """
    if len(op.regions) != 1 or len(op.regions[0].blocks) != 1:
        return None
    block = op.regions[0].blocks[0]
    inside = [view.operation for view in block.operations]
    if len(block.arguments) != 2 or len(inside) != 2 or inside[1].name != "stablehlo.return":
        return None
    made, end = inside
    a, b = block.arguments
    taken = [o == a for o in made.operands]
    whole = len(taken) == 2 and any(taken) and not all(taken) and all(o == a or o == b for o in made.operands)
    returned = list(end.operands)
    return made.name if whole and len(made.results) == 1 and returned == list(made.results) else None


def returns_argument(op: Op, number: int) -> bool:
    """Whether the first region does nothing but return that argument."""
    block = op.regions[0].blocks[0]
    inside = [view.operation for view in block.operations]
    return len(inside) == 1 and list(inside[0].operands) == [block.arguments[number]]


def holds(module: Module, name: str) -> bool:
    """Whether a program has an operator of this name."""
    return any(o.name == name for f in module.body.operations for o in inside(f.operation))


def inside(op: Op) -> Iterator[Op]:
    """All operators of its regions, and of theirs."""
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield view.operation
                yield from inside(view.operation)

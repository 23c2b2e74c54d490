"""Says what a region of comparisons does, by running it on every order that its operands can have.

A region of comparisons, choices and logic tells its operands apart by order alone, also beside its own constants.  So
it is known once it was run on numbers in every such order: three between any two constants, and beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from math import isfinite
from typing import Final

from ..jax.ir import Block, Op, Result, dialect, elements

Number = float | bool
_COMPARED: Final[Mapping[str, Callable[[Number, Number], bool]]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


def order_of(op: Op) -> str | None:
    """`lt` or `gt`: which of two is first behind a sort by this region; None of every other region."""
    block = op.regions[0].blocks[0]
    samples = _samples(block)
    if samples is None:
        return None
    rest = len(block.arguments) - 2
    rows = [(a, b, _run(block, (a, b, *(0.0,) * rest))) for a, b in product(samples, repeat=2)]
    for name, compare in (("lt", _COMPARED["LT"]), ("gt", _COMPARED["GT"])):
        if all(made == (compare(a, b),) for a, b, made in rows):
            return name
    return None


def extreme_of(op: Op) -> str | None:
    """`amax` or `amin`: of numbers with their positions, the first of the greatest, or least; None of others."""
    block = op.regions[0].blocks[0]
    samples = _samples(block)
    if samples is None or len(block.arguments) != 4:
        return None
    rows = [
        ((a, i), (b, j), _run(block, (a, i, b, j)))
        for a, b in product(samples, repeat=2)
        for i, j in ((0.0, 1.0), (1.0, 0.0))
    ]
    for name, sign in (("amax", -1), ("amin", 1)):
        if all(made == min(x, y, key=lambda pair: (sign * pair[0], pair[1])) for x, y, made in rows):
            return name
    return None


def _samples(block: Block) -> list[float] | None:
    """Numbers in every order beside the constants; None for a region of other operators."""
    found = {0.0}
    for view in block.operations:
        op = view.operation
        if op.name == "stablehlo.constant":
            if tuple(op.results[0].type.shape) or str(op.results[0].type.element_type) == "i1":
                return None
            value = float(elements(op, "value", "float64", ()).item())
            found |= {value} if isfinite(value) else set()
        elif op.name not in ("stablehlo.compare", "stablehlo.select", "stablehlo.and", "stablehlo.or",
                             "stablehlo.not", "stablehlo.return"):  # fmt: skip
            return None
    marks = sorted(found)
    inside = [low + (high - low) * k / 4 for low, high in pairwise(marks) for k in (1, 2, 3)]
    return [marks[0] - 2, marks[0] - 1, *sorted([*marks, *inside]), marks[-1] + 1, marks[-1] + 2]


def _run(block: Block, given: Sequence[Number]) -> tuple[Number, ...]:
    held: dict[Result, Number] = dict(zip(block.arguments, given, strict=True))
    for view in block.operations:
        op = view.operation
        read = [held[o] for o in op.operands]
        match op.name:
            case "stablehlo.return":
                return tuple(read)
            case "stablehlo.constant":
                made: Number = float(elements(op, "value", "float64", ()).item())
            case "stablehlo.compare":
                how = dialect().ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
                made = _COMPARED[str(how)](read[0], read[1])
            case "stablehlo.select":
                made = read[1] if read[0] else read[2]
            case "stablehlo.not":
                made = not read[0]
            case _:
                made = bool(read[0] and read[1]) if op.name.endswith("and") else bool(read[0] or read[1])
        held[op.results[0]] = made
    return ()

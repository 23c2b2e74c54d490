"""Says what a region of comparisons does, by running it on every order that its operands can have.

A region of comparisons, choices and logic tells its operands apart by order alone, also beside its own constants.  So
it is known once it was run on numbers in every such order: four between any two constants, and beyond them.
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
    """`lt` or `gt`: which of two is first behind a stable sort by this region, alone or with their positions; None of
    every other region.
    """
    block = op.regions[0].blocks[0]
    samples = _samples(block)
    if samples is None or len(block.arguments) not in (2, 4):
        return None
    places: Sequence[tuple[float, ...]] = _places(block, samples) if len(block.arguments) == 4 else [()]
    rows = [(a, b, at, _run(block, (a, b, *at))) for a, b in product(samples, repeat=2) for at in places]
    for name, compare in (("lt", _COMPARED["LT"]), ("gt", _COMPARED["GT"])):
        plain = all(made == (compare(a, b),) for a, b, _, made in rows)
        if plain or all(made == (compare(a, b) or (a == b and at < at[::-1]),) for a, b, at, made in rows):
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
        for i, j in _places(block, samples)
    ]
    for name, sign in (("amax", -1), ("amin", 1)):
        if all(made == min(x, y, key=lambda pair: (sign * pair[0], pair[1])) for x, y, made in rows):
            return name
    return None


def _places(block: Block, samples: Sequence[float]) -> list[tuple[float, float]]:
    """Two positions, never the same, in every order: beside the constants and the numbers too, where their type lets a
    region compare them.
    """
    kinds = [str(a.type) for a in block.arguments]
    told = [str(v.operation.results[0].type) for v in block.operations if v.operation.name == "stablehlo.constant"]
    if len(set(kinds)) == 2 and not any(k in told for k in set(kinds) if kinds.count(k) == 2 and k != kinds[0]):
        return [(0.0, 1.0), (1.0, 0.0)]
    return [(i, j) for i, j in product(samples, repeat=2) if i != j]


def _samples(block: Block) -> list[float] | None:
    """Numbers in every order beside the constants, four between any two; None for a region of other operators."""
    found, constants = {0.0}, 0
    for view in block.operations:
        op = view.operation
        if op.name == "stablehlo.constant":
            kind = str(op.results[0].type.element_type)
            if tuple(op.results[0].type.shape) or kind == "i1":
                return None
            value = float(elements(op, "value", "float64", ()).item())
            if abs(value) > 1 << 53 and "i" in kind:  # a float does not tell it from its neighbours
                return None
            found |= {value} if isfinite(value) else set()
            constants += 1
        elif op.name not in ("stablehlo.compare", "stablehlo.select", "stablehlo.and", "stablehlo.or",
                             "stablehlo.not", "stablehlo.return"):  # fmt: skip
            return None
    if not constants:
        return [0.0, 1.0, 2.0, 3.0]
    marks = sorted(found)
    between = [low + (high / 5 - low / 5) * k for low, high in pairwise(marks) for k in (1, 2, 3, 4)]
    beyond = [
        end + sign * max(1.0, abs(end)) * k / 4 for sign, end in ((-1, marks[0]), (1, marks[-1])) for k in (1, 2, 3)
    ]
    return sorted({*marks, *between, *beyond, float("-inf"), float("inf")})


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

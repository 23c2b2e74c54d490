"""Finds stretches of a program that repeat: operators that do the same, as many places apart each time.

    alike(i)  <=>  operator i and operator i + period differ in nothing but which tensors they read, and at which places

A stretch in which that holds for long is a loop that somebody unrolled, if what its turns read fits together (`turns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...program.graph import Graph
from ...program.operators import Operator

LEAST_TURNS: Final = 4
MOST_PERIODS: Final = 16
"""Fewest turns of a loop, and how many periods are tried: those at which most operators come again."""


@dataclass(frozen=True)
class Stretch:
    """Operators `start` to `stop` of a program, each like the one `period` before it."""

    start: int
    stop: int
    period: int


def kind_of(graph: Graph, op: Operator) -> object:
    """What two operators have in common that do the same: all but names of tensors and constant places."""
    reads = tuple(
        (tuple((i.terms, i.whole) for i in a.index), graph.tensor(a.tensor).dtype, len(graph.tensor(a.tensor).shape))
        for a in op.inputs
    )
    return op.function, op.axes, reads, op.output.index, op.attributes, graph.tensor(op.output.tensor).dtype


def stretches(graph: Graph) -> Iterator[Stretch]:
    """Stretches of at least `LEAST_TURNS` periods, short periods first."""
    numbers: dict[object, int] = {}
    kinds = [numbers.setdefault(kind_of(graph, op), len(numbers)) for op in graph.operators]
    distances, before = Counter[int](), dict[int, int]()
    for i, k in enumerate(kinds):
        if k in before:
            distances[i - before[k]] += 1
        before[k] = i
    often = [p for p, n in distances.most_common(MOST_PERIODS) if n >= LEAST_TURNS - 1]
    for period in sorted(often):
        yield from _of_period(kinds, period)


def _of_period(kinds: Sequence[int], period: int) -> Iterator[Stretch]:
    same = [a == b for a, b in zip(kinds, kinds[period:], strict=False)]
    start = 0
    for i in range(len(same) + 1):
        if i == len(same) or not same[i]:
            if i - start >= period * (LEAST_TURNS - 1):
                yield Stretch(start, i + period, period)
            start = i + 1

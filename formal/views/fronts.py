"""Branches of two phases: for every label all pairs (time of phase 0, time of phase 1) that no other one dominates.

The time of a region is the sum over its phases of the largest over its views, so a branch may trade one phase for the
other and both ends of the trade have to be kept.  Elimination as in `branches`, with sets of pairs in place of numbers:
factors are added by adding every two pairs, and a choice is eliminated by uniting its sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ...models.cost.limits import TooLarge
from ...models.problem.selection_problem import Ints

Scope = tuple[int, ...]
Chosen = tuple[object, ...]
"""What was chosen on the way: nested triples (vertex, choice, earlier) and pairs of such."""
Point = tuple[int, int, Chosen]
Cells = dict[tuple[int, ...], list[Point]]

MOST_POINTS = 1 << 20
"""Sums of two pairs that one branch may take."""


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other one dominates, first times ascending.

    >>> front([(3, 1, ()), (1, 2, ()), (2, 2, ())])
    [(1, 2, ()), (3, 1, ())]
    """
    out: list[Point] = []
    for p in sorted(points, key=lambda p: p[:2]):
        if not out or p[1] < out[-1][1]:
            out.append(p)
    return out


@dataclass(frozen=True, eq=False)
class Fronts:
    """Fronts over all choices of the ends."""

    ends: Scope
    cells: Cells

    def labels(self, classes: Sequence[Ints]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Labels in order, once per pair of times, and these."""
        labels, times = [], []
        for label, points in sorted(self._united(classes).items()):
            for a, b, _ in points:
                labels.append(label)
                times.append((a, b))
        return tuple(labels), tuple(times)

    def solve(self, label: tuple[int, ...], classes: Sequence[Ints], time: tuple[int, ...]) -> dict[int, int]:
        """Choices with these times."""
        found = next(p for p in self._united(classes)[label] if p[:2] == time)
        x: dict[int, int] = {}
        left: list[Chosen] = [found[2]]
        while left:
            here = left.pop()
            if here and isinstance(here[0], int):
                x[here[0]] = int(here[1])  # type: ignore[call-overload]
            else:
                left.extend(here)  # type: ignore[arg-type]
        return x

    def _united(self, classes: Sequence[Ints]) -> Cells:
        found: Cells = {}
        for at, points in self.cells.items():
            chosen = tuple((v, c) for v, c in zip(self.ends, at, strict=True))
            label = tuple(int(of[c]) for of, c in zip(classes, at, strict=True))
            found.setdefault(label, []).extend((a, b, (chosen, before)) for a, b, before in points)
        return {label: front(points) for label, points in found.items()}


def front_tables(
    vertices: Sequence[int],
    ends: Sequence[int],
    costs: dict[int, Ints],
    phase: dict[int, int],
    pairs: Sequence[tuple[int, int, int, Ints]],
    phases: int,
) -> Fronts:
    """Eliminate all vertices that are no ends.  Raises `TooLarge` beyond `MOST_POINTS`."""
    if phases != 2:
        raise TooLarge(f"branches of {phases} phases: there are one or two")

    def pair(time: int, at: int) -> list[Point]:
        return [(time, 0, ()) if at == 0 else (0, time, ())]

    size = {v: costs[v].size for v in vertices}
    factors: list[tuple[Scope, Cells]] = [
        ((v,), {(c,): pair(int(t), phase[v]) for c, t in enumerate(costs[v].tolist())}) for v in vertices
    ]
    for u, v, on, table in pairs:
        grid = table if u < v else table.T
        both: Cells = {at: pair(int(time), on) for at, time in np.ndenumerate(grid)}
        factors.append(((min(u, v), max(u, v)), both))
    spent = 0

    def added(mine: list[tuple[Scope, Cells]], scope: Scope) -> Cells:
        nonlocal spent
        spent += prod(size[w] for w in scope) * len(mine)
        if spent > MOST_POINTS:
            raise TooLarge(f"a branch of {len(vertices)} decisions in two phases has too many trades to be kept")
        places = [[scope.index(w) for w in part] for part, _ in mine]
        out: Cells = {}
        for at in product(*(range(size[w]) for w in scope)):
            total: list[Point] = [(0, 0, ())]
            for (_, cells), where in zip(mine, places, strict=True):
                other = cells[tuple(at[k] for k in where)]
                spent += len(total) * len(other)
                if spent > MOST_POINTS:
                    raise TooLarge(f"a branch of {len(vertices)} decisions has too many trades to be kept")
                total = front(
                    (a + c, b + d, before if not more else more if not before else (before, more))
                    for a, b, before in total
                    for c, d, more in other
                )
            out[at] = total
        return out

    left = [v for v in vertices if v not in ends]

    def joined(v: int) -> Scope:
        return tuple(sorted({w for scope, _ in factors if v in scope for w in scope}))

    while left:
        v = min(left, key=lambda x: (prod(size[w] for w in joined(x)), x))
        scope = joined(v)
        summed = added([f for f in factors if v in f[0]], scope)
        factors = [f for f in factors if v not in f[0]]
        k = scope.index(v)
        united: Cells = {}
        for at, points in summed.items():
            rest = at[:k] + at[k + 1 :]
            united.setdefault(rest, []).extend((a, b, ((v, at[k]), before)) for a, b, before in points)
        factors.append((tuple(w for w in scope if w != v), {at: front(points) for at, points in united.items()}))
        left.remove(v)
    return Fronts(tuple(ends), added(factors, tuple(sorted(ends))))

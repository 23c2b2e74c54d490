"""Plans branches of two phases: for every label all pairs (time of phase 0, time of phase 1) that no other
one dominates.

The time of a region is the sum over its phases of the largest over its views, so a branch may trade one phase for the
other, and both ends of the trade have to be kept.

    table      of the decisions that are *held*: per cell (one choice each) the pairs of least times of all others that
               were taken up, first times ascending, filled up with NONE
    take up    a decision beside those that are held: the one that leaves the smallest table
    let go     a decision whose movements all are counted, if it is no end: the pairs of its choices are united
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....models.cost.limits import TooLarge
from ....models.problem.selection_problem import Ints
from ...selection.model.clock import Clock

MOST_POINTS: Final = 1 << 22
"""Pairs in one table."""
MOST_DIMENSIONS: Final = 64
"""Of an array in NumPy 2."""
NONE: Final = 1 << 60
SORTED: Final = 20
"""Entries that count as read for one that is sorted."""
Link = tuple[int, int, int, Ints]
"""Two decisions, the phase of the movement between them, and its times."""


@dataclass(frozen=True, eq=False)
class Gone:
    """A decision that was let go: `chosen` and `before` are its choice, and the number of the pair in the table before,
    per cell of `held` and pair.
    """

    decision: int
    held: tuple[int, ...]
    chosen: NDArray[np.int32]
    before: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Fronts:
    """`pairs[choices of the ends][k]`: times of both phases."""

    ends: tuple[int, ...]
    pairs: Ints
    gone: tuple[Gone, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self.pairs.nbytes + sum(one.chosen.nbytes + one.before.nbytes for one in self.gone)

    def labels(self, classes: Sequence[Ints]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Labels in order, once per pair of times, and these."""
        labels, times = [], []
        for label in np.ndindex(*(int(of.max()) + 1 for of in classes)):
            _, points = self._united(label, classes)
            labels += [label] * len(points)
            times += points
        return tuple(labels), tuple(times)

    def solve(self, label: tuple[int, ...], classes: Sequence[Ints], time: tuple[int, ...]) -> dict[int, int]:
        """Choices with these times."""
        members = [np.flatnonzero(of == k) for of, k in zip(classes, label, strict=True)]
        at, points = self._united(label, classes)
        sizes = (*map(len, members), self.pairs.shape[-2])
        found = [int(i) for i in np.unravel_index(int(at[points.index(time)]), sizes)]
        x, k = {v: int(m[i]) for v, m, i in zip(self.ends, members, found[:-1], strict=True)}, found[-1]
        for one in reversed(self.gone):
            here = (*(x[w] for w in one.held), k)
            x[one.decision], k = int(one.chosen[here]), int(one.before[here])
        return x

    def _united(self, label: tuple[int, ...], classes: Sequence[Ints]) -> tuple[Ints, list[tuple[int, ...]]]:
        """The pairs of a label, and their numbers among those of all its cells."""
        members = [np.flatnonzero(of == k) for of, k in zip(classes, label, strict=True)]
        part = self.pairs[np.ix_(*members)] if members else self.pairs
        flat = part.reshape(-1, 2)
        at = pareto_front(flat[None])[0]
        return at, [(int(a), int(b)) for a, b in flat[at]]


def pareto_front(pairs: Ints) -> Ints:
    """Per row of pairs (rows, pairs, 2) the numbers of those that no other one dominates, first times ascending, filled
    up with -1.

    >>> pareto_front(np.array([[(3, 1), (1, 2), (2, 2)], [(1, 1), (2, 2), (1, 3)]])).tolist()
    [[1, 0], [0, -1]]
    """
    order = np.lexsort((pairs[..., 1], pairs[..., 0]), axis=-1)
    second = np.take_along_axis(pairs[..., 1], order, axis=1)
    least = np.minimum.accumulate(second, axis=1)
    keep = second < NONE
    keep[:, 1:] &= second[:, 1:] < least[:, :-1]
    found = np.full((len(pairs), int(keep.sum(axis=1).max())), -1, dtype=np.int64)
    rows, columns = np.nonzero(keep)
    found[rows, (np.cumsum(keep, axis=1) - 1)[rows, columns]] = order[rows, columns]
    return found


def front_tables(
    vertices: Sequence[int],
    ends: Sequence[int],
    costs: dict[int, Ints],
    phase: dict[int, int],
    links: Sequence[Link],
    clock: Clock,
) -> Fronts:
    """Take up all decisions, and let go those that are no ends.  Raises `TooLarge` beyond `MOST_POINTS`."""
    held: list[int] = []
    table: Ints = np.zeros((1, 2), dtype=np.int64)
    gone: list[Gone] = []
    for v, due, leaving in swept(vertices, ends, {v: costs[v].size for v in vertices}, links):
        if table.size // 2 * costs[v].size > MOST_POINTS:
            raise TooLarge(f"a branch of {len(vertices)} decisions in two phases has too many trades to be kept")
        if len(held) + 4 > MOST_DIMENSIONS:
            raise TooLarge(f"a branch of {len(vertices)} decisions shares more than numpy's dimensions with others")
        clock.read(table.size * costs[v].size * (1 + len(due)))
        table = np.repeat(table[..., None, :, :], costs[v].size, axis=-3)
        held.append(v)
        _add(table, costs[v], phase[v], [v], held)
        for a, b, on, times in due:
            _add(table, times, on, [a, b], held)
        for w in leaving:
            axis = held.index(w)
            table = np.moveaxis(table, axis, -3)
            held.remove(w)
            cells, size, depth = table.shape[:-3], table.shape[-3], table.shape[-2]
            flat = table.reshape(prod(cells), size * depth, 2)
            clock.read(SORTED * flat.size)
            at = pareto_front(flat)
            table = np.take_along_axis(flat, np.maximum(at, 0)[..., None], axis=1)
            table[at < 0] = NONE
            shape = (*cells, at.shape[1])
            chosen, before = (part.astype(np.int32).reshape(shape) for part in (at // depth, at % depth))
            gone.append(Gone(w, tuple(held), chosen, before))
            table = table.reshape(*shape, 2)
    order = [held.index(v) for v in ends]
    return Fronts(tuple(ends), table.transpose([*order, len(held), len(held) + 1]), tuple(gone))


def _add(table: Ints, times: Ints, phase: int, of: list[int], held: list[int]) -> None:
    """Add times of one or two held decisions to one phase of all pairs."""
    if len(of) == 2 and held.index(of[0]) > held.index(of[1]):
        of, times = of[::-1], times.T
    shape = [1] * (len(held) + 1)
    for v, size in zip(of, times.shape, strict=True):
        shape[held.index(v)] = size
    table[..., phase] += times.reshape(shape)
    np.minimum(table, NONE, out=table)


def swept(
    vertices: Sequence[int], ends: Sequence[int], sizes: dict[int, int], links: Sequence[Link]
) -> Iterator[tuple[int, list[Link], list[int]]]:
    """Decisions in the order in which they are taken up, with the movements that are counted then and the decisions
    that are let go behind them.
    """
    near: dict[int, set[int]] = {v: set() for v in vertices}
    for a, b, _, _ in links:
        near[a].add(b)
        near[b].add(a)
    held, taken = set[int](), set[int]()

    def behind(v: int) -> set[int]:
        return {w for w in held | {v} if w in ends or not near[w] <= taken | {v}}

    while len(taken) < len(vertices):
        beside = {w for v in held for w in near[v]} - taken or set(vertices) - taken
        v = min(beside, key=lambda x: (prod(sizes[w] for w in behind(x)), sizes[x], x))
        left = behind(v)
        taken.add(v)
        due = [link for link in links if v in link[:2] and {*link[:2]} <= taken]
        yield v, due, sorted((held | {v}) - left)
        held = left

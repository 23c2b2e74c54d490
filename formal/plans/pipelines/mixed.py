"""Mixes placements of units in a stage whose reshardings run beside operators.

No one placement of a unit is best: one moves much in every pass, beside operators, and nothing in the updates; another
moves in the updates alone.  A stage takes about

    m (max(C + X, M) forward + max(C + X, M) backward) + max(C, M) of updates,      sums over its units

with X what moves along its chain, beside which little else can run; so some units of either kind hide more than all of
one kind.  Options of a unit are the placements that are cheapest by the weights that were tried for bounds
(`channels`), between the same layouts at its cuts; a stage begins with those that are cheapest by the sum, and
exchanges the option that helps most until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....models.pipelines.channels import Channels
from ....models.pipelines.pieces import Pieces
from .channels import sums, whole_chain
from .menus import Menus

FINE = 16
"""Weights are so many times larger, and none is 0: of placements that cost the same the one that moves least."""

HIDDEN = (0.01, 0.02, 0.05)
"""What hidden work may cost, in parts of its time: the best of these is looked for."""

Option = tuple[dict[int, int], NDArray[np.float64]]
"""Choices of a unit's vertices, and [F, B, U][C, M, X]."""


def pricing(channels: Channels) -> Channels:
    """Weights by which options are found.

    >>> pricing(Channels((8, 0, 0), (4, 2, 2), (0, 8, 0))).forward
    (128, 1, 0)
    """
    f, b, u = ((max(1, FINE * c), max(1, FINE * m), FINE * p) for c, m, p in (channels.of(phase) for phase in "FBU"))
    return Channels(f, b, u)


class Mixture:
    """Options of every unit.  `menus`: the fastest by the sum; `more`: those of other weights, where they are found."""

    def __init__(self, pieces: Pieces, menus: Menus, more: Sequence[Menus], micro: int) -> None:
        self.times, self.hidden = np.array([micro, micro, 1.0]), HIDDEN[0]
        self.options: list[list[Option]] = []
        for u in range(pieces.division.units):
            chain, found = replace(whole_chain(pieces, u, u + 1), vertices=frozenset()), list[Option]()
            for menu in (menus, *more):
                x = menu.options[u][0].choices if menu.options.get(u) else None
                if x is not None and all(x != other for other, _ in found):
                    found.append((x, sums(pieces, x, chain)))
            self.options.append(found)

    def ways(self, first: int, end: int, update: float) -> Iterator[dict[int, int]]:
        """Choices of a stage whose updates count so much: behind the last backward of another stage there is time.
        Nothing runs in front of the first unit of a pass, so its reshardings may hide less: exchanged or not.
        """
        for hidden in HIDDEN:
            for edge in (0, 1):
                yield self.best(first, end, update, hidden, edge)

    def best(self, first: int, end: int, update: float, hidden: float, edge: int) -> dict[int, int]:
        """Choices of a stage, `edge` units at either end as by the sum."""
        self.times[2], self.hidden = update, hidden
        picked = [0] * (end - first)
        total = sum((self.options[u][0][1] for u in range(first, end)), np.zeros((3, 3)))
        value = self.takes(total)
        while True:
            steps = [
                (self.takes(total - rows[k][1] + other[1]), u, n)
                for u, (rows, k) in enumerate(zip(self.options[first:end], picked, strict=True))
                for n, other in enumerate(rows)
                if n != k and edge <= u < end - first - edge
            ]
            least, u, n = min(steps, default=(value, 0, 0))
            if least >= value:
                break
            rows = self.options[first + u]
            total = total - rows[picked[u]][1] + rows[n][1]
            value, picked[u] = least, n
        return {v: c for u, n in enumerate(picked) for v, c in self.options[first + u][n][0].items()}

    def takes(self, total: NDArray[np.float64]) -> float:
        """About what a stage takes with these sums; a little for what is hidden, which schedules do not hide wholly."""
        operators, moved, along = total.T
        return float((self.times * (np.maximum(operators + along, moved) + moved * self.hidden)).sum())


def mixture(
    pieces: Pieces, menus_of: Callable[[Pieces], Menus], tried: Sequence[Channels], micro: int
) -> tuple[Menus, Mixture] | None:
    """The menus by the sum, and a mixture with what other weights find; None if a unit has no placement."""
    menus = menus_of(pieces)
    if not menus.prepare():
        return None
    more = []
    for channels in tried:
        other = menus_of(pieces.weighing(pricing(channels)))
        other.settled = dict(menus.settled)
        if other.prepare():
            more.append(other)
    return menus, Mixture(pieces, menus, more, micro)

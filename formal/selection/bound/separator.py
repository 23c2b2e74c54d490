"""Splits a network into parts that can be swept at the same time, known as a vertex separator: no edge
joins two parts, and what separates them is swept last.

Vertices are numbered by their distance from one that is far from all others (breadth first, hubs not crossed), and the
row is cut into `parts` of equal work.  A vertex with a neighbour in a later part, and every hub, goes to the separator.
A sweep may take the vertices in any order: here every part keeps the given one, and the separator follows all of them.
The bound depends on that order, not on how many parts are swept at a time.

Source: level structures as in A. George, J. Liu, "Computer Solution of Large Sparse Positive Definite Systems", 1981,
chapters 4 and 8.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..options.bound import BOUND, BoundOptions


@dataclass(frozen=True)
class Separation:
    """Vertices of every part, and of the separator, each in the given order."""

    parts: tuple[tuple[int, ...], ...]
    separator: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        """All vertices as they are swept forwards."""
        return [*(v for part in self.parts for v in part), *self.separator]


def separate(around: list[list[int]], work: list[int], order: list[int], options: BoundOptions = BOUND) -> Separation:
    """Parts of a graph with neighbours `around` and `work[v]` per vertex; one part when the separator would be too
    large.

    >>> separate([[1], [0, 2], [1, 3], [2]], [3, 1, 1, 3], [0, 1, 2, 3])
    Separation(parts=((3,), (0, 1)), separator=(2,))
    """
    whole = Separation((tuple(order),), ())
    total = sum(work)
    part = [0] * len(order)
    done = 0
    for v in _row(around, options.hub):
        part[v] = min(options.parts - 1, options.parts * done // max(1, total))
        done += work[v]
    apart = {v for v, at in enumerate(around) if len(at) >= options.hub}
    apart |= {v for v, at in enumerate(around) if any(part[w] > part[v] and w not in apart for w in at)}
    if sum(work[v] for v in apart) > options.separator_share * total:
        return whole
    parts = tuple(tuple(v for v in order if part[v] == k and v not in apart) for k in range(options.parts))
    return Separation(parts, tuple(v for v in order if v in apart)) if all(parts) else whole


def _row(around: list[list[int]], hub: int) -> list[int]:
    """All vertices by distance from a far one, component by component; hubs last."""
    seen = [len(at) >= hub for at in around]
    row: list[int] = []
    for start in range(len(around)):
        if not seen[start]:
            for v in _levels(around, _levels(around, start, hub)[-1], hub):
                seen[v] = True
                row.append(v)
    return row + [v for v, at in enumerate(around) if len(at) >= hub]


def _levels(around: list[list[int]], start: int, hub: int) -> list[int]:
    """Vertices by distance from `start`, hubs not crossed."""
    reached = {start: None}
    queue = deque(reached)
    while queue:
        for w in around[queue.popleft()]:
            if w not in reached and len(around[w]) < hub:
                reached[w] = None
                queue.append(w)
    return list(reached)

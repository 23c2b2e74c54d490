"""Keeps tables of cases that a search has turned away from, for it comes back to them, and so does the search of the
same step in which reshardings run beside operators: its problems are the same.

The tables of one case are built in about the time that all its first leaves take.  What was used last is kept, up to
`MOST_BYTES`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ....models.cost.selection import Planning

MOST_BYTES: Final = 1 << 30
"""Of tables that are kept: an eighth of what a plan may take, some eighty cases of a Llama-3 8B on eight devices."""

PART_BYTES: Final = 1 << 10
"""Of a vertex, an edge or a usage beside its numbers: measured, with the layouts that are known by them."""

Key = tuple[str, int, int, bool]
"""Hash of the step's graph, stages, micro-batches, whether every node is one device."""


@dataclass(eq=False)
class Shelf:
    """Tables by what they are of, those that were used last at the end, with the processor seconds of their check."""

    kept: OrderedDict[Key, tuple[Planning, float]] = field(default_factory=OrderedDict)
    taken: int = 0

    def get(self, key: Key) -> tuple[Planning, float] | None:
        """What is known of a case; None: it has to be built."""
        if key in self.kept:
            self.kept.move_to_end(key)
        return self.kept.get(key)

    def put(self, key: Key, planning: Planning, check_s: float) -> None:
        """Keep these; the oldest ones go."""
        self.kept[key] = planning, check_s
        self.taken += bytes_of(planning)
        while self.taken > MOST_BYTES:
            self.taken -= bytes_of(self.kept.popitem(last=False)[1][0])


def bytes_of(planning: Planning) -> int:
    """About what tables take in memory: arrays that several parts share once."""
    problem = planning.problem
    arrays = {id(a): a.nbytes for a in (*problem.tables, *(v.cost for v in problem.vertices))}
    arrays |= {id(u.amount): u.amount.nbytes for u in problem.usages}
    return sum(arrays.values()) + PART_BYTES * (len(problem.vertices) + len(problem.edges) + len(problem.usages))

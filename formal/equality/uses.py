"""Tells which of several tensors of equal values a rank's tensor is, by what reads it.

A tensor goes through steps that move elements or send them, to the steps that use it.  Where those make the same
numbers, or a part of them, as steps of the same operator that use a tensor of the one device, it is likely that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...models.equality.program import RankProgram
from ...models.equality.schedule import Stuck
from .numbers import Array, run_ranks, run_single
from .parts import Places

MOVES: Final = frozenset({"reshape", "permute", "expand", "slice", "cast", "all_gather", "broadcast"})
"""Operators behind which a tensor is still that tensor."""

Run = Mapping[int, Array]


@dataclass
class Uses:
    """Programs on the values that they were given; they run when it is first asked."""

    single: RankProgram
    arrays: Run
    ranks: Sequence[tuple[RankProgram, Run]]
    _runs: tuple[Run, Sequence[Run]] | None = None
    _known: dict[tuple[int, int], list[tuple[str, Array]]] = field(default_factory=dict)

    def likely(self, rank: int, source: int, candidates: Sequence[int]) -> int | None:
        """The candidate (sources of the one device) most of whose uses make what those of a rank's source make."""
        mine = self._uses(rank, source)
        best, most = None, 0
        for candidate in candidates:
            theirs = self._uses(-1, candidate)
            count = sum(any(a == b and _alike(rank, x, y) for b, y in theirs) for a, x in mine)
            if count > most:
                best, most = candidate, count
        return best

    def _uses(self, rank: int, source: int) -> list[tuple[str, Array]]:
        """Operators that use a source of a rank (-1: the one device), and what they make."""
        if (rank, source) not in self._known:
            program = self.single if rank < 0 else self.ranks[rank][0]
            whole, ranks = self._values()
            values = whole if rank < 0 else ranks[rank] if ranks else {}
            here, found = {source}, list[tuple[str, Array]]()
            for step in program.steps:
                if here & set(step.reads):
                    if step.operator in MOVES:
                        here |= set(step.makes)
                    else:
                        found += [(step.operator, values[n]) for n in step.makes if n in values]
            self._known[rank, source] = found
        return self._known[rank, source]

    def _values(self) -> tuple[Run, Sequence[Run]]:
        if self._runs is None:
            try:
                many = run_ranks([p for p, _ in self.ranks], [a for _, a in self.ranks])
            except (Stuck, IndexError):  # it is found and said where programs are compared
                many = []
            self._runs = run_single(self.single, self.arrays), many
        return self._runs


def _alike(rank: int, a: Array, b: Array) -> bool:
    """Whether one tensor is a part of another and says something."""
    return not bool(np.all(a == a.flat[:1])) and Places(rank, 1).find(a, b) is not None

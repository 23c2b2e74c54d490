"""Finds of which tensor of the one device a tensor on the way of a rank is a part: what the proof goes along.

Numbers tell it, on the inputs that are given and on drawn ones; the checker sees it again from forms.  Of several that
have the same numbers (the masks of two layers) one that the same operator makes is taken, and the first behind the one
that was taken last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.equality.pair import Part, Relation, Runs
from ...models.equality.program import RankProgram
from .numbers import Array
from .parts import NEAR, Places, alike, part_elements

Run = Mapping[int, Array]
MOST_PLACES: Final = 16
"""Places of one shape in another that are looked at."""


@dataclass
class Relations:
    """`runs`: of the one device, the tensors of every run by number."""

    single: RankProgram
    runs: Sequence[Run]
    _corners: dict[tuple[int, tuple[int, ...]], tuple[list[tuple[int, Part]], NDArray[np.float64]]] = field(
        default_factory=dict
    )

    def of(self, rank: int, program: RankProgram, runs: Sequence[Run], places: Places) -> tuple[Relation, ...]:
        """Relations of a rank's tensors, which have these values in the same runs."""
        made = {n: s.operator for s in self.single.steps for n in s.makes}
        found, last = list[Relation](), -1
        for step in program.steps:
            for number in step.makes:
                mine = [run[number] for run in runs]
                if mine[0].size <= 1 or bool(np.all(mine[0] == mine[0].flat[0])):
                    continue
                near = self._near(rank, mine[0], places, tuple(made))
                for whole, part in sorted(near, key=lambda n: (made[n[0]] != step.operator, n[0] <= last, n[0])):
                    if all(alike(m, part_elements(run[whole], part)) for m, run in zip(mine, self.runs, strict=True)):
                        found.append(Relation(number, whole, part.runs))
                        last = whole
                        break
        return tuple(found)

    def _near(self, rank: int, mine: Array, places: Places, made: Sequence[int]) -> list[tuple[int, Part]]:
        """Parts of tensors whose first element is that of a rank's tensor."""
        key = rank, mine.shape
        if key not in self._corners:
            parts = [(n, part) for n in made for part in self._parts(mine.shape, n, places)]
            firsts = [float(self.runs[0][n][tuple(r[0][1] for r in part.runs)]) for n, part in parts]
            self._corners[key] = parts, np.asarray(firsts, np.float64)
        parts, corners = self._corners[key]
        first, most = float(mine.flat[0]), float(np.max(np.abs(mine), initial=0.0))
        near = np.abs(corners - first) <= NEAR * most
        return [parts[int(k)] for k in np.flatnonzero(near)]

    def _parts(self, shape: Sequence[int], whole: int, places: Places) -> list[Part]:
        """Where a rank may have a part of this shape: in its block, or in rows as it has of other tensors."""
        there = self.runs[0][whole].shape
        if len(there) != len(shape) or not all(shape) or any(n > m for n, m in zip(shape, there, strict=True)):
            return []
        choices = list[list[Runs]]()
        for n, m in zip(shape, there, strict=True):
            if n == m:
                choices.append([((0, 0, n),)])
                continue
            rows = [r for r in sorted(places.rows) if sum(k for _, _, k in r) == n and max(t + k for _, t, k in r) <= m]
            known = m % n == 0 or (n, m) in places.firsts
            firsts = dict.fromkeys([*([places.first(n, m)] if known else []), *places.within(n, m)])
            choices.append([*rows, *(((0, first, n),) for first in firsts)])
        return [Part(str(whole), runs) for runs, _ in zip(product(*choices), range(MOST_PLACES), strict=False)]

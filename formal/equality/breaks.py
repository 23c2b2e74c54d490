"""Finds where programs break that give different numbers: the first step of a rank that makes of known tensors one that
is not known.

known     a part of a tensor of the one device, a part of a sum over ranks that is one, or one number everywhere
earlier   what one rank of many does wrong, all are wrong of behind the next collective: where fewer than half of the
          ranks break before the one whose output differs, the first of them is named
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...models.equality.pair import Given
from ...models.equality.program import COLLECTIVES, KEPT, RankProgram, Step
from ...models.equality.schedule import group
from .numbers import Array
from .parts import Places
from .relations import Relations

Run = Mapping[int, Array]


@dataclass(frozen=True)
class Break:
    """A step of a rank, the `index`-th; `partial`: the word for the part of a sum that it reads, or is."""

    rank: int
    index: int
    step: Step
    partial: str
    reads: bool = True

    def __str__(self) -> str:
        if not self.reads:
            return f"; it is {self.partial}"
        return f"; {self.step.operator} reads {self.partial}" if self.partial else f"; breaks at {self.step.operator}"


@dataclass
class Breaks:
    """Programs on one run, of which an output differs."""

    single: RankProgram
    ranks: Sequence[RankProgram]
    given: Sequence[Mapping[int, Given]]
    places: Sequence[Places]
    whole: Run
    values: Sequence[Run]
    relations: Relations = field(init=False)
    groups: dict[int, Sequence[Sequence[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.relations = Relations(self.single, [self.whole])

    def first(self, rank: int, output: int) -> tuple[str, str]:
        """Where it breaks, in words, and the line."""
        mine = self._of(rank, output)
        breaks = [found for r in range(len(self.ranks)) if r != rank and (found := self._of(r, None)) is not None]
        earlier = [b for b in breaks if mine is None or _order(b) < _order(mine)]
        if earlier and 2 * len(earlier) < len(self.ranks):
            first = min(earlier, key=_order)
            return f"{first} of rank {first.rank}", first.step.line
        return ("", "") if mine is None else (str(mine), mine.step.line)

    def _of(self, rank: int, output: int | None) -> Break | None:
        """The first step that breaks, on the way to an output or at all; that reads a part of a sum, if any does.
        Where none breaks because all behind the fault are multiples of what they should be, the first multiple.
        """
        runs = [self.values[rank]]
        found = self.relations.of(rank, self.ranks[rank], self.given[rank], runs, self.places[rank])
        exact = {r.number for r in found if not self.relations.is_multiple(r)}
        first = self._beyond(rank, output, {r.number for r in found})
        return self._beyond(rank, output, exact) if first is None and output is not None else first

    def _beyond(self, rank: int, output: int | None, related: set[int]) -> Break | None:
        """The first step that makes of what is related what is not."""
        program, needed = self.ranks[rank], {output}
        for step in reversed(program.steps):
            if needed & set(step.makes):
                needed |= set(step.reads)
        known, first = {s.number: "" for s in program.sources}, None
        for index, step in enumerate(program.steps):
            for number in step.makes:
                if output is not None and number not in needed:
                    continue
                word = "" if number in related else self._word(rank, number)
                if word is not None:
                    known[number] = word
                elif all(i in known for i in step.reads) and step.operator not in ("full", "iota"):
                    partial = next((known[i] for i in step.reads if known[i]), "")
                    if partial:
                        return Break(rank, index, step, partial)
                    first = first or Break(rank, index, step, "")
        if first is None and output is not None and known.get(output):
            for index, step in enumerate(program.steps):
                if output in step.makes:
                    return Break(rank, index, step, known[output], False)
        return first

    def _word(self, rank: int, number: int) -> str | None:
        """ "" for one number everywhere, a word for a part of a sum; None for anything else."""
        mine = self.values[rank][number]
        if mine.size <= 1 or bool(np.all(mine == mine.flat[0])):
            return ""
        for ranks in self._groups(rank):
            others = [v[number] for r in ranks if number in (v := self.values[r]) and v[number].shape == mine.shape]
            if len(others) == len(ranks) > 1:
                total = np.sum([o.astype(np.float64) for o in others], axis=0)
                if self.relations.is_part(total, self.places[rank]):
                    return f"a part of a sum over ranks (tensor of shape {list(mine.shape)})"
        return None

    def _groups(self, rank: int) -> Sequence[Sequence[int]]:
        """All ranks, and those with which this one shares collectives."""
        if rank not in self.groups:
            found = (group(s) for s in self.ranks[rank].steps if s.operator in COLLECTIVES)
            self.groups[rank] = list(dict.fromkeys([tuple(range(len(self.ranks))), *found]))
        return self.groups[rank]


def _order(found: Break) -> tuple[int, bool, int]:
    """Earlier steps first; of one place a local step before a collective that reads what it makes."""
    return found.index, found.step.operator in KEPT, found.rank

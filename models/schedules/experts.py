"""Experts of a mixture on ranks: which rank holds which, some of them several times, and what that loads a rank with.

slots     as many on every rank; E experts and K copies more fill R ranks of S = (E + K) / R slots
load      of an expert with c copies: n_e / c on each of the ranks that hold one
makespan  the largest load of a rank: what a layer waits for
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from ..text import InputError


@dataclass(frozen=True)
class ExpertPlaces:
    """`counts`: tokens of every expert; `ranks`: the experts that each rank holds.

    >>> found = ExpertPlaces((6, 2, 1, 1), ((0,), (1,), (2,), (3,))).check()
    >>> [int(x) for x in found.loads], int(found.makespan)
    ([6, 2, 1, 1], 6)
    """

    counts: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]

    @property
    def copies(self) -> tuple[int, ...]:
        """Ranks that hold each expert."""
        held = Counter(e for rank in self.ranks for e in rank)
        return tuple(held[e] for e in range(len(self.counts)))

    @property
    def loads(self) -> tuple[Fraction, ...]:
        """Of every rank."""
        copies = self.copies
        return tuple(sum((Fraction(self.counts[e], copies[e]) for e in rank), Fraction(0)) for rank in self.ranks)

    @property
    def makespan(self) -> Fraction:
        """Of the fullest rank."""
        return max(self.loads)

    def check(self) -> ExpertPlaces:
        """Self.  Raises `InputError` for an expert without a rank, one that a rank holds twice, and uneven slots."""
        if len({len(rank) for rank in self.ranks}) != 1 or not all(len({*rank}) == len(rank) for rank in self.ranks):
            raise InputError("ranks hold unequally many experts, or one of them twice")
        if {e for rank in self.ranks for e in rank} != {*range(len(self.counts))}:
            raise InputError("some experts have no rank, or are none of the model")
        return self

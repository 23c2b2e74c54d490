"""Chooses where a lemma is cut off: at tensors of the one device of which both its pieces and its whole are made.

A lemma holds for all values of what is cut off, so every choice is sound; a good one leaves few operations, and leaves
those that say why the lemma holds.

    joint     what pieces and the whole are both made of, met first on the ways back from either: rowsum(dO O) is
              rowsum(dP P) for all dO, P and V, since O is P V and dP is dO V'; a piece of which neither the whole is
              made, nor anything that is joint, is cut off itself
    before    so many steps before what is joint: exp(x - m) / s is exp(x - m - log s) only where it is known that the
              piece is exp(x - m)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

BACK: Final = 12
"""How many operations before a piece or the whole what is joint is looked for: both ways round an attention have 8."""


class Ancestry(NamedTuple):
    """What tensors of the one device are made of: `reads` of each, and whether it `may` be cut off; `work(things)` is
    called for what is looked at, and may raise.
    """

    reads: Callable[[int], Sequence[int]]
    may: Callable[[int], bool]
    work: Callable[[int], None]

    def cuts(self, pieces: Sequence[int], whole: int) -> set[int]:
        """Where a lemma of these pieces and this whole is cut off.

        >>> made = {3: (1, 2), 4: (0, 2), 5: (0, 3), 6: (4, 1)}  # o = p v, d = g v; g o is d p
        >>> sorted(Ancestry(lambda n: made.get(n, ()), lambda n: True, lambda things: None).cuts([0, 3], 6))
        [0, 1, 2]
        """
        theirs = self._behind(self.reads(whole))
        joint = {n for n in self._behind(pieces) & theirs if self.may(n)}
        found = self._first(self.reads(whole), theirs, joint)
        ours = set[int]()
        for piece in set(pieces) - found:
            mine = self._behind([piece])
            ours |= self._first([piece], mine, found) or ({piece} if self.may(piece) else set())
        return found | ours

    def _behind(self, starts: Iterable[int]) -> set[int]:
        """What these are made of, and they themselves."""
        found, row = set[int](), set(starts)
        for _ in range(BACK):
            found |= row
            row = {r for n in row for r in self.reads(n)} - found
        self.work(len(found) // 32)
        return found

    def _first(self, starts: Iterable[int], within: set[int], wanted: set[int]) -> set[int]:
        """Those that are wanted which are met first on all ways back from these."""
        found, seen, row = set[int](), set[int](), list(starts)
        for n in row:
            if n in seen or n not in within:
                continue
            seen.add(n)
            if n in wanted:
                found.add(n)
            else:
                row += self.reads(n)
        return found

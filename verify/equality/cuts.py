"""Chooses where a lemma is cut off: at tensors of the one device of which its pieces, and mostly its whole, are made.

A lemma holds for all values of what is cut off, so every choice is sound; a good one leaves few operations, and leaves
those that say why the lemma holds.  They are tried one after another (`BEHIND`) until it is seen.

    joint     what pieces and the whole are both made of, met first on the ways back from either: rowsum(dO O) is
              rowsum(dP P) for all dO, P and V, since O is P V and dP is dO V'; a piece behind which nothing joint is
              met is cut off itself
    behind    so many steps before the pieces: exp(x - m) / s is exp(x - m - log s) only where it is known what
              exp(x - m) is
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

BEHIND: Final = (None, 0, 1, 3)
"""How many steps before its pieces a lemma is cut off; None: where pieces and whole are both made of."""
BACK: Final = 8
"""How many operations before a piece or the whole what is joint is looked for.  Replays of 20 certificates (exports
with Adam, transformers with tensor parallelism, families) take 26 s of processor at 4, 23 at 8 and 25 at 12: further
away stand tensors that say nothing of this lemma."""


class Ancestry(NamedTuple):
    """What tensors of the one device are made of: `reads` of each, and whether it `may` be cut off; `unturned`: of what
    it is another order or a multiple.  `work(things)` is called for what is looked at, and may raise.
    """

    reads: Callable[[int], Sequence[int]]
    may: Callable[[int], bool]
    unturned: Callable[[int], int]
    work: Callable[[int], None]

    def cuts(self, pieces: Sequence[int], whole: int, steps: int | None) -> set[int]:
        """Where a lemma of these pieces and this whole is cut off; `steps`: of those in `BEHIND`.

        >>> made = {3: (1, 2), 4: (0, 2), 5: (0, 3), 6: (4, 1)}  # o = p v, d = g v; g o is d p
        >>> found = Ancestry(lambda n: made.get(n, ()), lambda n: True, lambda n: n, lambda things: None)
        >>> [sorted(found.cuts([0, 3], 6, steps)) for steps in (None, 0, 1)]
        [[0, 1, 2], [0, 3], [1, 2]]
        """
        if steps is None:
            return self._off(self._joint(pieces, whole))
        inside, found = set[int](), self._off(pieces)
        for _ in range(steps):
            inside |= found
            found = self._off(r for n in found for r in self.reads(n)) - inside
        return found

    def _off(self, tensors: Iterable[int]) -> set[int]:
        """Those that may be cut off, where they are not turned."""
        return {i for n in tensors if self.may(i := self.unturned(n))}

    def _joint(self, pieces: Sequence[int], whole: int) -> set[int]:
        theirs = self._made_of(self.reads(whole))
        joint = {n for n in self._made_of(pieces) & theirs if self.may(n)}
        found = self._first(self.reads(whole), theirs, joint)
        ours = set[int]()
        for piece in set(pieces) - found:
            ours |= self._first([piece], self._made_of([piece]), found) or {piece}
        return found | ours

    def _made_of(self, starts: Iterable[int]) -> set[int]:
        """What these are made of, and they themselves, `BACK` operations long."""
        found, row = set[int](), set(starts)
        for _ in range(BACK):
            found |= row
            reads = [r for n in row for r in self.reads(n)]
            self.work(len(reads) // 32)
            row = set(reads) - found
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
        self.work(len(row) // 32)
        return found

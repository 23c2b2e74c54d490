"""What one check may cost: work and memory, counted before they are spent, so that no verdict depends on the speed of a
computer.

Work is counted in cells.  A cell is an entry of a table that numpy looks at once, some nanoseconds; what is done in
Python counts as many cells as take the same time.  Memory is counted in entries of the tables that are held together.
What may be spent grows with the numbers that the files hold, not with what they expand to: a large honest certificate
comes with a large problem, a bomb is small.

One budget covers a certificate with all its records.  What is beyond it is a `ContainerError`: too large to be checked
is not refuted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..proofs.container.canonical import ContainerError

WORK: Final = 1 << 31
"""Cells that any file may take: some 10 seconds."""

WORK_PER_NUMBER: Final = 1 << 11
"""Cells more for every number that the files hold."""

HELD: Final = 1 << 26
"""Entries that any file may have in memory at a time: 512 MiB."""

HELD_PER_NUMBER: Final = 1 << 4
"""Entries more for every number."""

PART: Final = 1 << 11
"""Cells of one vertex, edge or usage in one record: a dozen calls of numpy on small arrays."""

OBJECT: Final = 1 << 5
"""Cells of one operation on a Python integer."""


@dataclass
class Budget:
    """`work`: cells left; `held`: entries that may be held at a time."""

    work: int = WORK
    held: int = HELD

    @staticmethod
    def of(numbers: int) -> Budget:
        """The budget of files that hold `numbers` numbers.

        >>> Budget.of(1000).work - Budget.of(0).work
        2048000
        """
        return Budget(WORK + WORK_PER_NUMBER * numbers, HELD + HELD_PER_NUMBER * numbers)

    def charge(self, cells: int, place: str) -> None:
        """Take `cells` off; `ContainerError` if they are not there."""
        if cells > self.work:
            raise ContainerError(
                place,
                f"is too large to be checked: it takes {cells} more steps, {self.work} are left for files of this size",
            )
        self.work -= cells

    def hold(self, entries: int, place: str) -> None:
        """`ContainerError` if so many entries may not be held at a time."""
        if entries > self.held:
            raise ContainerError(
                place,
                f"is too large to be checked: its tables have {entries} entries, at most {self.held} for files of "
                f"this size",
            )

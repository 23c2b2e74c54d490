"""This module says what one check may cost: work and memory, counted before they are spent, so that no verdict depends
on the speed of a computer.

How much there is, and what counts as how much, is a part of the format (`proofs.container.effort`).  Memory is counted
in entries of the tables that are held together.

One budget covers a certificate with all its records.  What is beyond it is a `ContainerError`: too large to be checked
is not refuted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..proofs.container.canonical import ContainerError
from ..proofs.container.effort import HELD, HELD_PER_NUMBER, WORK, WORK_PER_NUMBER


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

"""What one check may cost: work and memory, counted before they are spent, so that no verdict depends
on the speed of a computer.

    of a check         one budget that all parts of all kinds of files spend: unasked about a minute of processor and
                       2 GiB, with `check --large` half an hour and 8 GiB
    of a certificate   how much there is, and what counts as how much, is a part of the format
                       (`proofs.container.effort`): it grows with the numbers that the files hold.  What a certificate
                       spends, its check spends too

Work is counted in cells, some 3 nanoseconds each; what is done in Python counts as many cells as take the same time.
Memory is counted in entries of the tables that are held together.

What is beyond a budget is a `ContainerError`: too large to be checked is not refuted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..proofs.container.canonical import ContainerError
from ..proofs.container.effort import HELD, HELD_PER_NUMBER, WORK, WORK_PER_NUMBER

UNASKED: Final = 3 << 32
"""Cells of a check without `--large`."""
ASKED: Final = 1 << 39
"""Cells of a check with `--large`, and of what our own search has made."""
HELD_UNASKED: Final = 1 << 27
"""Entries that a check without `--large` holds at a time: 1 GiB."""
CELLS: Final = 1 << 27
"""Cells of tables of a plan that are filled in a check: about a second."""
MORE_CELLS: Final = 1 << 32
"""The same for a second opinion: about a minute."""


@dataclass
class Budget:
    """`work`: cells left; `held`: entries that may be held at a time.  `whole`: the budget of the check that this is a
    part of; `large`: what `--large` allows, so that there is no more to ask for; `asks`: something was met that
    `--large` alone allows.  `look` is called before work is done; what it raises ends the check without a verdict.
    """

    work: int = WORK
    held: int = HELD
    whole: Budget | None = None
    large: bool = True
    asks: bool = False
    look: Callable[[], None] | None = None

    @property
    def needs_large(self) -> bool:
        """Whether a check without `--large` would have ended, of a budget that `with_large` gave."""
        return self.asks or ASKED - self.work > UNASKED

    @staticmethod
    def of(numbers: int, whole: Budget | None = None) -> Budget:
        """The budget of a certificate whose files hold `numbers` numbers, in a check.

        >>> Budget.of(1000).work - Budget.of(0).work
        2048000
        """
        return Budget(WORK + WORK_PER_NUMBER * numbers, HELD + HELD_PER_NUMBER * numbers, whole)

    @staticmethod
    def without_large() -> Budget:
        """Of a check without `--large`."""
        return Budget(UNASKED, HELD_UNASKED, None, False)

    @staticmethod
    def with_large(look: Callable[[], None] | None = None) -> Budget:
        """Of a check with `--large`.

        >>> Budget.with_large().work > 100 * Budget.without_large().work // 4
        True
        """
        return Budget(ASKED, 1 << 29, look=look)

    def charge(self, cells: int, place: str) -> None:
        """Take `cells` off; `ContainerError` if they are not there."""
        if self.look is not None:
            self.look()
        if cells > self.work:
            if not self.large:
                raise beyond(place, f"it takes {cells} more steps, {self.work} are left")
            raise ContainerError(
                place,
                f"is too large to be checked: it takes {cells} more steps, {self.work} are left"
                f"{'' if self.whole is None else ' for files of this size'}",
            )
        if self.whole is not None:
            self.whole.charge(cells, place)
        self.work -= cells

    def charge_check(self, cells: int, place: str) -> None:
        """Take `cells` off the budget of the check alone: what a certificate may spend is a part of the format, and its
        cells of Python are fewer than the time that they take.
        """
        if self.whole is not None:
            self.whole.charge(cells, place)

    def hold(self, entries: int, place: str) -> None:
        """`ContainerError` if so many entries may not be held at a time."""
        if entries > self.held:
            if not self.large:
                raise beyond(place, f"its tables have {entries} entries, at most {self.held} are held")
            raise ContainerError(
                place,
                f"is too large to be checked: its tables have {entries} entries, at most {self.held} for files of "
                f"this size",
            )
        self.asks |= entries > HELD_UNASKED
        if self.whole is not None:
            self.whole.hold(entries, place)


def beyond(place: str, why: str) -> ContainerError:
    """What a check without `--large` says where it ends."""
    return ContainerError(
        place, f"takes more than a minute or 2 GiB to check: {why}; 'shardproof check --large' takes its time"
    )

"""What a job sends beside what its plan moves: one row per place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What the plan moves for `place` (a tensor on its way to a reader, or the gradient of a tensor), and what the job
    does there: bytes that a rank receives, and collectives by name.  `place` of other collectives of the job is the
    function that asked for them.
    """

    place: str
    planned: int
    received: int
    collectives: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`equal`, `differs`, `job only`, `plan only`."""
        if self.planned == self.received:
            return "equal"
        return "job only" if not self.planned else "plan only" if not self.received else "differs"


@dataclass(frozen=True)
class Traffic:
    """What a pass of the job sends against the plan's communication, one row per place where either moves anything.
    `whole`: functions that ran on whole tensors, with their number.
    """

    rows: tuple[Row, ...]
    whole: tuple[tuple[str, int], ...]

    @property
    def planned_bytes(self) -> int:
        """Bytes that a rank receives in the plan, forward and backward."""
        return sum(r.planned for r in self.rows)

    @property
    def received_bytes(self) -> int:
        """Bytes that a rank receives in the job, forward and backward."""
        return sum(r.received for r in self.rows)

    @property
    def differences(self) -> tuple[Row, ...]:
        """Rows that are not equal."""
        return tuple(r for r in self.rows if r.verdict != "equal")

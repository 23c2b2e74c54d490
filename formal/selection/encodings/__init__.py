"""A selection problem written for other solvers.  What they say is a candidate; `solve` evaluates and proves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    """What an engine said.  `solution`: its choices, not yet believed; `says`: its own status word, for the report only."""

    solution: tuple[int, ...] | None
    says: str

"""This module holds what is published where the time for our own check is over: the file is written, nothing is said to
be proved, and the command that checks it is named.
"""

from __future__ import annotations

from pathlib import Path

from ...models.files.output import write_file
from ...models.problem.claims import Infeasible, LowerBound, SelectionClaim, Verdict
from ..container.archive import identity, read_container
from .publisher import Published


def unchecked(path: Path | None, data: bytes, cost: int | SelectionClaim | None) -> Published:
    """Write `data` (to no file where `path` is None) without a verdict.

    `cost`: what the search says that it costs, or its claim.
    """
    name = identity(read_container(data))
    if path is not None:
        write_file(path, data)
    if not isinstance(cost, int | None):
        cost = None if isinstance(cost, Infeasible | LowerBound) else cost.cost
    reason = "not checked here: the time limit was over"
    return Published(Verdict.UNDECIDED, "Unchecked", cost, None, reason, name, path, len(data), checked=False)

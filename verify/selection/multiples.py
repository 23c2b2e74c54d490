"""Multiplies costs by whole numbers and keeps what is forbidden, for checkers of weighted problems."""

from __future__ import annotations

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints
from ...proofs.container.canonical import ContainerError


def multiple(values: Ints, factor: int) -> Ints:
    """Costs `factor` times as large; forbidden ones stay so.  `ContainerError` for what would look forbidden.

    >>> multiple(np.array([3, FORBIDDEN]), 2).tolist() == [6, FORBIDDEN]
    True
    """
    most = int(values[values < FORBIDDEN].max(initial=0))
    if most * factor >= FORBIDDEN:
        raise ContainerError("costs", f"{factor} times {most} is too large to be checked")
    return np.where(values >= FORBIDDEN, FORBIDDEN, np.where(values >= FORBIDDEN, 0, values) * factor)

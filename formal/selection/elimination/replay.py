"""This module says what eliminations may cost whoever checks them: a proof that nobody may check is none.

A certificate has one budget for all its records, which grows with the numbers of its problem
(`proofs.container.effort`).  A search that closes many nodes by elimination can prove more than that; what would go
beyond is searched on, or stays open.
"""

from __future__ import annotations

from typing import Final

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.container.effort import WORK, WORK_PER_NUMBER

SHARE: Final = 0.75
"""Of the work that a file of the size of the problem may ask of its checker: the rest is for messages and presolve."""


def spare(problem: SelectionProblem) -> int:
    """Cells that checking all eliminations of one certificate may take."""
    arrays = (*problem.tables, *(v.cost for v in problem.vertices))
    return int(SHARE * (WORK + WORK_PER_NUMBER * sum({id(a): a.size for a in arrays}.values())))

"""What eliminations may cost whoever checks them: a proof that nobody may check is none.

A certificate has one budget for all its records, which grows with the numbers of its problem
(`proofs.container.effort`).  A search that closes many nodes by elimination can prove more than that; what would go
beyond is searched on, or stays open.
"""

from __future__ import annotations

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.container.effort import WORK, WORK_PER_NUMBER
from ..options.elimination import ELIMINATION, EliminationOptions


def spare(problem: SelectionProblem, options: EliminationOptions = ELIMINATION) -> int:
    """Cells that checking all eliminations of one certificate may take."""
    arrays = (*problem.tables, *(v.cost for v in problem.vertices))
    return int(options.replay_share * (WORK + WORK_PER_NUMBER * sum({id(a): a.size for a in arrays}.values())))

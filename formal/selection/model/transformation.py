"""What it takes to solve another problem instead, known as a reduction: three
arrows.

    outer problem    --- messages_there --->    inner problem       a start for its bound: any messages are valid
    outer solution   <--- solution_back ----    inner solution      evaluated on the outer problem, never believed
    outer proof      <---- proof_back ------    inner proof         None where a bound there is none here

Presolve (`presolve/presolve.py`) and the relaxation of the rows (`relax_resources.py`) have all three.  Restrictions
(`model/restrict.py`) and repetitions (`decomposition/quotient.py`) leave solutions out, so that what is proved about
them says nothing about the whole.
"""

from __future__ import annotations

from typing import Protocol

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.selection.certificates import Dual, Record


class Transformation(Protocol):
    """A problem that is solved instead of another one, and the ways between them."""

    @property
    def inner(self) -> SelectionProblem | None:
        """The problem that is solved instead; None when nothing of it is left to decide."""
        ...

    def solution_back(self, solution: tuple[int, ...]) -> tuple[int, ...]:
        """The choices of the outer problem that go with a solution of the inner one."""
        ...

    def messages_there(self, dual: Dual) -> Dual:
        """Messages of the outer problem as messages of the inner one."""
        ...

    def proof_back(self, proof: Record) -> Record | None:
        """What a record about the inner problem proves about the outer one; None: nothing."""
        ...

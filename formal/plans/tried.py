"""How one candidate of several plans came out: its cost, its bound, what it needs, and whether its
memory matters.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.problem.claims import Status
from ...models.problem.selection_problem import SelectionProblem
from ..selection.relax_resources import ignores_rows
from .plan import Planned
from .report import amount, bytes_text


@dataclass(frozen=True)
class CandidateOutcome:
    """How a candidate came out; costs in units of its problem.  `peak`: bytes on the fullest device under its plan;
    None without one.
    """

    status: str
    cost: int | None
    lower_bound: int | None
    peak: int | None

    @classmethod
    def of(cls, planned: Planned) -> CandidateOutcome:
        """What a plan says of its candidate."""
        a = planned.answer
        peak = None if a.solution is None else planned.planning.problem.peak_of(a.solution)[0]
        return cls(a.status.value, a.cost, a.lower_bound, peak)

    def to_json(self) -> dict[str, object]:
        """Plain data; times in units of 1/scale."""
        return {"status": self.status, "cost": self.cost, "lower_bound": self.lower_bound, "peak_bytes": self.peak}

    def words(self, problem: SelectionProblem) -> str:
        """The same for a reader; `problem` has the unit of costs."""
        if self.cost is None or self.peak is None:
            return "proved not to fit" if self.status == "infeasible" else "no plan found"
        proved = (
            ", optimal for this graph"
            if self.status == "optimal"
            else f", at least {amount(self.lower_bound, problem)} for this graph"
        )
        return f"{amount(self.cost, problem)}{proved}, {bytes_text(self.peak)} on the fullest device"


def best_without_rows(planned: Planned) -> bool:
    """True where the plan is proved to be the best even without the rows of memory."""
    a = planned.answer
    return a.status is Status.OPTIMAL and a.certificate is not None and ignores_rows(a.certificate.proof)

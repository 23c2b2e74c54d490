"""Asks CP-SAT for unsatisfiable cores: which parts of a problem refute a cheaper solution in a case.

The program is that of `encodings/cp_sat.py` with a literal per vertex, edge and step; all of them are assumed.  A cost
below B is one of its digits being smaller and none before it larger:

    s_i  ->  r_n <= B_n, .., r_(i+1) <= B_(i+1), r_i <= B_i - 1,       some s_i

Cases and bounds change the domains of variables and of these rows, so that the model is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..model.factored import Domains
from ..tree.run import Run
from .encodings import all_events
from .encodings.cp_sat import solver_within, start, steps_of
from .proof_by_cores import EngineReply

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import Constraint

MOST: Final = 1 << 62


class CpSatCores:
    """One model of the problem; cases are asked on top of it.  Raises `ModuleNotFoundError` without OR-Tools."""

    def __init__(self, run: Run) -> None:
        self.run, self.problem = run, run.problem
        self.program = start(run.problem, all_events(run.problem), guarded=True)
        model = self.program.model
        self._vertices = {p.index: vertices for p, vertices in self.program.parts.values()}
        smaller = [model.new_bool_var(f"s{i}") for i in range(len(self.program.digits))]
        self._rows: list[tuple[int, int, Constraint]] = []
        """Digit, what is taken off, row."""
        for i, s in enumerate(smaller):
            for k, digit in enumerate(self.program.digits[: i + 1]):
                self._rows.append((k, int(k == i), model.add(digit <= 0).only_enforce_if(s)))
        model.add_bool_or(smaller)

    def ask(self, domains: Domains, below: int | None) -> EngineReply:
        """Whether a solution of `domains` costs less than `below` (in units of the problem; None: any)."""
        from ortools.sat.python import cp_model

        given, model = self.run.clock.allowance(), self.program.model
        if given.seconds is not None and given.seconds <= 0:
            return EngineReply("time is over")
        for names, d in zip(self.program.x, domains, strict=True):
            inside = set(d.tolist())
            for a, x in names.items():
                model.proto.variables[x.index].domain[1] = int(a in inside)
        most = None if below is None else self.program.cost_digits(below)
        for k, less, row in self._rows:
            model.proto.constraints[row.index].linear.domain[1] = MOST if most is None else most[k] - less
        solver = solver_within(given)
        status = solver.solve(model)
        self.run.clock.charge(steps_of(solver))
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return EngineReply("sat", solution=self.program.solution(solver))
        if status != cp_model.INFEASIBLE:
            return EngineReply(solver.status_name(status))
        core = solver.sufficient_assumptions_for_infeasibility()
        return EngineReply("unsat", frozenset(v for p in core for v in self._vertices[p]))

"""Whether a pair of program and strategy is optimal among all equal programs.

The user gives a graph G, a program P that is said to compute the same (G itself, or another file) and a strategy S for
P.  Three answers, each with a certificate:

    U, L_S    the best completion of S on P, and what no completion costs less than
    C, L      the best program of the e-graph of G and its placements, and what none costs less than
    equal     P is one of these programs: each of its operators is an e-node of the tensor that it writes, so that the
              derivation proves that P computes what G does

Outcomes are those of an audit (`formal.explain.audit.decide`); that S is optimal is said of a P that is equal only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from ....models.cost.selection import build
from ....models.joint.egraph import EGraph
from ....models.problem.selection_problem import SelectionProblem
from ....models.program.graph import Graph, GraphError
from ....models.program.operators import Operator
from ...explain.audit import Outcome, applied_strategy, decide
from ...plans.layouts import TensorLayouts
from ...plans.strategy import Applied, Strategy
from ...selection.answer import Answer
from ...selection.model.restrict import restrict
from ...selection.solve import solve
from .job import Joint, JointJob
from .rules.growing import identity
from .solve import plan_job_jointly

COMPLETION_SHARE = 0.3
"""Share of the time for the best completion of the strategy."""


@dataclass(frozen=True, eq=False)
class JointAudit:
    """`completed`: of the strategy on the user's program, in the unit of `restricted`; `found`: over all programs.
    `unequal`: why the program is none of them; empty if it is one.  `scale`: of the costs that `to_json` gives.
    """

    outcome: Outcome
    completed: Answer
    restricted: SelectionProblem
    found: Joint
    applied: Applied
    unequal: str
    gap: Fraction

    @property
    def costs(self) -> tuple[Fraction | None, Fraction | None, Fraction | None]:
        """Seconds: of the completion, of the best program, and of the lower bound over all."""
        problem = self.found.planning.problem
        return (
            _seconds(self.completed.cost, self.restricted),
            _seconds(self.found.answer.cost, problem),
            _seconds(self.found.answer.lower_bound, problem),
        )


def _seconds(cost: int | None, problem: SelectionProblem) -> Fraction | None:
    return None if cost is None else Fraction(cost, problem.scale)


def audit_jointly(program: Graph, strategy: Strategy | TensorLayouts, job: JointJob) -> JointAudit:
    """Audit a program with its strategy against all programs of the e-graph of the job's graph.  Raises `StrategyError`
    or `SpaceError` when the strategy does not fit the program.
    """
    planning = build(program, job.machine, job.where, job.memory_limit)
    applied = applied_strategy(strategy, planning)
    small = restrict(planning.problem, applied.allowed)
    completed = solve(small.inner, clock=job.clock.share(COMPLETION_SHARE), engine=job.engine)
    found = plan_job_jointly(job)
    unequal = not_derived(found.planning.egraph, program)
    scale = lcm(small.inner.scale, found.planning.problem.scale)
    outcome = decide(
        _in(completed, scale // small.inner.scale), _in(found.answer, scale // found.planning.problem.scale), job.gap
    )
    if unequal and outcome in (Outcome.OPTIMAL, Outcome.WITHIN_GAP):
        outcome = Outcome.UNDECIDED
    return JointAudit(outcome, completed, small.inner, found, applied, unequal, job.gap)


def _in(answer: Answer, factor: int) -> Answer:
    """An answer in a finer unit."""
    cost, lower = answer.cost, answer.lower_bound
    return replace(
        answer, cost=None if cost is None else cost * factor, lower_bound=None if lower is None else lower * factor
    )


def not_derived(egraph: EGraph, program: Graph) -> str:
    """Why a program is none of an e-graph, up to names of operators and axes; empty if it is one."""
    base = egraph.base
    if (program.outputs, program.state) != (base.outputs, base.state):
        return "its outputs or its state are not those of the model"
    known = {(op.output.tensor, identity(op)): op for op in egraph.operators}
    modes: dict[str, str | None] = dict.fromkeys(egraph.nodes)
    for op in program.operators:
        node: Operator | None = known.get((op.output.tensor, identity(op)))
        if node is None:
            return f"no rule gives its operator {op.name!r}"
        modes[op.output.tensor] = node.name
    for t in program.tensors:
        if egraph.union.holds(t.name) and replace(egraph.union.tensor(t.name), source_shape=None) != replace(
            t, source_shape=None
        ):
            return f"its tensor {t.name!r} is another one"
    try:
        egraph.graph(modes)
    except GraphError as error:
        return str(error)
    return ""

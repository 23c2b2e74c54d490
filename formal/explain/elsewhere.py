"""The problem of a plan on another machine of the same hierarchy, and what solutions cost there without solving it.

OneProgram     placements of one program: the problem is built again, costs are read off the loads (`terms`)
AllPrograms    programs that an e-graph holds, with placements: a solution is a program, and is priced as one
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from ...models.cost.selection import Planning, build
from ...models.joint.problem import JointPlanning, JointSubject, build_joint
from ...models.layout.placement import space
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...proofs.plan.bundle import Plan
from .terms import PlanTerms


class Elsewhere(Protocol):
    """A problem, as it is on another machine.  Costs are in the unit of `problem`."""

    @property
    def problem(self) -> SelectionProblem: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def graph(self) -> Graph:
        """All operators that a solution may run."""

    def on(self, machine: Machine) -> SelectionProblem:
        """The problem there; solutions are numbered alike."""

    def cost_at(self, x: tuple[int, ...], machine: Machine) -> int | None:
        """What a solution costs there; None where that is not known without the problem."""


@dataclass(eq=False)
class OneProgram:
    """Placements of one program."""

    planning: Planning

    def __post_init__(self) -> None:
        self.problem, self.machine, self.graph = self.planning.problem, self.planning.machine, self.planning.graph
        self.terms = PlanTerms(self.planning)

    def on(self, machine: Machine) -> SelectionProblem:
        """Built again, in the same unit."""
        unit = Fraction(1, self.problem.scale)
        return build(self.graph, machine, self.planning.space, self.problem.limit, unit=unit).problem

    def cost_at(self, x: tuple[int, ...], machine: Machine) -> int | None:
        """From the loads."""
        return self.terms.cost_at(x, machine)


@dataclass(eq=False)
class AllPrograms:
    """Every program of an e-graph with every placement.  `library`: identities of its rules."""

    planning: JointPlanning
    library: str
    _programs: dict[str, PlanTerms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem, self.machine = self.planning.problem, self.planning.machine
        self.graph = self.planning.egraph.union

    def on(self, machine: Machine) -> SelectionProblem:
        """Built again, in the same unit."""
        p = self.planning
        return build_joint(
            JointSubject(
                p.egraph,
                p.rounds,
                machine,
                p.space,
                level=p.skeleton.level,
                memory_limit=self.problem.limit,
                library=self.library,
            ),
            unit=Fraction(1, self.problem.scale),
        ).problem

    def cost_at(self, x: tuple[int, ...], machine: Machine) -> int | None:
        """What its program costs, which may have its axes in another order alone."""
        if self.planning.executable(x):
            return None
        graph, choices = self.planning.plan(x)
        key = graph.sha256()
        if key not in self._programs:
            unit = Fraction(1, self.problem.scale)
            self._programs[key] = PlanTerms(build(graph, self.machine, self.planning.space, unit=unit))
        terms = self._programs[key]
        return terms.cost_at(terms.planning.solution(choices), machine)


def all_programs(plan: Plan) -> tuple[AllPrograms, tuple[int, ...]]:
    """The problem of a joint plan over all its programs, and the plan as a solution of it.  Raises `LookupError` for a
    plan that is none.
    """
    joint = plan.joint
    if joint is None:
        raise LookupError("the plan is of one program")
    library = joint.derivation.rules_name
    planning = build_joint(
        JointSubject(
            joint.egraph,
            joint.derivation.rounds,
            plan.machine,
            space(plan.space),
            level=joint.tags,
            memory_limit=plan.memory_limit,
            library=library,
        )
    )
    modes = joint.egraph.close_modes({op.output.tensor: op.name for op in plan.graph.operators})
    return AllPrograms(planning, library), planning.solution(modes, plan.choices)

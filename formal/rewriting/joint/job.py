"""What is asked of all equal programs of a graph, and what is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction

from ....models.cost.selection import Notify
from ....models.joint.egraph import EGraph
from ....models.joint.problem import JointPlanning
from ....models.joint.rules import MOST_NODES, ROUNDS
from ....models.layout.placement import Space
from ....models.machine.machine import Machine
from ....models.program.graph import Graph
from ....models.sources.training import TrainingStep
from ....proofs.joint.derivation import Derivation
from ...selection.answer import Answer
from ...selection.model.clock import Clock, Progress
from ...selection.question import Engine
from .embedding import Known, program_of_solution
from .saturate import SEARCHED, Rule


@dataclass(frozen=True, eq=False)
class Joint:
    """What was found: the best program and its placements, the answer about all programs, and the cost of the user's
    graph as it is, in units of 1/`plain_scale` s.
    """

    planning: JointPlanning
    derivation: Derivation
    answer: Answer
    plain: Answer
    plain_scale: int
    programs: int


@dataclass(frozen=True, eq=False)
class Again:
    """The training step whose tensors may be computed again, and what was found of fewer programs, those that compute
    none again or take none to hosts: the problem with both is larger, and its search would often end above that.
    `hosts`: tensors may lie in the memory of hosts.
    """

    step: TrainingStep
    without: Joint | None = None
    hosts: bool = False

    def program_in(self, egraph: EGraph) -> list[Known]:
        """The best program without, as one of a larger e-graph."""
        if self.without is None or self.without.answer.solution is None:
            return []
        modes, choices = program_of_solution(self.without.planning, self.without.answer.solution)
        return [(egraph.close_modes(modes), choices)]


def has_hosts(machine: Machine) -> bool:
    """Whether every device has a link to its host's memory."""
    return all(c.host is not None for c in machine.classes)


@dataclass(frozen=True, eq=False)
class JointJob:
    """All equal programs of a graph on a machine.  `rules`, tried `rounds` times, add `most` operators at most, in at
    most `rewriting_s` seconds (None: a share of the time); `level`: what tags say, None for as much as is cheap;
    `memory_limit`: bytes per device; `again`: whose tensors may be computed again; the others as in
    `selection.question`.
    """

    graph: Graph
    machine: Machine
    where: Space
    _: KW_ONLY
    clock: Clock
    gap: Fraction = Fraction(0)
    threads: int = 1
    engine: Engine = "native"
    progress: Progress | None = None
    notify: Notify | None = None
    rules: Mapping[str, Rule] = field(default_factory=lambda: SEARCHED)
    rounds: int = ROUNDS
    most: int = MOST_NODES
    rewriting_s: float | None = None
    level: int | None = None
    memory_limit: int | None = None
    again: Again | None = None

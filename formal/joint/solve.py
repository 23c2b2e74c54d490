"""Joint optimisation of algebra and placement: the search over an e-graph, and what it says.

    user's graph    planned as it is; its plan is where everything begins, so that no answer is worse
    uniform modes   programs in which equal places are rewritten alike, planned one by one (`starts`)
    jointly         one selection problem over all programs (`models.joint.problem`), from the best of these on
    alone           the program that was found, planned once more by itself

Half of the time at most goes to programs with fixed modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from ...models.communication.choices import Choices
from ...models.cost.limits import check_sizes
from ...models.cost.selection import Notify, Planning, build
from ...models.joint.egraph import EGraph, Modes
from ...models.joint.problem import JointPlanning, build_joint
from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...proofs.joint.derivation import Derivation
from ..planning.simple import simple_plans
from ..selection.answer import Answer
from ..selection.model.clock import Clock, Progress
from ..selection.solve import solve
from .saturate import RULES, Rule, saturate, same_order
from .starts import descend

LEVELS: Final = (3, 1)
"""How much tags say, the most first; the second where the tables of the first are too large."""
MOST_CHOICES: Final = 20_000
"""Choices of one vertex up to which tags say the most."""
MOST_ENTRIES: Final = 1 << 26
"""Entries of all tables up to which tags say the most."""
STARTS_SHARE: Final = 0.4
"""Share of the time for programs with fixed modes."""


@dataclass(frozen=True, eq=False)
class Joint:
    """What was found: the best program and its placements, the answer about all programs, and the cost of the user's
    graph as it is (None: not planned in time).
    """

    planning: JointPlanning
    derivation: Derivation
    answer: Answer
    plain: Answer
    programs: int


def plan_jointly(
    graph: Graph,
    machine: Machine,
    where: Space,
    *,
    clock: Clock,
    gap: Fraction = Fraction(0),
    threads: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
    rules: Mapping[str, Rule] = RULES,
    level: int | None = None,
) -> Joint:
    """The best program and placements found, with a certificate over all programs of the e-graph."""
    check_sizes(graph, machine, where)
    egraph, derivation = safe(graph, rules)
    search = _Search(machine, where, clock, gap, threads, progress)
    base = build(graph, machine, where)
    plain = search.plan(base, clock.share(STARTS_SHARE / 2))
    planning = jointly(egraph, derivation.rounds, machine, where, level, notify)
    known = search.starts(planning, plain, base)
    answer = solve(
        planning.problem,
        clock=clock,
        gap=gap,
        progress=progress,
        threads=threads,
        known=known,
        brought=known,
    )
    return Joint(planning, derivation, answer, plain, search.programs)


def safe(graph: Graph, rules: Mapping[str, Rule] = RULES) -> tuple[EGraph, Derivation]:
    """The e-graph in which the user's plans cost what they cost; rules that change that are left out, last first."""
    left = dict(rules)
    while True:
        egraph, derivation = saturate(graph, left)
        if same_order(egraph) or not left:
            return egraph, derivation
        left.popitem()


def jointly(
    egraph: EGraph,
    rounds: int,
    machine: Machine,
    where: Space,
    level: int | None = None,
    notify: Notify | None = None,
) -> JointPlanning:
    """The joint problem with as much in its tags as its size allows."""
    for tags in LEVELS if level is None else (level,):
        planning = build_joint(egraph, rounds, machine, where, notify, level=tags)
        largest = max(d.size for d in planning.decisions)
        if largest <= MOST_CHOICES and sum(t.size for t in planning.problem.tables) <= MOST_ENTRIES:
            break
    return planning


class _Search:
    def __init__(
        self, machine: Machine, where: Space, clock: Clock, gap: Fraction, threads: int, progress: Progress | None
    ) -> None:
        self.machine, self.where, self.clock, self.gap = machine, where, clock, gap
        self.threads, self.progress = threads, progress
        self.programs = 0

    def plan(self, planning: Planning, clock: Clock) -> Answer:
        """The best plan of one program."""
        self.programs += 1
        return solve(
            planning.problem,
            clock=clock,
            gap=self.gap,
            progress=self.progress,
            threads=self.threads,
            brought=simple_plans(planning),
        )

    def starts(self, joint: JointPlanning, plain: Answer, base: Planning) -> list[tuple[int, ...]]:
        """Solutions of the joint problem: the user's plan, then those of programs with uniform modes."""
        until = self.clock.share(STARTS_SHARE)
        found: list[tuple[int, ...]] = []

        def cost(modes: Modes) -> int | None:
            graph = joint.egraph.graph(modes)
            if graph.operators == base.graph.operators:
                planning, answer = base, plain
            else:
                planning = build(graph, self.machine, self.where)
                answer = self.plan(planning, until)
            if answer.solution is None:
                return None
            x = embedded(joint, modes, planning.choices(answer.solution))
            if x is None:
                return None
            found.append(x)
            return joint.problem.cost_of(x)

        for _ in descend(joint.egraph, cost, until.over):
            pass
        return found


def embedded(joint: JointPlanning, modes: Modes, choices: Choices) -> tuple[int, ...] | None:
    """The solution of the joint problem that stands for a plan of one of its programs; None where axes stand in
    another order there.
    """
    try:
        return joint.solution(modes, choices)
    except LookupError:
        return None

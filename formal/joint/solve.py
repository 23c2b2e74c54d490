"""Joint optimisation of algebra and placement: the search over an e-graph, and what it says.

    user's graph    planned as it is; its plan is where everything begins, so that no answer is worse
    uniform modes   programs in which equal places are rewritten alike, planned one by one (`starts`)
    jointly         one selection problem over all programs (`models.joint.problem`), from the best of these on
    alone           the program that was found, planned once more by itself

Half of the time at most goes to programs with fixed modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from ...models.communication.choices import Choices
from ...models.cost.limits import TooLarge, check_sizes
from ...models.cost.selection import Notify, Planning, build
from ...models.joint.choices import Skeleton
from ...models.joint.egraph import EGraph, Modes
from ...models.joint.problem import JointPlanning, build_joint, choices_of
from ...models.joint.rules import LIBRARY
from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.problem.claims import Status
from ...models.program.graph import Graph
from ...proofs.joint.derivation import Derivation
from ...proofs.joint.file import Jointly
from ...proofs.plan.bundle import Plan
from ..planning.plan import communication, versions
from ..planning.simple import simple_plans
from ..selection.answer import Answer
from ..selection.fallback import certified
from ..selection.model.clock import Clock, Progress
from ..selection.relax_resources import relax_resources
from ..selection.solve import Engine, solve
from .saturate import RULES, Rule, same_order, saturate
from .starts import descend

SMALL, LARGE = 1, 3
"""How much tags say: little where the problem can then be eliminated, everything where it has to be bounded."""
MOST_SMALL: Final = 128
"""Choices of one vertex up to which little is tried first."""
NARROWER: Final = (
    frozenset({"fuse-epilogue", "relu-from-output", "add-many", "product-of-parts"}),
    frozenset({"fuse-epilogue", "relu-from-output"}),
    frozenset[str](),
)
"""Rules that are tried where more give too large an e-graph."""
SMALL_SHARE: Final = 0.25
"""Share of the time for that."""
RULES_SHARE: Final = 0.15
"""Share of the time for one set of rules; what they have added by then is the e-graph."""
TABLES_SHARE: Final = 0.5
"""Share of the time for the first tables of all programs; beyond, the graph stays as it is."""
LARGE_SHARE: Final = 0.2
"""Share of the time for tables with tags that say everything."""
MOST_CHOICES: Final = 10_000
"""Choices of one vertex up to which tags say everything."""
MOST_ENTRIES: Final = 1 << 26
"""Entries of all tables up to which tags say everything."""
STARTS_SHARE: Final = 0.4
"""Share of the time for programs with fixed modes."""


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


def plan_jointly(
    graph: Graph,
    machine: Machine,
    where: Space,
    *,
    clock: Clock,
    gap: Fraction = Fraction(0),
    threads: int = 1,
    engine: Engine = "native",
    progress: Progress | None = None,
    notify: Notify | None = None,
    rules: Mapping[str, Rule] = RULES,
    level: int | None = None,
    memory_limit: int | None = None,
) -> Joint:
    """The best program and placements found, with a certificate over all programs of the e-graph.  `memory_limit`:
    bytes per device, or None.
    """
    check_sizes(graph, machine, where)
    egraph, derivation = safe(graph, rules, clock)
    search = _Search(machine, where, clock, gap, threads, progress, memory_limit)
    base = build(graph, machine, where, memory_limit)
    plain = search.plan(base, clock.share(STARTS_SHARE / 2))
    try:
        check_sizes(egraph.union, machine, where)
        planning = build_joint(
            egraph,
            derivation.rounds,
            machine,
            where,
            _within(clock.share(TABLES_SHARE), notify),
            level=SMALL if level is None else level,
            memory_limit=memory_limit,
        )
    except (_TooLong, TooLarge):  # the claim says that no operators were added
        egraph, derivation = EGraph(graph, (), graph.operators), Derivation(LIBRARY, 0, ())
        planning = build_joint(egraph, 0, machine, where, notify, memory_limit=memory_limit)
    known = search.starts(planning, plain, base)

    def attempt(until: Clock) -> Answer:
        fitting = [x for x in known if planning.problem.is_feasible(x)]
        if memory_limit is not None:
            return relax_resources(
                planning.problem,
                clock=until,
                gap=gap,
                engine=engine,
                progress=progress,
                threads=threads,
                brought=fitting,
            )
        return solve(
            planning.problem,
            clock=until,
            gap=gap,
            engine=engine,
            progress=progress,
            threads=threads,
            known=fitting,
            brought=fitting,
        )

    first = level is None and memory_limit is None and max(d.size for d in planning.decisions) <= MOST_SMALL
    answer = attempt(clock.share(SMALL_SHARE) if first else clock) if first or level is not None else None
    if level is None and not (answer is not None and answer.status is Status.OPTIMAL):
        large = _large(planning, clock.share(LARGE_SHARE), notify)
        if large is not None:
            known = [large.solution(*_program(planning, x)) for x in known]
            planning = large
        answer = attempt(clock)
    assert answer is not None
    return Joint(planning, derivation, _runnable(planning, answer, known), plain, base.problem.scale, search.programs)


def _large(small: JointPlanning, until: Clock, notify: Notify | None) -> JointPlanning | None:
    """The problem whose tags say everything; None where it is too large, or its tables take too long."""
    try:
        sizes = choices_of(small.egraph, small.structures, LARGE)
    except TooLarge:
        return None
    if max(sizes) > MOST_CHOICES:
        return None

    try:
        large = build_joint(
            small.egraph,
            small.rounds,
            small.machine,
            small.space,
            _within(until, notify),
            level=LARGE,
            memory_limit=small.problem.limit,
        )
    except _TooLong:
        return None
    return large if sum(t.size for t in large.problem.tables) <= MOST_ENTRIES else None


class _TooLong(Exception):
    pass


def _within(until: Clock, notify: Notify | None) -> Notify:
    """`notify`, and `_TooLong` when the time is over."""

    def within(done: int, total: int) -> None:
        if notify is not None:
            notify(done, total)
        if until.over():
            raise _TooLong

    return within


def _runnable(planning: JointPlanning, answer: Answer, known: Sequence[tuple[int, ...]]) -> Answer:
    """The answer, or where its plan is none of its program alone, the best of what is known that is one."""
    if answer.solution is None or not planning.executable(answer.solution):
        return answer
    fine = [x for x in known if planning.problem.is_feasible(x) and not planning.executable(x)]
    if not fine:
        return replace(answer, status=Status.UNKNOWN, solution=None, cost=None, certificate=None)
    x = min(fine, key=planning.problem.cost_of)
    return certified(planning.problem, x, planning.problem.cost_of(x), answer)


def _too_large(egraph: EGraph) -> bool:
    """Whether some class has too many readers that can be chosen."""
    try:
        return Skeleton(egraph, SMALL).rests is None
    except TooLarge:
        return True


def safe(graph: Graph, rules: Mapping[str, Rule] = RULES, clock: Clock | None = None) -> tuple[EGraph, Derivation]:
    """The e-graph in which the user's plans cost what they cost, and that is not too large.  Rules that change that are
    left out: where it is too large, all but some (`NARROWER`); else one, if that is enough, else the last ones.
    """

    def over() -> Callable[[], bool]:
        return (clock or Clock()).share(RULES_SHARE).over

    left = dict(rules)
    egraph, derivation = saturate(graph, left, over=over())
    for few in NARROWER:
        if not _too_large(egraph):
            break
        left = {n: rule for n, rule in rules.items() if n in few}
        egraph, derivation = saturate(graph, left, over=over())
    while not same_order(egraph) and left:
        for name in reversed(left):
            egraph, derivation = saturate(graph, {n: rule for n, rule in left.items() if n != name}, over=over())
            if same_order(egraph) and not _too_large(egraph):
                return egraph, derivation
        left.popitem()
        egraph, derivation = saturate(graph, left, over=over())
    return egraph, derivation


def _program(planning: JointPlanning, x: tuple[int, ...]) -> tuple[Modes, Choices]:
    """Modes and placements of a solution."""
    return planning.modes(x), planning.plan(x)[1]


def joint_plan(joint: Joint) -> Plan | None:
    """The plan file of what was found; None without a solution."""
    planning, answer = joint.planning, joint.answer
    if answer.solution is None or answer.certificate is None:
        return None
    graph, choices = planning.plan(answer.solution)
    return Plan(
        graph,
        planning.machine,
        planning.space.name,
        planning.problem.limit,
        choices,
        communication(graph, planning.machine, choices),
        answer.certificate,
        versions(),
        Jointly(planning.egraph, joint.derivation, planning.skeleton.level),
    )


class _Search:
    def __init__(
        self,
        machine: Machine,
        where: Space,
        clock: Clock,
        gap: Fraction,
        threads: int,
        progress: Progress | None,
        memory_limit: int | None,
    ) -> None:
        self.machine, self.where, self.clock, self.gap = machine, where, clock, gap
        self.threads, self.progress, self.memory_limit = threads, progress, memory_limit
        self.programs = 0

    def plan(self, planning: Planning, clock: Clock) -> Answer:
        """The best plan of one program."""
        self.programs += 1
        search = solve if self.memory_limit is None else relax_resources
        return search(
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
                planning = build(graph, self.machine, self.where, self.memory_limit)
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

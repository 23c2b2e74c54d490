"""Joint optimisation of algebra and placement: the search over an e-graph, and what it says.

    user's graph    planned as it is, before anything is rewritten; its plan is where everything begins, so that no
                    answer is worse
    jointly         one selection problem over all programs (`models.joint.problem`), with tags that say as much as is
                    cheap (`levels`), for a part of the time
    algebra first   where much is tried, from the best placement of the program that is best on one device on
    uniform modes   where that is not enough, programs in which equal places are rewritten alike, planned one by one
                    (`starts`)
    again           from the best of these on, with tags that say more

Where the user's plan does not fit the rows of all programs, which say more than its own, and nothing cheaper fits them,
the answer is about the graph as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Final

from ....models.cost.limits import TooLarge, check_sizes
from ....models.cost.selection import Notify, Planning, build
from ....models.cost.structures import Structures
from ....models.joint.egraph import EGraph, Modes
from ....models.joint.problem import JointPlanning, JointSubject, build_joint
from ....models.joint.rules import LIBRARY
from ....models.keywords import keywords_of
from ....models.layout.placement import Space
from ....models.machine.machine import Machine
from ....models.problem.claims import Status
from ....models.problem.selection_problem import SelectionProblem
from ....proofs.joint.derivation import Derivation
from ....proofs.joint.file import Jointly
from ....proofs.plan.bundle import Plan
from ...plans.plan import communication, versions
from ...plans.simple import simple_plans
from ...selection.answer import Answer
from ...selection.fallback import certify, fallback
from ...selection.model.clock import Clock, Overdue, Progress
from ...selection.model.restrict import restrict
from ...selection.question import Engine
from ...selection.relax_resources import relax_resources
from ...selection.solve import solve
from .checkpoints import Way, halving, modes_with, tensors_of_blocks, ways_of, without_rules
from .embedding import Known, choices_of_program, choices_with_modes, embed_solution, program_of_solution
from .growth import safe
from .job import Joint, JointJob
from .levels import LARGE, MIDDLE, SMALL, TooLong, first_level, larger, within
from .rules.worth import worth
from .starts import descend

TABLES_SHARE: Final = 0.5
"""Share of the time for the first tables of all programs; beyond, the graph stays as it is."""
LARGE_SHARE: Final = 0.2
"""Share of the time for tables with tags that say more."""
FIRST_SHARE: Final = 0.35
"""Share of the time for a first search, from the plan of the graph as it is on."""
FIRST_S: Final = 1.0
FIRST_TIMES: Final = 8.0
"""Seconds that a first search has at most, and how often what its tables took; what it does not close by then needs
better programs or tags."""
APART_SHARE: Final = 0.2
"""Share of the time for the program that is best on one device and its placement."""
STARTS_SHARE: Final = 0.3
"""Share of the time for programs with fixed modes."""
PLAIN_SHARE: Final = 0.2
"""Share of the time for the graph as it is."""
PLAIN_S: Final = 5.0
"""Seconds for the graph as it is, where its share is less: under a limit of a few seconds its plan is as good as
without rules, and these get what is left.
"""
END_SHARE: Final = 0.08
"""Share of the time for what a search does when its time is over: its proof, and what is executable (on 192 GPUs two
seconds or three of 60).
"""
OWN_SHARE: Final = 0.2
"""Share of the time that is kept for the graph as it is where its plan breaks the rows of all programs."""


@keywords_of(JointJob)
def plan_jointly(job: JointJob) -> Joint:
    """`plan_job_jointly`, keyword by keyword."""
    return plan_job_jointly(job)


def plan_job_jointly(job: JointJob) -> Joint:
    """The best program and placements found, with a certificate over all programs of the e-graph."""
    graph, machine, notify, level, again = job.graph, job.machine, job.notify, job.level, job.again
    check_sizes(graph, machine, job.where)
    whole, clock = job.clock, job.clock.share(1 - END_SHARE)
    search = _Search(machine, job.where, clock, job.gap, job.threads, job.progress, job.memory_limit, job.engine)
    base = build(graph, machine, job.where, job.memory_limit)
    own_s = None if whole.limit_s is None else max(PLAIN_S, PLAIN_SHARE * whole.limit_s)
    plain = search.plan(base, whole.at_most(own_s))
    if clock.over():
        return search.alone(base, plain, notify)
    asked = None if again is None else (again.step, again.hosts)
    egraph, derivation = safe(graph, job.rules, clock, worth(machine), job.rounds, job.most, job.rewriting_s, asked)
    began = clock.seconds()
    try:
        first = search.tables(egraph, derivation, SMALL if level is None and again is not None else level, notify)
    except (TooLong, TooLarge):
        return search.alone(base, plain, notify)
    first_s = FIRST_S + FIRST_TIMES * (clock.seconds() - began)
    known = _own(egraph, base, plain) + ([] if again is None else again.program_in(egraph))
    kept = clock
    if job.memory_limit is not None and known and not search.fitting(first, known) and clock.limit_s is not None:
        kept = clock.at_most(max(0.0, clock.remaining_s() - OWN_SHARE * clock.limit_s))
    attempts = _Attempts(search, derivation, known, kept, notify)
    try:
        if again is not None:
            attempts.compute_again(first, level)
        else:
            attempts.rewrite(first, level, first_s, (base, plain))
    except Overdue:
        if not attempts.found:
            nothing = Answer(Status.UNKNOWN, None, None, None, None, clock.seconds())
            fitting = search.fitting(first, attempts.known)
            attempts.found.append((first, fallback(first.problem, nothing, clock, fitting)))
    planning, answer = attempts.best()
    if plain.cost is not None and (answer.cost is None or _seconds(planning, answer) > _seconds(base, plain)):
        return search.alone(base, plain, notify)
    return Joint(planning, derivation, answer, plain, base.problem.scale, search.programs)


def _own(egraph: EGraph, base: Planning, plain: Answer) -> list[Known]:
    """The user's program and its plan, if one was found."""
    return [] if plain.solution is None else [(egraph.close_modes({}), base.choices(plain.solution))]


def _seconds(planning: JointPlanning | Planning, answer: Answer) -> Fraction:
    return Fraction(answer.cost or 0, planning.problem.scale)


def _order(planning: JointPlanning, answer: Answer) -> tuple[bool, Fraction, Fraction]:
    """Least cost first, then the best bound."""
    bound = Fraction(answer.lower_bound or 0, planning.problem.scale)
    none = answer.cost is None and answer.status is not Status.INFEASIBLE
    return none, _seconds(planning, answer), -bound


def _runnable(planning: JointPlanning, answer: Answer, known: Sequence[tuple[int, ...]]) -> Answer:
    """The answer, or where its plan is none of its program alone, or is dearer, the best of what is known."""
    fine = [x for x in known if not planning.executable(x)]
    own = answer.solution is not None and not planning.executable(answer.solution)
    x = min(fine, key=planning.problem.cost_of, default=None)
    if own and (x is None or answer.cost is None or answer.cost <= planning.problem.cost_of(x)):
        return answer
    if x is None:
        none = answer.solution is None
        return answer if none else replace(answer, status=Status.UNKNOWN, solution=None, cost=None, certificate=None)
    return certify(planning.problem, x, planning.problem.cost_of(x), answer)


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


@dataclass(eq=False)
class _Search:
    """Searches of one job.  `programs`: how many were searched by themselves."""

    machine: Machine
    where: Space
    clock: Clock
    gap: Fraction
    threads: int
    progress: Progress | None
    memory_limit: int | None
    engine: Engine
    programs: int = 0

    def tables(self, egraph: EGraph, derivation: Derivation, level: int | None, notify: Notify | None) -> JointPlanning:
        """The first tables of all programs; `level` None: what is cheap.  Raises `TooLong`, `TooLarge`."""
        check_sizes(egraph.union, self.machine, self.where)
        structures = Structures(egraph.union, self.machine, self.where, egraph.orders)
        return build_joint(
            JointSubject(
                egraph,
                derivation.rounds,
                self.machine,
                self.where,
                level=level if level is not None else first_level(egraph, structures, self.memory_limit),
                memory_limit=self.memory_limit,
                library=derivation.rules_name,
            ),
            within(self.clock.share(TABLES_SHARE), notify),
            structures=structures,
        )

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

    def all_programs(self, planning: JointPlanning, known: Sequence[Known], until: Clock) -> Answer:
        """The best of all programs, from those that are known on."""
        fitting = self.fitting(planning, known)
        search = solve if self.memory_limit is None else relax_resources
        return search(
            planning.problem,
            clock=until,
            gap=self.gap,
            engine=self.engine,
            progress=self.progress,
            threads=self.threads,
            known=fitting,
            brought=fitting,
        )

    def fitting(self, planning: JointPlanning, known: Sequence[Known]) -> list[tuple[int, ...]]:
        """The solutions of a problem that stand for what is known, without those that break a row."""
        found = [embed_solution(planning, *of) for of in known]
        return [x for x in found if x is not None and planning.problem.is_feasible(x)]

    def starts(self, joint: JointPlanning, base: Planning, plain: Answer, until: Clock) -> list[Known]:
        """Programs with uniform modes and their plans, beginning with the user's."""
        found: list[Known] = []
        longest = 0.0

        def cost(modes: Modes) -> int | None:
            nonlocal longest
            graph, began = joint.egraph.graph(modes), until.seconds()
            if graph.operators == base.graph.operators:
                planning, answer = base, plain
            else:
                planning = build(graph, self.machine, self.where, self.memory_limit)
                answer = self.plan(planning, until)
                longest = max(longest, until.seconds() - began)
            if answer.solution is None:
                return None
            known = modes, planning.choices(answer.solution)
            x = embed_solution(joint, *known)
            if x is None:
                return None
            found.append(known)
            return joint.problem.cost_of(x)

        for _ in descend(joint.egraph, cost, lambda: until.remaining_s() <= longest):
            pass
        return found

    def checkpoints(self, joint: JointPlanning, derivation: Derivation, until: Clock) -> list[Known]:
        """Programs in which the first blocks compute again what they may, or take it to hosts, and the best that was
        found of all that no rule has changed, each with its plan.
        """
        blocks = list(tensors_of_blocks(joint.egraph, derivation).values())
        found: list[Known] = []
        longest = 0.0

        def cost(way: Way, k: int) -> int | None:
            nonlocal longest
            began = until.seconds()
            some = frozenset(t for tensors in blocks[:k] for t in tensors)
            modes = modes_with(joint.egraph, derivation, some & (way.again | way.away), some & way.away)
            small = restrict(joint.problem, choices_of_program(joint, modes))
            answer = self.solve_restricted(small.inner, until)
            longest = max(longest, until.seconds() - began)
            if answer.solution is None:
                return None
            found.append(program_of_solution(joint, small.solution_back(answer.solution)))
            return answer.cost

        for way in ways_of(joint.egraph, derivation):
            for _ in halving(len(blocks), partial(cost, way), lambda: until.remaining_s() <= longest):
                pass
        own = without_rules(joint.egraph, derivation)
        if len(own) < len(joint.egraph.operators) and not until.over():
            small = restrict(joint.problem, choices_with_modes(joint, lambda t, name: name is None or name in own))
            answer = self.solve_restricted(small.inner, until)
            if answer.solution is not None:
                found.append(program_of_solution(joint, small.solution_back(answer.solution)))
        return found

    def solve_restricted(self, problem: SelectionProblem, until: Clock) -> Answer:
        """The best plan of one program, from the tables of all of them."""
        self.programs += 1
        search = solve if self.memory_limit is None else relax_resources
        return search(problem, clock=until, gap=self.gap, progress=self.progress, threads=self.threads)

    def apart(self, joint: JointPlanning, until: Clock) -> list[Known]:
        """The program that is best on one device and its placement, read off the tables of all programs; empty where
        that is no plan of the program alone, or the time is over.
        """
        modes = self.algebra_first(joint, until)
        if modes is None or until.over():
            return []
        small = restrict(joint.problem, choices_of_program(joint, modes))
        answer = self.solve_restricted(small.inner, until)
        if answer.solution is None:
            return []
        x = small.solution_back(answer.solution)
        return [] if joint.executable(x) else [program_of_solution(joint, x)]

    def algebra_first(self, joint: JointPlanning, until: Clock) -> Modes | None:
        """The best program on one device, as if algebra and placement were apart."""
        one = self.machine.resized([1] * len(self.machine.levels))
        try:
            alone = build_joint(
                JointSubject(joint.egraph, joint.rounds, one, self.where, level=joint.skeleton.level),
                within(until, None),
            )
        except TooLong:
            return None
        answer = solve(alone.problem, clock=until)
        return None if answer.solution is None else alone.modes(answer.solution)

    def alone(self, base: Planning, plain: Answer, notify: Notify | None) -> Joint:
        """The graph as it is: the claim says that no operators were added."""
        graph = base.graph
        egraph, derivation = EGraph(graph, (), graph.operators), Derivation(LIBRARY, 0, ())
        planning = build_joint(
            JointSubject(egraph, 0, self.machine, self.where, memory_limit=self.memory_limit), notify
        )
        known = _own(egraph, base, plain)
        answer = self.all_programs(planning, known, self.clock)
        answer = _runnable(planning, answer, self.fitting(planning, known))
        return Joint(planning, derivation, answer, plain, base.problem.scale, self.programs)


class _Attempts:
    """What is `found` of all programs until `clock`, from tables that say little on to those that say more; `known`:
    programs and their plans, which every attempt begins with.
    """

    def __init__(
        self, search: _Search, derivation: Derivation, known: list[Known], clock: Clock, notify: Notify | None
    ) -> None:
        self.search, self.derivation, self.known, self.clock, self.notify = search, derivation, known, clock, notify
        self.found: list[tuple[JointPlanning, Answer]] = []

    def closes(self, planning: JointPlanning, until: Clock) -> bool:
        """Search on these tables; whether nothing is left to do."""
        answer = self.search.all_programs(planning, self.known, until)
        self.found.append((planning, answer))
        closed = answer.status in (Status.OPTIMAL, Status.INFEASIBLE)
        return closed or answer.gap() <= self.search.gap or self.clock.over()

    def more(self, planning: JointPlanning, level: int) -> JointPlanning:
        """Tables that say more, if they come in time."""
        until = self.clock.share(LARGE_SHARE)
        return larger(planning, self.derivation.rules_name, level, until, self.notify) or planning

    def plans(self) -> list[Known]:
        """What was found, as programs."""
        return [program_of_solution(planning, a.solution) for planning, a in self.found if a.solution is not None]

    def compute_again(self, first: JointPlanning, level: int | None) -> None:
        """Programs that compute tensors again."""
        self.known += self.search.checkpoints(first, self.derivation, self.clock.share(STARTS_SHARE))
        middle = first if level is not None else self.more(first, MIDDLE)
        until = self.clock if middle is first else self.clock.share(FIRST_SHARE)
        if not self.closes(first, until) and middle is not first:
            self.known += self.plans()
            self.closes(middle, self.clock)

    def rewrite(self, first: JointPlanning, level: int | None, first_s: float, plain: tuple[Planning, Answer]) -> None:
        """Programs that rules give; `plain`: the user's and its plan, `first_s`: seconds of a first search."""
        search, clock = self.search, self.clock
        if level is not None:
            self.known += search.starts(first, *plain, clock.share(STARTS_SHARE))
            self.closes(first, clock)
        elif first.skeleton.level > SMALL or not self.closes(first, clock.share(FIRST_SHARE)):
            middle = first if first.skeleton.level > SMALL else self.more(first, MIDDLE)
            self.known += search.apart(middle, clock.share(APART_SHARE))
            if not self.closes(middle, clock.share(FIRST_SHARE).at_most(first_s)):
                self.known += search.starts(middle, *plain, clock.share(STARTS_SHARE))
                self.closes(self.more(middle, LARGE), clock)

    def best(self) -> tuple[JointPlanning, Answer]:
        """The best that was found, as a plan of its program alone."""
        self.known += self.plans()
        runnable = ((p, _runnable(p, a, self.search.fitting(p, self.known))) for p, a in self.found)
        return min(runnable, key=lambda of: _order(*of))

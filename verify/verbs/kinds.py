"""Registry of the kinds of files: the member that gives a kind away, and who checks what it holds.  `check`, the front
door, `shardproof.load` and every verb that takes a plan ask here; what a kind is called, for messages, stands a floor
lower (`proofs.container.kinds`), where readers need it.

A checker is imported when the first file of its kind comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ...models.problem.claims import Verdict
from ...proofs.container.archive import MANIFEST, Member, identity
from ...proofs.container.canonical import ContainerError
from ...proofs.container.kinds import JOB, PORTFOLIO, SIZES
from ...proofs.container.kinds import KINDS as NAMES
from ...proofs.container.room import needs
from ...proofs.container.unread import Members
from ..budget import CELLS, Budget
from ..verdict import CheckResult, Rounding, worst

if TYPE_CHECKING:
    from ...models.cost.selection import Planning
    from ...models.egraphs.egraph import EGraph
    from ...models.equality.pair import Pair
    from ...models.machine.machine import Machine
    from ...models.problem.selection_problem import SelectionProblem
    from ...models.program.graph import Graph
    from ...proofs.collective_programs.certificate import PlacementCertificate, ReductionCertificate
    from ...proofs.egraphs.certificate import ExtractionCertificate
    from ...proofs.equality.job import Job
    from ...proofs.overlap.certificate import OverlapCertificate
    from ...proofs.pipelines.certificate import PipelineCertificate
    from ...proofs.plan.bundle import Plan
    from ...proofs.portfolio.file import Portfolio
    from ...proofs.schedules.certificate import ScheduleCertificate
    from ...proofs.selection.certificates import SelectionCertificate
    from ...proofs.views.certificate import SubmeshCertificate
    from ..portfolio.sizes import CheckedSizes
    from ..rewrites.library import CheckedLibrary

H_co = TypeVar("H_co", covariant=True)

Problems = Mapping[str, "SelectionProblem | EGraph"]
"""Hash -> a problem that a certificate may be about."""

READING: Final = 3
"""Cells of one byte that the values of a JSON text take at most: short lists of nothing take longest to read."""

KEPT: Final = 1 << 5
"""Bytes of that for one entry that is held: plans of one file are kept together, and what is left of a text takes a
quarter of the most at most.
"""

SAMPLES: Final = 1_000
"""Entries of tables that are drawn and recomputed from index sets."""

MAIN: Final = (
    "Optimal",
    "WithinGap",
    "LowerBound",
    "Infeasible",
    "Best",
    "Cheapest",
    "Impossible",
    "Count",
    "EverySize",
)
"""Kinds of claims that say what a file is for, the first that it has counts; otherwise the first claim does."""


@dataclass(frozen=True)
class Effort:
    """`samples` entries are drawn and `cells` recomputed; `notify(done, total)`; what `check --large` allows, unless
    another `budget` is given.
    """

    samples: int = SAMPLES
    cells: int = CELLS
    notify: Callable[[int, int], None] | None = None
    budget: Budget = field(default_factory=Budget.with_large)


@dataclass(frozen=True, eq=False)
class Judged(Generic[H_co]):
    """What a file holds, one result per claim, how its times are rounded; the rebuilt problem of a plan.  `units`: of
    the claims in a second, where they are not those of the first problem; `among`: of a portfolio, all its
    plans, and the number of the `chosen` one.
    """

    held: H_co
    identity: str
    results: tuple[CheckResult, ...]
    rounding: tuple[Rounding, ...] = ()
    planning: Planning | None = None
    units: int = 0
    among: tuple[Judged[object], ...] = ()
    chosen: int = 0

    @property
    def chosen_plan(self) -> Judged[object]:
        """The plan that is taken, of several; else this."""
        return self.among[self.chosen] if self.among else self

    @property
    def verdict(self) -> Verdict:
        """The worst of the results."""
        return worst(r.verdict for r in self.results)

    @property
    def main(self) -> CheckResult:
        """The claim that the file is for."""
        return next((r for kind in MAIN for r in self.results if r.kind == kind), self.results[0])

    @property
    def first_refuted(self) -> CheckResult | None:
        """The first claim that does not hold."""
        return next((r for r in self.results if r.verdict is Verdict.REFUTED), None)

    @property
    def scale(self) -> int:
        """Units of its costs in a second; 0 where they are no times."""
        return self.units or (self.rounding[0].scale if self.rounding else 0)


@dataclass(frozen=True)
class Kind:
    """One kind of file.  `apart`: it is about a problem in a file of its own."""

    member: str
    checker: Callable[[Mapping[str, Member], Effort, Problems], Judged[object]]
    apart: bool = False

    def judge(self, members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[object]:
        """What its checker says; `ContainerError` for what is malformed, and for a member that nobody has read."""
        read = Members(members)
        judged = self.checker(read, effort, about)
        read.require_read()
        graph = program_of(judged.held)
        if graph is None or not graph.specified:
            return judged
        from ..specified.uses import specified_result

        specified = specified_result(graph, effort.budget)
        return judged if specified is None else replace(judged, results=(*judged.results, specified))

    @property
    def words(self) -> str:
        """What it is called."""
        return NAMES[self.member][0]


def kind_of(members: Mapping[str, Member]) -> Kind | None:
    """The kind of a container; None for one that only holds a problem, or nothing known."""
    return next((kind for kind in KINDS if kind.member in members), None)


def require_known(members: Mapping[str, Member], place: str) -> Kind:
    """The kind of a container; `ContainerError` for one that holds nothing that claims something."""
    if (kind := kind_of(members)) is not None:
        return kind
    names = ", ".join(sorted(set(members) - {MANIFEST})[:5]) or "none"
    raise ContainerError(place, f"holds nothing that this version knows (members: {names})")


def problem_by_hash(about: SelectionProblem | EGraph | None) -> Problems:
    """One problem under its hash; ValueError for one that is malformed."""
    from ...models.problem.selection_problem import SelectionProblem

    if about is None:
        return {}
    checked = about.check() if isinstance(about, SelectionProblem) else about
    return {checked.sha256(): checked}


def _plan(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[Plan]:
    from ...models.problem.unit import rounding_bound
    from ..joint.plan import check_any_plan

    checked = check_any_plan(
        members, samples=effort.samples, cells=effort.cells, notify=effort.notify, budget=effort.budget
    )
    problem = checked.planning.problem
    rounding = (Rounding(problem.scale, rounding_bound(problem)),)
    return Judged(checked.plan, checked.identity, checked.results, rounding, checked.planning, checked.scale)


def _pipeline(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[PipelineCertificate]:
    from ..pipelines.bound import PICO
    from ..pipelines.certificate import judge_members

    found = judge_members(members, effort.samples, effort.cells, effort.notify, effort.budget)
    return Judged(found[0], identity(members), *found[1:], units=PICO)


def _overlap(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[OverlapCertificate]:
    from ..overlap.certificate import judge_members

    found = judge_members(members, effort.samples, effort.cells, effort.notify, effort.budget)
    return Judged(found[0], identity(members), *found[1:])


def _views(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[SubmeshCertificate]:
    from ..views.certificate import judge_members

    found = judge_members(members, effort.samples, effort.cells, effort.notify, effort.budget)
    return Judged(found[0], identity(members), *found[1:])


def _portfolio(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[Portfolio]:
    from ...proofs.portfolio.file import decode_portfolio
    from ..portfolio.certificate import Checked, check_portfolio

    portfolio, found, plans = decode_portfolio(members), [], []
    for i, judged in enumerate(_judged_inside(portfolio.plans, effort)):
        asked, derived, machine, memory = _job(judged.held)
        plans.append(Checked(asked, derived, machine, memory, judged.scale, judged.main, judged.verdict))
        found.append(judged if i == portfolio.chosen else replace(judged, planning=None))  # tables are large
    inside = (replace(r, kind=f"{i}:{r.kind}") for i, judged in enumerate(found) for r in judged.results)
    taken = found[portfolio.chosen]
    results = (check_portfolio(plans, portfolio.chosen), *inside)
    rounding = tuple(
        replace(one, name=f"plan {i}{one.name and ', '}{one.name}") for i, f in enumerate(found) for one in f.rounding
    )
    return Judged(
        portfolio, identity(members), results, rounding, taken.planning, taken.scale, tuple(found), portfolio.chosen
    )


def _judged_inside(plans: Sequence[Mapping[str, Member]], effort: Effort) -> Iterator[Judged[object]]:
    """The plans of one file, one after another."""
    kept = 0
    for i, inner in enumerate(plans):
        try:
            kept += charge_reading(inner, effort.budget)
            effort.budget.hold(kept // KEPT, "container")
            yield require_known(inner, "plan").judge(inner, effort, {})
        except ContainerError as error:
            raise ContainerError(f"plan {i}, {error.place}", error.message) from None


def _sizes(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[CheckedSizes]:
    from ...models.cost.sized import SizeEnd
    from ...proofs.plan.bundle import Plan
    from ...proofs.portfolio.sizes import decode_sizes
    from ..portfolio.sizes import CheckedSizes, charge_sides, check_sizes, family_of, solution_of

    held, plans, ends, found, kept = decode_sizes(members), [], [], [], 0
    for size, judged in zip(held.head.sizes, _judged_inside(held.plans, effort), strict=True):
        if not isinstance(judged.held, Plan) or judged.planning is None:
            raise TypeError("a plan of placements alone is judged with its problem")
        charge_sides(judged.planning, effort.budget)
        kept += sum(table.size for table in judged.planning.problem.tables)
        effort.budget.hold(kept, "sizes")
        bound = judged.main.lower_bound if judged.main.verdict is Verdict.PROVED else None
        plans.append(judged.held)
        ends.append(SizeEnd(size, judged.planning, solution_of(judged.planning, judged.held), bound or 0))
        found.append(judged)
    bad = [next((r for r in judged.results if r.verdict is not Verdict.PROVED), judged.main) for judged in found]
    result, classes = check_sizes(held.head, plans, ends, bad, effort.budget)
    inside = (replace(r, kind=f"{i}:{r.kind}") for i, judged in enumerate(found) for r in judged.results)
    rounding = tuple(replace(one, name=f"plan {i}") for i, judged in enumerate(found) for one in judged.rounding)
    checked = CheckedSizes(held, family_of(held.head, plans), tuple(plans), tuple(ends), classes)
    return Judged(checked, identity(members), (result, *inside), rounding)


def program_of(held: object) -> Graph | None:
    """The program that a plan was asked for; None for what is no plan."""
    from ...proofs.selection.certificates import SelectionCertificate

    if isinstance(held, SelectionCertificate):  # kinds of plans take longest to load
        return None
    from ...proofs.overlap.certificate import OverlapCertificate
    from ...proofs.pipelines.certificate import PipelineCertificate
    from ...proofs.plan.bundle import Plan
    from ...proofs.views.certificate import SubmeshCertificate

    if isinstance(held, Plan):
        return held.user_graph
    return held.graph if isinstance(held, OverlapCertificate | PipelineCertificate | SubmeshCertificate) else None


def _job(held: object) -> tuple[Graph, Graph, Machine, int | None]:
    """Program that was asked about, the one that rules made of it, machine and memory limit of a plan."""
    from ...proofs.overlap.certificate import OverlapCertificate
    from ...proofs.pipelines.certificate import PipelineCertificate
    from ...proofs.plan.bundle import Plan
    from ...proofs.views.certificate import SubmeshCertificate

    match held:
        case Plan():
            return held.user_graph, held.graph, held.machine, held.memory_limit
        case OverlapCertificate() | PipelineCertificate():
            return held.graph, held.graph, held.machine, held.memory
        case SubmeshCertificate():
            return held.graph, held.graph, held.machine, held.memory
        case _:
            raise TypeError(f"{type(held).__name__} is no plan")


def charge_reading(members: Mapping[str, Member], budget: Budget) -> int:
    """Charge taking the texts of a container apart; bytes that their values take at most."""
    needed = sum(needs(content) for content in members.values() if isinstance(content, bytes))
    budget.charge(READING * needed, "container")
    return needed


def _library(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[CheckedLibrary]:
    from ..rewrites.library import check_members, library_result

    checked = check_members(members, effort.budget)
    return Judged(checked, identity(members), (library_result(checked.rules),))


def _reduction(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[ReductionCertificate]:
    from ...proofs.collective_programs.file import decode_reduction
    from ..collective_programs.program import check_reduction

    certificate = decode_reduction(members)
    return Judged(certificate, identity(members), check_reduction(certificate, effort.budget))


def _placement(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[PlacementCertificate]:
    from ...proofs.collective_programs.file import decode_placement
    from ..collective_programs.placement import check_placement

    certificate = decode_placement(members)
    return Judged(certificate, identity(members), (check_placement(certificate, effort.budget),))


def _schedule(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[ScheduleCertificate]:
    from ..schedules.certificate import check_members

    certificate, result = check_members(members, effort.budget)
    return Judged(certificate, identity(members), (result,))


def _equality(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[Pair]:
    from ..equality.certificate import check_members

    pair, result = check_members(members, effort.budget)
    return Judged(pair, identity(members), (result,))


@dataclass(frozen=True, eq=False)
class Tied:
    """A job, with what was found of the plan and of the proof inside."""

    job: Job
    plan: Judged[object]
    proof: Judged[object]


def _job_file(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[Tied]:
    from ...models.equality.pair import Pair
    from ...proofs.equality.job import PLAN, PROOF, decode_job
    from ...proofs.plan.bundle import Plan
    from ..equality.job import check_job

    job, found, kept = decode_job(members), [], 0
    for name, inner in ((PLAN, job.plan), (PROOF, job.equality)):
        try:
            kept += charge_reading(inner, effort.budget)
            effort.budget.hold(kept // KEPT, "container")
            found.append(require_known(inner, name).judge(inner, effort, {}))
        except ContainerError as error:
            raise ContainerError(f"{name}, {error.place}", error.message) from None
    planned, equal = found
    if not isinstance(planned.held, Plan) or planned.held.joint is not None or not isinstance(equal.held, Pair):
        raise ContainerError(PLAN, "is no plan of the program that it was asked for, all operators on all devices")
    results = check_job(job, planned.held, planned.results, planned.main, equal.held, equal.main)
    held = Tied(job, planned, equal)
    return Judged(held, identity(members), results, planned.rounding, planned.planning, planned.units)


def _extraction(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[ExtractionCertificate]:
    from ...models.egraphs.egraph import EGraph
    from ...proofs.egraphs.file import decode_extraction
    from ..egraphs.extraction import check_extraction

    certificate = decode_extraction(members)
    egraph = _about(about, certificate.egraph_sha256, "an extraction from the e-graph", "e-graph")
    if not isinstance(egraph, EGraph):
        raise ContainerError("file", "is an extraction, and the problem with its hash is no e-graph")
    return Judged(certificate, identity(members), (check_extraction(egraph, certificate, effort.budget),))


def _certificate(members: Mapping[str, Member], effort: Effort, about: Problems) -> Judged[SelectionCertificate]:
    from ...models.problem.selection_problem import SelectionProblem
    from ...proofs.selection.file import decode_certificate
    from ..selection.certificate import check_selection

    certificate = decode_certificate(members)
    digest = certificate.problem_sha256
    problem = _about(about, digest, "a certificate of the problem", "problem")
    if not isinstance(problem, SelectionProblem):
        raise ContainerError("file", "is a certificate of a selection problem, and its hash is that of an e-graph")
    return Judged(certificate, identity(members), (check_selection(problem, certificate, digest, effort.budget),))


def _about(about: Problems, digest: str, what: str, kind: str) -> SelectionProblem | EGraph:
    if digest not in about:
        raise ContainerError("file", f"is {what} with sha256 {digest[:16]}..; give that {kind}'s file too")
    return about[digest]


KINDS: Final = (
    Kind("plan.json", _plan),
    Kind("library.json", _library),
    Kind("reduction.json", _reduction),
    Kind("placement.json", _placement),
    Kind("pipeline.json", _pipeline),
    Kind("overlap.json", _overlap),
    Kind("views.json", _views),
    Kind(PORTFOLIO, _portfolio),
    Kind(SIZES, _sizes),
    Kind("schedule.json", _schedule),
    Kind(JOB, _job_file),
    Kind("equality.json", _equality),
    Kind("extraction.json", _extraction, apart=True),
    Kind("certificate.json", _certificate, apart=True),
)
"""In the order in which members give a kind away: a plan holds a certificate, too."""

"""The one place that sees both those who make results and those who check them: what is made is encoded, decoded
again, checked, and only then put into its place.

Both ways in come through here, the command line (`__main__.py`) and Python (`api.py`); the status that anybody sees is
the checker's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardproof.models.collective_programs.programs import Program, ReductionSystem
    from shardproof.models.communication.choices import Choices
    from shardproof.models.cost.selection import Planning
    from shardproof.models.egraphs.egraph import EGraph
    from shardproof.models.problem.claims import SelectionClaim
    from shardproof.models.problem.selection_problem import SelectionProblem
    from shardproof.models.program.graph import Graph
    from shardproof.models.sources.building.original import Comparison, Original
    from shardproof.proofs.collective_programs.certificate import PlacementCertificate, ReductionCertificate
    from shardproof.proofs.container.archive import Member
    from shardproof.proofs.egraphs.certificate import ExtractionCertificate
    from shardproof.proofs.overlap.certificate import OverlapCertificate
    from shardproof.proofs.pipelines.certificate import PipelineCertificate
    from shardproof.proofs.plan.bars import Bars
    from shardproof.proofs.plan.bundle import Plan
    from shardproof.proofs.publishing.publisher import Nearest, Published, Restricted
    from shardproof.proofs.rewrites.library import Library
    from shardproof.proofs.schedules.certificate import ScheduleCertificate
    from shardproof.proofs.selection.certificates import SelectionCertificate
    from shardproof.proofs.views.certificate import ViewsCertificate
    from shardproof.verify.budget import Budget
    from shardproof.verify.plan.plan import PlanCheck
    from shardproof.verify.verdict import CheckResult

    Notify = Callable[[int, int], None]

T = TypeVar("T")

SAMPLES: Final = 1_000
"""Samples that a checker takes of what it cannot enumerate."""


class OutOfTime(Exception):
    """The time for our own check is over; raised where it looks, so that there is no verdict."""


class FrontDoor:
    """Implements `proofs.publishing.publisher.Publisher`; see there what `late` and `keep` mean."""

    def __init__(self, late: Callable[[], bool] | None = None, keep: bool = True) -> None:
        self._late, self._keep = late, keep

    def within(self, late: Callable[[], bool], keep: bool = True) -> FrontDoor:
        """One whose checks end when `late` says so."""
        return FrontDoor(late, keep)

    def _look(self) -> None:
        if self._late is not None and self._late():
            raise OutOfTime

    def _publish(
        self,
        path: Path | None,
        data: bytes,
        cost: int | SelectionClaim | None,
        check: Callable[[Notify, Budget], tuple[str, tuple[CheckResult, ...]]],
        notify: Notify | None,
    ) -> Published:
        """Publish bytes after `check` has said what they are (identity, results); without a verdict where the time is
        over, or an interrupt arrives meanwhile.  `cost`: of what was made, or its claim.
        """
        from shardproof.models.files.output import write_file
        from shardproof.models.problem.claims import Verdict
        from shardproof.proofs.publishing.publisher import Published, SelfCheckFailed
        from shardproof.proofs.publishing.unchecked import unchecked
        from shardproof.verify.budget import Budget

        def told(done: int, total: int) -> None:
            self._look()
            if notify is not None:
                notify(done, total)

        budget = Budget.asked(self._look)
        try:
            told(0, 0)
            name, results = check(told, budget)
        except (OutOfTime, KeyboardInterrupt):
            if self._late is None:  # nobody limits it
                raise
            return unchecked(path if self._keep else None, data, cost)
        for r in results:
            if r.verdict is Verdict.REFUTED:
                raise SelfCheckFailed.of(r.kind, r.reason)
        if path is not None:
            write_file(path, data)
        main = next((r for kind in MAIN for r in results if r.kind == kind), results[0])
        weakest = next((r for r in (main, *results) if r.verdict is not Verdict.PROVED), main)
        claimed = (main.kind, main.cost, main.lower_bound, weakest.reason)
        return Published(weakest.verdict, *claimed, name, path, len(data), main.assumptions, budget.needs_large)

    def _members(
        self,
        path: Path | None,
        data: bytes,
        cost: int | SelectionClaim | None,
        check: Callable[[Mapping[str, Member], Notify, Budget], tuple[CheckResult, ...]],
        notify: Notify | None = None,
    ) -> Published:
        """Publish a container whose checker reads members."""
        from shardproof.proofs.container.archive import identity, read_container

        def whole(told: Notify, budget: Budget) -> tuple[str, tuple[CheckResult, ...]]:
            members = read_container(data)
            return identity(members), check(members, told, budget)

        return self._publish(path, data, cost, whole, notify)

    def plan(self, path: Path | None, plan: Plan, notify: Notify | None = None) -> Published:
        """Publish a plan: what the checker says of its bytes; the file appears only if nothing is refuted."""
        from shardproof.proofs.plan.bundle import write_plan
        from shardproof.verify.joint.plan import check_any_plan

        data = write_plan(None, plan)

        def check(told: Notify, budget: Budget) -> tuple[str, tuple[CheckResult, ...]]:
            checked = check_any_plan(data, notify=told, budget=budget)
            return checked.identity, checked.results

        return self._publish(path, data, plan.certificate.claim, check, notify)

    def certificate(self, path: Path | None, certificate: SelectionCertificate, problem: SelectionProblem) -> Published:
        """Publish a certificate of a selection problem."""
        from shardproof.proofs.selection.file import decode_certificate, write_certificate
        from shardproof.verify.selection.certificate import check_selection

        def check(members: Mapping[str, Member], told: Notify, budget: Budget) -> tuple[CheckResult, ...]:
            return (check_selection(problem, decode_certificate(members), None, budget),)

        return self._members(path, write_certificate(None, certificate), certificate.claim, check)

    def extraction(self, path: Path | None, certificate: ExtractionCertificate, egraph: EGraph) -> Published:
        """Publish an extraction from an e-graph."""
        from shardproof.proofs.egraphs.certificate import Extraction
        from shardproof.proofs.egraphs.file import decode_extraction, write_extraction
        from shardproof.verify.egraphs.extraction import check_extraction

        def check(members: Mapping[str, Member], told: Notify, budget: Budget) -> tuple[CheckResult, ...]:
            return (check_extraction(egraph, decode_extraction(members), budget),)

        cost = certificate.claim.cost if isinstance(certificate.claim, Extraction) else None
        return self._members(path, write_extraction(None, certificate), cost, check)

    def reduction(self, path: Path | None, certificate: ReductionCertificate | PlacementCertificate) -> Published:
        """Publish placements, or reduction programs with their proofs."""
        from shardproof.proofs.collective_programs.certificate import ReductionCertificate
        from shardproof.proofs.collective_programs.file import write_placement, write_reduction
        from shardproof.verify.collective_programs.program import check_members

        data = (
            write_reduction(None, certificate)
            if isinstance(certificate, ReductionCertificate)
            else write_placement(None, certificate)
        )
        return self._members(path, data, None, lambda members, _, budget: check_members(members, budget))

    def schedule(self, path: Path | None, certificate: ScheduleCertificate) -> Published:
        """Publish a schedule with its lower bound."""
        from shardproof.proofs.schedules.file import write_schedule
        from shardproof.verify.schedules.certificate import check_members

        def check(members: Mapping[str, Member], told: Notify, budget: Budget) -> tuple[CheckResult, ...]:
            return (check_members(members, budget)[1],)

        return self._members(path, write_schedule(None, certificate), certificate.makespan, check)

    def bars(self, planning: Planning, x: tuple[int, ...], bars: Bars, bound: int | None) -> Published:
        """What the checker says of the machines within a machine's error bars."""
        from shardproof.models.problem.claims import Verdict
        from shardproof.proofs.publishing.publisher import Published
        from shardproof.verify.budget import Budget
        from shardproof.verify.plan.bars import wrong_bars

        try:
            self._look()
            wrong = wrong_bars(planning, x, bars, bound, Budget.asked(self._look))
        except OutOfTime:
            return Published(Verdict.UNDECIDED, "Bars", None, None, "not checked here", "", None, 0, checked=False)
        verdict = Verdict.REFUTED if wrong else Verdict.PROVED
        return Published(verdict, "Bars", planning.problem.cost_of(x), None, wrong, "", None, 0)

    def pipeline(self, path: Path | None, certificate: PipelineCertificate, notify: Notify | None = None) -> Published:
        """Publish a pipelined training step."""
        from shardproof.proofs.pipelines.file import write_pipeline
        from shardproof.verify.pipelines.certificate import check_members

        return self._members(path, write_pipeline(None, certificate), certificate.step, _sampled(check_members), notify)

    def overlap(self, path: Path | None, certificate: OverlapCertificate, notify: Notify | None = None) -> Published:
        """Publish an overlapped plan."""
        from shardproof.proofs.overlap.file import write_overlap
        from shardproof.verify.overlap.certificate import check_members

        cost = None if certificate.schedule is None else certificate.makespan
        return self._members(path, write_overlap(None, certificate), cost, _sampled(check_members), notify)

    def views(self, path: Path | None, certificate: ViewsCertificate, notify: Notify | None = None) -> Published:
        """Publish a plan with views."""
        from shardproof.proofs.views.file import write_views
        from shardproof.verify.views.certificate import check_members

        data, claim = write_views(None, certificate), certificate.least.claim
        return self._members(path, data, claim, _sampled(check_members), notify)

    def rules(self, path: Path | None, library: Library) -> dict[str, str]:
        """Publish judgements of rules: rule -> what the checker says of it (proved, refuted, vacuous, undecided,
        derived).

        Derivations come from a search that tests one instance; those that do not replay for all shapes are left out
        ("rejected").
        """
        from dataclasses import replace

        from shardproof.models.files.output import write_file
        from shardproof.proofs.container.archive import read_container
        from shardproof.proofs.publishing.publisher import SelfCheckFailed
        from shardproof.proofs.rewrites.library import write_library
        from shardproof.verify.rewrites.library import check_members

        data = write_library(None, library)
        _, results = check_members(read_container(data))
        words = {r.name: r.word for r in results}
        if any(words[d.rule.name] == "rejected" for d in library.derivations):
            kept = tuple(d for d in library.derivations if words[d.rule.name] != "rejected")
            return words | self.rules(path, replace(library, derivations=kept))
        for r in results:
            if r.word == "rejected":
                raise SelfCheckFailed.of(r.name, r.reason)
        if path is not None:
            write_file(path, data)
        return words

    def compared(self, graph: Graph, original: Original, wanted: bool, trained: bool) -> Comparison:
        """An imported graph beside the program that it came from."""
        from shardproof.backends.execution.differential import compare

        return compare(graph, original, wanted, trained)

    def program(self, model: str, batch: int | None, train: str | None, loss: str | None, recompute: str) -> Graph:
        """The graph of a model that the reader of a plan means, or of its training step, as `plan` would have it."""
        from shardproof.models.sources.load import load_model
        from shardproof.models.verbs.describe import training_of

        graph = load_model(model, batch, trained=train is not None)
        step = training_of(graph, train, loss, recompute)
        return graph if step is None else step.graph

    def checked_plan(self, path: Path) -> tuple[Plan, str]:
        """Read a plan and check it: nothing is done with a plan that is refuted."""
        from shardproof.models.problem.claims import Verdict
        from shardproof.proofs.container.archive import LIMITS, read_file
        from shardproof.proofs.container.canonical import ContainerError
        from shardproof.proofs.plan.bundle import read_plan
        from shardproof.proofs.publishing.publisher import RefutedPlan
        from shardproof.verify.joint.plan import check_any_plan

        data = read_file(path, LIMITS.file)
        try:
            plan, name = read_plan(data)
        except ContainerError as error:
            raise ContainerError(f"{path}, {error.place}", error.message) from None
        for r in check_any_plan(data).results:
            if r.verdict is Verdict.REFUTED:
                raise RefutedPlan(f"{path}: {r.kind} is refuted: {r.reason}")
        return plan, name

    def checked_pipeline(self, path: Path) -> tuple[PipelineCertificate, str] | None:
        """Read a pipelined step and check it; None if the file is something else."""
        from shardproof.proofs.pipelines.file import PIPELINE
        from shardproof.verify.pipelines.certificate import judged

        return _checked(path, PIPELINE, lambda *given: judged(*given)[:2])

    def checked_overlap(self, path: Path) -> tuple[OverlapCertificate, str, int] | None:
        """Read an overlapped plan and check it; None if the file is something else."""
        from shardproof.proofs.overlap.file import OVERLAP
        from shardproof.verify.overlap.certificate import judged

        def both(
            members: Mapping[str, Member], samples: int, cells: int
        ) -> tuple[tuple[OverlapCertificate, int], tuple[CheckResult, ...]]:
            found, results, rounding = judged(members, samples, cells)
            return (found, rounding[0].scale if rounding else 0), results

        read = _checked(path, OVERLAP, both)
        return None if read is None else (read[0][0], read[1], read[0][1])

    def checked_views(self, path: Path) -> tuple[ViewsCertificate, str] | None:
        """Read a plan with views and check it; None if the file is something else."""
        from shardproof.proofs.views.file import VIEWS
        from shardproof.verify.views.certificate import judged

        return _checked(path, VIEWS, lambda *given: judged(*given)[:2])

    def restricted(
        self, path: Path, vocabulary: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Restricted:
        """Plan again within what a framework says (`formal.planning.vocabulary`); both plans are checked."""
        from fractions import Fraction

        from shardproof.formal.planning.vocabulary import plan_within
        from shardproof.formal.selection.model.clock import budget
        from shardproof.models.problem.claims import Verdict
        from shardproof.models.text import InputError
        from shardproof.proofs.plan.bundle import write_plan
        from shardproof.proofs.publishing.publisher import Restricted, SelfCheckFailed
        from shardproof.verify.plan.plan import check_plan

        def proved(checked: PlanCheck) -> tuple[Fraction, Fraction]:
            main = next(r for r in checked.results if r.kind in ("Optimal", "WithinGap"))
            scale = checked.planning.problem.scale
            return Fraction(main.cost or 0, scale), Fraction(main.lower_bound or 0, scale)

        plan, _ = self.checked_plan(path)
        if not plan.choices.operators:
            raise InputError(f"{path} has no choices: nothing was found that fits its memory limit")
        if plan.joint is not None:
            raise InputError(
                f"{path}: is a joint plan, which is not planned again within a vocabulary; plan its model without "
                f"--joint: plan MODEL --vocabulary {vocabulary}"
            )
        planned = plan_within(plan, vocabulary, budget("default" if time_limit_s is None else time_limit_s, work_limit))
        if planned.plan is None:
            raise InputError(
                f"{path}: no plan within what {vocabulary} says was found; give it more time or more memory"
            )
        checked = check_plan(write_plan(None, planned.plan))
        bad = next((r for r in checked.results if r.verdict is Verdict.REFUTED), None)
        if bad is not None:
            raise SelfCheckFailed.of(bad.kind, bad.reason)
        return Restricted(vocabulary, checked.plan, checked.identity, proved(check_plan(path)), proved(checked))

    def nearest(self, path: Path, framework: str, time_limit_s: float | None, work_limit: int | None = None) -> Nearest:
        """The settings of a framework nearest to a plan (`formal.explain.nearest`); all certificates are checked."""
        from shardproof.models.text import InputError
        from shardproof.verify.plan.plan import check_plan

        plan, _ = self.checked_plan(path)
        if plan.joint is not None:
            raise InputError(f"{path}: settings are compared with plans of one program; plan its model without --joint")
        return self.nearest_to(check_plan(path), framework, time_limit_s, work_limit)

    def nearest_to(
        self, checked: PlanCheck, framework: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Nearest:
        """`nearest` of a plan that was checked."""
        from shardproof.formal.explain.nearest import nearest_to
        from shardproof.formal.selection.model.clock import budget
        from shardproof.models.problem.claims import Verdict

        def confirmed(certificate: SelectionCertificate, problem: SelectionProblem) -> bool:
            return self.certificate(None, certificate, problem).verdict is Verdict.PROVED

        main = next((r for r in checked.results if r.kind in ("Optimal", "WithinGap", "LowerBound")), None)
        claimed = (None, None) if main is None else (main.cost, main.lower_bound)
        clock = budget("default" if time_limit_s is None else time_limit_s, work_limit)
        return nearest_to(checked.planning, checked.plan, checked.identity, claimed, framework, clock, confirmed)

    def measure(
        self, system: ReductionSystem, programs: Sequence[Program], payload: int, repeats: int, timeout_s: float
    ) -> list[tuple[float, ...]]:
        """Times of reduction programs on MPI ranks, for `machine calibrate`; see `formal.verbs.calibrate.Measurer`."""
        from shardproof.backends.execution.collective_programs import run_mpi
        from shardproof.backends.execution.launch import LaunchError

        outcomes = run_mpi(programs, system, payload // (8 * system.chunks), repeats=repeats, timeout_s=timeout_s)
        if not all(o.correct for o in outcomes):
            raise LaunchError("MPI returned a wrong sum; nothing can be calibrated with it")
        return [o.seconds for o in outcomes]

    def measure_parts(
        self,
        graph: Graph,
        hierarchy: tuple[int, ...],
        candidates: Sequence[Choices],
        rounds: int,
        timeout_s: float,
        backend: str,
    ) -> tuple[list[tuple[int, int, tuple[float, ...]]], list[tuple[int, int, tuple[float, ...]]]]:
        """Times of the distinct operators and redistributions of plans on MPI ranks; see
        `formal.verbs.calibrate.PartsMeasurer`.
        """
        from shardproof.backends.execution.job import Options
        from shardproof.backends.execution.timing import measure

        options = Options(fuse=False, overlap=False, backend=backend)
        times = measure(
            graph, hierarchy, candidates, rounds=rounds, wholes=False, parts=True, options=options, timeout_s=timeout_s
        )
        return [(p.candidate, p.number, p.seconds) for p in times.operators], [
            (p.candidate, p.number, p.seconds) for p in times.movements
        ]


def _checked(
    path: Path,
    member: str,
    check: Callable[[Mapping[str, Member], int, int], tuple[T, tuple[CheckResult, ...]]],
) -> tuple[T, str] | None:
    """What the container at `path` holds under `member`, as `check` read it, and its identity; None if the file is
    something else, `RefutedPlan` if one of its claims is refuted.
    """
    from shardproof.models.problem.claims import Verdict
    from shardproof.proofs.container.archive import LIMITS, identity, read_container, read_file
    from shardproof.proofs.container.canonical import ContainerError
    from shardproof.proofs.publishing.publisher import RefutedPlan
    from shardproof.verify.plan.tables import CELLS

    try:
        members = read_container(read_file(path, LIMITS.file))
        if member not in members:
            return None
        found, results = check(members, SAMPLES, CELLS)
    except ContainerError as error:
        raise ContainerError(f"{path}, {error.place}", error.message) from None
    for r in results:
        if r.verdict is Verdict.REFUTED:
            raise RefutedPlan(f"{path}: {r.kind} is refuted: {r.reason}")
    return found, identity(members)


def _sampled(
    check: Callable[[Mapping[str, Member], int, int, Notify | None, Budget], tuple[object, tuple[CheckResult, ...]]],
) -> Callable[[Mapping[str, Member], Notify, Budget], tuple[CheckResult, ...]]:
    """A checker of a kind of its own, with as many samples and cells as everybody takes."""
    from shardproof.verify.plan.tables import CELLS

    return lambda members, told, budget: check(members, SAMPLES, CELLS, told, budget)[1]


MAIN: Final = ("Optimal", "WithinGap", "LowerBound", "Infeasible", "Best", "Cheapest", "Impossible", "Count")
"""Kinds of results, those first that say most of a file."""

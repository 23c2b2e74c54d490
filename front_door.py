"""The one place that sees both those who make results and those who check them: what is made is encoded, decoded
again, checked, and only then put into its place.

Both ways in come through here, the command line (`__main__.py`) and Python (`api.py`); the status that anybody sees is
the checker's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardproof.models.collective_programs.programs import Program, ReductionSystem
    from shardproof.models.communication.choices import Choices
    from shardproof.models.cost.selection import Planning
    from shardproof.models.egraphs.egraph import EGraph
    from shardproof.models.problem.selection_problem import SelectionProblem
    from shardproof.models.program.graph import Graph
    from shardproof.models.sources.building.original import Comparison, Original
    from shardproof.proofs.collective_programs.certificate import ReductionCertificate
    from shardproof.proofs.joint.books import Book
    from shardproof.proofs.plan.error_bounds import ErrorBounds
    from shardproof.proofs.publishing.publisher import Among, AnyPlan, Nearest, Opened, Published, Restricted
    from shardproof.proofs.rewrites.library import Library
    from shardproof.verify.verbs.kinds import Effort, Judged

    Times = list[tuple[int, int, tuple[float, ...]]]


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

    def publish(
        self,
        path: Path | None,
        data: bytes,
        about: SelectionProblem | EGraph | None = None,
        notify: Callable[[int, int], None] | None = None,
    ) -> Published:
        """What the checker says of the bytes; the file appears only if nothing is refuted, or without a verdict where
        the time is over, or an interrupt arrives meanwhile.
        """
        from contextlib import nullcontext

        from shardproof.models.files.output import write_file
        from shardproof.models.terminal.ticks import ticking
        from shardproof.proofs.container.archive import read_container
        from shardproof.proofs.publishing.publisher import SelfCheckFailed
        from shardproof.proofs.publishing.unchecked import write_unchecked
        from shardproof.verify.budget import Budget
        from shardproof.verify.verbs.kinds import Effort, problem_by_hash, require_known

        def look_and_notify(done: int, total: int) -> None:
            self._look()
            if notify is not None:
                notify(done, total)

        effort = Effort(notify=look_and_notify, budget=Budget.with_large(self._look))
        try:
            with nullcontext() if self._late is None else ticking(self._look):  # a check may be long between two looks
                look_and_notify(0, 0)
                members = read_container(data)
                judged = require_known(members, "our own result").judge(members, effort, problem_by_hash(about))
        except (OutOfTime, KeyboardInterrupt):
            if self._late is None:  # nobody limits it
                raise
            return write_unchecked(path if self._keep else None, data)
        if (bad := judged.first_refuted) is not None:
            raise SelfCheckFailed.of(bad.kind, bad.reason)
        if path is not None:
            write_file(path, data)
        return publication(judged, effort, path, len(data))

    def open(self, path: Path) -> Opened:
        """Read and check a plan of whatever kind: nothing is done with one that is refuted."""
        from shardproof.proofs.container.archive import LIMITS, read_file
        from shardproof.proofs.container.canonical import ContainerError

        try:
            return self.read(read_file(path, LIMITS.file), path)
        except ContainerError as error:
            raise ContainerError(f"{path}, {error.place}", error.message) from None

    def read(self, data: bytes, path: Path | None = None) -> Opened:
        """The same of the bytes of a plan; `path`: where they stand."""
        from shardproof.proofs.container.archive import read_container
        from shardproof.proofs.container.kinds import require_plan
        from shardproof.proofs.publishing.publisher import RefutedPlan
        from shardproof.verify.verbs.kinds import Effort, require_known

        members, effort = read_container(data), Effort()
        require_plan(members)
        judged = require_known(members, "plan").judge(members, effort, {})
        if (bad := judged.first_refuted) is not None:
            where = "" if path is None else f"{path}: "
            raise RefutedPlan(f"{where}{bad.kind} is refuted: {bad.reason}")
        return open_judged(judged, effort, path, data)

    def programs(self, path: Path) -> tuple[ReductionCertificate, Published]:
        """Read and check reduction programs."""
        from shardproof.proofs.container.archive import LIMITS, read_container, read_file
        from shardproof.proofs.container.canonical import ContainerError
        from shardproof.proofs.container.kinds import require_kind
        from shardproof.proofs.publishing.publisher import RefutedPlan
        from shardproof.verify.verbs.kinds import Effort, require_known

        try:
            data, effort = read_file(path, LIMITS.file), Effort()
            members = read_container(data)
            require_kind(members, "reduction.json")
            judged = require_known(members, "reduction").judge(members, effort, {})
        except ContainerError as error:
            raise ContainerError(f"{path}, {error.place}", error.message) from None
        if (bad := judged.first_refuted) is not None:
            raise RefutedPlan(f"{path}: {bad.kind} is refuted: {bad.reason}")
        return cast("ReductionCertificate", judged.held), publication(judged, effort, path, len(data))

    def bars(self, planning: Planning, x: tuple[int, ...], bars: ErrorBounds, bound: int | None) -> Published:
        """What the checker says of the machines within a machine's error bars."""
        from shardproof.models.problem.claims import Verdict
        from shardproof.proofs.publishing.publisher import Published
        from shardproof.verify.plan.error_bounds import wrong_error_bounds

        wrong = wrong_error_bounds(planning, x, bars, bound)
        verdict = Verdict.REFUTED if wrong else Verdict.PROVED
        return Published(verdict, "Bars", planning.problem.cost_of(x), None, wrong, "", None, 0)

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
        results = check_members(read_container(data)).rules
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

    def book(self, where: Path) -> Book:
        """A library of rules for joint plans, checked before any search sees it (`Publisher.book`)."""
        from shardproof.proofs.container.archive import read_container, read_file
        from shardproof.proofs.container.canonical import ContainerError
        from shardproof.proofs.container.kinds import require_kind
        from shardproof.proofs.joint.books import LIMITS, read_book
        from shardproof.proofs.publishing.publisher import RefutedLibrary
        from shardproof.proofs.rewrites.plain import DEFAULTS
        from shardproof.verify.budget import Budget
        from shardproof.verify.rewrites.library import check_members

        try:
            data = read_file(where, LIMITS.file)
            members = read_container(data, LIMITS)
            require_kind(members, "library.json")
            budget = Budget.with_large(None if where in DEFAULTS else self._look)  # our own take two seconds
            results = check_members(members, budget).rules
            book = read_book(data)
        except OutOfTime:
            raise ContainerError(f"{where}", "was not checked within the time limit: give it more") from None
        except ContainerError as error:
            raise ContainerError(f"{where}, {error.place}", error.message) from None
        if bad := next((r for r in results if r.word == "rejected"), None):
            raise RefutedLibrary(f"{where}: the proof of rule {bad.name!r} is refuted: {bad.reason}")
        return book

    def compare_import(self, graph: Graph, original: Original, wanted: bool, trained: bool) -> Comparison:
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

    def replan_within(
        self, found: Opened, vocabulary: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Restricted:
        """See `formal.plans.vocabulary`."""
        from shardproof.formal.plans.vocabulary import replan_within
        from shardproof.formal.selection.model.clock import budget

        clock = budget("default" if time_limit_s is None else time_limit_s, work_limit)
        return replan_within(self, found, vocabulary, clock)

    def nearest(
        self, found: Opened, framework: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Nearest:
        """See `formal.explain.nearest`."""
        from shardproof.formal.explain.nearest import nearest_settings
        from shardproof.formal.selection.model.clock import budget

        clock = budget("default" if time_limit_s is None else time_limit_s, work_limit)
        return nearest_settings(self, found, framework, clock)

    def measure(
        self, system: ReductionSystem, programs: Sequence[Program], payload: int, repeats: int, timeout_s: float
    ) -> list[tuple[float, ...]]:
        """Times of reduction programs on MPI ranks, for `formal.verbs.calibrate.Measurer`."""
        from shardproof.backends.execution.collective_programs import seconds_on_ranks

        return seconds_on_ranks(system, programs, payload, repeats, timeout_s)

    def measure_parts(
        self,
        graph: Graph,
        hierarchy: tuple[int, ...],
        candidates: Sequence[Choices],
        rounds: int,
        timeout_s: float,
        backend: str,
    ) -> tuple[Times, Times]:
        """Times of operators and reshardings on MPI ranks, for `formal.verbs.calibrate.PartsMeasurer`."""
        from shardproof.backends.execution.timing import seconds_of_parts

        return seconds_of_parts(graph, hierarchy, candidates, rounds, timeout_s, backend)


def publication(judged: Judged[object], effort: Effort, path: Path | None, size: int) -> Published:
    """What was found, for whoever made or reads the file: the weakest of its claims decides."""
    from shardproof.models.problem.claims import Verdict
    from shardproof.proofs.publishing.publisher import Published

    main = judged.main
    weakest = next((r for r in (main, *judged.results) if r.verdict is not Verdict.PROVED), main)
    return Published(
        weakest.verdict,
        main.kind,
        main.cost,
        main.lower_bound,
        weakest.reason,
        judged.identity,
        path,
        size,
        main.assumptions,
        effort.budget.needs_large,
        among=tuple(among(judged)),
    )


def among(judged: Judged[object]) -> Iterator[Among]:
    """The plans of a portfolio."""
    from fractions import Fraction

    from shardproof.proofs.publishing.placed import asked_of, parts_among
    from shardproof.proofs.publishing.publisher import Among

    if not judged.among:
        return
    job = asked_of(cast("AnyPlan", judged.among[0].held))
    for one in judged.among:
        cost, bound = one.main.cost, Fraction(max(0, one.main.lower_bound or 0), one.scale)
        step = None if cost is None else Fraction(cost, one.scale)
        parts = parts_among(cast("AnyPlan", one.held), job)
        yield Among(parts, step, bound, one is judged.chosen_plan)


def open_judged(judged: Judged[object], effort: Effort, path: Path | None, data: bytes) -> Opened:
    """A plan with what was found; of several the one that is taken, with what is claimed beside all of them."""
    from shardproof.proofs.publishing.placed import asked_of
    from shardproof.proofs.publishing.publisher import Opened

    said = publication(judged, effort, path, len(data))
    job = asked_of(cast("AnyPlan", judged.among[0].held)) if judged.among else None
    return Opened(cast("AnyPlan", judged.chosen_plan.held), said, judged.scale, data, judged.planning, job)

"""The one place that sees both those who make results and those who check them: what is made is encoded, decoded
again, checked, and only then put into its place.

Both ways in come through here, the command line (`__main__.py`) and Python (`api.py`); the status that anybody sees is
the checker's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardproof.on_ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from shardproof.models.cost.selection import Planning
    from shardproof.models.cost.sized import SizedJob, SizeEnd
    from shardproof.models.egraphs.egraph import EGraph
    from shardproof.models.problem.selection_problem import SelectionProblem
    from shardproof.models.program.graph import Graph
    from shardproof.models.schedules.experts import ExpertPlaces
    from shardproof.proofs.collective_programs.certificate import ReductionCertificate
    from shardproof.proofs.joint.books import Book
    from shardproof.proofs.plan.error_bounds import ErrorBounds
    from shardproof.proofs.portfolio.sizes import Pick
    from shardproof.proofs.publishing.publisher import Encoded, Nearest, Opened, Published, Restricted
    from shardproof.proofs.rewrites.library import Library


class FrontDoor(Ranks):
    """Implements `proofs.publishing.publisher.Publisher`; see there what `late` and `keep` mean."""

    def __init__(self, late: Callable[[], bool] | None = None, keep: bool = True) -> None:
        self._late, self._keep = late, keep

    def within(self, late: Callable[[], bool], keep: bool = True) -> FrontDoor:
        """One whose checks end when `late` says so."""
        return FrontDoor(late, keep)

    def _look(self) -> None:
        if self._late is not None and self._late():
            from shardproof.proofs.publishing.publisher import OutOfTime

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
        from shardproof.proofs.publishing.publisher import OutOfTime, SelfCheckFailed
        from shardproof.proofs.publishing.unchecked import write_unchecked
        from shardproof.verify.budget import Budget
        from shardproof.verify.verbs.kinds import Effort, problem_by_hash, require_known
        from shardproof.verify.verbs.opening import publication

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
        """See `verify.verbs.opening`."""
        from shardproof.verify.verbs.opening import open_plan

        return open_plan(path)

    def read(self, data: bytes, path: Path | None = None) -> Opened:
        """See `verify.verbs.opening`."""
        from shardproof.verify.verbs.opening import read_plan

        return read_plan(data, path)

    def open_sized(self, path: Path, pick: Pick) -> Opened:
        """See `verify.verbs.opening`."""
        from shardproof.verify.verbs.opening import open_sized

        return open_sized(path, pick)

    def gap_between(
        self, job: SizedJob, step: int, ends: tuple[SizeEnd, SizeEnd], taken: SizeEnd, wanted: Fraction
    ) -> Fraction:
        """See `verify.portfolio.sizes`."""
        from shardproof.verify.budget import Budget
        from shardproof.verify.portfolio.sizes import class_between

        return class_between(job, step, ends, taken, wanted, Budget.with_large(self._look)).gap

    def programs(self, path: Path) -> tuple[ReductionCertificate, Published]:
        """See `verify.verbs.opening`."""
        from shardproof.verify.verbs.opening import open_programs

        return open_programs(path)

    def bars(self, planning: Planning, x: tuple[int, ...], bars: ErrorBounds, bound: int | None) -> Published:
        """See `verify.verbs.opening`."""
        from shardproof.verify.verbs.opening import judge_error_bounds

        return judge_error_bounds(planning, x, bars, bound)

    def rules(self, path: Path | None, library: Library) -> dict[str, str]:
        """See `verify.verbs.libraries`."""
        from shardproof.verify.verbs.libraries import publish_rules

        return publish_rules(path, library)

    def book(self, where: Path) -> Book:
        """A library of rules for joint plans (`verify.verbs.libraries`)."""
        from shardproof.verify.verbs.libraries import open_book

        return open_book(where, self._look)

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

    def export_text(self, path: Path, target: str) -> str:
        """See `backends.verbs.export`."""
        from shardproof.backends.verbs.export import layouts_text

        return layouts_text(self.open(path), target, False).text

    def encode(self, path: Path, to: str) -> Encoded:
        """See `formal.explain.encoded`."""
        from shardproof.formal.explain.encoded import encode_file

        return encode_file(self, path, to)

    def nearest(
        self, found: Opened, framework: str, time_limit_s: float | None, work_limit: int | None = None
    ) -> Nearest:
        """See `formal.explain.nearest`."""
        from shardproof.formal.explain.nearest import nearest_settings
        from shardproof.formal.selection.model.clock import budget

        clock = budget("default" if time_limit_s is None else time_limit_s, work_limit)
        return nearest_settings(self, found, framework, clock)

    def expert_places(self, found: ExpertPlaces) -> tuple[Fraction, Fraction]:
        """See `verify.verbs.experts`."""
        from shardproof.verify.verbs.experts import makespan_and_bound

        return makespan_and_bound(found)

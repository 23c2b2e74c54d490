"""What a plan with stages, streams or submeshes decided, as a report for people, as data and as a drawing."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...models.pipelines.work import PER_SECOND
from ...models.schedules.pipeline import Pipeline
from ...models.schedules.problem import ScheduleProblem
from ...models.text import InputError
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.publishing.publisher import Opened
from ...proofs.views.certificate import SubmeshCertificate
from ..explain.views import Branches, branch_summaries, submesh_json_of, submesh_lines_of
from ..plans.overlap.explain import OverlapReport, explain_overlap, render_overlap
from ..plans.pipelines.explain import PipelineReport, explain_pipeline, render_pipeline
from ..schedules.drawing import picture


@dataclass(frozen=True, eq=False)
class Explained:
    """`report`: of the parts of the plan."""

    opened: Opened
    report: PipelineReport | OverlapReport | Branches

    def lines(self) -> list[str]:
        """For people."""
        held = self.opened.held
        if isinstance(self.report, PipelineReport):
            return render_pipeline(self.report)
        if isinstance(self.report, OverlapReport):
            return render_overlap(self.report)
        assert isinstance(held, SubmeshCertificate)
        title = f"{held.graph.name} on {held.machine.name}, plan with submeshes {self.opened.identity[:16]}"
        return [title, *submesh_lines_of(held)]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        if isinstance(self.report, PipelineReport | OverlapReport):
            return self.report.to_json()
        assert isinstance(self.opened.held, SubmeshCertificate)
        return {"branches": submesh_json_of(self.opened.held)}

    def drawing(self) -> str:
        """The schedule as SVG.  Raises `InputError` for a plan without one."""
        held, subject, starts, problem = self.opened.held, None, None, None
        if isinstance(held, PipelineCertificate | OverlapCertificate) and held.schedule is not None:
            subject, starts = held.schedule.subject, held.schedule.starts
            problem = subject.problem() if isinstance(subject, Pipeline) else subject
        if starts is None or not isinstance(problem, ScheduleProblem):
            raise InputError(f"{self.opened.place}: there is no schedule to draw")
        name = f"{held.graph.name} on {held.machine.name}"
        if isinstance(held, PipelineCertificate):
            chunks = f" of {held.chunks} chunks" if held.chunks > 1 else ""
            return picture(problem, starts, f"{name}, {held.views} stages{chunks}", Fraction(held.quantum, PER_SECOND))
        times = held.quantum if isinstance(held, OverlapCertificate) else 1
        return picture(problem, starts, name, Fraction(times, self.opened.scale))


def explain_parts(found: Opened) -> Explained:
    """Raises TypeError for a plan of placements alone, which is explained operator by operator."""
    match found.held:
        case PipelineCertificate() as pipelined:
            return Explained(found, explain_pipeline(pipelined))
        case OverlapCertificate() as overlapped:
            return Explained(found, explain_overlap(overlapped, found.scale))
        case SubmeshCertificate() as viewed:
            return Explained(found, branch_summaries(viewed))
        case _:
            raise TypeError("a plan of placements alone is explained operator by operator")


def among_lines(found: Opened) -> list[str]:
    """Of the best of several plans: each of them.  Nothing of others."""
    several = found.published.among
    return [f"the best of {len(several)} plans:", *(f"  {one.words}" for one in several)] if several else []


def among_json(found: Opened) -> dict[str, object]:
    """The same as data."""
    return {"among": [one.to_json() for one in found.published.among]} if found.published.among else {}

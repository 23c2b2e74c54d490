"""`run` of a pipelined step: every stage in the order of its schedule."""

from __future__ import annotations

from collections.abc import Mapping

from ...models.schedules.pipeline import Pipeline
from ...proofs.pipelines.certificate import PipelineCertificate
from ..execution.pipeline import run_pipeline
from ..execution.pipeline_rank import run_pipeline_job
from ..kernels import Array
from ..lowering.stages import staged_program
from ..trace import Span
from .scheduled import RunRequest, RunResult, Subject, run_scheduled


def planned_spans(c: PipelineCertificate, first: int) -> list[Span]:
    """The schedule as times of one more line per stage, from number `first` on."""
    pipe, out = c.schedule.subject, []
    if isinstance(pipe, Pipeline):
        unit = c.quantum / 1e12
        starts = c.schedule.starts.reshape(3, len(c.stages), c.micro)
        views = c.views
        for k, phase in enumerate("FB"):
            for s in range(len(c.stages)):
                for i in range(c.micro):
                    begin = int(starts[k, s, i])
                    end = begin + pipe.times[s][k]
                    out.append(
                        Span(first + s % views, f"planned {phase}{i} of stage {s}", "compute", begin * unit, end * unit)
                    )
    return out


def run_pipelined(c: PipelineCertificate, identity: str, asked: RunRequest) -> int:
    """Execute a pipelined step and say what came of it."""

    def execute(arrays: Mapping[str, Array], stored: bool) -> RunResult:
        traced = asked.trace is not None or asked.pace > 0
        if asked.virtual:
            found = run_pipeline(staged_program(c, stored, asked.library), arrays, asked.timeout, traced, asked.pace)
            return RunResult(found.outputs, "virtual", found.spans, found.traffic, found.sent, _seconds(found.spans))
        outputs, spans, transport = run_pipeline_job(
            c, arrays, stored, traced, asked.timeout, asked.pace, asked.library
        )
        return RunResult(outputs, transport, spans, seconds=_seconds(spans))

    chunks = f" of {c.chunks} chunks" if c.chunks > 1 else ""
    kinds = f"{c.views} stages{chunks}, {c.micro} micro-batches"
    subject = Subject(
        c.graph,
        identity,
        f"pipelined plan {identity[:16]}, {kinds}",
        {"stages": c.views, "micro_batches": c.micro, **({"chunks": c.chunks} if c.chunks > 1 else {})},
        planned_spans(c, asked.ranks),
        {asked.ranks + s: f"stage {s} as planned" for s in range(c.views)},
        c.step / 1e12,
    )
    return run_scheduled(subject, asked, execute)


def _seconds(spans: tuple[Span, ...]) -> float | None:
    return max(s.end_s for s in spans) - min(s.start_s for s in spans) if spans else None

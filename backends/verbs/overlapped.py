"""`run` of an overlapped plan: operators and reshardings on two streams of every rank, in the
planned order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...models.program.graph import Graph
from ...proofs.overlap.certificate import OverlapCertificate
from ..execution.streams import elapsed_seconds, run_streams_virtual
from ..execution.streams_rank import run_streams_job
from ..kernels import Array
from ..lowering.streams import LINKS, StreamsProgram, streams_program
from ..trace import Span
from .scheduled import RunRequest, RunResult, Subject, run_scheduled

KIND = ("compute", "communication")
STREAM = ("operators", "redistributions")


def run_overlapped(c: OverlapCertificate, identity: str, scale: int, asked: RunRequest, job: Graph) -> int:
    """Execute an overlapped plan and say what came of it.  `scale`: units of its problem per second; `job`: what one
    process runs, whatever program was planned.
    """
    program = streams_program(c, scale)

    def execute(arrays: Mapping[str, Array], stored: bool) -> RunResult:
        if asked.virtual:
            found = run_streams_virtual(
                streams_program(c, scale, stored, asked.library), arrays, asked.pace, asked.timeout
            )
            spans = apart(found.spans)
            return RunResult(found.outputs, "virtual", spans, found.traffic, seconds=elapsed_seconds(spans))
        outputs, times, transport = run_streams_job(
            c, scale, arrays, stored, asked.pace, asked.timeout, library=asked.library
        )
        return RunResult(outputs, transport, apart(times), seconds=elapsed_seconds(times))

    moved = len(program.order[LINKS])
    subject = Subject(
        job,
        identity,
        f"overlapped plan {identity[:16]}, {len(program.order[0])} operators and {moved} reshardings beside them",
        {"operators": len(program.order[0]), "redistributions": moved},
        planned_spans(program, 2 * asked.ranks, max(1.0, asked.pace)),
        {
            **{2 * r + s: f"rank {r}: {STREAM[s]}" for r in range(asked.ranks) for s in (0, 1)},
            **{2 * asked.ranks + s: f"{STREAM[s]} as planned" for s in (0, 1)},
        },
        program.makespan,
    )
    return run_scheduled(subject, asked, execute)


def apart(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Two lines per rank, one of each stream."""
    return tuple(replace(s, rank=2 * s.rank + KIND.index(s.kind)) for s in spans)


def planned_spans(program: StreamsProgram, first: int, pace: float) -> list[Span]:
    """The schedule as times of two more lines, at a pace."""
    unit = program.unit * pace
    return [
        Span(first + t.stream, f"planned {t.name}", KIND[t.stream], t.start * unit, (t.start + t.time) * unit)
        for t in program.tasks
    ]

"""`run` of a pipelined step: every stage in the order of its schedule, compared with one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from ...models.schedules.pipeline import Pipeline
from ...models.terminal.console import Exit, Watch, emit, say
from ...proofs.pipelines.certificate import PipelineCertificate
from ..execution import comparison
from ..execution.array_files import read_inputs
from ..execution.interpreter import RankError
from ..execution.launch import LaunchError
from ..execution.pipeline import PipelineResult, run_pipeline
from ..execution.pipeline_rank import run_pipeline_job
from ..execution.provenance import made_up, of_run, rounds
from ..execution.reference import random_inputs, run_graph
from ..execution.step_report import losses, renewed, step_lines
from ..kernels import Array
from ..lowering.stages import staged
from ..trace import Span, chrome, write_json

Writer = Callable[[Path, Mapping[str, Array]], None]


def planned_spans(c: PipelineCertificate, first: int) -> list[Span]:
    """The schedule as times of one more rank per stage, from number `first` on."""
    pipe, out = c.schedule.subject, []
    if isinstance(pipe, Pipeline):
        unit = c.quantum / 1e12
        starts = c.schedule.starts.reshape(3, len(c.stages), c.micro)
        for k, phase in enumerate("FB"):
            for s in range(len(c.stages)):
                for i in range(c.micro):
                    begin = int(starts[k, s, i])
                    end = begin + pipe.times[s][k]
                    out.append(Span(first + s, f"planned {phase}{i} of stage {s}", "compute", begin * unit, end * unit))
    return out


def run_pipelined(
    c: PipelineCertificate,
    identity: str,
    ranks: int,
    virtual: bool,
    inputs: Path | None,
    seed: int,
    dtype: str | None,
    timeout: float,
    trace: Path | None,
    output: Path | None,
    write: Writer,
    as_json: bool,
) -> int:
    """Execute a pipelined step and say what came of it."""
    graph = c.graph
    stored = dtype == "own" or (dtype is None and rounds(graph))
    kind = None if stored else dtype or "float64"
    arrays = read_inputs(inputs, graph) if inputs is not None else random_inputs(graph, seed, kind)
    start = time.monotonic()
    try:
        with Watch(f"running on {ranks} {'virtual' if virtual else 'MPI'} ranks"):
            if virtual:
                found, transport = run_pipeline(staged(c, stored), arrays, timeout, trace is not None), "virtual"
            else:
                outputs, spans, transport = run_pipeline_job(c, arrays, stored, trace is not None, timeout)
                found = PipelineResult(outputs, (), (), spans)
    except (RankError, LaunchError) as error:
        first, *rest = str(error).split("\n")
        say(f"error: {first}", *(f"  {line}" for line in rest), err=True)
        return Exit.INTERNAL
    seconds = time.monotonic() - start
    with Watch("running in one process"):
        expected = run_graph(graph, arrays, stored=stored)
    worst, at = comparison.worst(found.outputs, expected, graph.results)
    precision = of_run(graph, arrays, stored)
    allowed = comparison.allowed(precision.computed)
    equal = worst <= allowed
    wrong = [t.place for t in found.traffic if not t.fits]
    wrong += [f"sending {t}" for t, sent, priced in found.sent if sent != priced]
    if trace is not None:
        write_json(trace, chrome([*found.spans, *planned_spans(c, ranks)], graph.name))
    if output is not None:
        write(output, found.outputs)
    kinds = f"{len(c.stages)} stages, {c.micro} micro-batches"
    made = made_up(graph, seed) if inputs is None else None
    if as_json:
        emit(
            {
                "identity": identity,
                "ranks": ranks,
                "transport": transport,
                "seconds": round(seconds, 3),
                "stages": len(c.stages),
                "micro_batches": c.micro,
                "equal": equal,
                "difference": worst if isfinite(worst) else None,
                "precision": asdict(precision),
                "made_up": None if made is None else asdict(made),
                "bytes_counted_equal_priced": None if not virtual else not wrong,
                "sent": {t: sent * graph.tensor(t).element_bytes for t, sent, _ in found.sent},
                "loss": {name: list(pair) for name, pair in losses(graph, found.outputs, expected).items()},
                "renewed": renewed(graph, found.outputs, expected, comparison.difference),
            }
        )
    else:
        say(
            f"{graph.name}: pipelined plan {identity[:16]}, {kinds}, {ranks} {'virtual' if virtual else 'MPI'} ranks, "
            f"transport {transport}, {seconds:.2f} s"
        )
        for line in (*([] if made is None else made.lines()), *precision.lines()):
            say("  " + line)
        if virtual:
            fits = sum(t.fits for t in found.traffic)
            say(
                f"  bytes counted = bytes priced in {fits} of {len(found.traffic)} movements of the stages and in "
                f"{sum(a == b for _, a, b in found.sent)} of {len(found.sent)} tensors sent between them"
            )
        for line in step_lines(graph, found.outputs, expected, comparison.difference):
            say("  " + line)
        say(
            f"  largest difference from one process: {worst:.2e} (allowed {allowed:g}): "
            f"{'equal' if equal else f'DIFFERENT, at {at}'}"
        )
    if wrong:
        say(f"error: bytes counted differ from those of the plan at: {', '.join(wrong[:5])}", err=True)
    return Exit.DONE if equal and not wrong else Exit.REFUTED

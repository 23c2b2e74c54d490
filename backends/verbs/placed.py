"""Runs a plan of placements alone on ranks, compares it with one process, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType

import numpy as np

from ...models.communication.root import root_transfers
from ...models.program.graph import Graph
from ...models.terminal.console import Exit, Watch, emit, report_error, say
from ...models.text import bytes_text
from ...proofs.plan.bundle import Plan
from ..execution import comparison, conditioning
from ..execution.array_files import read_inputs
from ..execution.interpreter import RankError
from ..execution.job import Options, build_program, machine_text
from ..execution.launch import LaunchError, run_job
from ..execution.provenance import made_up, of_run, rounds
from ..execution.reference import random_inputs, run_graph
from ..execution.run import Traffic, run_virtual
from ..execution.step_report import losses, predicted_peak, step_lines, worst_parameter
from ..kernels import Array
from ..lowering.collectives import count, uses
from ..lowering.movements import bytes_by_collective, root_lines
from ..lowering.program import Program
from ..trace import Span, chrome, summary, table, write_json
from .scheduled import RunRequest


@dataclass(frozen=True)
class Placed:
    """A checked plan of placements; `model`: the user's graph, which one process runs, whatever program was planned."""

    plan: Plan
    identity: str
    model: Graph


@dataclass(frozen=True)
class _Ran:
    """What ranks made: outputs, what each took when, bytes per resharding, and the most that a rank held (None: not
    measured).
    """

    outputs: Mapping[str, Array]
    spans: tuple[Span, ...]
    transport: str
    seconds: float
    traffic: tuple[Traffic, ...] = ()
    peak: int | None = None

    @property
    def mismatches(self) -> list[str]:
        """Reshardings whose bytes are not those of their price."""
        return [t.place for t in self.traffic if not t.fits]


def run_placed(placed: Placed, asked: RunRequest, xp: ModuleType, fuse: bool, overlap: bool) -> int:
    """Run on `asked.ranks` ranks with arrays of `xp`."""
    plan, model = placed.plan, placed.model
    stored = asked.dtype == "own" or (asked.dtype is None and rounds(plan.graph))
    arrays = (
        random_inputs(model, asked.seed, None if stored else asked.dtype or "float64")
        if asked.inputs is None
        else read_inputs(asked.inputs, model, None if stored else asked.dtype)
    )
    library = asked.library if asked.library != "numpy" else xp.__name__
    options = Options(fuse, overlap, True, library, stored, machine_text(plan.machine), asked.from_root)
    program = build_program(plan.graph, plan.machine.hierarchy, plan.choices, options)
    try:
        with Watch(f"running on {asked.ranks} {'virtual' if asked.virtual else 'MPI'} ranks"):
            ran = _execute(plan, program, arrays, asked, xp, options)
    except (RankError, LaunchError) as error:
        first, *rest = str(error).split("\n")
        return report_error(first, Exit.INTERNAL, asked.as_json, rest)
    with Watch("running in one process"):
        expected = run_graph(model, arrays, stored=stored)
    precision = of_run(model, arrays, stored)
    tolerance = comparison.tolerance_of(precision.computed)
    compared = conditioning.compare(model, arrays, ran.outputs, expected, tolerance, stored)
    made = made_up(model, asked.seed) if asked.inputs is None else None
    if asked.trace is not None:
        write_json(asked.trace, chrome(ran.spans, plan.graph.name))
    if asked.output is not None:
        asked.write(asked.output, ran.outputs)
    if asked.as_json:
        about = {"identity": placed.identity, "ranks": asked.ranks, "transport": ran.transport}
        equal = {"seconds": round(ran.seconds, 3), **compared.facts(), "precision": asdict(precision)}
        inputs = {"made_up": None if made is None else asdict(made)}
        emit({**about, **equal, **inputs, **_json(plan, program, asked, ran, expected)})
    else:
        kind = "virtual" if asked.virtual else "MPI"
        say(
            f"{plan.graph.name}: plan {placed.identity[:16]}, {asked.ranks} {kind} ranks, "
            f"{options.backend}, transport {ran.transport}, {ran.seconds:.2f} s",
            *("  " + line for line in (*([] if made is None else made.lines()), *precision.lines())),
            *("  " + line for line in _lines(plan, program, asked, ran)),
            *("  " + line for line in step_lines(plan.graph, ran.outputs, expected, comparison.difference)),
            *("  " + line for line in _memory_lines(plan, ran, overlap)),
            *("  " + line for line in compared.lines()),
        )
    if ran.mismatches:
        say(f"error: bytes counted differ from those of the plan at: {', '.join(ran.mismatches[:5])}", err=True)
    return Exit.DONE if compared.equal and not ran.mismatches else Exit.REFUTED


def _execute(
    plan: Plan, program: Program, arrays: Mapping[str, Array], asked: RunRequest, xp: ModuleType, options: Options
) -> _Ran:
    """Run on virtual or MPI ranks.  Raises `RankError`, `LaunchError`."""
    start = time.monotonic()
    if asked.virtual:
        measure = plan.memory_limit is not None
        result = run_virtual(program, arrays, xp, asked.timeout, trace=True, measure=measure)
        outputs = {k: _to_host(v) for k, v in result.outputs.items()}
        peak = max(result.peaks, default=None)
        return _Ran(outputs, result.spans, "virtual", time.monotonic() - start, result.traffic, peak)
    ended = run_job(plan.graph, plan.machine.hierarchy, plan.choices, arrays, options, asked.timeout)
    return _Ran(ended.outputs, ended.spans, ended.transport, time.monotonic() - start)


def _json(
    plan: Plan, program: Program, asked: RunRequest, ran: _Ran, expected: Mapping[str, Array]
) -> dict[str, object]:
    """Bytes, collectives, times, losses and memory of the run."""
    moved = bytes_by_collective(plan.graph, plan.machine.hierarchy, plan.choices, plan.machine)
    levels, times = [level.name for level in plan.machine.levels], summary(ran.spans, asked.ranks)
    return {
        "bytes": {name: dict(zip(levels, values, strict=True)) for name, values in moved.items()},
        "collectives": count(program),
        "movements": [asdict(u) for u in uses(program)],
        "operators": [{"name": r.name, "seconds": round(r.slowest_s, 6)} for r in times.rows if r.kind == "compute"],
        "compute_seconds": round(times.compute_s, 6),
        "wait_seconds": round(times.wait_s, 6),
        "flight_seconds": round(times.flight_s, 6),
        "overlap": None if times.overlap is None else round(times.overlap, 4),
        "bytes_counted_equal_priced": None if not asked.virtual else not ran.mismatches,
        "loss": {name: list(pair) for name, pair in losses(plan.graph, ran.outputs, expected).items()},
        "renewed": worst_parameter(plan.graph, ran.outputs, expected, comparison.difference),
        "peak_bytes": None if ran.peak is None else {"measured": ran.peak, "predicted": predicted_peak(plan)},
    }


def _lines(plan: Plan, program: Program, asked: RunRequest, ran: _Ran) -> Iterator[str]:
    """Bytes, collectives and times of the run."""
    levels = [level.name for level in plan.machine.levels]
    for name, values in bytes_by_collective(plan.graph, plan.machine.hierarchy, plan.choices, plan.machine).items():
        busiest = zip(values, levels, strict=True)
        yield f"{name:<36} " + ", ".join(f"{bytes_text(b)} into the busiest {level}" for b, level in busiest)
    calls = ", ".join(f"{n} {name}" for name, n in count(program).items())
    if asked.from_root:
        yield from root_lines(tuple(root_transfers(plan.graph, plan.machine, plan.choices)))
    yield f"collectives per rank: {calls or 'none'}"
    yield from table(summary(ran.spans, asked.ranks), asked.ranks)
    if asked.virtual:
        less = sum(t.fits and t.counted != t.priced for t in ran.traffic)
        unequal = f"; {less} with unequal parts moved less than their price" if less else ""
        fits = len(ran.traffic) - len(ran.mismatches) - less
        yield f"bytes counted = bytes priced in {fits} of {len(ran.traffic)} reshardings{unequal}"


def _memory_lines(plan: Plan, ran: _Ran, overlap: bool) -> Iterator[str]:
    """What the fullest rank held, where that was measured."""
    if ran.peak is not None:
        ahead = ", fetched ahead of time where that overlaps (--no-overlap: not)" if overlap else ""
        counts = f"the plan counts {bytes_text(predicted_peak(plan) or 0)}"
        yield f"memory: {bytes_text(ran.peak)} in live blocks of the fullest rank{ahead}; {counts}"


def _to_host(value: Array) -> Array:
    return value if isinstance(value, np.ndarray) else value.get()

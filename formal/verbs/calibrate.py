"""The verb `machine calibrate`: constants of a machine from measured times.

Times come from files that users have (`--from`, `calibrate_files`), of reduction programs from a CSV
(`formal.calibration.timings`), or are measured here on MPI ranks.  Measured here
as well: operators, to which the device's peaks, memory bandwidth and launch time are fitted, and, with `--model`, the
reshardings and every local operator shape of the model's placements, which become `[[profile]]` rows.  Measuring
needs `backends`, which this room does not see: the front door hands over something with the methods of `Measurer` and
`PartsMeasurer`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click

from ...models.collective_programs.cost import Algorithm
from ...models.collective_programs.parallelism import PlacementProblem, ReductionRequest
from ...models.collective_programs.programs import Program, ReductionSystem
from ...models.communication.choices import Choices
from ...models.cost.selection import build
from ...models.files.output import write_file
from ...models.machine.machine import Machine, load_machine
from ...models.machine.quantities import Dimension, show
from ...models.machine.text import to_toml
from ...models.program.graph import Graph
from ...models.sources.load import load_model
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    BATCH,
    SECONDS,
    Count,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
)
from ...models.text import InputError
from ...models.verbs.describe import training_of
from ...models.verbs.optimizer import OPTIMIZER
from ..calibration.timings import Timing, program_of, read_timings, select_timings, write_timings
from ..plans.plan import default_space
from .calibrate_files import Given, calibrate_from
from .combinations import CALIBRATE

if TYPE_CHECKING:
    from ..calibration.calibrate import Calibration, Constant
    from ..calibration.fit import Residuals
    from ..calibration.parts import PartsCalibration, PartTimes


@dataclass(frozen=True)
class CalibrateOptions:
    """The command line of `calibrate`.  Measured here, beside collectives: operators, and with a `model` its
    reshardings and operator shapes.
    """

    machine_name: str
    timings: Path | None
    files: tuple[Path, ...]
    operation: str | None
    plan: Path | None
    keep: tuple[str, ...]
    conditions: tuple[str, ...]
    held: tuple[str, ...]
    latencies: bool
    model: str | None
    train: str | None
    batch: int | None
    backend: str
    rounds: int
    time_limit: float
    save: Path | None
    output: Path | None
    as_json: bool


_PROGRAMS = ("AllReduce", "RS.A AG.A", "R.A B.A")


@runtime_checkable
class Measurer(Protocol):
    """Runs programs on one MPI rank per device and returns the seconds of every repetition of each; payload in
    bytes per device.
    """

    def measure(
        self, system: ReductionSystem, programs: Sequence[Program], payload: int, repeats: int, timeout_s: float
    ) -> list[tuple[float, ...]]:
        """Raises when a rank fails or a result is wrong."""
        ...


@runtime_checkable
class PartsMeasurer(Protocol):
    """Times the distinct operators and reshardings of candidate plans on one MPI rank per device
    (`formal.calibration.parts.PartTimes`).
    """

    def measure_parts(
        self,
        graph: Graph,
        hierarchy: tuple[int, ...],
        candidates: Sequence[Choices],
        rounds: int,
        timeout_s: float,
        backend: str,
    ) -> tuple[PartTimes, PartTimes]:
        """(operators, reshardings); `backend`: numpy or cupy.  Raises when a rank fails."""
        ...


@click.command("calibrate")
@click.argument("machine_name", metavar="MACHINE")
@click.option(
    "--timings",
    type=click.Path(path_type=Path),
    help="CSV of measured times; without it, the machine's devices are MPI ranks here.",
)
@click.option(
    "--from",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Output of nccl-tests, a Chrome trace of PyTorch's profiler or of 'run --trace', or a table (CSV, JSON) of "
    "collectives, products or training steps; gzipped or not (repeatable).",
)
@click.option("--operation", help="With --from: the collective of a file that does not name it.")
@click.option("--plan", type=click.Path(path_type=Path), help="With --from: the plan that a trace of ours ran.")
@click.option("--keep", multiple=True, metavar="CONSTANT", help="With --from: do not fit this constant (repeatable).")
@click.option("--where", "conditions", multiple=True, metavar="COLUMN=VALUE", help="Use only these lines (repeatable).")
@click.option(
    "--hold-out",
    "held",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Judge on these lines, fit on the others (repeatable).",
)
@click.option("--latencies", is_flag=True, help="Fit latencies as well (always on when measuring here).")
@click.option(
    "--model",
    help="Measure this model's operators and reshardings, and write its operators' times as profile rows.",
)
@click.option("--train", type=OPTIMIZER, help="With --model: its training step.")
@click.option("--batch", type=BATCH, help="With --model: the batch size.")
@click.option(
    "--backend",
    type=click.Choice(["numpy", "cupy"]),
    default="numpy",
    show_default=True,
    help="What computes the operators that are measured.",
)
@click.option(
    "--rounds",
    type=Count(1, 1000),
    default=9,
    show_default=True,
    help="Times that every operator is measured; the fastest counts.",
)
@click.option("--time-limit", type=SECONDS, default=120.0, show_default=True, help="Seconds for each start of MPI.")
@output_option("--save", help="Write the times measured here as CSV.")
@output_option("-o", "--output", help="Write the calibrated machine (TOML).")
@force_option
@json_option
@click.pass_context
@refuse_combinations(CALIBRATE)
@options_as(CalibrateOptions)
def calibrate_command(ctx: click.Context, options: CalibrateOptions) -> int:
    """Fit a machine's constants to measured times of collectives and operators, and say how well they fit."""
    from ..calibration.calibrate import calibrate, residuals

    start = time.monotonic()
    machine, output = load_machine(options.machine_name), options.output
    conditions, held = pairs(options.conditions, "--where"), pairs(options.held, "--hold-out")
    if options.files:
        given = Given(options.files, options.operation, options.plan, options.keep, conditions, held)
        return calibrate_from(machine, given, output, options.as_json)
    here = options.timings is None
    latencies = options.latencies or here
    if options.timings is None:
        rows = measured_collectives(ctx.obj, machine, options.time_limit)
        if options.save is not None:
            write_timings(options.save, rows)
    else:
        rows = read_timings(options.timings)
    rows = select_timings(rows, conditions)
    kept = select_timings(rows, held) if held else []
    if held and not kept:
        raise InputError("--hold-out chooses no row")
    fitted = [r for r in rows if r not in kept]
    result = calibrate(machine, fitted, kept, latencies)
    parts = _parts(ctx.obj, result.machine, options) if here else None
    final = result.machine if parts is None else parts.machine
    again = () if parts is None else parts.constants
    constants = [*(c for c in result.constants if c.path not in {d.path for d in again}), *again]
    moved = parts is not None and parts.movements_fitted is not None
    judgements = _judgements(result, parts, residuals(final, fitted, latencies) if moved else None)
    if output is not None:
        write_file(output, to_toml(final).encode())
    if options.as_json:
        document = _constants_json(machine.name, constants)
        document |= {key: None if r is None else r.as_json() for key, _, r in judgements}
        document |= {"profiles": len(final.profiles), "sha256": final.sha256()}
        document |= {"output": None if output is None else str(output)}
        emit(document | {"seconds": round(time.monotonic() - start, 3)})
        return Exit.DONE
    say(f"{machine.name}: {result.fitted.rows} timings fitted" + (f", {len(kept)} held out" if kept else ""))
    say(*map(_constant_line, constants), *(_residuals_line(name, r) for _, name, r in judgements if r is not None))
    if final.profiles:
        say(f"  {len(final.profiles)} operator shapes measured as profile rows")
    if output is not None:
        say(f"wrote {output}")
    return Exit.DONE


def _constants_json(name: str, constants: Sequence[Constant]) -> dict[str, object]:
    """The constants of a machine before and after, as `--json` prints them."""
    fitted = {c.path: {"before": str(c.before), "after": str(c.after), "identified": c.identified} for c in constants}
    return {"machine": name, "constants": fitted}


def _judgements(
    result: Calibration, parts: PartsCalibration | None, collectives: Residuals | None
) -> list[tuple[str, str, Residuals | None]]:
    """How well constants fit, before and after: key in `--json`, words, residuals.  `collectives`: of the collectives
    at the end, where reshardings decided the links.
    """
    out = [
        ("before", "before, fitted rows", result.before),
        ("fitted", "after, fitted rows", result.fitted),
        ("held_out_before", "before, held out", result.held_out_before),
        ("held_out", "after, held out", result.held_out),
    ]
    if parts is None:
        return out
    if collectives is not None:
        out.append(("collectives", "collectives, at the end", collectives))
    return [
        *out,
        ("operators_before", "operators, before", parts.operators_before),
        ("operators", "operators, roofline", parts.operators_fitted),
        ("profile", "operators, profile", parts.profile),
        ("movements_before", "reshardings, before", parts.movements_before),
        ("movements", "reshardings, after", parts.movements_fitted),
    ]


def _constant_line(c: Constant) -> str:
    """A constant before and after."""
    before, after = (show(v, _dimension(c.path)) if v is not None else "none" for v in (c.before, c.after))
    kept = "" if c.identified else "  not identified by these timings, kept"
    return f"  {c.path:34} {before:>14} -> {after:<14}{kept}"


def _residuals_line(name: str, r: Residuals) -> str:
    """How well rows fit."""
    rank = "" if r.rank is None else f", rank correlation {r.rank:.3f}"
    return (
        f"  {name:24} {r.rows:4} rows: mean error {100 * r.mean:.1f} %, worst {100 * r.worst:.1f} %, "
        f"predicted / measured {r.low:.2f} .. {r.high:.2f}{rank}"
    )


def _dimension(path: str) -> Dimension:
    if path.endswith(("latency", "launch")):
        return "time"
    return "flops" if ".peaks." in path else "rate"


def _parts(measurer: object, machine: Machine, options: CalibrateOptions) -> PartsCalibration | None:
    """Operators (and reshardings) measured here; None if nothing here can measure them and no model is asked
    for.
    """
    from ..calibration.parts import calibrate_parts, calibration_graph, communication_times, coverage, operator_times

    model, train = options.model, options.train
    if not isinstance(measurer, PartsMeasurer):
        if model is not None:
            raise InputError("nothing here can start MPI ranks; --model needs them")
        return None
    if model is None:
        graph = calibration_graph()
    else:
        graph = load_model(model, options.batch, trained=train is not None)
        step = training_of(graph, train, None)
        graph = graph if step is None else step.graph
    with Watch("measuring operators"):
        planning = build(graph, machine, default_space(machine))
        candidates = coverage(planning)
        try:
            operators, moved = measurer.measure_parts(
                graph, machine.hierarchy, candidates, options.rounds, options.time_limit, options.backend
            )
        except RuntimeError as error:  # a rank that failed, MPI that is missing, no GPU
            raise InputError(f"the operators could not be measured: {error}") from error
    return calibrate_parts(
        machine,
        operator_times(planning, candidates, operators),
        communication_times(planning, candidates, moved) if model is not None else (),
        model is not None,
    )


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """COLUMN=VALUE texts of an option."""
    out = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise click.UsageError(f"{option} {text!r}: write COLUMN=VALUE, such as nodes=4")
        out[column] = value
    return out


def measured_collectives(measurer: object, machine: Machine, time_limit: float) -> list[Timing]:
    """Times of the one-level programs of every placement of two axes, at three payloads, on MPI ranks of this
    computer.
    """
    if not isinstance(measurer, Measurer):
        raise InputError("nothing here can start MPI ranks; give --timings FILE.csv")
    if not 2 <= machine.devices <= 32:
        raise InputError(
            f"machine {machine.name!r} has {machine.devices} devices; between 2 and 32 ranks can be measured "
            f"here: name fewer, such as localhost:4, or give --timings"
        )
    out = []
    for first in (n for n in range(2, machine.devices + 1) if machine.devices % n == 0):
        axes = (first, machine.devices // first)
        matrix = _placement(machine.hierarchy, axes)
        if matrix is None:
            continue
        system = ReductionRequest(machine.hierarchy, matrix, (0,)).system()
        programs = [program_of(text, system) for text in _PROGRAMS]
        for payload in (1 << 12, 1 << 17, 1 << 20):
            size = -(-payload // (8 * system.chunks)) * 8 * system.chunks
            for text, seconds in zip(_PROGRAMS, measurer.measure(system, programs, size, 9, time_limit), strict=True):
                middle = sorted(seconds)[len(seconds) // 2]
                columns = (("payload", str(size)), ("program", text), ("reduced", str(first)))
                out.append(
                    Timing(
                        machine.hierarchy,
                        matrix,
                        (0,),
                        text,
                        Algorithm.RING,
                        size,
                        middle,
                        f"{text} over {first} of {machine.devices} ranks",
                        columns,
                    )
                )
    return out


def _placement(hierarchy: tuple[int, ...], axes: tuple[int, int]) -> tuple[tuple[int, ...], ...] | None:
    """The placement that puts the first axis innermost, or None if its size does not divide that way."""
    PlacementProblem(hierarchy, axes).check()
    left, row = axes[0], []
    for size in reversed(hierarchy):
        here = next(d for d in range(min(left, size), 0, -1) if left % d == 0 and size % d == 0)
        row.append(here)
        left //= here
    row.reverse()
    return (
        (tuple(row), tuple(h // x for h, x in zip(hierarchy, row, strict=True)))
        if left == 1 and prod(row) == axes[0]
        else None
    )

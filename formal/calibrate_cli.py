"""The verb `machine calibrate`: constants of a machine from measured times.

Times come from a CSV (`formal.timings`), or are measured here on MPI ranks.  Measuring needs `backends`, which this room does not
see: the front door hands over something with a method `measure` (`Measurer`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Protocol, runtime_checkable

import click

from ..models.collective_cost import Algorithm
from ..models.console import Exit, InputError, emit
from ..models.machine import Machine, load_machine
from ..models.machine_text import to_toml
from ..models.parallelism import PlacementProblem, ReductionRequest
from ..models.quantities import Dimension, show
from ..models.reduction_programs import Program, ReductionSystem
from .timings import Timing, program_of, read_timings, selected, write_timings

_PROGRAMS = ("AllReduce", "RS.A AG.A", "R.A B.A")


@runtime_checkable
class Measurer(Protocol):
    """Runs programs on one MPI rank per device and returns the seconds of every repetition of each; payload in bytes per device."""

    def measure(self, system: ReductionSystem, programs: Sequence[Program], payload: int, repeats: int, timeout_s: float) -> list[tuple[float, ...]]:
        """Raises when a rank fails or a result is wrong."""
        ...


@click.command("calibrate")
@click.argument("machine_name", metavar="MACHINE")
@click.option("--timings", type=click.Path(path_type=Path), help="CSV of measured times; without it, the machine's devices are MPI ranks here.")
@click.option("--where", "conditions", multiple=True, metavar="COLUMN=VALUE", help="Use only these lines (repeatable).")
@click.option("--hold-out", "held", multiple=True, metavar="COLUMN=VALUE", help="Judge on these lines, fit on the others (repeatable).")
@click.option("--latencies", is_flag=True, help="Fit latencies as well (always on when measuring here).")
@click.option("--time-limit", type=float, default=120.0, show_default=True, help="Seconds for each start of MPI.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the times measured here as CSV.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the calibrated machine (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def calibrate_command(
    ctx: click.Context, machine_name: str, timings: Path | None, conditions: tuple[str, ...], held: tuple[str, ...], latencies: bool, time_limit: float,
    save: Path | None, output: Path | None, as_json: bool,
) -> int:
    """Fit a machine's constants to measured times of reduction programs, and say how well they fit."""
    from .calibrate import Residuals, calibrate

    start = time.monotonic()
    machine = load_machine(machine_name)
    if timings is not None:
        rows = read_timings(timings)
    else:
        rows = _measured(ctx.obj, machine, time_limit)
        latencies = True
        if save is not None:
            write_timings(save, rows)
    rows = selected(rows, _pairs(conditions, "--where"))
    kept = selected(rows, _pairs(held, "--hold-out")) if held else []
    result = calibrate(machine, [r for r in rows if r not in kept], kept, latencies)
    if output is not None:
        output.write_text(to_toml(result.machine), encoding="utf-8")

    def judged(r: Residuals | None) -> dict[str, object] | None:
        return None if r is None else r.as_json()

    if as_json:
        emit({
            "machine": machine.name, "constants": {c.path: {"before": str(c.before), "after": str(c.after), "identified": c.identified} for c in result.constants},
            "before": judged(result.before), "fitted": judged(result.fitted), "held_out_before": judged(result.held_out_before), "held_out": judged(result.held_out),
            "sha256": result.machine.sha256(), "output": None if output is None else str(output), "seconds": round(time.monotonic() - start, 3),
        })
        return Exit.DONE
    click.echo(f"{machine.name}: {result.fitted.rows} timings fitted" + (f", {len(kept)} held out" if kept else ""))
    for c in result.constants:
        dimension: Dimension = "time" if c.path.endswith("latency") else "rate"
        values = [show(v, dimension) if v is not None else "none" for v in (c.before, c.after)]
        click.echo(f"  {c.path:34} {values[0]:>14} -> {values[1]:<14}" + ("" if c.identified else "  not identified by these timings, kept"))
    for name, r in (("before, fitted rows", result.before), ("after, fitted rows", result.fitted), ("before, held out", result.held_out_before), ("after, held out", result.held_out)):
        if r is not None:
            rank = "" if r.rank is None else f", rank correlation {r.rank:.3f}"
            click.echo(f"  {name:20} mean error {100 * r.mean:.1f} %, worst {100 * r.worst:.1f} %, predicted / measured {r.low:.2f} .. {r.high:.2f}{rank}")
    if output is not None:
        click.echo(f"wrote {output}")
    return Exit.DONE


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    out = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise click.UsageError(f"{option} {text!r}: write COLUMN=VALUE, such as nodes=4")
        out[column] = value
    return out


def _measured(measurer: object, machine: Machine, time_limit: float) -> list[Timing]:
    """Times of the one-level programs of every placement of two axes, at three payloads, on MPI ranks of this computer."""
    if not isinstance(measurer, Measurer):
        raise InputError("nothing here can start MPI ranks; give --timings FILE.csv")
    if not 2 <= machine.devices <= 32:
        raise InputError(f"machine {machine.name!r} has {machine.devices} devices; between 2 and 32 ranks can be measured here: name fewer, such as localhost:4, or give --timings")
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
                out.append(Timing(machine.hierarchy, matrix, (0,), text, Algorithm.RING, size, middle, f"{text} over {first} of {machine.devices} ranks", columns))
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
    return (tuple(row), tuple(h // x for h, x in zip(hierarchy, row, strict=True))) if left == 1 and prod(row) == axes[0] else None

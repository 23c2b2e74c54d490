"""`machine calibrate --from FILE`: files are read, constants fitted and said with their bars, the machine written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from ...models.cost.collective_times import Operation
from ...models.files.output import write_file
from ...models.machine.machine import Machine
from ...models.machine.quantities import Dimension, error_bound_text, show
from ...models.machine.text import to_toml
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import InputError, did_you_mean
from ..calibration.files.observation import Observation, Step
from ..calibration.files.reading import one_machine, read, select_rows

if TYPE_CHECKING:
    from ..calibration.files.fitting import FileCalibration, Fitted

UNTOUCHED = "no row depends on it, kept"

_UNITS = {
    "host": "ms",
    "unfused": "ms",
    "meet": "ms",
    "exposed": "of the host's time",
    "ends": "ms",
    "whole_head": "Tflop/s",
    "update": "ps a parameter",
    "hop": "GB/s",
    "spread": "",
    "products": "Tflop/s",
    "memory": "GB/s",
    "node": "GB/s",
}


@dataclass(frozen=True)
class Given:
    """Measurements by others.  `operation`, `plan`: what a file does not name itself; `keep`: constants that are not
    fitted; rows of `conditions` alone are read, those of `held` only judged.
    """

    files: Sequence[Path]
    operation: str | None
    plan: Path | None
    keep: Sequence[str]
    conditions: Mapping[str, str]
    held: Mapping[str, str]


def calibrate_from(machine: Machine, given: Given, output: Path | None, as_json: bool) -> int:
    """Fit a machine to what files say."""
    from ..calibration.files.fitting import calibrate_files
    from ..calibration.files.steps import calibrate_steps

    rows: list[Observation] = []
    skipped = 0
    with Watch("reading"):
        for file in given.files:
            found, left = read(file, machine, _operation(given.operation), given.plan, given.conditions)
            rows, skipped = rows + found, skipped + left
    fitted, kept = _split_rows(rows, given.conditions, given.held)
    fitting = calibrate_steps if fitted and isinstance(fitted[0].what, Step) else calibrate_files
    with Watch("fitting"):
        result = fitting(machine, fitted, kept, given.keep, _source(given.files))
    if output is not None:
        write_file(output, to_toml(result.machine).encode())
    if as_json:
        emit(_json(machine, result, len(fitted), len(kept), skipped, output))
        return Exit.DONE
    say(
        f"{machine.name}: {len(fitted)} rows fitted"
        + (f", {len(kept)} held out" if kept else "")
        + (f", {skipped} left out (no finite time, or nothing that is priced)" if skipped else "")
    )
    untouched = [c.path for c in result.constants if c.kept and c.rows == 0 and c.bar is None and not _said(c)]
    for c in result.constants:
        if c.path not in untouched:
            say(_line(c))
    if untouched:
        say(f"  no row depends on, and kept are: {', '.join(untouched)}")
    for words, r in (
        ("before, fitted rows", result.before),
        ("after, fitted rows", result.fitted),
        ("before, held out", result.held_before),
        ("after, held out", result.held),
    ):
        if r is not None:
            rank = "" if r.rank is None else f", rank correlation {r.rank:.3f}"
            say(
                f"  {words:20} {r.rows:5} rows: mean error {100 * r.mean:.1f} %, worst {100 * r.worst:.1f} %, "
                f"predicted / measured {r.low:.2f} .. {r.high:.2f}{rank}"
            )
    if output is not None:
        say(f"wrote {output}")
    return Exit.DONE


def _split_rows(
    rows: list[Observation], conditions: Mapping[str, str], held: Mapping[str, str]
) -> tuple[list[Observation], list[Observation]]:
    """Rows that are fitted, and those that are held out to judge the fit.  Raises `InputError` for rows of several
    machines, or where none is held out.
    """
    rows = select_rows(rows, conditions) if conditions else rows
    one_machine(rows)
    kept = select_rows(rows, held) if held else []
    if held and not kept:
        raise InputError("--hold-out chooses no row")
    names = {id(r) for r in kept}
    return [r for r in rows if id(r) not in names], kept


def _operation(name: str | None) -> Operation | None:
    if name is None:
        return None
    try:
        return Operation(name)
    except ValueError:
        raise InputError(
            f"--operation {name[:40]!r} is no collective{did_you_mean(name, list(Operation))}; known: "
            f"{', '.join(Operation)}"
        ) from None


def _source(files: Sequence[Path]) -> str:
    """Names and hashes, so that it can be told later which bytes were read."""
    named = [f"{f.name} ({hashlib.sha256(f.read_bytes()).hexdigest()[:12]})" for f in files]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def _said(c: Fitted) -> bool:
    """Is there more to say of a kept constant than that no row depends on it?"""
    return c.kept != UNTOUCHED


def _line(c: Fitted) -> str:
    name, before, after = c.path, _value(c.path, c.before), _value(c.path, c.after)
    if c.kept:
        return f"  {name:38} {before:>14}    {c.kept}"
    bar = "" if c.bar is None else f"within {error_bound_text(c.bar)}"
    mean = "" if c.mean_error is None else f", mean error of the rows it decides {100 * c.mean_error:.1f} %"
    changed = after if c.path.startswith("step.") or before == after else f"{before} -> {after}"
    rows = f"{c.rows} rows depend on it, for up to {100 * c.share:.0f} % of their time"
    return f"  {name:38} {changed:>14}    {bar}; {rows}{mean}"


def _value(path: str, value: Fraction) -> str:
    if path.startswith("step."):
        return f"{float(value):.4g} {_UNITS[path.removeprefix('step.')]}".rstrip()
    dimension: Dimension = "flops" if ".peaks." in path else "rate"
    return show(value, "time" if path.endswith((".latency", ".launch")) else dimension)


def _json(
    machine: Machine, result: FileCalibration, fitted: int, held: int, skipped: int, output: Path | None
) -> dict[str, object]:
    judged = {
        "before": result.before,
        "fitted": result.fitted,
        "held_out_before": result.held_before,
        "held_out": result.held,
    }
    return {
        "machine": machine.name,
        "rows": fitted,
        "held_out_rows": held,
        "left_out": skipped,
        "constants": {
            c.path: {
                "before": str(c.before),
                "after": str(c.after),
                "bar": None if c.bar is None else error_bound_text(c.bar),
                "rows": c.rows,
                "largest_share": c.share,
                "mean_error": c.mean_error,
                "kept": c.kept or None,
            }
            for c in result.constants
        },
        "residuals": {k: None if r is None else r.as_json() for k, r in judged.items()},
        "sha256": result.machine.sha256(),
        "output": None if output is None else str(output),
    }

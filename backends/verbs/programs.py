"""Runs proved reduction programs on ranks: compares every device's result with the sum that it must have, and times
each program beside one plain all-reduce.

    data        int64, drawn from seed and device, `payload` bytes of it on every device (rounded down to whole chunks)
    equal       every device holds, row for row, the sum over its reduction group, exactly
    seconds     of a repetition: from a barrier to when the slowest rank has its result; the median of `repeats`, after
                some that are not counted, program and all-reduce in turn

Virtual ranks are threads of one process: their seconds are those of copies in its memory, and say nothing of a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ...models.collective_programs.parallelism import ReductionRequest
from ...models.terminal.console import Exit, Watch, emit, report_error, say
from ...models.text import InputError, bytes_text, seconds_text
from ...proofs.collective_programs.certificate import ReductionCertificate
from ...proofs.collective_programs.chosen import Chosen, chosen_programs
from ...proofs.publishing.publisher import Published
from ..execution.collective_programs import WARM_UP, Outcome, run_mpi, run_virtual
from ..execution.interpreter import RankError
from ..execution.launch import LaunchError

Row = tuple[Chosen, int, Outcome, Outcome]
"""A program, the bytes that were summed, what came of it, and of one plain all-reduce."""

MOST_BYTES = 1 << 20
"""Drawn on a device unless more is asked for: what a program is priced for may be gigabytes."""

MOST_DATA = 1 << 32
"""On all ranks together: they are of one machine, and need a few times that."""


@dataclass(frozen=True)
class Drawn:
    """What is summed: `payload` bytes per device (None: what the program is priced for, at most `MOST_BYTES`), timed
    `repeats` times.
    """

    payload: int | None
    repeats: int


@dataclass(frozen=True)
class ProgramRun:
    """What the user asked of a run of programs."""

    ranks: int
    virtual: bool
    seed: int
    timeout: float
    drawn: Drawn
    as_json: bool


def devices_of(one: Chosen) -> int:
    """Devices that take part."""
    return sum(map(len, one.request.system().members))


def run_programs(path: Path, certificate: ReductionCertificate, published: Published, asked: ProgramRun) -> int:
    """Run every program that the file is for.  Raises `InputError` for a file without one, another number of ranks, or
    more data than `MOST_DATA`.
    """
    try:
        programs = chosen_programs(certificate)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    devices = devices_of(programs[0])
    _refuse_sizes(path, devices, asked)
    rows: list[Row] = []
    try:
        with Watch(f"running on {devices} {'virtual' if asked.virtual else 'MPI'} ranks"):
            for one in programs:
                system, width = one.request.system(), _width(one, asked)
                run = run_virtual if asked.virtual else run_mpi
                found, single = run(
                    [one.program],
                    system,
                    width,
                    asked.seed,
                    repeats=asked.drawn.repeats,
                    timeout_s=asked.timeout,
                    beside=True,
                )
                rows.append((one, 8 * width * system.chunks, found, single))
    except (RankError, LaunchError) as error:
        first, *rest = str(error).split("\n")
        return report_error(first, Exit.INTERNAL, asked.as_json, rest)
    transport = "virtual ranks: threads of one process" if asked.virtual else "MPI ranks on this machine"
    what = (
        f"{transport}; from a barrier to when the slowest rank has its result, median of {asked.drawn.repeats} "
        f"repetitions after {WARM_UP} that are not counted"
    )
    if asked.as_json:
        about = {"identity": published.identity, "verdict": published.verdict.value, "ranks": devices}
        run_as = {
            "transport": "virtual" if asked.virtual else "mpi",
            "seed": asked.seed,
            "repeats": asked.drawn.repeats,
        }
        emit({**about, **run_as, "programs": [_row(*row) for row in rows], "what_is_measured": what})
    else:
        say(f"{path}: {published.verdict.value} {published.kind}, {devices} ranks ({transport})")
        say(*(line for row in rows for line in _lines(row, asked.drawn.repeats)))
        if asked.drawn.repeats:
            say(f"  measured: {what}")
    return Exit.DONE if all(found.correct and single.correct for _, _, found, single in rows) else Exit.REFUTED


def _refuse_sizes(path: Path, devices: int, asked: ProgramRun) -> None:
    """Raises `InputError` for another number of ranks than the programs have, or more data than `MOST_DATA`."""
    if asked.ranks != devices:
        raise InputError(
            f"{path}: the program is for {devices} devices, -n asks for {asked.ranks} ranks; run it with -n {devices}"
        )
    if (asked.drawn.payload or 0) * devices > MOST_DATA:
        raise InputError(
            f"--bytes {asked.drawn.payload} on {devices} ranks of one machine is more than {bytes_text(MOST_DATA)}; "
            f"at most --bytes {MOST_DATA // devices}"
        )


def _lines(row: Row, repeats: int) -> list[str]:
    """A program that was run, for a terminal."""
    one, payload, found, single = row
    equal = (
        f"every device has its sum ({bytes_text(payload)} of drawn integers each, exactly)"
        if found.correct
        else f"wrong on devices {', '.join(map(str, found.wrong[:8]))}"
    )
    priced = "" if one.cost is None else f", priced at {seconds_text(one.cost, one.scale)}"
    out = [f"  {one.over}: {one.words}, {one.length}{priced}: {equal}"]
    if repeats:
        out.append(f"    measured {_text(found)} beside {_text(single)} of one plain all-reduce")
    return out


def _width(one: Chosen, asked: ProgramRun) -> int:
    priced = MOST_BYTES if one.spec is None else min(MOST_BYTES, one.spec.payload)
    return max(1, (asked.drawn.payload or priced) // (8 * one.request.system().chunks))


def _text(outcome: Outcome) -> str:
    return seconds_text(round(median(outcome.seconds) * 10**9), 10**9)


def _row(one: Chosen, payload: int, found: Outcome, single: Outcome) -> dict[str, object]:
    request = one.request
    timed = bool(found.seconds)
    return {
        "over": list(request.reduce) if isinstance(request, ReductionRequest) else list(request.nodes),
        "words": one.words,
        "steps": [str(i) for i in one.program],
        "priced_s": None if one.cost is None else one.cost / one.scale,
        "payload": payload,
        "equal": found.correct,
        "wrong": list(found.wrong),
        "all_reduce_equal": single.correct,
        "measured": {
            "program_s": median(found.seconds) if timed else None,
            "all_reduce_s": median(single.seconds) if timed else None,
        },
    }

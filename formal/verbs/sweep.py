"""The verb `sweep`: many plans of one file, each in a process of its own, one table and one page of all.

What a row has answered is kept beside its plan (NAME.json, NAME.spz): the same command goes on where it was stopped,
and rows that a file has in common with an earlier one are not planned again.
"""

from __future__ import annotations

import csv
import io
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from ...models.files.input import regular
from ...models.files.json_text import JsonError, parse_json
from ...models.files.output import OutputError, write_file
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import json_option, options_as, refuse_combinations
from ...models.text import InputError
from ...proofs.container.archive import identity, read_container
from ...proofs.container.canonical import ContainerError
from ..plans.sweep import NAME, Outcome, Row, Runner, Word, read_sweep, table, widest_gap
from ..report.sweep import sweep_page
from .combinations import SWEEP
from .door import Door
from .plan import plan_command

MARK: Final = "sweep.csv"
"""The table; a folder that holds one is a sweep's."""

MOST_WORKERS: Final = 256

MOST_BYTES: Final = 1 << 20
"""Of a file of a sweep."""

KEPT: Final = frozenset({Exit.DONE, Exit.UNDECIDED, Exit.INFEASIBLE})
"""Exit codes of rows that are not planned again."""


@dataclass(frozen=True)
class SweepOptions:
    """The command line of `sweep`."""

    file: Path
    output: Path
    workers: str
    again: bool
    as_json: bool


class Workers(click.ParamType[str]):
    """A number, or `mpi`."""

    name = "N|mpi"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, checked."""
        text = str(value)
        if text != "mpi" and not (
            text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= MOST_WORKERS
        ):
            self.fail(f"{text!r} is neither a number from 1 to {MOST_WORKERS} nor mpi", param, ctx)
        return text


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.toml")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The folder of table and plans.")
@click.option(
    "--workers",
    type=Workers(),
    default="1",
    show_default=True,
    help="Plans at once on this computer; mpi: the ranks of mpiexec -n N python -m mpi4py.futures -m shardproof sweep.",
)
@click.option("--again", is_flag=True, help="Plan rows again whose plans are there.")
@json_option
@click.pass_obj
@refuse_combinations(SWEEP)
@options_as(SweepOptions)
def sweep_command(publisher: Door, options: SweepOptions) -> int:
    """Plan every combination of a FILE's models, machines, batches and limits: one table, one page, all plans."""
    place = str(options.file)
    rows = read_sweep(_text(options.file), place, _words())
    for row in rows:
        _require_parses(row, place)
    folder = _folder(options.output)
    done = {} if options.again else {row.number: kept for row in rows if (kept := _kept(row, folder)) is not None}
    todo, interrupted = [row for row in rows if row.number not in done], False
    if done and not options.as_json:
        say(f"note: {len(done)} of {len(rows)} plans are there already")
    runner, mpi = Runner(folder), options.workers == "mpi"
    finished = publisher.over_ranks(runner.run, todo) if mpi else _over_processes(int(options.workers), runner, todo)
    with Watch("sweep") as watch, _ended_by_either_signal():
        try:
            for row, found in finished:
                _keep(row, found, folder)
                done[row.number] = found
                watch.count(len(done), len(rows))
        except KeyboardInterrupt:
            interrupted = True
    have = [(row, done[row.number]) for row in rows if row.number in done]
    heads, lines = table(have)
    write_file(folder / MARK, _csv([heads, *lines]))
    write_file(folder / "index.html", sweep_page(f"sweep of {options.file.name}", have).encode())
    code = Exit.UNDECIDED if interrupted else _worst([found.code for _, found in have])
    if options.as_json:
        emit(
            {
                "plans": len(rows),
                "planned": len(todo),
                "rows": [
                    {
                        **dict(row.values),
                        "exit": found.code,
                        "tries": found.tries,
                        **{
                            k: found.answer.get(k)
                            for k in ("status", "cost", "lower_bound", "scale", "seconds", "error")
                        },
                    }
                    for row, found in have
                ],
                "folder": str(folder),
            }
        )
        return code
    say(*_columns([heads, *lines]))
    if (gap := widest_gap([found for _, found in have])) is not None:
        say(f"all {len(have)} plans are within {100 * gap:.2f}% of the best of their space (proved)")
    if interrupted:
        say(f"interrupted: {len(have)} of {len(rows)} plans; the same command goes on from here")
    say(f"wrote {folder / MARK}, {folder / 'index.html'} and the plans beside them")
    return code


def _text(path: Path) -> str:
    with regular(path).open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: is larger than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _words() -> dict[str, Word]:
    """The options of `plan`, read from the command itself."""
    options = [p for p in plan_command.params if isinstance(p, click.Option)]
    return {
        max(p.opts, key=len).removeprefix("--"): Word(p.is_flag, next(iter(p.secondary_opts), ""), p.multiple)
        for p in options
    }


def _require_parses(row: Row, place: str) -> None:
    """Bad values are named before anything is planned."""
    try:
        plan_command.make_context("plan", ["-o", "plan.spz", "--force", *row.arguments])
    except click.ClickException as error:
        raise InputError(f"{place}, plan {row.number} ({' '.join(row.arguments)}): {error.format_message()}") from None


def _folder(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path}: is no folder")
    if path.is_dir() and any(path.iterdir()) and not ((path / MARK).exists() or _is_begun(path)):
        raise OutputError(f"{path}: holds files that are no sweep's; choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _is_begun(folder: Path) -> bool:
    """Whether all that lies there are rows of a sweep that was stopped before its table was written."""
    return all(p.suffix in (".json", ".spz") and len(p.stem) == NAME for p in folder.iterdir())


def _keep(row: Row, found: Outcome, folder: Path) -> None:
    data = {"arguments": list(row.arguments), "exit": found.code, "tries": found.tries, "answer": found.answer}
    write_file(folder / f"{row.name}.json", json.dumps(data, sort_keys=True).encode())


def _kept(row: Row, folder: Path) -> Outcome | None:
    """What this row has answered before, if its plan is still the one that was written then."""
    try:
        data = parse_json((folder / f"{row.name}.json").read_bytes())
    except (OSError, JsonError):
        return None
    if not isinstance(data, dict) or data.get("arguments") != list(row.arguments) or data.get("exit") not in KEPT:
        return None
    code, tries, answer = data["exit"], data.get("tries"), data.get("answer")
    if not isinstance(answer, dict) or not isinstance(tries, int):
        return None
    if (named := answer.get("identity")) is not None:
        try:
            if identity(read_container(folder / f"{row.name}.spz")) != named:
                return None
        except (ContainerError, OSError):
            return None
    return Outcome(int(code), answer, tries)


def _over_processes(workers: int, runner: Runner, rows: Sequence[Row]) -> Iterator[tuple[Row, Outcome]]:
    with ThreadPoolExecutor(workers) as pool:
        waiting: dict[Future[Outcome], Row] = {pool.submit(runner.run, row): row for row in rows}
        try:
            for one in as_completed(waiting):
                yield waiting[one], one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise


@contextmanager
def _ended_by_either_signal() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does: no process of a row outlives the sweep."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if _main_thread() else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _worst(codes: Sequence[int]) -> Exit:
    """An unreadable or failed row wins over an undecided one; an infeasible one is proved."""
    if any(code not in KEPT for code in codes):
        return Exit.BAD_INPUT
    return Exit.UNDECIDED if Exit.UNDECIDED in codes else Exit.DONE


def _csv(lines: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return ["  ".join(cell.ljust(n) for cell, n in zip(line, wide, strict=True)).rstrip() for line in lines]

"""Verb `capture`: writes down a program of one device, or of all ranks, so that `equal` compares it without its code.

Exit codes: 0 written, 3 not readable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import click

from ...models.files.output import write_file
from ...models.sources.building.python_file import load_object
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import Count, force_option, json_option, output_option, refuse_combinations
from ...models.text import InputError
from ...proofs.container.archive import identity, read_container
from ...proofs.equality.captured import write_captured
from ..equality.request import MOST_RANKS, capture_programs, offer_devices
from .combinations import CAPTURE


@click.command("capture")
@click.argument("program")
@click.option(
    "--ranks", type=Count(1, MOST_RANKS), help="Ranks on which PROGRAM runs; without it PROGRAM is one device's."
)
@click.option("--grad", is_flag=True, help="Gradients are outputs too, as of `equal`.")
@output_option("-o", "--output", required=True, help="The file that is written (.spz).")
@force_option
@json_option
@refuse_combinations(CAPTURE)
def capture_command(program: str, ranks: int | None, grad: bool, output: Path, as_json: bool) -> int:
    """Write down PROGRAM (FILE.py:NAME), as `equal` runs it: of one device, called without arguments, or with --ranks
    of every rank, called with rank and ranks (of JAX with ranks).  What is written down is compared with the run.
    `shardproof equal ONE.spz RANKS.spz` compares two such files.
    """
    offer_devices(ranks)
    with Watch("running the program"):
        found = capture_programs(program_at(program), ranks, grad)
    try:
        data = write_captured(found, ranks is None)
    except TypeError as error:
        raise InputError(f"{program}: {error}") from error
    write_file(output, data)
    steps = sum(len(c.program.steps) for c in found)
    name = identity(read_container(data))
    if as_json:
        emit({"ranks": ranks, "steps": steps, "identity": name, "file": str(output)})
        return Exit.DONE
    who = "one device" if ranks is None else f"{ranks} ranks"
    say(f"{steps} steps of {who}, compared with the run", f"wrote {output}")
    return Exit.DONE


def program_at(place: str) -> Callable[..., object]:
    """What `FILE.py:NAME` names.  Raises `InputError` for what cannot be called."""
    path, colon, name = place.rpartition(":")
    if not colon:
        raise InputError(f"{place!r}: write FILE.py:NAME")
    found = load_object(Path(path), name)
    if not callable(found):
        raise InputError(f"{place}: is not called; write a function that returns what is called and its inputs")
    return cast("Callable[..., object]", found)

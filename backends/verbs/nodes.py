"""The options of `run` that say where ranks are: a hostfile, or the launcher that has started this process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ...models.machine.machine import Machine
from ...models.terminal.options import Seconds
from ...models.text import InputError
from ..cluster.launchers import Place, place_of
from ..cluster.spread import HEARTBEAT_S, Others, Spread, host_count
from ..execution.heartbeat import JOB, ORDER
from ..execution.launch import environment, mpi_available

MPI_RANKS: Final = 64
"""More processes than this on one computer are refused; virtual ranks have no such limit."""

DISMISS_S: Final = 60.0
"""Seconds in which processes that wait should have heard that there is nothing to do."""

Command = TypeVar("Command", bound=Callable[..., Any])
_ROOT: Final = __name__.partition(".")[0]
_MEMBER: Final = [sys.executable, "-P", "-m", "mpi4py", "-m", f"{_ROOT}.backends.execution.member"]

_OPTIONS: Final = (
    click.option(
        "--hostfile",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Start the ranks on these computers: a file of the launcher's (MPICH: HOST:RANKS, Open MPI: "
        "HOST slots=RANKS).  Call it on the first of them.",
    ),
    click.option(
        "--heartbeat-timeout",
        "heartbeat",
        type=Seconds(2.0, 600.0),
        default=HEARTBEAT_S,
        show_default=True,
        help="Seconds without a sign of life of a rank, or of the first computer, that end the job (2 to 600).",
    ),
)


def node_options(command: Command) -> Command:
    """The options of ranks on many computers."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def rank_place(spread: Spread, ranks: int, starts_ranks: bool) -> Spread:
    """`spread` with what a launcher has told this process.  Of its processes only the first returns: the others join
    the job that it begins, and end with it.  Raises `InputError`, in the first, for what does not go together.
    """
    place = place_of(os.environ)
    if place is None:
        if spread.hostfile is not None:
            host_count(spread.hostfile)
        return spread
    fault = _fault(place, spread, ranks, starts_ranks)
    if place.rank == 0:
        click.get_current_context().call_on_close(lambda: _dismiss(spread.others))
        if fault is not None:
            raise InputError(fault)
        return replace(spread, place=place)
    os.execve(_MEMBER[0], _MEMBER, environment(1))


def _dismiss(others: Others) -> None:
    """Let the others go where no job was begun: they wait for this process."""
    if others.called or find_spec("mpi4py") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ORDER).write_text("null")
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                _MEMBER,
                env={**environment(1), JOB: folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                close_fds=False,
                timeout=DISMISS_S,
                check=False,
            )


def _fault(place: Place, spread: Spread, ranks: int, starts_ranks: bool) -> str | None:
    who = f"{place.by} has started this as {place.size} processes"
    if not starts_ranks:
        return f"{who}, and --virtual and --communication are for one: call it without a launcher"
    if spread.hostfile is not None:
        return f"{who}: leave out --hostfile, which starts them itself"
    if place.size != ranks:
        return f"{who}, -n asks for {ranks} ranks: start as many as the plan has devices"
    return None


def on_machine(spread: Spread, machine: Machine) -> Spread:
    """`spread` of a job on this machine."""
    return replace(spread, levels=tuple((level.name, level.size) for level in machine.levels))


def check_mpi(virtual: bool, ranks: int, spread: Spread) -> None:
    """Raise `InputError` where so many MPI ranks cannot be started."""
    if virtual:
        return
    if spread.is_local and ranks > MPI_RANKS:
        raise InputError(
            f"{ranks} processes on one machine are too many; use --virtual, or other computers: --hostfile, srun"
        )
    if not (find_spec("mpi4py") is not None if spread.place else mpi_available()):
        raise InputError("MPI is not installed here: pip install 'shardproof[mpi]', or use --virtual")

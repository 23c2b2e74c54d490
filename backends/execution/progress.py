"""Where every rank is, whether it still runs, and which one died first: small files, so that a rank
that says nothing can still be named.

    progress.bin   int64 (ranks, 2):    process number (0: not started), instruction at hand (-1: not yet, -2: done)
    beats.bin      float64 (ranks, 2):  when the guard last looked, and since when it has found the process stopped (0:
                   it runs)
    death.json     written by the guard of the first process that ended early

A rank stores its instruction before it begins it: one write to mapped memory, no system call.  Before a rank touches
MPI it forks: the child goes on, the parent is its guard.  It leaves word if the child ended badly; the launcher sees
the guard end, hence only after the word is left (without guards it kills the other ranks so quickly that nobody can
tell who was first).  Twice a second it leaves a sign of life.  And it ends its rank, and removes the folder, when the
process that started the job is gone (`workplace.abandoned`) or the launcher's proxy is.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...models.files.json_text import JsonError, parse_json
from . import segments
from .workplace import has_maker, is_abandoned

DONE: Final = -2
START: Final = -1

BEAT_S: Final = 0.5
"""Seconds between two signs of life."""

STOPPED_S: Final = 5.0
"""A process that has been stopped for so long is not being looked at for a moment."""

SILENT_S: Final = 20.0
"""Without a sign of life for so long a guard does not run: 40 of them are missing.  Much more than a crowded
computer lets it wait.
"""

_ABANDONED: Final = 70
_PR_SET_PDEATHSIG: Final = 1

Table = npt.NDArray[np.int64]
Beats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Death:
    """`status`: exit code, negative for a signal; 0 if the process ended as if all were well, without finishing."""

    process: int
    status: int

    def words(self) -> str:
        """What happened.

        >>> Death(7, -11).words(), Death(7, 0).words()
        ('the process died: Segmentation fault (signal 11)', 'the process ended before its work was done')
        """
        if self.status < 0:
            return f"the process died: {signal.strsignal(-self.status)} (signal {-self.status})"
        return (
            f"the process ended with code {self.status}"
            if self.status
            else "the process ended before its work was done"
        )


def create(folder: Path, ranks: int) -> None:
    """Empty tables."""
    table = np.zeros((ranks, 2), dtype=np.int64)
    table[:, 1] = START
    table.tofile(folder / "progress.bin")
    np.zeros((ranks, 2)).tofile(folder / "beats.bin")


def open_table(folder: Path, write: bool = False) -> Table:
    """The mapped table of processes and instructions.  Raises OSError or ValueError if it is not there."""
    return np.memmap(folder / "progress.bin", dtype=np.int64, mode="r+" if write else "r").reshape(-1, 2)


def enter(folder: Path, rank: int) -> Table:
    """This process is the rank; the table to write its instructions to."""
    table = open_table(folder, write=True)
    open_beats(folder, write=True)[rank] = (
        time.monotonic(),
        0.0,
    )  # its guard may be stopped before it finds it in the table
    table[rank] = os.getpid(), START
    segments.note(folder)
    return table


def open_beats(folder: Path, write: bool = False) -> Beats:
    """The mapped signs of life.  Raises as `open_table`."""
    return np.memmap(folder / "beats.bin", dtype=np.float64, mode="r+" if write else "r").reshape(-1, 2)


def silent(table: Table, beats: Beats, now_s: float) -> tuple[int, str] | None:
    """The rank that does not run any more though its process exists, and why we think so.  `now_s`: of
    `time.monotonic`.
    """
    for rank, ((process, at), (beat, stopped)) in enumerate(zip(table.tolist(), beats.tolist(), strict=True)):
        if process and at != DONE and stopped and beat - stopped > STOPPED_S:
            return (
                rank,
                (
                    f"process {process} has been stopped for {beat - stopped:.0f} s (by SIGSTOP or a debugger; kill "
                    f"-CONT {process} lets one go on)"
                ),
            )
        if process and at != DONE and beat and now_s - beat > SILENT_S:
            return (
                rank,
                (
                    f"no sign of life of process {process} for {now_s - beat:.0f} s: its guard is stopped, or the "
                    f"computer is overloaded"
                ),
            )
    return None


class Listener:
    """Asks for silent ranks again and again; after a pause of its own (it was stopped as well, with all of the job)
    it first lets them be heard.
    """

    def __init__(self, folder: Path, now_s: float) -> None:
        self._table, self._beats = open_table(folder), open_beats(folder)
        self._last_s, self._from_s = now_s, now_s

    def silent(self, now_s: float) -> tuple[int, str] | None:
        """See `silent`."""
        if now_s - self._last_s > STOPPED_S:
            self._from_s = now_s + STOPPED_S
        self._last_s = now_s
        return None if now_s < self._from_s else silent(self._table, self._beats, now_s)


def read_death(folder: Path) -> Death | None:
    """The first process that ended early, if one did."""
    try:
        data: Any = parse_json((folder / "death.json").read_text())
    except (FileNotFoundError, JsonError):
        return None
    return Death(int(data["process"]), int(data["status"]))


def guard(folder: Path) -> None:
    """Fork; returns in the child.  To be called before MPI or CUDA are touched; does nothing where there is no fork."""
    if not hasattr(os, "fork"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs, here = *os.pipe(), os.getpid()
    child = os.fork()
    if child == 0:
        os.close(ours)  # `theirs` stays open until the process is gone: that is how the guard hears of it
        _bound_to(here)
        return
    os.close(theirs)
    status = _watch(folder, child, ours)
    code = os.waitstatus_to_exitcode(status)
    try:
        done = bool((open_table(folder)[:, :] == (child, DONE)).all(axis=1).any())
        if code == 0 and done:
            os._exit(0)
        with (folder / "death.json").open("x") as file:
            json.dump({"process": child, "status": code}, file)
    except (OSError, ValueError):
        pass  # another rank was first, or the folder is gone
    os._exit(code if code > 0 else _ABANDONED)


def _bound_to(parent: int) -> None:
    """A guard that is killed takes its rank along: the system sees to it on Linux, elsewhere a thread looks every
    second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_look_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it was killed before we asked
        os._exit(_ABANDONED)


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch(folder: Path, child: int, ended: int) -> int:
    """Wait for the child, with signs of life; its status.  `ended`: reads as ended when it is gone."""
    parent, stopped_s, bound = os.getppid(), 0.0, has_maker(folder)
    beats, table = open_beats(folder, write=True), open_table(folder)
    while not select.select([ended], [], [], BEAT_S)[0]:
        process, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        now_s = time.monotonic()
        if process and os.WIFSTOPPED(status):
            stopped_s = now_s
        elif process and os.WIFCONTINUED(status):
            stopped_s = 0.0
        elif process:
            return status
        beats[table[:, 0] == child] = now_s, stopped_s
        gone = bound and is_abandoned(folder)
        if gone or os.getppid() != parent:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            segments.remove(folder)
            if gone:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(_ABANDONED)
    return os.waitpid(child, 0)[1]

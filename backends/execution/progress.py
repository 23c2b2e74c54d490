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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ...models.files.json_text import JsonError, parse_json
from ..cluster.spread import HEARTBEAT_S
from . import segments
from .workplace import has_maker, is_abandoned

DONE: Final = -2
START: Final = -1

BEAT_S: Final = 0.5
"""Seconds between two signs of life."""

STOPPED_S: Final = 5.0
"""A process that has been stopped for so long is not being looked at for a moment."""

SILENT_S: Final = HEARTBEAT_S
"""Without a sign of life for so long a guard does not run."""

ABANDONED: Final = 70
_PR_SET_PDEATHSIG: Final = 1

Table = npt.NDArray[np.int64]
Beats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Death:
    """`status`: exit code, negative for a signal; 0 if the process ended as if all were well, without finishing.
    `rank`: where it is known; processes of different computers may have one number.
    """

    process: int
    status: int
    rank: int | None = None

    def rank_in(self, processes: Sequence[int]) -> int | None:
        """Its rank, given every rank's process."""
        if self.rank is not None:
            return self.rank
        return processes.index(self.process) if self.process in processes else None

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


def silent(table: Table, beats: Beats, now_s: float, limit_s: float = SILENT_S) -> tuple[int, str] | None:
    """The rank that does not run any more though its process exists, and why we think so.  `now_s`: of
    `time.monotonic`; `limit_s`: how long it may be silent.
    """
    for rank, ((process, at), (beat, stopped)) in enumerate(zip(table.tolist(), beats.tolist(), strict=True)):
        if process and at != DONE and stopped and beat - stopped > min(STOPPED_S, limit_s):
            return (
                rank,
                (
                    f"process {process} has been stopped for {beat - stopped:.0f} s (by SIGSTOP or a debugger; kill "
                    f"-CONT {process} lets one go on)"
                ),
            )
        if process and at != DONE and beat and now_s - beat > limit_s:
            return (
                rank,
                (
                    f"no sign of life of process {process} for {now_s - beat:.0f} s: its guard is stopped, or its "
                    f"computer is cut off or overloaded"
                ),
            )
    return None


class Listener:
    """Asks for silent ranks again and again; after a pause of its own (it was stopped as well, with all of the job)
    it first lets them be heard.
    """

    def __init__(self, folder: Path, now_s: float, limit_s: float = SILENT_S) -> None:
        self._table, self._beats, self._limit_s = open_table(folder), open_beats(folder), limit_s
        self._last_s, self._from_s = now_s, now_s

    def silent(self, now_s: float) -> tuple[int, str] | None:
        """See `silent`."""
        if now_s - self._last_s > STOPPED_S:
            self._from_s = now_s + STOPPED_S
        self._last_s = now_s
        return None if now_s < self._from_s else silent(self._table, self._beats, now_s, self._limit_s)


def read_death(folder: Path) -> Death | None:
    """The first process that ended early, if one did."""
    try:
        data: Any = parse_json((folder / "death.json").read_text())
    except (FileNotFoundError, JsonError):
        return None
    return Death(int(data["process"]), int(data["status"]), data.get("rank"))


def write_death(folder: Path, death: Death) -> None:
    """Leave word of it; the first one wins."""
    with suppress(OSError), (folder / "death.json").open("x") as file:
        json.dump(asdict(death), file)


def is_done(table: Table, process: int) -> bool:
    """Whether the rank of a process has done all of its work."""
    return bool((table[:, :] == (process, DONE)).all(axis=1).any())


class Keeper(Protocol):
    """What a guard does besides waiting for its rank."""

    def hear(self, data: bytes) -> None:
        """The rank has written this into the pipe."""

    def beat(self, child: int, stopped_s: float) -> None:
        """Twice a second: leave a sign of life.  `stopped_s`: since when the child has been stopped, 0 if it runs."""

    def is_over(self, parent_gone: bool) -> bool:
        """Whether there is no job any more; the child has to go."""

    def exit_status(self, child: int, code: int) -> int:
        """The child has ended, or was ended as the job is over; the exit status of the guard."""


class _FolderKeeper:
    """Of a job on this computer: word and signs of life are files in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._bound, self._gone, self._over = folder, has_maker(folder), False, False
        self._beats, self._table = open_beats(folder, write=True), open_table(folder)

    def hear(self, data: bytes) -> None:
        """Ranks of such jobs say nothing."""

    def beat(self, child: int, stopped_s: float) -> None:
        """See `Keeper`."""
        self._beats[self._table[:, 0] == child] = time.monotonic(), stopped_s

    def is_over(self, parent_gone: bool) -> bool:
        """See `Keeper`."""
        self._gone = self._bound and is_abandoned(self._folder)
        self._over = self._gone or parent_gone
        return self._over

    def exit_status(self, child: int, code: int) -> int:
        """See `Keeper`."""
        if self._over:
            segments.remove(self._folder)
            if self._gone:
                shutil.rmtree(self._folder, ignore_errors=True)
            return ABANDONED
        with suppress(OSError, ValueError):  # the folder is gone
            if code == 0 and is_done(open_table(self._folder), child):
                return 0
            write_death(self._folder, Death(child, code))
        return code if code > 0 else ABANDONED


_kept = False


def guard(folder: Path) -> None:
    """`keep` of a job whose folder all ranks see; nothing where this process has a guard already."""
    if not _kept:
        keep(lambda: _FolderKeeper(folder))


def keep(keeper: Callable[[], Keeper]) -> int | None:
    """Fork; returns in the child, with where to write what the keeper is to hear.  To be called before MPI or CUDA are
    touched; does nothing where there is no fork.
    """
    global _kept
    if not hasattr(os, "fork"):
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs, here = *os.pipe(), os.getpid()
    child = os.fork()
    if child == 0:
        _kept = True
        os.close(ours)  # `theirs` stays open until the process is gone: that is how the guard hears of it
        _bound_to(here)
        return theirs
    os.close(theirs)
    kept = keeper()
    os._exit(kept.exit_status(child, os.waitstatus_to_exitcode(_watch(kept, child, ours))))


def _bound_to(parent: int) -> None:
    """A guard that is killed takes its rank along: the system sees to it on Linux, elsewhere a thread looks every
    second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_look_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it was killed before we asked
        os._exit(ABANDONED)


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch(keeper: Keeper, child: int, ours: int) -> int:
    """Wait for the child, with signs of life; its status.  `ours`: the pipe from it, which reads as ended when it is
    gone.
    """
    parent, stopped_s = os.getppid(), 0.0
    while True:
        if select.select([ours], [], [], BEAT_S)[0]:
            data = os.read(ours, 1 << 16)
            if not data:
                return os.waitpid(child, 0)[1]
            keeper.hear(data)
        process, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        now_s = time.monotonic()
        if process and os.WIFSTOPPED(status):
            stopped_s = now_s
        elif process and os.WIFCONTINUED(status):
            stopped_s = 0.0
        elif process:
            return status
        keeper.beat(child, stopped_s)
        if keeper.is_over(os.getppid() != parent):
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]

"""Where every rank is, and which one died first: two small files, so that a rank that ends without a word can still be named.

    progress.bin   int64 (ranks, 2):  process number (0: not started), instruction at hand (-1: not yet, -2: done)
    death.json     written by the guard of the first process that ended early

A rank stores its instruction before it begins it: one write to mapped memory, no system call.  Before a rank touches MPI it forks: the child
goes on, the parent is its guard, which does nothing but wait for it and leave word if it ended badly.  The launcher sees the guard end, hence
only after the word is left; without guards it kills the other ranks so quickly that nobody can tell who was first.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..models.json_text import JsonError, parse_json

DONE: Final = -2
START: Final = -1

_ABANDONED: Final = 70
_PR_SET_PDEATHSIG: Final = 1

Table = npt.NDArray[np.int64]


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
        return f"the process ended with code {self.status}" if self.status else "the process ended before its work was done"


def create(folder: Path, ranks: int) -> None:
    """An empty table."""
    table = np.zeros((ranks, 2), dtype=np.int64)
    table[:, 1] = START
    table.tofile(folder / "progress.bin")


def open_table(folder: Path, write: bool = False) -> Table:
    """The mapped table.  Raises OSError or ValueError if it is not there."""
    return np.memmap(folder / "progress.bin", dtype=np.int64, mode="r+" if write else "r").reshape(-1, 2)


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
    child = os.fork()
    if child == 0:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a guard that is killed takes its rank along
        return
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    done = bool((open_table(folder)[:, :] == (child, DONE)).all(axis=1).any())
    if code == 0 and done:
        os._exit(0)
    try:
        with (folder / "death.json").open("x") as file:
            json.dump({"process": child, "status": code}, file)
    except OSError:
        pass  # another rank was first, or the folder is gone
    os._exit(code if code > 0 else _ABANDONED)

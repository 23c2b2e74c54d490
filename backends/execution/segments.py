"""Removes shared memory that MPICH leaves behind: ranks of one computer share a file in /dev/shm, which
only ranks that end well remove.

Every rank notes which files it has open (`note`), and whoever sees the job end badly removes those (`remove`): the
launcher, the guard of a rank whose job was abandoned, the next job that finds the folder.  What another job made is
never touched: a file counts by its name and number, and must be ours.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARED: Final = "/dev/shm/mpich_"
_NOTE: Final = "segments-"


def note(folder: Path, process: int | None = None) -> None:
    """Note which shared files a process has open, this one if no number is given.  Nothing where the system does not
    say.
    """
    number = os.getpid() if process is None else process
    with suppress(OSError):
        lines = Path(f"/proc/{number}/maps").read_text(errors="replace").splitlines()
        held = {(f[4], f[5]) for line in lines if len(f := line.split(maxsplit=5)) == 6 and f[5].startswith(SHARED)}
        if held:
            (folder / f"{_NOTE}{number}").write_text("".join(f"{inode} {name}\n" for inode, name in sorted(held)))


def note_running(folder: Path) -> None:
    """Note the same of all processes that have the folder of the job among their words."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (place / "cmdline").read_bytes().split(b"\0"):
                note(folder, int(place.name))


def remove(folder: Path) -> None:
    """Remove what was noted, where it is still the same file."""
    for found in folder.glob(f"{_NOTE}*"):
        with suppress(OSError):
            for line in found.read_text().splitlines():
                inode, _, name = line.partition(" ")
                with suppress(OSError):
                    status = os.lstat(name)
                    if name.startswith(SHARED) and str(status.st_ino) == inode and status.st_uid == os.getuid():
                        os.unlink(name)

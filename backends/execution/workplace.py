"""The folder of a job: it lives as long as the process that made it, whatever ends that process.

    ends by itself, or by an exception     the folder is removed on the way out
    SIGINT, SIGTERM, SIGHUP                the same: the first one unwinds, later ones wait until everything is tidy
    SIGKILL, a crash                       the guards of the ranks see it (`is_abandoned`), end their ranks, remove the
                                           folder; what was left before any rank began is removed by the next job
                                           (`_sweep`)

The sign of life is a lock on the file `alive`: the system gives it back when the process is gone, however it went, and
no process number can be mistaken for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from ...models.text import InputError, bytes_text
from . import segments

try:
    import fcntl
except ImportError:  # no POSIX: no ranks either
    fcntl = None  # type: ignore[assignment]

PREFIX: Final = "shardproof-"
_ALIVE: Final = "alive"


class _Ended(BaseException):
    """A signal that ends the process once it has tidied up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def workplace() -> Iterator[Path]:
    """An empty folder, removed at the end."""
    _sweep(Path(tempfile.gettempdir()))
    with _unwound_by_signals():
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _locked(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def need_room(folder: Path, size: int) -> None:
    """Raise `InputError` unless `size` bytes fit where the folder is."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{folder}: the arrays of the run take {bytes_text(size)}, and {bytes_text(free)} are free there; "
            f"free some, or set TMPDIR to a folder with room"
        )


def has_maker(folder: Path) -> bool:
    """Whether the folder was made here and its maker can be asked for; tests fill folders of their own."""
    return (folder / _ALIVE).exists()


def is_abandoned(folder: Path) -> bool:
    """Whether the process that made the folder is gone.

    >>> with workplace() as here:
    ...     is_abandoned(here)
    False
    >>> is_abandoned(here)
    True
    """
    try:
        held = os.open(folder / _ALIVE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(held)
    return True


def _locked(folder: Path) -> int:
    """The lock, taken before the file has its name: nobody can find it free."""
    early = folder / f"{_ALIVE}.new"
    held = os.open(early, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    if fcntl is not None:
        fcntl.flock(held, fcntl.LOCK_EX)
    early.rename(folder / _ALIVE)
    return held


def _sweep(place: Path) -> None:
    """Remove what jobs of ours left that could not."""
    if fcntl is None:
        return
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            mine = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
            if mine and has_maker(folder) and is_abandoned(folder):
                segments.remove(folder)
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Signals that end a process raise here, once, so that every `finally` runs; then they end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {n: signal.getsignal(n) for n in numbers}

    def unwind(number: int, _: FrameType | None) -> None:
        for n in numbers:
            signal.signal(n, signal.SIG_IGN)  # until all is tidy
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _Ended(number)

    for n in numbers:
        if before[n] is not signal.SIG_IGN:  # as under nohup
            signal.signal(n, unwind)
    try:
        yield
    except _Ended as end:
        signal.signal(end.number, signal.SIG_DFL)
        os.kill(os.getpid(), end.number)
        raise
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)

"""Where results go: one way to write a file, so that nothing of anybody's is destroyed and nothing
half-written stays.

A result goes to a regular file; devices, pipes and folders are refused, a link is followed to the regular file behind
it.  A file that exists is replaced if nothing is lost (a result of ours for a result of ours, or an empty file),
otherwise only with `--force`.  What can go wrong is tried before the work (`check_target`), not after minutes of it.
While it is written the file has no name, where the system can do that, and so leaves nothing behind whatever ends the
process; it gets its name when all of it is on the disk.
"""

from __future__ import annotations

import errno
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from ..text import InputError, bytes_text

TRIED_BYTES: Final = 1 << 20
"""Written to the folder before the work: more than most plans, too little to be noticed."""

MOST_MANIFEST: Final = 1 << 20
"""Bytes of a manifest that is looked at to recognise a file of ours."""


class OutputError(InputError):
    """A file that cannot or must not be written; the message names it."""


def check_target(path: Path, *, force: bool = False, replaces_results: bool = False) -> Path:
    """The regular file that `path` stands for, if a result may be written there; `OutputError` otherwise.

    `replaces_results`: what is written is itself a plan, certificate or library, so one of those may be replaced.
    """
    real = _regular(path)
    if real.exists() and not force:
        if not os.access(real, os.W_OK):
            raise OutputError(f"{path}: is not writable; --force replaces it")
        if real.stat().st_size and not (replaces_results and is_result(real)):
            ours = "a plan or certificate of ours, so that it could be replaced" if replaces_results else "empty"
            raise OutputError(f"{path}: exists and is not {ours}; choose another name, or replace it with --force")
    with _unnamed(path, real) as (file, _):
        file.write(bytes(TRIED_BYTES))
    return real


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to the regular file `path`, all of it or nothing.  Raises `OutputError`."""
    with open_output(path, len(data)) as file:
        file.write(data)


@contextmanager
def open_output(path: Path, size: int | None = None) -> Iterator[BinaryIO]:
    """A file to be written that becomes `path` when the block ends well.  Raises `OutputError`; `size` is what a
    full disk lacked.
    """
    real = _regular(path)
    with _unnamed(path, real, size) as (file, temporary):
        yield file
        file.flush()
        os.fsync(file.fileno())
        _name(file, temporary)
        _regular(path)  # nothing else has taken its place meanwhile
        os.replace(temporary, real)


def is_result(path: Path) -> bool:
    """Whether the file is a container of ours that holds an answer: a plan, certificate or library, but not a
    problem.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if (
                "manifest.json" not in names
                or "problem.json" in names
                or archive.getinfo("manifest.json").file_size > MOST_MANIFEST
            ):
                return False
            return b'"shardproof-container/' in archive.read("manifest.json")
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return False


def _regular(path: Path) -> Path:
    """`path` with links followed, if it is a regular file or can become one."""
    try:
        real = Path(os.path.realpath(path))
        if path.is_symlink() and not real.exists():
            raise OutputError(f"{path}: is a link to {real}, which does not exist; remove the link, or name the file")
        if real.is_dir():
            raise OutputError(f"{path}: is a folder; name a file in it")
        if real.exists() and not stat.S_ISREG(real.stat().st_mode):
            raise OutputError(f"{path}: is not a regular file; results are written to regular files only")
        if not real.parent.is_dir():
            raise OutputError(f"{path}: the folder {real.parent} does not exist; make it first")
    except (OSError, ValueError) as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    return real


@contextmanager
def _unnamed(path: Path, real: Path, size: int | None = None) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in the folder of `real` and the name that it may get on its way there; afterwards nothing of that
    name is left.
    """
    temporary = real.with_name(f".shardproof-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with _new(temporary) as file:
            yield file, temporary
    except OSError as error:
        raise OutputError(f"{path}: {_reason(error, real.parent, size)}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _new(temporary: Path) -> BinaryIO:
    """A file without a name if the file system has those (Linux), else one called `temporary`."""
    nameless = getattr(os, "O_TMPFILE", 0)
    if nameless and os.path.isdir("/proc/self/fd"):
        with suppress(OSError):
            return cast("BinaryIO", os.fdopen(os.open(temporary.parent, nameless | os.O_RDWR, 0o666), "w+b"))
    return open(temporary, "x+b")


def _name(file: BinaryIO, temporary: Path) -> None:
    """Give the file the name `temporary` if it has none."""
    if os.fstat(file.fileno()).st_nlink == 0:
        folder = os.open(temporary.parent, os.O_RDONLY)
        try:
            # With folders given this is linkat(AT_SYMLINK_FOLLOW); without, Python would link to the entry of /proc
            # itself.
            os.link(
                f"/proc/self/fd/{file.fileno()}",
                temporary.name,
                src_dir_fd=folder,
                dst_dir_fd=folder,
                follow_symlinks=True,
            )
        finally:
            os.close(folder)


def _reason(error: OSError, folder: Path, size: int | None) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = "" if size is None else f" for {bytes_text(size)}"
        try:
            free = os.statvfs(folder)
        except OSError:
            return f"there is no space left in {folder}{needed}"
        return f"there is no space left in {folder}{needed} ({bytes_text(free.f_bavail * free.f_frsize)} free)"
    return f"cannot be written: {error.strerror or error}"

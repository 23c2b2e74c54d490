"""Opens files that are read: regular files only, so that a pipe nobody writes to or an endless device
cannot hold a verb up.
"""

from __future__ import annotations

import stat
from pathlib import Path

from ..text import InputError


def regular(path: Path) -> Path:
    """`path`, if a regular file is there.  Raises `InputError` naming it.

    >>> regular(Path("/dev/zero"))
    Traceback (most recent call last):
        ..
    shardproof.models.text.InputError: /dev/zero: cannot be read: it is a device
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path}: cannot be read: there is no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        what = (
            "a folder"
            if stat.S_ISDIR(mode)
            else "a pipe"
            if stat.S_ISFIFO(mode)
            else "a device"
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
            else "no regular file"
        )
        raise InputError(f"{path}: cannot be read: it is {what}")
    return path

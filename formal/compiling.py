"""Compiles kernels with numba, and counts the time that this takes apart from all other.

A kernel is compiled when it is first called with arguments of new types, and kept on disk: the first commands in a new
environment compile for seconds, later ones not at all.  No time limit counts these seconds, because an answer that came
in time yesterday would not come today; whoever prints times says them apart.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["compiled_s", "monotonic", "njit"]


class _Counted:
    """Wall-clock seconds in which something is being compiled, in whichever threads."""

    def __init__(self) -> None:
        # of a kind that a signal's handler may take again: it asks for the time too
        self._lock, self._under_way, self._since, self._before = threading.RLock(), 0, 0.0, 0.0

    def on_start(self, event: object) -> None:
        """Called by numba before a kernel, or what it calls, is compiled."""
        with self._lock:
            if not self._under_way:
                self._since = time.monotonic()
            self._under_way += 1

    def on_end(self, event: object) -> None:
        """Called by numba behind it, also where it failed."""
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self._before += time.monotonic() - self._since

    def now(self) -> tuple[float, float]:
        """(wall-clock seconds, those of them that were spent compiling)."""
        with self._lock:
            wall = time.monotonic()
            return wall, self._before + (wall - self._since if self._under_way else 0.0)


_counted = _Counted()


def compiled_s() -> float:
    """Wall-clock seconds that this process has spent compiling."""
    return _counted.now()[1]


def monotonic() -> float:
    """Wall-clock seconds from some moment on, without those spent compiling; never goes back."""
    wall, compiling = _counted.now()
    return wall - compiling


if TYPE_CHECKING:
    from numba import njit  # as untyped as numba has it
else:

    def njit(**options):
        """`numba.njit`; what it compiles is counted."""
        import numba

        _listen()
        _begin()
        return numba.njit(**options)


@lru_cache(maxsize=1)
def _listen() -> None:
    from numba.core import event

    listener = type("Listener", (event.Listener,), {"on_start": _start, "on_end": _end})()
    event.register("numba:compile", listener)


def _begin() -> None:
    """Have numba begin without SciPy's linear algebra, which takes longer to load than our kernels do: what multiplies
    matrices still asks for it when it is compiled.
    """
    if "numba.np.arraymath" in sys.modules:
        return
    from numba.np import linalg

    ask = linalg.ensure_blas
    try:
        linalg.ensure_blas = lambda: None
        import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = ask


def _start(listener: object, event: object) -> None:
    _counted.on_start(event)


def _end(listener: object, event: object) -> None:
    _counted.on_end(event)

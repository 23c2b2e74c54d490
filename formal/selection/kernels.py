"""The hot loop: min-plus product of a table and a vector, in both directions.

    columns_min(T, h)[c] = min_r ( T[r, c] + h[r] )            rows_min(T, h)[r] = min_c ( T[r, c] + h[c] )

Works for int64 (exact), float64 and float32 (guides of the search).  Compiled with numba when it is installed and the
table is large enough to pay for the call, otherwise blocked numpy.  Results do not depend on the path or on the number of
threads: a minimum has no order of summation, and every candidate is one addition.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Numbers = NDArray[np.generic]

SMALL: Final = 1 << 15
"""Tables below this many entries are cheaper in numpy than one more compiled path."""
CHUNK: Final = 1 << 18
"""Entries of one numpy block: 2 MiB of int64, about the size of the second cache."""


class Kernel(Protocol):
    """`f(table, h, out)`: overwrite `out`."""

    def __call__(self, table: Numbers, h: Numbers, out: Numbers) -> None: ...


def columns_min(table: Numbers, h: Numbers, threads: int = 1) -> Numbers:
    """`min_r (table[r, c] + h[r])`, shape (columns,), dtype of `table`.

    >>> columns_min(np.array([[1, 5], [2, 0]]), np.array([10, 20])).tolist()
    [11, 15]
    """
    if table.size < SMALL or _compiled() is None:
        return _numpy_columns(table, h)
    assert_kernel = _compiled()
    out = np.empty(table.shape[1], table.dtype)
    kernel = assert_kernel[0] if assert_kernel is not None else _numpy_columns_into
    if threads > 1 and table.size > 16 * SMALL:
        cut = _cuts(table.shape[1], threads)
        _pool(threads, [(kernel, table[:, a:b], h, out[a:b]) for a, b in cut])
    else:
        kernel(table, h, out)
    return out


def rows_min(table: Numbers, h: Numbers, threads: int = 1) -> Numbers:
    """`min_c (table[r, c] + h[c])`, shape (rows,), dtype of `table`.

    >>> rows_min(np.array([[1, 5], [2, 0]]), np.array([10, 20])).tolist()
    [11, 12]
    """
    if table.size < SMALL or _compiled() is None:
        return _numpy_rows(table, h)
    pair = _compiled()
    out = np.empty(table.shape[0], table.dtype)
    kernel = pair[1] if pair is not None else _numpy_rows_into
    if threads > 1 and table.size > 16 * SMALL:
        cut = _cuts(table.shape[0], threads)
        _pool(threads, [(kernel, table[a:b], h, out[a:b]) for a, b in cut])
    else:
        kernel(table, h, out)
    return out


def _cuts(n: int, parts: int) -> list[tuple[int, int]]:
    edges = [n * i // parts for i in range(parts + 1)]
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if a < b]


def _pool(threads: int, jobs: list[tuple[Kernel, Numbers, Numbers, Numbers]]) -> None:
    pool = _executor(threads)
    for future in [pool.submit(job[0], job[1], job[2], job[3]) for job in jobs]:
        future.result()


@lru_cache(maxsize=4)
def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def _numpy_columns_into(table: Numbers, h: Numbers, out: Numbers) -> None:
    out[:] = _numpy_columns(table, h)


def _numpy_rows_into(table: Numbers, h: Numbers, out: Numbers) -> None:
    out[:] = _numpy_rows(table, h)


def _numpy_columns(table: Numbers, h: Numbers) -> Numbers:
    n, m = table.shape
    step = max(1, CHUNK // max(1, m))
    if n <= step:
        return np.asarray((table + h[:, None]).min(axis=0))  # type: ignore[operator]
    out = np.asarray((table[:step] + h[:step, None]).min(axis=0))  # type: ignore[operator]
    for a in range(step, n, step):
        np.minimum(out, (table[a : a + step] + h[a : a + step, None]).min(axis=0), out=out)  # type: ignore[operator]
    return out


def _numpy_rows(table: Numbers, h: Numbers) -> Numbers:
    n, m = table.shape
    step = max(1, CHUNK // max(1, m))
    if n <= step:
        return np.asarray((table + h[None, :]).min(axis=1))  # type: ignore[operator]
    out = np.empty(n, table.dtype)
    for a in range(0, n, step):
        out[a : a + step] = (table[a : a + step] + h[None, :]).min(axis=1)  # type: ignore[operator]
    return out


@lru_cache(maxsize=1)
def _compiled() -> tuple[Kernel, Kernel] | None:
    """The numba pair, or None without numba.  Imported here only: a program that never meets a large table never loads it."""
    try:
        from numba import njit
    except ImportError:
        return None

    # reassoc lets a float minimum be taken in lanes; no NaN can occur (no -inf is ever stored), +inf must work
    flags = {"reassoc", "nnan", "nsz"}

    def columns(table, h, out):  # type: ignore[no-untyped-def]
        n, m = table.shape
        width = 2048  # one tile of the result stays in the first cache
        for a in range(0, m, width):
            b = min(m, a + width)
            tile = out[a:b]
            tile[:] = table[0, a:b] + h[0]
            r = 1
            while r + 1 < n:  # two rows per pass halve the traffic of the tile
                x, y = h[r], h[r + 1]
                one, two = table[r, a:b], table[r + 1, a:b]
                for c in range(b - a):
                    tile[c] = min(tile[c], min(one[c] + x, two[c] + y))
                r += 2
            if r < n:
                x = h[r]
                one = table[r, a:b]
                for c in range(b - a):
                    tile[c] = min(tile[c], one[c] + x)

    def rows(table, h, out):  # type: ignore[no-untyped-def]
        n, m = table.shape
        for r in range(n):
            row = table[r]
            best = row[0] + h[0]
            for c in range(1, m):
                best = min(best, row[c] + h[c])
            out[r] = best

    make: Callable[[object], Kernel] = njit(cache=True, nogil=True, fastmath=flags)
    return make(columns), make(rows)

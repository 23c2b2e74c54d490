"""The two loops of the min-plus product of a table with a vector, compiled with numba: of sweeps
(`bound/sweep_kernels.py`), and of single products (`model/minplus.py`).
"""

from __future__ import annotations

from ...compiling import njit


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")
def columns(cells, at, h, size, out, top, far):  # type: ignore[no-untyped-def]
    """out[b] = min over r of table[r, b] + h[r], at most `top`; rows with h[r] >= `far` are left out, where
    there is such a limit."""
    kind = cells.dtype.type  # without it numba adds int32 as int64, half as many lanes
    m = out.shape[0]
    begin = 0
    if far is None:
        begin = 1
        for b in range(m):
            out[b] = cells[at + b] + h[0]
    else:
        for b in range(m):
            out[b] = top
    for r in range(begin, size):
        x = h[r]
        if far is None or x < far:
            row = cells[at + r * m : at + (r + 1) * m]
            for b in range(m):
                out[b] = min(out[b], kind(row[b] + x))


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")
def rows(cells, at, h, size, out):  # type: ignore[no-untyped-def]
    """out[b] = min over r of table[b, r] + h[r]."""
    kind = cells.dtype.type
    for b in range(out.shape[0]):
        row = cells[at + b * size : at + (b + 1) * size]
        best = kind(row[0] + h[0])
        for r in range(1, size):
            best = min(best, kind(row[r] + h[r]))
        out[b] = best


@njit(cache=True, nogil=True)
def columns_of(table, h, out):  # type: ignore[no-untyped-def]
    """out[c] = min over r of table[r, c] + h[r]."""
    columns(table.reshape(-1), 0, h, table.shape[0], out, None, None)


@njit(cache=True, nogil=True)
def rows_of(table, h, out):  # type: ignore[no-untyped-def]
    """out[r] = min over c of table[r, c] + h[c]."""
    rows(table.reshape(-1), 0, h, table.shape[1], out)

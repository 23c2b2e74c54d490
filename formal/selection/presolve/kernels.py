"""The loops of presolve over single entries, compiled with numba.

`inspect` looks at one pair table, `dominated_pairs` at all pairs of labels of one vertex.  Forbidden entries are
exactly FORBIDDEN = 2**60, others below 2**57 in size.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN
from ...compiling import njit

EMPTY_ROW: Final = 1  # a row without allowed entries
EMPTY_COLUMN: Final = 2
ONE_PER_COLUMN: Final = 4  # every column has exactly one allowed entry: the row label follows from the column label
ONE_PER_ROW: Final = 8
SEPARABLE: Final = 16


@njit(cache=True, nogil=True)
def inspect(table, counts):  # type: ignore[no-untyped-def]
    """The flags of a pair table, summed; `counts` is scratch of at least as many entries as it has columns."""
    n, m = table.shape
    for c in range(m):
        counts[c] = 0
    flags = ONE_PER_ROW | ONE_PER_COLUMN | SEPARABLE
    for r in range(n):
        here = 0
        shift = table[r, 0] - table[0, 0]
        for c in range(m):
            value = table[r, c]
            if value < FORBIDDEN:
                here += 1
                counts[c] += 1
            if value - table[0, c] != shift:
                flags &= ~SEPARABLE
        if here == 0:
            flags |= EMPTY_ROW
        if here != 1:
            flags &= ~ONE_PER_ROW
        if here < m:
            flags &= ~SEPARABLE
    for c in range(m):
        if counts[c] == 0:
            flags |= EMPTY_COLUMN
        if counts[c] != 1:
            flags &= ~ONE_PER_COLUMN
    return flags


@njit(cache=True, nogil=True)
def dominated_pairs(cost, joined, cuts, first, usage, leaves, stays):  # type: ignore[no-untyped-def]
    """How many pairs were written to `leaves`, `stays`, in the order in which they go.

    `joined`: shape (K, columns), the tables to all neighbours side by side; `cuts`: where each begins, and the end;
    `first[k, a]`: column of the least entry of row a in table k; `usage`: shape (K, spans).
    """
    k, spans, tables = cost.shape[0], usage.shape[1], cuts.shape[0] - 1
    there = np.ones(k, np.bool_)
    found = 0
    for a in range(k):
        for b in range(k):
            if a == b or not there[b]:
                continue
            worse = cost[a] - cost[b]  # upper bound first: one entry per table
            for t in range(tables):
                c = first[t, a]
                if joined[b, c] >= FORBIDDEN:
                    worse = -FORBIDDEN
                    break
                worse += joined[a, c] - joined[b, c]
            if worse < 0:
                continue
            fits = True
            for s in range(spans):
                if usage[b, s] > usage[a, s]:
                    fits = False
                    break
            if not fits:
                continue
            worse = cost[a] - cost[b]
            for t in range(tables):
                least = FORBIDDEN
                for c in range(cuts[t], cuts[t + 1]):
                    if joined[a, c] < FORBIDDEN:
                        if joined[b, c] >= FORBIDDEN:
                            least = -FORBIDDEN
                            break
                        least = min(least, joined[a, c] - joined[b, c])
                if least == -FORBIDDEN:
                    worse = -1
                    break
                worse = min(worse + least, FORBIDDEN)
            if worse < 0:
                continue
            there[a] = False
            leaves[found] = a
            stays[found] = b
            found += 1
            break
    return found

"""This module holds the loops of presolve over single entries, compiled with numba.

`inspect` looks at one pair table, `dominated` at all pairs of labels of one vertex.  Forbidden entries are exactly
FORBIDDEN = 2**60, others below 2**57 in size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints

EMPTY_ROW: Final = 1  # a row without allowed entries
EMPTY_COLUMN: Final = 2
ONE_PER_COLUMN: Final = 4  # every column has exactly one allowed entry: the row label follows from the column label
ONE_PER_ROW: Final = 8
SEPARABLE: Final = 16

Inspect = Callable[[Ints, Ints], int]
"""`f(table, counts)`: sum of the flags above; `counts` is scratch of at least as many entries as the table has
columns.
"""

Dominated = Callable[[Ints, Ints, Ints, Ints, Ints, Ints, Ints], int]
"""`f(cost, joined, cuts, first, usage, leaves, stays)`: number of pairs written to `leaves`, `stays`, in the order in
which they go.

`joined`: shape (K, columns), the tables to all neighbours side by side; `cuts`: where each begins, and the end;
`first[k, a]`: column of the least entry of row a in table k; `usage`: shape (K, spans).
"""


@lru_cache(maxsize=1)
def compiled() -> tuple[Inspect, Dominated]:
    """The two kernels.  Imported here only: compiling takes seconds the first time."""
    from ...compiling import njit

    forbidden = FORBIDDEN

    def inspect(table, counts):  # type: ignore[no-untyped-def]
        n, m = table.shape
        for c in range(m):
            counts[c] = 0
        empty_row, one_per_row, total = False, True, 0
        separable = True
        for r in range(n):
            here = 0
            shift = table[r, 0] - table[0, 0]
            for c in range(m):
                value = table[r, c]
                if value < forbidden:
                    here += 1
                    counts[c] += 1
                if value - table[0, c] != shift:
                    separable = False
            total += here
            if here == 0:
                empty_row = True
            if here != 1:
                one_per_row = False
        flags = 0
        empty_column, one_per_column = False, True
        for c in range(m):
            if counts[c] == 0:
                empty_column = True
            if counts[c] != 1:
                one_per_column = False
        if empty_row:
            flags += 1
        if empty_column:
            flags += 2
        if one_per_column:
            flags += 4
        if one_per_row:
            flags += 8
        if separable and total == n * m:
            flags += 16
        return flags

    def dominated(cost, joined, cuts, first, usage, leaves, stays):  # type: ignore[no-untyped-def]
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
                    if joined[b, c] >= forbidden:
                        worse = -forbidden
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
                    least = forbidden
                    for c in range(cuts[t], cuts[t + 1]):
                        if joined[a, c] < forbidden:
                            if joined[b, c] >= forbidden:
                                least = -forbidden
                                break
                            least = min(least, joined[a, c] - joined[b, c])
                    if least == -forbidden:
                        worse = -1
                        break
                    worse = min(worse + least, forbidden)
                if worse < 0:
                    continue
                there[a] = False
                leaves[found] = a
                stays[found] = b
                found += 1
                break
        return found

    one: Inspect = njit(cache=True, nogil=True)(inspect)
    two: Dominated = njit(cache=True, nogil=True)(dominated)
    return one, two

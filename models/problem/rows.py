"""Distinct rows of tables of small numbers.

Rows r of numbers 0 <= r[k] < n[k] are in the order of their number in mixed radix, ((r[0] n[1] + r[1]) n[2] + ..), so
sorting these numbers sorts the rows; NumPy compares rows as texts of bytes, which takes several times as long.
"""

from __future__ import annotations

from math import prod

import numpy as np

from .selection_problem import Ints


def distinct_rows(table: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of a table (rows, columns), in lexicographic order, and which of them every row is.

    >>> distinct, of = distinct_rows(np.array([[1, 0], [0, 2], [1, 0]]))
    >>> distinct.tolist(), of.tolist()
    ([[0, 2], [1, 0]], [1, 0, 1])
    """
    first, of = first_rows(table)
    return np.ascontiguousarray(table[first]), of


def first_rows(table: Ints) -> tuple[Ints, Ints]:
    """Where each distinct row comes first, in lexicographic order of the rows, and which of them every row is.

    >>> [x.tolist() for x in first_rows(np.array([[1, 0], [0, 2], [1, 0]]))]
    [[1, 0], [1, 0, 1]]
    """
    rows, columns = table.shape
    if rows and columns:
        sizes = [int(n) + 1 for n in table.max(axis=0)]
        if int(table.min()) >= 0 and prod(sizes) < 1 << 62:
            number = table[:, 0].astype(np.int64)
            for k in range(1, columns):
                number = number * sizes[k] + table[:, k]
            _, first, of = np.unique(number, return_index=True, return_inverse=True)
            return first, of.reshape(-1).astype(np.int64, copy=False)
    _, first, of = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, of.reshape(-1).astype(np.int64, copy=False)

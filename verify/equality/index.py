"""Positions in tensors: integer affine functions of index variables, as tuples so that forms can be compared.

    index = ((variable, coefficient), ..), offset        sorted by variable, no coefficient 0

Variables that are free (they index what is described) count 0, 1, 2, ..; those that a sum binds -1, -2, ..; those that
a functional such as a greatest element binds start at `OWN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Index = tuple[tuple[tuple[int, int], ...], int]
Range = tuple[int, int]
"""From the first value up to, not with, the last."""

HELD: Final = 500
"""First of the names that bound variables have for a while."""

FREED: Final = 300
"""First of the names that positions which are numbers have for a while."""

LENT: Final = 700
"""First of the names that bound variables have while the factors of their term are multiplied."""

OWN: Final = 1000
"""First variable of functionals."""


class Undecided(ValueError):
    """What is compared is too large for this, or not made of what it knows."""


def variable(v: int) -> Index:
    """The index that is one variable.

    >>> variable(2)
    (((2, 1),), 0)
    """
    return (((v, 1),), 0)


def constant(n: int) -> Index:
    """The index that is a number."""
    return ((), n)


def substitute(index: Index, values: Mapping[int, Index]) -> Index:
    """With some variables replaced, all at once.

    >>> substitute((((0, 8), (1, 1)), 3), {0: (((5, 1),), 2)})
    (((1, 1), (5, 8)), 19)
    """
    terms, offset = index
    if not any(v in values for v, _ in terms):
        return index
    found: dict[int, int] = {}
    for v, c in terms:
        new = values.get(v)
        if new is None:
            found[v] = found.get(v, 0) + c
        else:
            offset += c * new[1]
            for w, d in new[0]:
                found[w] = found.get(w, 0) + c * d
    return tuple(sorted((v, c) for v, c in found.items() if c)), offset


def span(index: Index, ranges: Mapping[int, Range]) -> Range | None:
    """Least and greatest value; None where the range of a variable is not known.

    >>> span((((0, 8), (1, -1)), 0), {0: (0, 4), 1: (0, 8)})
    (-7, 24)
    """
    low = high = index[1]
    for v, c in index[0]:
        if v not in ranges:
            return None
        first, last = ranges[v][0], ranges[v][1] - 1
        low += min(c * first, c * last)
        high += max(c * first, c * last)
    return low, high

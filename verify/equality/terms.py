"""The shape of forms: what an element of a tensor is, as a sum of products over the real numbers.

    factor   an element of a named function at indices, to a rational power
    term     a product of factors, summed over bound variables (-1, -2, ..) in ranges
    form     sum of rational multiples of terms, as a tuple sorted by term, so that equal tuples are equal forms

A *head* is the function of a factor: an input, or what is made of forms by something that is no polynomial.  Heads are
numbered in the order in which they are met; two factors of the same head at the same indices are the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from .index import Index, Range

Power = Fraction
Factor = tuple[int, tuple[Index, ...], Power]
"""Head, indices, power."""
Term = tuple[tuple[Range, ...], tuple[Factor, ...]]
"""Ranges of the bound variables -1, -2, ..; factors, sorted."""
Form = tuple[tuple[Term, Fraction], ...]

ZERO: Form = ()


class Kind(Enum):
    """What the function of a factor is."""

    IOTA = "iota"  # the value of its index
    INPUT = "input"
    LIMIT = "limit"  # the infinity that masks add: as good as every large number
    ROOT = "root"  # the square root of a square-free number
    EXP = "exp"
    LOG = "log"
    BASE = "base"  # a form that is raised to powers
    POSITIVE = "positive"  # 1 where its form is above 0, else 0
    NULL = "null"  # 1 where its form is 0, else 0
    GREATEST = "greatest"  # of its form over ranges, which are its last indices: first, last, first, ..
    FUNCTION = "function"  # any other, of which nothing is known but that equal operands give equal values
    ROW = "row"  # a function of a whole row of forms, at a point of it
    NAMED = "named"  # a tensor of the program on one device that stands for the form that it has


TRUTHS = frozenset({Kind.POSITIVE, Kind.NULL})
"""Heads that are 0 or 1."""


@dataclass(frozen=True)
class Head:
    """A function: `name` and `words` say which of its kind, `of` the forms that it is made of, in variables 0 to `free`
    - 1 and, of functionals, `OWN` and on (`bound` many).
    """

    kind: Kind
    name: str
    words: tuple[str | int | Fraction, ...] = ()
    of: tuple[Form, ...] = ()
    free: int = 0
    bound: int = 0

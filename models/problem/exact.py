"""Exact sums of rationals times integers, rounded up once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Final

import numpy as np

from .selection_problem import Ints, TooFine

SAFE: Final = 1 << 62
"""Sums stay below, so that int64 cannot wrap."""


def ceil_sum(terms: Sequence[tuple[Fraction, Ints]]) -> Ints:
    """ceil( sum coef * array ) elementwise, exactly.  coefs >= 0, arrays >= 0 of one shape.  Raises `TooFine` for what
    is not below 2**62.

    >>> import numpy as np
    >>> ceil_sum([(Fraction(1, 3), np.array([1, 3])), (Fraction(1, 6), np.array([1, 0]))]).tolist()
    [1, 1]
    """
    denominator = lcm(*(c.denominator for c, _ in terms))
    scaled = [
        (c.numerator * (denominator // c.denominator), a) for c, a in terms if c and a.any()
    ]  # a coefficient without anything to count may be of any size
    shape = terms[0][1].shape
    bound = sum(c * int(a.max(initial=0)) for c, a in scaled) + denominator
    if bound < SAFE:
        total = np.zeros(shape, dtype=np.int64)
        for c, a in scaled:
            total += a * c
        return -(-total // denominator)
    wide = np.zeros(shape, dtype=object)
    for c, a in scaled:
        wide = wide + a.astype(object) * c
    rounded = np.asarray(-(-wide // denominator))
    if rounded.size and (most := int(rounded.max())) >= SAFE:
        raise TooFine(most)
    return rounded.astype(np.int64)

"""This module writes numbers as attributes: floats, but for whole numbers beyond 2 to the 53 that no float is."""

from __future__ import annotations


def as_real(x: bool | float) -> int | float:
    """A number as a float, where there is one.

    >>> as_real(3), as_real(2**53 + 1)
    (3.0, 9007199254740993)
    """
    return x if isinstance(x, int) and int(float(x)) != x else float(x)

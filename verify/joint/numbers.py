"""Reads numbers in attributes, exactly."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite

from ...models.program.operators import Operator
from .polynomials import Undecided


def exact(value: object, op: Operator) -> Fraction:
    """An attribute as a rational.  Raises `Undecided` for what is no number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not isfinite(value))
    ):
        raise Undecided(f"operator {op.name!r} has an attribute that is no number")
    return Fraction(value)

"""The unit of time of a planning problem: the finest power of ten, from a picosecond to a second,
whose tables fit int64.

    total(u)   sum of the largest entry of every vertex and edge, in units of u; it must be below
               `selection_problem.FINITE_LIMIT`

Every entry is the ceiling of an exact time, so that total(u) >= total(v) v / u for u >= v: where that is too large
already, u need not be tried (`coarser`).  Nothing but the problem decides: planner and checker find the same unit, and
it is part of the problem's content.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from .selection_problem import FINITE_LIMIT, ProblemError, SelectionProblem

FINEST: Final = Fraction(1, 10**12)
COARSEST: Final = Fraction(1)


def coarser(unit: Fraction, total: int) -> Fraction:
    """The next unit to try when `total` units of `unit` are too many.  Raises `ProblemError` beyond a second.

    >>> coarser(FINEST, FINITE_LIMIT), coarser(FINEST, 100 * FINITE_LIMIT)
    (Fraction(1, 100000000000), Fraction(1, 1000000000))
    """
    found = unit * 10
    while total * unit >= FINITE_LIMIT * found:
        found *= 10
    if found > COARSEST:
        raise ProblemError(
            "costs",
            f"the slowest choices take {float(total * unit):.3g} s in all, too long even for times in seconds",
            "look for a bandwidth or a peak of the machine that is too small: shardproof machine show",
        )
    return found


def rounding_bound(problem: SelectionProblem) -> int:
    """Units by which rounding up can have raised the cost of any solution: less than one per vertex and edge."""
    return len(problem.vertices) + len(problem.edges)


def rounding_text(problem: SelectionProblem) -> str:
    """How the times of a planning problem are rounded, in a sentence.

    >>> rounding_text(SelectionProblem("p", (), (), (), scale=10**10, unit_name="s"))
    'every time is rounded up once to 100 ps: exact times add up to at most 0 x 100 ps less'
    """
    return rounding_words(problem.scale, rounding_bound(problem))


def rounding_words(scale: int, bound: int) -> str:
    """How times in units of 1/`scale` s are rounded, `bound` of them in a solution.

    >>> rounding_words(10**12, 3)
    'every time is rounded up once to 1 ps: exact times add up to at most 3 ps less'
    """
    unit = Fraction(1, scale)
    words = next((f"{int(unit / size)} {name}" for name, size in _NAMES if unit >= size), f"{unit} s")
    return (
        f"every time is rounded up once to {words}: exact times add up to at most "
        f"{f'{bound} ps' if unit == FINEST else f'{bound} x {words}'} less"
    )


_NAMES: Final = (
    ("s", Fraction(1)),
    ("ms", Fraction(1, 10**3)),
    ("us", Fraction(1, 10**6)),
    ("ns", Fraction(1, 10**9)),
    ("ps", FINEST),
)

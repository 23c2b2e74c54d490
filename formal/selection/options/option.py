"""Reads what is written below the fields of a dataclass of options, known as attribute docstrings: their
units, ranges and reasons.

    name: type = default
    \"\"\"unit, range: reason\"\"\"

Where no range is written it is the unit's: a share is 0 to 1, one part in so many and divisors are 1 and more, all else
is 0 and more.
"""

from __future__ import annotations

import ast
import inspect
import re
from fractions import Fraction
from itertools import pairwise
from typing import Final

WRITTEN: Final = re.compile(r"^(?P<unit>.*), (?P<least>[0-9]+)(?: and more| to (?P<most>[0-9]+))$")
"""A unit with its range."""

MOST_DIGITS: Final = 18
"""Of a number: what is counted fits into 64 bits."""

Value = int | float | Fraction
"""Of an option; several are a tuple."""


def documentation_of(options: type[object]) -> dict[str, tuple[str, str]]:
    """Unit and reason of every field that has them.

    >>> from .primal import PrimalOptions
    >>> documentation_of(PrimalOptions)["fit_size"]
    ('vertices', 'of one move while a start is made to fit')
    """
    found: dict[str, tuple[str, str]] = {}
    (made,) = ast.parse(inspect.getsource(options)).body
    assert isinstance(made, ast.ClassDef)
    for field, below in pairwise(made.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                unit, _, reason = " ".join(text.split()).partition(": ")
                found[name] = unit, reason
    return found


def range_of(unit: str) -> tuple[str, int, int | None]:
    """The unit without its range, the least value and the largest (None: there is none).

    >>> range_of("double sweeps, 1 and more"), range_of("share of the gap"), range_of("seconds")
    (('double sweeps', 1, None), ('share of the gap', 0, 1), ('seconds', 0, None))
    """
    written = WRITTEN.match(unit)
    if written is not None:
        most = written["most"]
        return written["unit"], int(written["least"]), None if most is None else int(most)
    if unit.startswith("share"):
        return unit, 0, 1
    return unit, int(unit.startswith(("one part in", "divisor"))), None


def value_from(text: str, default: Value | tuple[Value, ...], unit: str) -> Value | tuple[Value, ...]:
    """What `text` says in the place of `default`: a number of its kind within the range of its unit, or several with
    spaces between.  Raises ValueError with what is expected.

    >>> value_from("0.5", 0.1, "share of the gap"), value_from("8 9", (1, 2), "vertices")
    (0.5, (8, 9))
    """
    if isinstance(default, tuple):
        numbers = tuple(number_from(word, default[0], unit) for word in text.split())
        if len(numbers) == len(default):
            return numbers
        raise ValueError(f"takes {len(default)} numbers with spaces between, not {text!r}")
    return number_from(text, default, unit)


def number_from(text: str, default: Value, unit: str) -> Value:
    """One number of the kind of `default`.  Raises ValueError with what is expected."""
    name, least, most = range_of(unit)
    kind = "a whole number" if isinstance(default, int) else "a number"
    within = f"{kind}, {least} and more" if most is None else f"{kind} from {least} to {most}"
    try:
        value = Fraction(text) if not isinstance(default, int) or text.strip().lstrip("+-").isdecimal() else None
    except (ValueError, ZeroDivisionError):
        value = None
    if value is None or len(text) > MOST_DIGITS or value < least or (most is not None and value > most):
        raise ValueError(f"takes {within} ({name}), not {text!r}")
    return int(value) if isinstance(default, int) else float(value) if isinstance(default, float) else value

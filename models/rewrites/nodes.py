"""What both sides of a substitution are made of: nodes with their parameters, and conditions over sizes, degrees and
parameters.  Rows of the operator table (`meaning`) and rules (`rule`) are written in these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from .polynomial import Poly

Parameter = int | str | tuple[int, ...]


class SubstitutionError(ValueError):
    """A rule that is not well formed.  `rule` names it, `place` the part."""

    def __init__(self, rule: str, place: str, message: str) -> None:
        super().__init__(f"rule {rule}: {place}: {message}")
        self.rule, self.place, self.message = rule, place, message


@dataclass(frozen=True)
class Node:
    """One operator applied to `inputs` (wires).  `parameters` are sorted (key, value) pairs."""

    operator: str
    inputs: tuple[int, ...]
    parameters: tuple[tuple[str, Parameter], ...] = ()

    def parameter(self, key: str) -> Parameter:
        """Value of a parameter; KeyError if there is none."""
        return dict(self.parameters)[key]


def node(operator: str, *inputs: int, **parameters: Parameter) -> Node:
    """Shorthand.

    >>> node("concat", -1, -2, axis=0).parameter("axis")
    0
    """
    return Node(operator, inputs, tuple(sorted(parameters.items())))


@dataclass(frozen=True)
class Equal:
    """left = right."""

    left: Poly
    right: Poly

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


@dataclass(frozen=True)
class AtLeast:
    """value >= 0."""

    value: Poly

    def __str__(self) -> str:
        return f"{self.value} >= 0"


@dataclass(frozen=True)
class Divides:
    """divisor >= 1, value >= 0, and divisor divides value (`divides`).  The text says so where it is not visible:
    names are at least 1.
    """

    divisor: Poly
    value: Poly

    def __str__(self) -> str:
        return f"{self.divisor} divides {self.value}{_signs(self.divisor, self.value)}"


@dataclass(frozen=True)
class OneOrMultiple:
    """value = 1, or `Divides`."""

    divisor: Poly
    value: Poly

    def __str__(self) -> str:
        return f"{self.value} = 1 or {self.divisor} divides {self.value}{_signs(self.divisor, self.value)}"


Condition = Equal | AtLeast | Divides | OneOrMultiple
"""Conditions over the symbols of a rule: `name.axis` (size), `name.axis.degree`, and its parameters."""


def divides(divisor: int, value: int) -> bool:
    """What "divides" means everywhere: value = divisor * quotient with divisor >= 1 and an integer quotient >= 0.

    >>> divides(2, 6), divides(2, 0), divides(0, 0), divides(2, -4), divides(-2, 4)
    (True, True, False, False, False)
    """
    return divisor >= 1 and value >= 0 and value % divisor == 0


def holds(c: Condition, values: Mapping[str, int]) -> bool:
    """Whether a condition holds for integer values of its names; KeyError for a name without one."""
    match c:
        case Equal():
            return c.left.value(values) == c.right.value(values)
        case AtLeast():
            return c.value.value(values) >= 0
        case Divides():
            return divides(c.divisor.value(values), c.value.value(values))
        case OneOrMultiple():
            return c.value.value(values) == 1 or divides(c.divisor.value(values), c.value.value(values))
        case _:
            assert_never(c)


def _signs(divisor: Poly, value: Poly) -> str:
    """What the text of a divisibility adds where signs are not visible from coefficients."""
    said = [f"{divisor} >= 1"] if not divisor.terms or any(c < 0 for c in divisor.terms.values()) else []
    said += [f"{value} >= 0"] if any(c < 0 for c in value.terms.values()) else []
    return f" ({', '.join(said)})" if said else ""


def polynomials(c: Condition) -> tuple[Poly, Poly]:
    """Both polynomials of a condition (0 beside the one of `AtLeast`)."""
    match c:
        case Equal():
            return c.left, c.right
        case AtLeast():
            return c.value, Poly({})
        case Divides() | OneOrMultiple():
            return c.divisor, c.value
        case _:
            assert_never(c)

"""What the tables of scalar expressions share: literals and attributes in the precision at hand,
maxima that hand NaN on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...models.program.operators import Operator
from ..kernels.elementwise import number
from .kernel import literal


class Scalar:
    """What a row needs besides its operands: precision and attributes."""

    def __init__(self, operator: Operator, real: str) -> None:
        self.operator, self.real = operator, real
        self.f = "f" if real == "float" else ""

    def lit(self, value: float) -> str:
        """A number."""
        return literal(value, self.real)

    def number(self, name: str, default: float) -> str:
        """An attribute."""
        return self.lit(number(self.operator, name, default))


Row = Callable[[Sequence[str], Scalar], str]
"""Text of the value, from the texts of the operands."""


def larger(a: str, b: str) -> str:
    """max(a, b), NaN if either is."""
    return f"(({a}) >= ({b}) || ({a}) != ({a}) ? ({a}) : ({b}))"


def smaller(a: str, b: str) -> str:
    """min(a, b), NaN if either is."""
    return f"(({a}) <= ({b}) || ({a}) != ({a}) ? ({a}) : ({b}))"


def sigmoid(x: str, c: Scalar) -> str:
    """1 / (1 + exp(-x)), which is 0 where the divisor is infinite."""
    one = c.lit(1.0)
    return f"({one} / ({one} + exp{c.f}(-({x}))))"

"""Tells in which tensors of a program the logarithm of 0 may stand: comparisons with it are not those of numbers.

It stands in what a logarithm makes, and in all that is made of that, unless the logarithm is of what is surely above 0:
exponentials, and sums and products of such, in real numbers: a part of 1 is 0 as a whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...models.equality.program import Step

LOGARITHMS: Final = frozenset({"log", "log1p"})
ABOVE: Final = frozenset({"reshape", "permute", "expand", "cat", "slice", "cast", "sum", "add", "mul", "div", "amax"})
"""Operators that make real numbers above 0 of such, where there are any."""


@dataclass
class Logarithms:
    """Tensors by number: those in which one of 0 may stand, and those that are surely above 0."""

    found: set[int] = field(default_factory=set)
    above: set[int] = field(default_factory=set)

    def look(self, step: Step, made: int, finite: bool, shapes: Sequence[tuple[int, ...]]) -> None:
        """Looks at what a step makes; `finite`: real numbers among which the infinity of masks does not stand; `shapes`
        of what it reads.
        """
        above, number = self.above.issuperset(step.reads), "number" in dict(step.words)
        if (step.operator in LOGARITHMS and not (step.operator == "log" and above)) or self.found & set(step.reads):
            self.found.add(made)
        elif not finite or not step.reads:
            return
        elif step.operator == "exp" or (step.operator in ABOVE and above and not number and all(map(all, shapes))):
            self.above.add(made)

"""What a plan says about the machines within the error bounds of its own: records and `bars.json`.

    cost       units that the plan takes on the fastest and on the slowest machine within the bars
    bound      no plan of the space takes fewer units on any of these machines
    against    other plans: their cost minus the plan's lies between `least` and `most` on every machine; `measure`: the
               constant whose bar decides most of what lies between (empty: none does)

Units are those of the plan's problem, rounded on each machine as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...models.communication.choices import Choices
from ..container.canonical import Reader, canonical

FORMAT: Final = "shardproof-bars/1"
MEMBER: Final = "bars.json"
MOST: Final = 16
"""Other plans that are compared."""


@dataclass(frozen=True)
class Against:
    """One other plan; see the module."""

    name: str
    choices: Choices
    least: int
    most: int
    measure: str

    @property
    def verdict(self) -> str:
        """`better`: the plan never costs more than this one; `worse`: always; else `undecided`.

        >>> Against("x", Choices((), ()), -3, 5, "").verdict
        'undecided'
        """
        if self.least >= 0:
            return "better"
        return "worse" if self.most < 0 else "undecided"


@dataclass(frozen=True)
class ErrorBounds:
    """See the module docstring."""

    cost: tuple[int, int]
    bound: int
    against: tuple[Against, ...]


Rows = Callable[[Choices], object]


def encode_error_bounds(bars: ErrorBounds, rows: Rows) -> bytes:
    """The member; `rows` writes decisions as the plan's head has them."""
    return canonical(
        {
            "format": FORMAT,
            "cost": list(bars.cost),
            "bound": bars.bound,
            "against": [
                {"name": a.name, "decisions": rows(a.choices), "least": a.least, "most": a.most, "measure": a.measure}
                for a in bars.against
            ],
        }
    )


def decode_error_bounds(head: Reader, choices: Callable[[Reader], Choices]) -> ErrorBounds:
    """Inverse of `encode_error_bounds`."""
    data = head.fields("format", "cost", "bound", "against")
    if data["format"].text() != FORMAT:
        data["format"].fail(f"this version reads {FORMAT!r} only")
    cost = data["cost"].integers(0)
    if len(cost) != 2:
        data["cost"].fail("must have two numbers")
    found = []
    for item in data["against"].items():
        one = item.fields("name", "decisions", "least", "most", "measure")
        found.append(
            Against(
                one["name"].text(200),
                choices(one["decisions"]),
                one["least"].integer(-(1 << 62), 1 << 62),
                one["most"].integer(-(1 << 62), 1 << 62),
                one["measure"].text(200),
            )
        )
    if len(found) > MOST:
        data["against"].fail(f"has more than {MOST} plans")
    return ErrorBounds((cost[0], cost[1]), data["bound"].integer(0, 1 << 62), tuple(found))

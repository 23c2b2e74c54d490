"""Tells a result that is wrong from one that rounding decides, known as conditioning.

    equal               |ranks - one process|  <=  allowed
    rounding decides    |ranks - one process|  <=  SLACK x |one process - the same with other last digits|

Other last digits: every real input and parameter times 1 + u or 1 - u, drawn.  A value that changes by as much then
has no digits that ranks could agree on: a gradient that is zero but for rounding (of a bias that softmax does not see),
divided by its own size as Adafactor and Muon do.  Looked at only where something differs, result by result; whatever is
computed from better numbers is held to `allowed`.

Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 1.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

import numpy as np

from ...models.program.graph import Graph
from ..kernels import Array
from .comparison import difference
from .reference import run_graph

SLACK: Final = 100.0
"""How much more the roundings of a whole run may do than one of its inputs."""


@dataclass(frozen=True)
class Compared:
    """The largest difference of the results that numbers decide, and where; `undetermined`: those that rounding
    decides, with their difference and that of one process from itself.
    """

    worst: float
    at: str
    allowed: float
    undetermined: tuple[tuple[str, float, float], ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs that is determined."""
        return self.worst <= self.allowed

    def facts(self) -> dict[str, object]:
        """As plain data."""
        return {
            "equal": self.equal,
            "difference": self.worst if isfinite(self.worst) else None,
            "undetermined": {name: {"difference": d, "one_process": own} for name, d, own in self.undetermined},
        }

    def lines(self) -> list[str]:
        """In words."""
        said = (
            f"largest difference from one process: {self.worst:.2e} (allowed {self.allowed:g}): "
            f"{'equal' if self.equal else f'DIFFERENT, at {self.at}'}"
        )
        if not self.undetermined:
            return [said]
        name, apart, own = max(self.undetermined, key=lambda found: (found[1], found[0]))
        but = (
            f"but for {len(self.undetermined)} results that rounding decides, such as {name}: {apart:.2e} apart, and "
            f"one process differs from itself by {own:.2e} when its inputs change in the last digit"
        )
        return [said, but]


def compare(
    graph: Graph,
    inputs: Mapping[str, Array],
    got: Mapping[str, Array],
    expected: Mapping[str, Array],
    allowed: float,
    stored: bool = False,
    again: Callable[[], Mapping[str, Array]] | None = None,
) -> Compared:
    """Results of `graph` on ranks beside `expected`, those of one process on the same inputs.  `stored`: every tensor
    was rounded to its own type, as `run_graph` does; then inputs that fit 16 bits change by too little to count.
    `again`: gives those of one process with other last digits, where more was run than this graph.
    """
    apart = {name: difference(got[name], expected[name]) for name in graph.results}
    undetermined: list[tuple[str, float, float]] = []
    if any(d > allowed for d in apart.values()):
        other = run_graph(graph, other_digits(inputs), stored=stored) if again is None else again()
        for name in [n for n, d in apart.items() if d > allowed]:
            own = difference(other[name], expected[name])
            if apart[name] <= SLACK * own < inf:
                undetermined.append((name, apart.pop(name), own))
    worst, at = max(((d, name) for name, d in apart.items()), default=(0.0, ""), key=lambda found: found[0])
    return Compared(worst, at, allowed, tuple(undetermined))


def other_digits(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every real number a unit in the last place up or down, as drawn from a fixed seed; the rest as it is.

    >>> float(abs(other_digits({"x": np.ones(3)})["x"] - 1).max()) < 3e-16
    True
    """
    rng = np.random.default_rng(0)
    out = {}
    for name in sorted(inputs):
        x = np.asarray(inputs[name])
        out[name] = x
        if x.dtype.kind == "f":
            out[name] = np.nextafter(x, np.where(rng.integers(0, 2, x.shape) == 1, inf, -inf).astype(x.dtype))
    return out

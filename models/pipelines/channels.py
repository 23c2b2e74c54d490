"""What a phase takes where reshardings run beside operators: weights of its channels.

Phases (forward, backward, updates) of a stage run one after another; inside one, operators run on one stream and
reshardings on another.  A phase takes at least

    C    the sum of its operators            M    the sum of its reshardings
    P    a chain of operators, each of which reads what the one before writes, with the reshardings between them

hence at least  (c C + m M + p P) / W  for weights of 0 or more that add up to W.  Runs of units side by side add up
where their weights are the same: C and M are sums over units, and chains join at the one tensor that crosses a cut.
With other weights they do not: C of one run and M of the next may take the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

Phase = tuple[int, int, int]
"""c, m, p."""


@dataclass(frozen=True, order=True)
class Channels:
    """Weights (c, m, p) of a forward and of a backward pass, and of updates, which have no chain.

    >>> Channels((8, 0, 0), (4, 2, 2), (0, 8, 0)).whole
    8
    """

    forward: Phase
    backward: Phase
    update: Phase

    @property
    def whole(self) -> int:
        """What the weights of a phase add up to."""
        return sum(self.forward)

    def of(self, phase: str) -> Phase:
        """Weights of F, B or U."""
        return {"F": self.forward, "B": self.backward, "U": self.update}[phase]

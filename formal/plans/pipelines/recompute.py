"""Which blocks of a pipelined step to compute again when memory is short: the shortest of several
graphs that fits.

    candidate k      the step whose first k blocks are recomputed        (k = 0: none, n: all)

The first blocks lie on the first stages, which keep the most activations, so k says which stages recompute, and which a
part of theirs.  Tried are 0, then, unless that is proved to be near the best, n, then halves of the interval: towards
fewer where the smaller end does not fit, else towards the shorter end.

The claim is about the graph that is chosen; that no other set of blocks would be shorter is not proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from ....models.text import Inapplicable
from ...selection.model.clock import Clock
from .outcome import SearchOutcome

SHARE = 0.5
"""Of the time that is left, what a candidate gets; those that end sooner leave the rest to the others."""

TIGHT_SHARE = 0.8
"""The same of the first candidate where the whole machine has no room without recomputation: of all blocks, or of none
where stages have room.
"""

LEAST_SHARE = 0.1
"""Of the time limit: with less than that no other candidate is begun."""

MUCH_SHARE = 0.5
"""The same behind a candidate that another search has found to be the best."""


@dataclass(frozen=True)
class CandidateOutcome:
    """A candidate: blocks, of how many, picoseconds of its step (None: none was found)."""

    blocks: int
    of: int
    step: int | None


@dataclass(eq=False)
class _Candidates:
    """What is known of the steps whose first k blocks are recomputed."""

    names: tuple[str, ...]
    plan: Callable[[str, Clock], SearchOutcome]
    clock: Clock
    enough: float
    known: dict[int, SearchOutcome] = field(default_factory=dict)
    tried: list[CandidateOutcome] = field(default_factory=list)

    def attempt(self, k: int, share: float = SHARE) -> int | None:
        """Picoseconds of a plan, which is searched within that share of what is left of the time, once."""
        if k in self.known:
            return self.step_of(k)
        try:
            found = self.plan(",".join(self.names[:k]) if k else "none", self.clock.share(share))
        except Inapplicable:  # what is computed again may join units, and leave too few for the stages
            if k == 0:
                raise
            self.tried.append(CandidateOutcome(k, len(self.names), None))
            return None
        self.known[k] = found
        self.tried.append(CandidateOutcome(k, len(self.names), self.step_of(k)))
        return self.step_of(k)

    def step_of(self, k: int) -> int | None:
        """Picoseconds of the best plan of what was tried."""
        best = self.known[k].best
        return None if best is None else best.step

    def time_enough(self, share: float = LEAST_SHARE) -> bool:
        """Whether more than a share of the limit is left, where there is a plan of what is enough for it."""
        if any(t.step is not None for t in self.tried):
            share += 1 - self.enough
        return self.clock.limit_s is None or self.clock.remaining_s() > share * self.clock.limit_s

    def best(self) -> tuple[SearchOutcome, tuple[CandidateOutcome, ...]]:
        """The best, of equal ones that with the fewest blocks; without a plan the last one."""
        fitting = [t for t in self.tried if t.step is not None]
        last_known = next(t.blocks for t in reversed(self.tried) if t.blocks in self.known)
        blocks = min(fitting, key=lambda t: (t.step or 0, t.blocks)).blocks if fitting else last_known
        return self.known[blocks], tuple(self.tried)


@dataclass(frozen=True)
class Turns:
    """Which candidate is the first, and what it may take.  `tight`: there is no room for the step without
    recomputation, so that all blocks are tried first: half of the time would go into stages that do not fit either;
    `share`: of the time, for the step without recomputation; `first`: what another search chose: others only if there
    is much time behind it; `enough`: of the time, after which a plan is enough.
    """

    tight: bool = False
    share: float = SHARE
    first: int | None = None
    enough: float = 1.0


def plan_with_checkpointing(
    names: tuple[str, ...],
    plan: Callable[[str, Clock], SearchOutcome],
    clock: Clock,
    gap: Fraction,
    elsewhere: int = 1 << 62,
    turns: Turns | None = None,
) -> tuple[SearchOutcome, tuple[CandidateOutcome, ...]]:
    """The best candidate, and all that were tried.  `plan`: of the step with these blocks recomputed (a `--recompute`
    text), within a time.  `elsewhere`: picoseconds of a plan that another search has found: halves are not tried where
    neither end can be better.
    """
    turns = turns or Turns()
    n, of = len(names), _Candidates(names, plan, clock, turns.enough)
    if turns.first is not None:
        of.attempt(turns.first, TIGHT_SHARE)
        if turns.first in of.known and not of.time_enough(MUCH_SHARE):
            return of.best()
    most = of.attempt(n, TIGHT_SHARE) if turns.tight and n else None
    least = of.attempt(0, turns.share) if not turns.tight or not n or of.time_enough() else None
    if n and (least is None or of.known[0].lower_bound < least * (1 - gap)):
        most = of.attempt(n) if not turns.tight else most
        low, high = 0, n
        if all(k in of.known and of.known[k].lower_bound >= elsewhere for k in (0, n)):
            low = high
        while high - low > 1 and of.time_enough() and (least is not None or most is not None):
            middle = (low + high) // 2
            step = of.attempt(middle)
            if step is None or (least is not None and (most is None or most < least)):
                low, least = middle, step
            else:
                high, most = middle, step
    return of.best()

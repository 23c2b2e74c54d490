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
from dataclasses import dataclass
from fractions import Fraction

from ....models.text import Inapplicable
from ...selection.model.clock import Clock
from .search import SearchOutcome

SHARE = 0.5
"""Of the time that is left, what a candidate gets; those that end sooner leave the rest to the others."""

TIGHT_SHARE = 0.8
"""The same of the first candidate where the whole machine has no room without recomputation: of all blocks, or of none
where stages have room.
"""

LEAST_SHARE = 0.1
"""Of the time limit: with less than that no other candidate is begun."""


@dataclass(frozen=True)
class CandidateOutcome:
    """A candidate: blocks, of how many, picoseconds of its step (None: none was found)."""

    blocks: int
    of: int
    step: int | None


def plan_with_checkpointing(
    names: tuple[str, ...],
    plan: Callable[[str, Clock], SearchOutcome],
    clock: Clock,
    gap: Fraction,
    tight: bool = False,
    elsewhere: int = 1 << 62,
    share: float = SHARE,
) -> tuple[SearchOutcome, tuple[CandidateOutcome, ...]]:
    """The best candidate, and all that were tried.  `plan`: of the step with these blocks recomputed (a `--recompute`
    text), within a time.  `tight`: there is no room for the step without recomputation, so that all blocks
    are tried first: half of the time would go into stages that do not fit either.  `elsewhere`: picoseconds of a plan
    that another search has found: halves are not tried where neither end can be better.  `share`: of the time, for the
    step without recomputation.
    """
    n = len(names)
    known: dict[int, SearchOutcome] = {}
    tried: list[CandidateOutcome] = []

    def attempt(k: int, share: float = SHARE) -> int | None:
        try:
            found = plan(",".join(names[:k]) if k else "none", clock.share(share))
        except Inapplicable:  # what is computed again may join units, and leave too few for the stages
            if k == 0:
                raise
            tried.append(CandidateOutcome(k, n, None))
            return None
        known[k] = found
        step = None if found.best is None else found.best.step
        tried.append(CandidateOutcome(k, n, step))
        return step

    def time_enough() -> bool:
        return clock.limit_s is None or clock.remaining_s() > LEAST_SHARE * clock.limit_s

    most = attempt(n, TIGHT_SHARE) if tight and n else None
    least = attempt(0, share) if not tight or not n or time_enough() else None
    if n and (least is None or known[0].lower_bound < least * (1 - gap)):
        most = attempt(n) if not tight else most
        low, high = 0, n
        if all(k in known and known[k].lower_bound >= elsewhere for k in (0, n)):
            low = high
        while high - low > 1 and time_enough() and (least is not None or most is not None):
            middle = (low + high) // 2
            step = attempt(middle)
            if step is None or (least is not None and (most is None or most < least)):
                low, least = middle, step
            else:
                high, most = middle, step
    fitting = [t for t in tried if t.step is not None]
    last_known = next(t.blocks for t in reversed(tried) if t.blocks in known)
    best = min(fitting, key=lambda t: (t.step or 0, t.blocks)).blocks if fitting else last_known
    return known[best], tuple(tried)

"""Cuts of a step into stages whose schedule is short: from where the bound is least, by moving one at a time.

    value of a cut   the makespan of a quick schedule of times as the bounds have them: a third of a run's time is
                     its forward pass, two thirds the backward pass, and what crosses the cuts is sent

Every stage takes one unit more or less from its neighbour as long as that makes the value less.
"""

from __future__ import annotations

from ....models.schedules.pipeline import Pipeline
from ...schedules.search import search
from ...schedules.shop import shop
from ...selection.model.clock import Clock
from .case import Case
from .chunked import best_chunk_cut
from .interleaved import InterleavedCase

MOST_TRIED = 128
"""Micro-batches times stages up to which cuts are moved one by one."""

MOST_MOVES = 12
"""Moves of cuts."""


def best_cut(case: Case) -> tuple[int, ...]:
    """Starts of the stages for which a schedule of times as the bounds have them is shortest, by moving one cut at a
    time from where the bound is least and from even times.
    """
    if isinstance(case, InterleavedCase):
        return best_chunk_cut(case, case.begins, MOST_MOVES)
    micro = case.bounds().one
    n, p = case.job.division.units, case.stages
    there = case.hops().there
    quantum = max(1, max(micro[0][n], *(max(row, default=0) for row in there)) // (1 << 24))

    def value(starts: tuple[int, ...]) -> int:
        spans = [micro[i][j] // quantum for i, j in zip(starts, (*starts[1:], n), strict=True)]
        hops = tuple(there[s][starts[s]] // quantum for s in range(1, p))
        times = tuple((t // 3 + 1, t - t // 3, 0) for t in spans)
        pipe = Pipeline(times, case.micro, max(hops, default=0), case.micro, hops=hops)
        return search(shop(pipe), Clock(0.0)).makespan

    ends = [micro[0][i] for i in range(n)]
    even = tuple(min(range(n), key=lambda i: abs(ends[i] * p - s * micro[0][n])) for s in range(p))
    begins = [case.starts, *([even] if sorted(set(even)) == list(even) else [])]
    if case.micro * p > MOST_TRIED or p == 1:
        return case.starts
    known = {starts: value(starts) for starts in begins}
    for _ in range(MOST_MOVES):
        best = min(known, key=lambda s: known[s])
        around = [
            (*best[:k], best[k] + d, *best[k + 1 :])
            for k in range(1, p)
            for d in (-1, 1)
            if best[k - 1] < best[k] + d < (*best, n)[k + 1]
        ]
        new = [s for s in around if s not in known]
        known |= {s: value(s) for s in new}
        if min(known.values()) == known[best]:
            break
    return min(known, key=lambda s: known[s])

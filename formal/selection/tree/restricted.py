"""This module searches the labels that reduced costs leave near the bound with the dense search, known as a
restricted problem heuristic: with resource rows, few labels are left and local search among them is strong.  Nothing
is proved: what is found is offered to the incumbent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..bound.dual import Score
from ..model.factored import Domains
from ..model.restrict import restrict

if TYPE_CHECKING:
    from .run import Run

NARROW: Final = (0.05, 0.02, 0.01, 0.005, 0.002, 0.0005)
"""The same with resource rows, largest first."""

NARROW_CELLS: Final = 20_000_000
"""Entries of the tables of the narrowed problem."""

NARROW_TIME: Final = 60.0
"""Seconds for it without a time limit."""

SCALE_VERTICES: Final = 200
"""Vertices from which this pays."""


def search_restricted(run: Run, domains: Domains, result: Score) -> None:
    """The same with resource rows: the labels that prices leave, and the incumbent's, are few enough for the flat
    local search.
    """
    lower = result.lower()
    if lower is None or len(domains) < SCALE_VERTICES:
        return
    from ..model.dense import cells_of
    from .dense_search import DenseSearch  # compiled loops: problems without rows start without them

    for share in NARROW:
        if lower + share * abs(lower) >= run.incumbent.cost and share > NARROW[-1]:
            continue
        kept = list(result.fix(domains, lower + int(share * abs(lower)) + 1))
        if run.incumbent.solution is not None:
            kept = [
                np.union1d(d, np.array([a], dtype=np.int64)) for d, a in zip(kept, run.incumbent.solution, strict=True)
            ]
        if any(d.size == 0 for d in kept):
            return
        smaller, back = restrict(run.problem, {v: tuple(d.tolist()) for v, d in enumerate(kept)})
        if cells_of(smaller) <= NARROW_CELLS:
            break
    else:
        return
    run.progress.update("local search", None, run.upper())
    left = run.clock.left()
    found = DenseSearch(
        smaller, run.clock.at_most(NARROW_TIME if left == float("inf") else 0.6 * left), threads=run.threads
    ).run()
    if found is not None and found.best.solution is not None:
        run.incumbent.offer(back(found.best.solution))

"""This module searches the labels that reduced costs leave near the bound with the dense search, known as a
restricted problem heuristic: with resource rows, few labels are left and local search among them is strong.  Nothing
is proved: what is found is offered to the incumbent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..bound.dual import Score
from ..model.factored import Domains
from ..model.restrict import restrict

if TYPE_CHECKING:
    from .run import Run


def search_restricted(run: Run, domains: Domains, result: Score) -> None:
    """The same with resource rows: the labels that prices leave, and the incumbent's, are few enough for the flat
    local search.
    """
    lower = result.lower()
    if lower is None or len(domains) < run.options.tree.restricted_vertices:
        return
    from ..model.dense import cells_of
    from .dense_search import DenseSearch  # compiled loops: problems without rows start without them

    for share in run.options.tree.restricted:
        if lower + share * abs(lower) >= run.incumbent.cost and share > run.options.tree.restricted[-1]:
            continue
        kept = list(result.fix(domains, lower + int(share * abs(lower)) + 1))
        if run.incumbent.solution is not None:
            kept = [
                np.union1d(d, np.array([a], dtype=np.int64)) for d, a in zip(kept, run.incumbent.solution, strict=True)
            ]
        if any(d.size == 0 for d in kept):
            return
        part = restrict(run.problem, {v: tuple(d.tolist()) for v, d in enumerate(kept)})
        if cells_of(part.inner) <= run.options.tree.restricted_cells:
            break
    else:
        return
    run.progress.update("local search", None, run.upper())
    left = run.clock.left()
    found = DenseSearch(
        part.inner,
        run.clock.at_most(
            run.options.tree.restricted_s if left == float("inf") else run.options.tree.restricted_share * left
        ),
        threads=run.threads,
        options=run.options,
    ).run()
    if found is not None and found.best.solution is not None:
        run.incumbent.offer(part.solution_back(found.best.solution))

"""Solutions from reduced costs: search only the labels that could be part of a solution just above the bound.

For a bound B with excess x_v(a) per label (`bounds`), a solution of cost at most B + s uses labels with x_v(a) <= s
alone.  Fixing against the incumbent removes nothing while the incumbent is poor; with a guess s instead, few labels are
left, and messages, eliminations and local search among them are cheap.  Nothing is proved: what is found is offered to
the incumbent.  (Measured: one block of BERT-Large on 32x8, two rows per level: decoding 1.0 % above the bound, 0.1 %
after this.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ...proofs.selection.certificates import Dual
from .bounds import Score
from .network import Domains
from .restrict import restrict

if TYPE_CHECKING:
    from .search import Search

ASPIRE: Final = (0.0005, 0.002, 0.008)
"""How far above the bound solutions are looked for among what reduced costs leave."""

ASPIRE_LABELS: Final = 0.4
"""Share of the labels above which that is no help."""

ASPIRE_NODES: Final = 12
ASPIRE_TIME: Final = 0.06
"""Nodes, and share of the time limit, for one look."""

NARROW: Final = (0.05, 0.02, 0.01, 0.005, 0.002, 0.0005)
"""The same with resource rows, largest first."""

NARROW_CELLS: Final = 20_000_000
"""Entries of the tables of the narrowed problem."""

NARROW_TIME: Final = 60.0
"""Seconds for it without a time limit."""

SCALE_VERTICES: Final = 200
"""Vertices from which this pays."""


def aspire(search: Search, domains: Domains, record: Dual, result: Score, lower: int) -> None:
    """Look for better solutions among the labels that could be part of one just above the bound; proves nothing.

    Reduced costs leave so few of them that messages and eliminations there are cheap, while fixing against a poor
    incumbent leaves all.
    """
    if search.aspiring:
        return
    clock, nodes, held, search.aspiring = search.clock, search.nodes, search.held, True
    for share in ASPIRE:
        guess = lower + int(share * abs(lower)) + 1
        if guess >= search.incumbent.cost or clock.over():
            break
        kept = result.survivors(domains, guess)
        if any(d.size == 0 for d in kept):
            continue
        if sum(d.size for d in kept) > ASPIRE_LABELS * sum(d.size for d in domains):
            break
        search.progress.update("aspiration", None, search.upper())
        search.nodes = ASPIRE_NODES
        search.clock = clock.share(ASPIRE_TIME)
        search.explore(kept, record, 1)
        search.nodes, search.clock, search.held = nodes, clock, held
    search.aspiring = False


def narrow(search: Search, domains: Domains, result: Score) -> None:
    """The same with resource rows: the labels that prices leave, and the incumbent's, are few enough for the flat
    local search.
    """
    lower = result.lower()
    if lower is None or len(domains) < SCALE_VERTICES:
        return
    from .flat import cells_of
    from .scale import Scale  # compiled loops: problems without rows start without them

    for share in NARROW:
        if lower + share * abs(lower) >= search.incumbent.cost and share > NARROW[-1]:
            continue
        kept = list(result.survivors(domains, lower + int(share * abs(lower)) + 1))
        if search.incumbent.solution is not None:
            kept = [
                np.union1d(d, np.array([a], dtype=np.int64))
                for d, a in zip(kept, search.incumbent.solution, strict=True)
            ]
        if any(d.size == 0 for d in kept):
            return
        smaller, back = restrict(search.problem, {v: tuple(d.tolist()) for v, d in enumerate(kept)})
        if cells_of(smaller) <= NARROW_CELLS:
            break
    else:
        return
    search.progress.update("local search", None, search.upper())
    left = search.clock.left()
    found = Scale(
        smaller, search.clock.at_most(NARROW_TIME if left == float("inf") else 0.6 * left), threads=search.threads
    ).run()
    if found is not None and found.best.solution is not None:
        search.incumbent.offer(back(found.best.solution))

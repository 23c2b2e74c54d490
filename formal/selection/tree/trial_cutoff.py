"""This module looks for solutions just above the bound, known as a trial cutoff (aspiration window): it searches only
the labels that could be part of one.

For a bound B with reduced costs x_v(a) (`bound/dual.py`), a solution of cost at most B + s uses labels with x_v(a)
<= s alone.  Fixing against the incumbent removes nothing while the incumbent is poor; with a guess s instead, few
labels are left, and messages, eliminations and local search among them are cheap.  Nothing is proved: what is found is
offered to the incumbent.  (Measured: one block of BERT-Large on 32x8, two rows per level: decoding 1.0 % above the
bound, 0.1 % after this.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proofs.selection.certificates import Dual
from ..bound.dual import Score
from ..model.factored import Domains

if TYPE_CHECKING:
    from .run import Run


def try_cutoffs(run: Run, domains: Domains, record: Dual, result: Score, lower: int) -> None:
    """Look for better solutions among the labels that could be part of one just above the bound; proves nothing.

    Reduced costs leave so few of them that messages and eliminations there are cheap, while fixing against a poor
    incumbent leaves all.
    """
    if run.trying:
        return
    clock, nodes, held, run.trying = run.clock, run.nodes, run.held, True
    for share in run.options.tree.cutoffs:
        guess = lower + int(share * abs(lower)) + 1
        if guess >= run.incumbent.cost or clock.over():
            break
        kept = result.fix(domains, guess)
        if any(d.size == 0 for d in kept):
            continue
        if sum(d.size for d in kept) > run.options.tree.cutoff_labels * sum(d.size for d in domains):
            break
        run.progress.update("aspiration", None, run.upper())
        run.nodes = run.options.tree.cutoff_nodes
        run.clock = clock.share(run.options.tree.cutoff_share)
        run.explore(kept, record, 1)
        run.nodes, run.clock, run.held = nodes, clock, held
    run.trying = False

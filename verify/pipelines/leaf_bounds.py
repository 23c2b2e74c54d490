"""What a leaf establishes: what a run of units takes at least, by a certificate about its problem; of
weights of channels it is the mean, so what the certificate proves is divided by what they add up to.
"""

from __future__ import annotations

from ...models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from ...proofs.pipelines.certificate import Leaf
from ..selection.certificate import check_selection
from .bound import PICO
from .choices import Wrong
from .leaves import Units
from .weighed import chains_of


def leaf_bound(units: Units, leaf: Leaf) -> int:
    """Picoseconds that a leaf's certificate establishes."""
    if not 0 <= leaf.first < leaf.end <= len(units.in_unit):
        raise Wrong(f"a leaf has units {leaf.first} to {leaf.end}")
    if leaf.times not in (1, leaf.micro if leaf.once else 1):
        raise Wrong(f"a leaf counts {leaf.times} of {leaf.micro} micro-batches")
    if leaf.phase and (leaf.once or leaf.times != 1):
        raise Wrong(f"a leaf of one pass counts {leaf.times} micro-batches{' and updates' if leaf.once else ''}")
    chain = chains_of(units, leaf, leaf.first)
    if leaf.channels is None and leaf.chains != ((), ()):
        raise Wrong(f"leaf {leaf.first} to {leaf.end}: has chains and no weights")
    problem = units.leaf(leaf.first, leaf.end, leaf.times, leaf.once, leaf.phase, leaf.channels, chain)
    found = check_selection(problem, leaf.certificate, budget=units.entries.budget)
    if found.verdict is not Verdict.PROVED or isinstance(leaf.certificate.claim, Infeasible):
        raise Wrong(f"leaf {leaf.first} to {leaf.end} of {leaf.stages}:{leaf.micro}: {found.reason or 'no bound'}")
    claim = leaf.certificate.claim
    if not isinstance(claim, Optimal | WithinGap | LowerBound):
        raise Wrong(f"leaf {leaf.first} to {leaf.end} of {leaf.stages}:{leaf.micro}: no bound")
    value = claim.cost if isinstance(claim, Optimal) else claim.lower_bound
    whole = 1 if leaf.channels is None else leaf.channels.whole
    if leaf.nodes:  # there every entry may be rounded up by one unit where those of the view are not
        value -= whole * leaf.times * (len(problem.vertices) + len(problem.edges))
    if -(-value // whole) * PICO // problem.scale < leaf.bound:
        raise Wrong(f"leaf {leaf.first} to {leaf.end}: its certificate gives less than {leaf.bound} ps")
    return leaf.bound

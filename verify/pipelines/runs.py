"""What is known of runs of units: least work of every unit, and what leaves prove.

Values of runs side by side add up within a group.  Without overlap there is one group.  Where reshardings run
beside operators (`weighed`), least work is one, a sum of operators alone, and leaves of the same weights are one each,
with least work times the weight of operators where no leaf says more; of a run the best group counts.  Of weights of
channels what a certificate proves is a mean, and divided by what they add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...models.pipelines.channels import Channels
from ...models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from ...proofs.container.effort import OBJECT
from ...proofs.pipelines.certificate import Leaf
from ..selection.certificate import check_selection
from .bound import PICO, Runs
from .choices import Wrong
from .leaves import Units
from .weighed import chains_of, why_not_one_chain


@dataclass(frozen=True, eq=False)
class Group:
    """Least times of runs of units: forward, backward, both, these with updates, all micro-batches with updates."""

    forward: Runs = field(default_factory=dict)
    backward: Runs = field(default_factory=dict)
    both: Runs = field(default_factory=dict)
    updated: Runs = field(default_factory=dict)
    step: Runs = field(default_factory=dict)

    def learn(self, leaf: Leaf, run: tuple[int, int], value: int, micro: int) -> None:
        """What a leaf says of a run of units equal to its own."""
        known: list[tuple[Runs, int]]
        if leaf.phase:
            known = [(self.forward if leaf.phase == "F" else self.backward, value)]
        else:
            known = [(self.step, value if leaf.once else value * micro)]
            known += [] if leaf.once else [(self.both, value)]
            known += [(self.updated, value)] if leaf.times == 1 else []
        for rows, least in known:
            rows[run] = max(rows.get(run, 0), least)


Groups = Sequence[Group]


def least_work_group(forward: Sequence[int], backward: Sequence[int], both: Sequence[int], micro: int) -> Group:
    """What is known without leaves, per unit; `both` may be more than the sum, which is rounded twice."""
    f, b, one, updated = ({(u, u + 1): w for u, w in enumerate(x)} for x in (forward, backward, both, both))
    return Group(f, b, one, updated, {(u, u + 1): micro * w for u, w in enumerate(both)})


def weighed_group(channels: Channels, forward: Sequence[int], backward: Sequence[int], micro: int) -> Group:
    """The same in parts of the weights of operators."""
    w, (f, *_), (b, *_) = channels.whole, channels.forward, channels.backward
    both = {(u, u + 1): (f * x + b * y) // w for u, (x, y) in enumerate(zip(forward, backward, strict=True))}
    return Group(
        {(u, u + 1): f * x // w for u, x in enumerate(forward)},
        {(u, u + 1): b * x // w for u, x in enumerate(backward)},
        both,
        dict(both),
        {run: micro * value for run, value in both.items()},
    )


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


def learn(
    first: Group,
    leaves: Sequence[Leaf],
    units_of: Callable[[bool], Units],
    group_of: Callable[[Channels], Group],
    n: int,
) -> Groups:
    """Every group with what the leaves of a pair prove.  `units_of`: the problem, of nodes or not."""
    found: dict[Channels | None, Group] = {None: first}
    for nodes in sorted({leaf.nodes for leaf in leaves}):
        units = units_of(nodes)
        if any(leaf.chains != ((), ()) for leaf in leaves) and (wrong := why_not_one_chain(units)):
            raise Wrong(wrong)
        for leaf in (leaf for leaf in leaves if leaf.nodes == nodes):
            value, size, weighed = leaf_bound(units, leaf), leaf.end - leaf.first, leaf.channels is not None
            alike = min(size, n - size + 1)
            units.entries.budget.charge(OBJECT * 16 * alike * (len(units.where) + len(units.updating)), "leaves")
            key = units.alike(leaf.first, leaf.end, leaf.once, leaf.phase, weighed)
            if leaf.channels not in found and leaf.channels is not None:
                found[leaf.channels] = group_of(leaf.channels)
            for i in range(n - size + 1):
                run = (i, i + size)
                if units.alike(*run, leaf.once, leaf.phase, weighed) == key and _chained(units, leaf, i):
                    found[leaf.channels].learn(leaf, run, value, leaf.micro)
    return tuple(found.values())


def _chained(units: Units, leaf: Leaf, first: int) -> bool:
    """Whether the chains of a leaf are chains of equal units too, at the same places."""
    if leaf.chains == ((), ()):
        return True
    try:
        return _places(units, leaf, first) == _places(units, leaf, leaf.first)
    except Wrong:
        return False


def _places(units: Units, leaf: Leaf, first: int) -> tuple[list[int], list[int]]:
    vertices, edges = units.inside(first, first + leaf.end - leaf.first, leaf.once)
    chain = chains_of(units, leaf, first)
    return [k for k, v in enumerate(vertices) if v in chain[0]], [k for k, e in enumerate(edges) if e in chain[1]]

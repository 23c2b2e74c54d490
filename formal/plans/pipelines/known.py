"""Puts together what is known of runs of units: least work, and leaves, in groups that add up.

Without overlap there is one group.  Where reshardings run beside operators least work is one, and leaves of the
same weights are one each (`models.pipelines.channels`); of a run the best group counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ....models.pipelines.bound import Triangle, closure
from ....models.pipelines.channels import Channels
from ....proofs.pipelines.certificate import Leaf

Known = dict[tuple[int, int], int]
Placed = tuple[Leaf, int, int]
"""A leaf, and units that it is about."""


@dataclass(frozen=True, eq=False)
class Group:
    """What runs of units take at least, that adds up: as in `models.pipelines.cuts.Passes`."""

    forward: Known = field(default_factory=dict)
    backward: Known = field(default_factory=dict)
    one: Known = field(default_factory=dict)
    updated: Known = field(default_factory=dict)
    step: Known = field(default_factory=dict)

    def learn(self, leaf: Leaf, first: int, end: int) -> None:
        """What a leaf says."""
        run, value = (first, end), leaf.bound
        if leaf.phase:
            _raise(self.forward if leaf.phase == "F" else self.backward, run, value)
            return
        if not leaf.once:
            _raise(self.one, run, value)
        if leaf.times == 1:
            _raise(self.updated, run, value)
        _raise(self.step, run, value if leaf.once else value * leaf.micro)


def _raise(known: Known, run: tuple[int, int], value: int) -> None:
    known[run] = max(known.get(run, 0), value)


def work_group(forward: list[int], backward: list[int], one: list[int], micro: int) -> Group:
    """Least work of units."""
    f, b, a = ({(u, u + 1): w for u, w in enumerate(row)} for row in (forward, backward, one))
    return Group(f, b, a, dict(a), {run: w * micro for run, w in a.items()})


def weighted_group(channels: Channels, forward: list[int], backward: list[int], micro: int) -> Group:
    """Least work in parts of the weights of operators."""
    whole, f, b = channels.whole, channels.forward[0], channels.backward[0]
    both = [(f * x + b * y) // whole for x, y in zip(forward, backward, strict=True)]
    return work_group([f * x // whole for x in forward], [b * y // whole for y in backward], both, micro)


def triangles(units: int, groups: Iterable[Group]) -> tuple[Triangle, Triangle, Triangle, Triangle, Triangle]:
    """Forward, backward, both, with updates, all micro-batches with updates: of every run the best group's."""
    f, b, one, updated, step = zip(*((g.forward, g.backward, g.one, g.updated, g.step) for g in groups), strict=True)
    return (_best(units, f), _best(units, b), _best(units, one), _best(units, updated), _best(units, step))


def _best(units: int, groups: Iterable[Known]) -> Triangle:
    first, *others = (closure(units, known) for known in groups)
    for other in others:
        first = [list(map(max, a, b)) for a, b in zip(first, other, strict=True)]
    return first

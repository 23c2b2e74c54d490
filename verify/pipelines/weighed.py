"""Checks what leaves say where reshardings run beside operators: chains, and which leaves add up.

A phase takes at least C, M and every chain, hence their mean with weights that add up to W (`models.pipelines
.channels`).  C and M of units side by side are sums, so their means add up if they have the same weights; so do chains,
each of which begins with what reads the tensor at the cut in front and ends with what writes the one at the cut behind,
because along every unit in between one depends on the other.  A chain's movements are those of the phase: the first
from each member to the next, through the copy if there is one.
"""

from __future__ import annotations

from itertools import pairwise

from ...proofs.container.effort import OBJECT
from ...proofs.pipelines.certificate import Leaf
from .choices import Wrong
from .leaves import Chained, Units


def chains_of(units: Units, leaf: Leaf, first: int) -> Chained:
    """Vertices and edges of the chains of a leaf, as they lie on the equal units from `first` on.  `Wrong` where they
    are none there.
    """
    shift = _images(units, leaf, first)
    vertices: set[int] = set()
    edges: set[int] = set()
    for phase, names in zip("FB", leaf.chains, strict=True):
        if not names:
            continue
        try:
            here = [shift[name] for name in names]
        except KeyError as error:
            raise Wrong(f"chain: {error} is no operator of the leaf") from None
        edges |= _links(units, here, phase, first, first + leaf.end - leaf.first)
        vertices |= {units.planning.operators[name] for name in here}
    return frozenset(vertices), frozenset(edges)


def _images(units: Units, leaf: Leaf, first: int) -> dict[str, str]:
    """Operators of a leaf -> those at the same places of the units from `first` on."""
    decisions, size = units.planning.decisions, leaf.end - leaf.first
    there, here = (units.inside(i, i + size, leaf.once)[0] for i in (leaf.first, first))
    names = units.planning.operators
    return {
        decisions[a].name: decisions[b].name
        for a, b in zip(there, here, strict=True)
        if decisions[a].name in names and decisions[b].name in names
    }


def _links(units: Units, names: list[str], phase: str, first: int, end: int) -> set[int]:
    """Movements between the members of a chain; `Wrong` if it is none that joins the cuts of units first .. end-1."""
    if len(set(names)) < len(names) or any(
        units.phase[name] != phase or not first <= units.unit[name] < end for name in names
    ):
        raise Wrong(f"chain: {names[0]!r} .. {names[-1]!r} leaves its pass or its units, or comes back")
    operators = units.entries.operators
    way = 0 if phase == "F" else 1
    left = units.cuts[first - 1][way] if first else None
    right = units.cuts[end - 1][way] if end <= len(units.cuts) else None
    came, goes = (left, right) if phase == "F" else (right, left)
    if came is not None and came not in {a.tensor for a in operators[names[0]].inputs}:
        raise Wrong(f"chain: {names[0]!r} does not read {came!r}, which crosses the cut")
    if goes is not None and operators[names[-1]].output.tensor != goes:
        raise Wrong(f"chain: {names[-1]!r} does not write {goes!r}, which crosses the cut")
    found: set[int] = set()
    for before, after in pairwise(names):
        tensor = operators[before].output.tensor
        if (tensor, after) not in units.fetches:
            raise Wrong(f"chain: {after!r} reads nothing that {before!r} writes")
        number = units.fetches[tensor, after]
        found.add(number)
        if units.entries.moves[number].writer is None:
            found.add(units.fetches[tensor, None])
    return found


def why_not_one_chain(units: Units) -> str:
    """Why chains of units side by side may not be one chain; empty if they are: behind every cut, what crosses the
    next one depends on what crossed it, and so do gradients in the other direction.
    """
    units.entries.budget.charge(OBJECT * 4 * (1 + len(units.cuts)) * len(units.graph.operators), "chains")
    for phase, way in (("F", 0), ("B", 1)):
        for u in range(1, len(units.cuts)):
            came, goes = units.cuts[u - 1][way], units.cuts[u][way]
            came, goes = (came, goes) if phase == "F" else (goes, came)
            reached = {came}
            for op in units.graph.operators:
                if units.unit[op.name] == u and units.phase[op.name] == phase:
                    reached |= {op.output.tensor} if any(a.tensor in reached for a in op.inputs) else set()
            if goes not in reached:
                return f"{goes!r} does not depend on {came!r}: chains do not add up"
    return ""

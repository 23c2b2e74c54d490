"""What a planning problem assumes, as flags: every claim about it states them, and they are part of its identity.

    of the space           `placement.Space.flags`
    of the cost model      `cost.FLAGS`
    of the memory rows     `memory.flags`; without a limit there are none: `no-memory-limit`
    even-groups                        the groups of every grouped product (experts) have equally many points (tokens)
    one-step-redistribution            a tensor goes from its writer's layout to its reader's (or its copy's) directly;
                                       one in between is not tried
    contiguous-queries(n: op ..)       queries of an attention with a band are cut into runs: placements that balance
                                       a causal mask (zigzag) are not in the space, its slowest run is priced
    unpriced-resources(a b ..)         shared links of the machine file that the cost of a plan leaves out
    unsplit-axes(n: op.axis ..)        axes longer than 1 that the graph says are never split: the space has no
                                       placement that does

The checker derives its own (`verify/plan/assumptions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..layout.placement import Space
from ..machine.machine import Machine
from ..program.attention import band
from ..program.graph import Graph
from ..program.operators import NodeKind
from . import cost, memory

MOST_NAMED: Final = 3
"""Names in one flag, so that it stays one line; beyond, their number says how many there are."""


def flags(graph: Graph, machine: Machine, where: Space, memory_limit: int | None, moves: bool) -> tuple[str, ...]:
    """All flags, sorted.  `moves`: whether anything is ever redistributed."""
    found = {*where.flags, *cost.FLAGS}
    found |= {"no-memory-limit"} if memory_limit is None else set(memory.flags(graph))
    if any(op.even for op in graph.operators):
        found.add("even-groups")
    if moves:
        found.add("one-step-redistribution")
    if machine.resources:
        found.add(f"unpriced-resources({_named([r.name for r in machine.resources])})")
    banded = [op.name for op in graph.operators if op.kind is NodeKind.ATTENTION and band(op) is not None]
    if banded:
        found.add(f"contiguous-queries({len(banded)}: {_named(banded)})")
    unsplit = [f"{op.name}.{a.name}" for op in graph.operators for a in op.axes if a.extent > 1 and not a.splittable]
    if unsplit:
        found.add(f"unsplit-axes({len(unsplit)}: {_named(unsplit)})")
    return tuple(sorted(found))


def _named(names: Sequence[str]) -> str:
    return " ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")

"""What a planning problem assumes, as flags: every claim about it states them, and they are part of
its identity.

    of the space           `placement.Space.flags`
    of the cost model      `cost.FLAGS`
    of the memory rows     `memory.flags`; without a limit there are none: `no-memory-limit`
    even-groups                        the groups of every grouped product (experts) have equally many points (tokens)
    counted-groups(n: a b ..)          the groups of these have shares of the points as the model's counts say
    one-step-redistribution            a tensor goes from its writer's layout to its reader's (or its copy's) directly;
                                       one in between is not tried
    contiguous-queries(n: op ..)       queries of an attention with a band are cut into runs: placements that balance
                                       a causal mask (zigzag) are not in the space, its slowest run is priced
    unpriced-resources(a b ..)         shared links of the machine file that the cost of a plan leaves out
    measured-collectives(level ..), measured-products(type ..), measured-attention(type ..)
                                       what the machine's measured forms price; then also
    links-by-bandwidth(level ..)       levels of two or more children without measured forms: bandwidth and latency
    roofline-work(n: op ..)            operators with arithmetic that no measured form of products or attention
                                       prices
    collective-programs(library)       reductions are one collective each, whatever levels it spans
    collective-programs(synthesised)   reductions take the cheapest of one collective per block of neighbouring levels,
                                       each in a ring: correct as the checker says, cheapest of these programs alone
    unsplit-axes(n: op.axis ..)        axes longer than 1 that the graph says are never split: the space has no
                                       placement that does

The checker derives its own (`verify/plan/assumptions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..layout.classes import axis_orders
from ..layout.placement import Space
from ..machine.machine import Collectives, Machine
from ..program.attention import band
from ..program.graph import Graph
from ..program.operators import NodeKind
from . import cost, memory
from .attention import direction
from .forms import OperatorForm, operator_forms
from .products import product_axes

MOST_NAMED: Final = 3
"""Names in one flag, so that it stays one line; beyond, their number says how many there are."""


def flags(graph: Graph, machine: Machine, where: Space, memory_limit: int | None, moves: bool) -> tuple[str, ...]:
    """All flags, sorted.  `moves`: whether anything is ever resharded."""
    found = {*where.flags, *cost.FLAGS}
    found |= {"no-memory-limit"} if memory_limit is None else set(memory.flags(graph))
    if any(op.even for op in graph.operators):
        found.add("even-groups")
    counted = [op.name for op in graph.operators if op.loads]
    if counted:
        found.add(f"counted-groups({len(counted)}: {_named(counted)})")
    if moves:
        found.add("one-step-redistribution")
    if machine.resources:
        found.add(f"unpriced-resources({_named([r.name for r in machine.resources])})")
    if machine.collectives is not Collectives.HIERARCHICAL:
        found.add(f"collective-programs({machine.collectives.value})")
    banded = [op.name for op in graph.operators if op.kind is NodeKind.ATTENTION and band(op) is not None]
    if banded:
        found.add(f"contiguous-queries({len(banded)}: {_named(banded)})")
    found |= measured_flags(graph, machine)
    unsplit = [f"{op.name}.{a.name}" for op in graph.operators for a in op.axes if a.extent > 1 and not a.splittable]
    if unsplit:
        found.add(f"unsplit-axes({len(unsplit)}: {_named(unsplit)})")
    return tuple(sorted(found))


def measured_flags(graph: Graph, machine: Machine) -> set[str]:
    """What is priced by measured forms, and what is not; nothing for a machine without any.

    >>> from ..machine.machine import load_machine
    >>> from ..sources.zoo import build as zoo
    >>> measured_flags(zoo("mlp-unity"), load_machine("cloud-a100"))
    set()
    """
    levels = [x.name for x in machine.levels if x.collectives]
    types = {p.dtype for c in machine.classes for p in c.products}
    attended = {a.dtype for c in machine.classes for a in c.attentions}
    if not levels and not types and not attended:
        return set()
    found = {f"measured-collectives({' '.join(levels)})"} if levels else set()
    linear = [x.name for x in machine.levels if x.size > 1 and not x.collectives]
    found |= {f"links-by-bandwidth({' '.join(linear)})"} if linear else set()
    found |= {f"measured-products({' '.join(sorted(types))})"} if types else set()
    found |= {f"measured-attention({' '.join(sorted(attended))})"} if attended else set()
    forms = operator_forms(graph, axis_orders(graph))
    by_roofline = [name for name, form in forms.items() if form.flops and not _by_form(form, machine)]
    if by_roofline:
        found.add(f"roofline-work({len(by_roofline)}: {_named(by_roofline)})")
    return found


def _by_form(form: OperatorForm, machine: Machine) -> bool:
    """Does every class of devices have a measured form of this operator?"""
    dtype, which = form.computed_in, direction(form)
    if which:
        return all(c.attention(dtype, which) for c in machine.classes)
    return product_axes(form) is not None and all(c.product(dtype) for c in machine.classes)


def _named(names: Sequence[str]) -> str:
    return " ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")

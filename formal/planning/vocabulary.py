"""This module plans again within what another framework can say, and prices the restriction.

    P, P'     least seconds over all placements, and over those that the framework says (`models.cost.vocabulary`)
    price     P' / P - 1, what the framework costs

Both plans are proved: P lies between the bound b and the cost c of the first, P' between b' and c' of the second, so

    max(0, b' / c - 1)  <=  price  <=  c' / b - 1

and where both are optimal the two sides are one number.
"""

from __future__ import annotations

from dataclasses import replace

from ...models.layout.placement import space
from ...proofs.plan.bundle import Plan
from ..selection.model.clock import Clock
from .plan import Planned, plan_graph
from .time_limit import TimeLimit


def plan_within(plan: Plan, vocabulary: str, clock: Clock, threads: int = 2) -> Planned:
    """The best plan of the same graph, machine and memory limit among those that the framework says."""
    where = replace(space(plan.space), vocabulary=vocabulary, uneven=False)
    return plan_graph(plan.graph, plan.machine, where, plan.memory_limit, limit=TimeLimit(clock), threads=threads)

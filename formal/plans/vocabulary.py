"""Plans again within what another framework can say, and prices the restriction.

    P, P'     least seconds over all placements, and over those that the framework says (`models.cost.vocabulary`)
    price     P' / P - 1, what the framework costs

Both plans are proved: P lies between the bound b and the cost c of the first, P' between b' and c' of the second, so

    max(0, b' / c - 1)  <=  price  <=  c' / b - 1

and where both are optimal the two sides are one number.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ...models.layout.placement import space
from ...models.text import InputError
from ...proofs.container.archive import read_container
from ...proofs.plan.bundle import Plan, decode_plan, write_plan
from ...proofs.publishing.publisher import Opened, Publisher, Restricted
from ..selection.model.clock import Clock
from .plan import Planned, plan_graph
from .time_limit import TimeLimit


def replan_within(publisher: Publisher, found: Opened, vocabulary: str, clock: Clock) -> Restricted:
    """Plan again within what a framework says, have it checked, and price the difference.  Raises `InputError` for a
    plan that has parts of which no such plan is made, and where none is found.
    """
    plan = found.held
    if not isinstance(plan, Plan) or plan.joint is not None:
        raise InputError(
            f"{found.place}: only a plan of one program on the whole machine is planned again within a vocabulary; "
            f"plan its model for it: plan MODEL --vocabulary {vocabulary}"
        )
    free = found.seconds
    planned = plan_within(plan, vocabulary, clock)
    if planned.plan is None:
        raise InputError(
            f"{found.place}: no plan within what {vocabulary} says was found; give it more time or more memory"
        )
    data = write_plan(None, planned.plan)
    published, scale = publisher.publish(None, data), planned.planning.problem.scale
    own = Fraction(published.cost or 0, scale), Fraction(published.lower_bound or 0, scale)
    return Restricted(vocabulary, decode_plan(read_container(data)), published.identity, free, own)


def plan_within(plan: Plan, vocabulary: str, clock: Clock, threads: int = 2) -> Planned:
    """The best plan of the same graph, machine and memory limit among those that the framework says."""
    where = replace(space(plan.space), vocabulary=vocabulary, uneven=False)
    return plan_graph(plan.graph, plan.machine, where, plan.memory_limit, limit=TimeLimit(clock), threads=threads)

"""This module makes solutions fit the resource rows, known as repair with a growing penalty, and then cheaper among
those that fit.

    cost + weight * sum_t max(0, use_t - L)

is lowered by moves of one vertex, with growing weight.  Costs count a forbidden entry as 2**60, more than any weighted
overflow used here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints
from ..model.clock import Clock
from ..model.factored import INFINITE, Network
from ..model.local_costs import Choice, local_costs
from ..model.resources import Rows
from ..options.primal import PRIMAL, PrimalOptions

WEIGHT_LIMIT: Final = 1 << 58


def repair(
    network: Network,
    rows: Rows,
    choice: Choice,
    clock: Clock,
    options: PrimalOptions = PRIMAL,
) -> Choice | None:
    """Choices near `choice` that fit, cheap among their neighbours; None if none was found."""
    bound = rows.limit
    x = list(choice)
    use = rows.use(network.solution(x))
    weight = 1
    for _ in range(options.repair_weights):
        for _ in range(options.repair_rounds):
            if clock.over() or not _pass(network, rows, x, use, bound, weight, clock):
                break
        if use.size == 0 or int(use.max()) <= bound:
            for _ in range(options.settle_rounds):  # cheaper by single moves that keep every row
                if not _pass(network, rows, x, use, bound, None, clock) or clock.over():
                    break
            return x
        if clock.over() or weight > WEIGHT_LIMIT:
            return None
        weight *= options.repair_factor
    return None


def _pass(network: Network, rows: Rows, x: Choice, use: Ints, bound: int, weight: int | None, clock: Clock) -> bool:
    """One round of single moves while there is time, overflow at `weight` (None: no move may overflow); True when
    something moved.
    """
    moved = False
    for v, d in enumerate(network.domains):
        if d.size == 1:
            continue
        if clock.over():
            return moved
        kinds = rows.kinds[v]
        total = local_costs(network, x, v)
        if kinds is not None:
            of = kinds.of[d]
            rest = use[kinds.span] - kinds.usage[of[x[v]]]
            over = np.maximum(0, rest[None, :] + kinds.usage - bound).sum(axis=1)[of]
            if weight is None:
                total = np.where(over > 0, FORBIDDEN, total)
            else:
                safe = int(over.max()) * weight < WEIGHT_LIMIT
                total = total + over * weight if safe else np.where(total >= INFINITE, FORBIDDEN, over)
        best = int(np.argmin(total))
        if total[best] < total[x[v]]:
            x[v] = best
            if kinds is not None:
                use[kinds.span] = rest + kinds.usage[of[best]]
            moved = True
    return moved

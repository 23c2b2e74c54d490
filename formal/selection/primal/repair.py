"""Improves a solution by moves of single vertices, known as local descent; under resource rows it makes the
solution fit first, known as repair with a growing penalty.

    cost + weight * sum_t max(0, use_t - L)

is lowered with growing weight until every row is kept, and then the cost by moves that keep them.  It is deterministic:
vertices in order, first label among equals.  Costs count a forbidden entry as 2**60, more than any weighted overflow
used here.
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

AROUND: Final = 5
"""Steps of work per edge of a vertex that is looked at."""


def repair(
    network: Network, rows: Rows | None, choice: Choice, clock: Clock, options: PrimalOptions = PRIMAL
) -> Choice | None:
    """Choices near `choice` that fit, cheap among their neighbours; None if none was found.  No `rows`: all fit."""
    x = list(choice)
    use = np.zeros(0, dtype=np.int64) if rows is None else rows.use(network.solution(x))

    def lower(rounds: int, weight: int | None) -> None:
        waiting = [True] * len(x)
        for _ in range(rounds):
            if clock.over() or not _pass(network, rows, x, use, weight, waiting, clock):
                break

    weight = 1
    for _ in range(options.repair_weights):
        if rows is not None:
            lower(options.repair_rounds, weight)
        if rows is None or use.size == 0 or int(use.max()) <= rows.limit:
            lower(options.settle_rounds, None)
            return x
        if clock.over() or weight > WEIGHT_LIMIT:
            return None
        weight *= options.repair_factor
    return None


def _pass(
    network: Network, rows: Rows | None, x: Choice, use: Ints, weight: int | None, waiting: list[bool], clock: Clock
) -> bool:
    """One round of single moves while there is time, overflow at `weight` (None: no move may overflow); True when
    something moved.  `waiting`: vertices whose neighbours or rows have changed since they were looked at.
    """
    moved = False
    for v, d in enumerate(network.domains):
        if d.size == 1 or not waiting[v]:
            continue
        if clock.over():
            return moved
        waiting[v] = False
        clock.charge(AROUND * len(network.around[v]))
        kinds = None if rows is None else rows.kinds[v]
        total = local_costs(network, x, v)
        if rows is not None and kinds is not None:
            of = kinds.of[d]
            rest = use[kinds.span] - kinds.usage[of[x[v]]]
            over = np.maximum(0, rest[None, :] + kinds.usage - rows.limit).sum(axis=1)[of]
            if weight is None:
                total = np.where(over > 0, FORBIDDEN, total)
            else:
                safe = int(over.max()) * weight < WEIGHT_LIMIT
                total = total + over * weight if safe else np.where(total >= INFINITE, FORBIDDEN, over)
        best = int(np.argmin(total))
        if total[best] < total[x[v]]:
            x[v] = best
            moved = True
            for e in network.around[v]:
                waiting[network.arcs[e].u] = waiting[network.arcs[e].v] = True
            if kinds is not None:
                use[kinds.span] = rest + kinds.usage[of[best]]
                waiting[:] = [True] * len(x)
    return moved

"""Finds cheapest programs, with potentials, and the certificates made of them.

phi(s) = least cost from state s to the goal: shortest paths backwards over the closed graph (Dijkstra, exact integers),
`DEAD` where there is no path.  The program is read off along tight edges; of equally cheap programs the shortest, then
the first in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...models.collective_programs.collectives import Collective, CollectiveCost, CollectiveError
from ...models.collective_programs.parallelism import (
    Order,
    ParallelismError,
    ReductionRequest,
    Request,
    check_reduction_axes,
)
from ...models.collective_programs.programs import Program
from ...proofs.collective_programs.certificate import (
    DEAD,
    MAX_COST,
    Best,
    Cheapest,
    Count,
    Impossible,
    Part,
    PlacementCertificate,
    Term,
)
from .asked import Engine, EngineAnswer
from .graph import StateGraph, edge_costs, explore


@dataclass(frozen=True)
class Cost:
    """A cost model and its number in the certificate."""

    number: int
    model: CollectiveCost


@dataclass(frozen=True)
class Synthesis:
    """What is known of one request.  `lengths[t]` programs of t steps; the rest is None if there is none, or no cost
    model.  `all_reduce`:  cost of the default implementation, a single AllReduce.  `asked`: what another engine was
    asked for the program."""

    request: Request
    graph: StateGraph
    lengths: tuple[int, ...]
    program: Program | None = None
    cost: int | None = None
    all_reduce: int | None = None
    potentials: tuple[int, ...] | None = None
    asked: EngineAnswer | None = None

    @property
    def count(self) -> int:
        return sum(self.lengths)

    def parts(self, number: int) -> tuple[Part, ...]:
        """Claims with proofs: Count or Impossible, and Cheapest if there was a cost model (number `number`)."""
        none = np.zeros(0, dtype=np.int64)
        if self.graph.goal is None:
            return (Part(self.request, Impossible(), none),)
        out = [Part(self.request, Count(self.lengths), none)]
        if self.program is not None and self.cost is not None and self.potentials is not None:
            out.append(
                Part(self.request, Cheapest(self.program, number, self.cost), np.array(self.potentials, dtype=np.int64))
            )
        return tuple(out)


def synthesize(request: Request, cost: CollectiveCost | None = None, engine: Engine = "native") -> Synthesis:
    """All programs of a request, and the cheapest one.

    >>> from shardproof.models.collective_programs.parallelism import ReductionRequest
    >>> synthesize(ReductionRequest((2, 16), ((2, 4), (1, 4)), (0,))).lengths
    (0, 1, 4, 20, 22)
    """
    system = request.system()
    graph = explore(system)
    if cost is None or graph.goal is None:
        return Synthesis(request, graph, graph.lengths())
    costs = edge_costs(graph, system, cost)
    if max((c for row in costs for c in row), default=0) >= MAX_COST:
        raise CollectiveError(
            f"cost model {cost.name!r}: a step costs more than {MAX_COST} units of 1/{cost.scale} s; use a "
            f"smaller payload"
        )
    phi, steps = potentials(graph, costs)
    if engine == "native":
        path, asked = tight_path(graph, costs, phi, steps), None
    elif engine == "ilp":
        from .encodings import ilp_path

        path, asked = ilp_path(graph, costs)
    else:
        from .encodings import smt_path

        path, asked = smt_path(graph, costs)
    program = tuple(graph.forms[graph.edges[s][k].pattern].instruction(graph.edges[s][k].kind) for s, k in path)
    total = sum(costs[s][k] for s, k in path)
    if total != phi[0]:  # a check of the engines, not of the proof
        raise CollectiveError(f"engine {engine!r} found a program of cost {total}, the cheapest costs {phi[0]}")
    single = next(
        (
            c
            for e, c in zip(graph.edges[0], costs[0], strict=True)
            if e.target == graph.goal and e.kind is Collective.ALL_REDUCE
        ),
        None,
    )
    return Synthesis(request, graph, graph.lengths(), program, total, single, tuple(phi), asked)


def potentials(graph: StateGraph, costs: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """(least cost, least number of steps at that cost) from every state to the goal; (`DEAD`, 0) where there is no
    way.
    """
    back: list[list[tuple[int, int]]] = [[] for _ in graph.states]
    for s, leaving in enumerate(graph.edges):
        for e, c in zip(leaving, costs[s], strict=True):
            back[e.target].append((s, c))
    best: dict[int, tuple[int, int]] = {}
    heap = [] if graph.goal is None else [(0, 0, graph.goal)]
    while heap:
        c, n, s = heapq.heappop(heap)
        if s not in best:
            best[s] = (c, n)
            for t, more in back[s]:
                if t not in best:
                    heapq.heappush(heap, (c + more, n + 1, t))
    return [best.get(s, (DEAD, 0))[0] for s in range(len(graph.states))], [
        best.get(s, (DEAD, 0))[1] for s in range(len(graph.states))
    ]


def tight_path(
    graph: StateGraph, costs: Sequence[Sequence[int]], phi: Sequence[int], steps: Sequence[int]
) -> list[tuple[int, int]]:
    """A cheapest path as (state, position of the edge), first edges first."""
    at, path = 0, []
    while at != graph.goal:
        k, e = next(
            (k, e)
            for k, (e, c) in enumerate(zip(graph.edges[at], costs[at], strict=True))
            if phi[at] == c + phi[e.target] and steps[at] == steps[e.target] + 1 and phi[e.target] < DEAD
        )
        path.append((at, k))
        at = e.target
    return path


def best_placement(
    placement: PlacementCertificate,
    costs: Sequence[Cost],
    terms: Sequence[Term],
    orders: Sequence[Order],
    reading: str = "paper",
    engine: Engine = "native",
) -> tuple[Best, tuple[Part, ...], list[list[list[Synthesis]]]]:
    """Best placement for weighted reductions: its claim, a Cheapest part for every (placement, reduction, order), and
    all that was found:  `found[matrix][term][order]`."""
    problem = placement.problem
    models = {c.number: c.model for c in costs}
    if not terms:
        raise ParallelismError("best placement: no reduction is given; name at least one, such as --reduce 0")
    for term in terms:
        check_reduction_axes(problem.axes, term.reduce)
    parts: list[Part] = []
    totals, found = [], []
    for matrix in placement.matrices:
        total, row = 0, []
        for term in terms:
            requests = [
                ReductionRequest(problem.hierarchy, matrix, term.reduce, order, reading)
                for order in distinct_orders(term.reduce, orders)
            ]
            tried = [synthesize(request, models[term.model], engine) for request in requests]
            for one in tried:
                parts.extend(p for p in one.parts(term.model) if isinstance(p.claim, Cheapest))
            total += term.weight * min(one.cost for one in tried if one.cost is not None)
            row.append(tried)
        totals.append(total)
        found.append(row)
    winner = totals.index(min(totals))
    return Best(winner, totals[winner], tuple(terms), tuple(o.value for o in orders)), tuple(parts), found


def distinct_orders(reduce: Sequence[int], orders: Sequence[Order]) -> list[Order]:
    """`orders`, or only the first: for one axis all orders are the same."""
    return list(orders) if len(reduce) > 1 else list(orders[:1])

"""Encodes cheapest programs as an integer program and for z3, both over the closed state graph: second
opinions on the native search.

y_e = the program takes step e of cost c_e.  ILP:
    (I1)  minimise sum_e c_e y_e
    (I2)  for every state s:  sum_{e leaves s} y_e - sum_{e enters s} y_e = [s is the start] - [s is the goal]
         -> ilp_path()

z3, n_s = the program comes through state s:
    (S1)  n_start;   n_s -> some y_e with e leaving s, for every s but the goal;   y_e -> n_target(e)
    (S2)  soft clauses  not y_e  of weight c_e
         -> smt_path()
States from which the goal cannot be reached are left out.  The graph has no cycle (`StateGraph.lengths` refuses one),
so what satisfies (S1) holds a path from the start to the goal, and the cheapest y is a cheapest path.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulp
import z3

from ...models.collective_programs.collectives import CollectiveError
from ..highs import without_banner
from .asked import EngineAnswer
from .graph import StateGraph


def ilp_path(graph: StateGraph, costs: Sequence[Sequence[int]]) -> tuple[list[tuple[int, int]], EngineAnswer]:
    """Cheapest path from start to goal as (state, position of the edge), and what HiGHS was asked; `CollectiveError` if
    it finds none.
    """
    model = pulp.LpProblem("cheapest", pulp.LpMinimize)
    edges = [(s, k) for s, leaving in enumerate(graph.edges) for k in range(len(leaving))]
    y = {edge: pulp.LpVariable(f"y_{edge[0]}_{edge[1]}", cat="Binary") for edge in edges}
    scale = max((c for row in costs for c in row), default=1) or 1
    model += pulp.lpSum(costs[s][k] / scale * y[s, k] for s, k in edges)
    balance: list[list[pulp.LpAffineExpression]] = [[] for _ in graph.states]
    for s, k in edges:
        balance[s].append(y[s, k])
        balance[graph.edges[s][k].target].append(-y[s, k])
    for s, terms in enumerate(balance):
        model += pulp.lpSum(terms) == (s == 0) - (s == graph.goal)
    with without_banner():
        model.solve(pulp.HiGHS(msg=False, gapRel=0))
    if model.status != pulp.LpStatusOptimal:
        raise CollectiveError(f"HiGHS ended with {pulp.LpStatus[model.status]!r}; use the native engine")
    path, at = [], 0
    while at != graph.goal:
        k = next(k for k in range(len(graph.edges[at])) if round(y[at, k].varValue) == 1)
        path.append((at, k))
        at = graph.edges[at][k].target
    cost = sum(costs[s][k] for s, k in path)
    return path, EngineAnswer("ilp", "cheapest program", len(edges), 1, str(pulp.LpStatus[model.status]), 1, cost)


def smt_path(graph: StateGraph, costs: Sequence[Sequence[int]]) -> tuple[list[tuple[int, int]], EngineAnswer]:
    """The same found by z3's core-guided search; `CollectiveError` if it gives up."""
    alive = graph.alive()
    lines = [f"(declare-const n{s} Bool)" for s, lives in enumerate(alive) if lives]
    lines.append("(assert n0)")
    for s, leaving in enumerate(graph.edges):
        if not alive[s] or s == graph.goal:
            continue
        ways = [k for k, e in enumerate(leaving) if alive[e.target]]
        for k in ways:
            lines += [f"(declare-const y{s}_{k} Bool)", f"(assert (=> y{s}_{k} n{leaving[k].target}))"]
            if costs[s][k]:
                lines.append(f"(assert-soft (not y{s}_{k}) :weight {costs[s][k]})")
        lines.append(f"(assert (=> n{s} (or {' '.join(f'y{s}_{k}' for k in ways)})))")
    optimize = z3.Optimize(ctx=z3.Context())
    optimize.from_string("\n".join(lines))
    said = optimize.check()
    if said != z3.sat:
        raise CollectiveError(f"z3 gave up on {len(lines)} parts ({optimize.reason_unknown()}); use the native engine")
    model = optimize.model()
    taken = {d.name() for d in model if z3.is_true(model[d])}
    path, at = [], 0
    while at != graph.goal:  # what costs nothing may be true beside the path
        k = next(k for k in range(len(graph.edges[at])) if f"y{at}_{k}" in taken)
        path.append((at, k))
        at = graph.edges[at][k].target
    cost = sum(costs[s][k] for s, k in path)
    unknowns = sum(line.startswith("(declare-const") for line in lines)
    return path, EngineAnswer("smt", "cheapest program", unknowns, 1, str(said), 1, cost)

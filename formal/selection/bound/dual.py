"""Evaluates a dual record exactly: its bound, its reduced costs, and the labels that these fix, known as
reduced-cost fixing; in int64 under a tested range.

For integer messages m, multipliers n and denominator Q (see `proofs.selection.certificates`)

    LB(D)   = Q constant + sum_v min theta_v + sum_e min bracket_e - sum_t n_t L
    rc_v(a) = theta_v(a) - min theta_v + sum_{e at v} [ rowmin_e(index of a) - min_e ]
    fix:      a leaves D_v when  LB(D) + rc_v(a) > Q (UB - 1)

Forbidden entries are plus infinity: they never are the minimum of a bracket, and their labels have infinite reduced
cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ....proofs.selection.certificates import Dual
from ..model.factored import INFINITE, Base, Domains, Network, build, saturate
from ..model.minplus import columns_min, rows_min


@dataclass(frozen=True, eq=False)
class Score:
    """`bound`: LB(D) in units of 1/Q, None for plus infinity; `reduced_costs[v]`: int64 per position of D_v, FORBIDDEN
    =
    infinite.
    """

    bound: int | None
    reduced_costs: tuple[Ints, ...]
    denominator: int

    def lower(self) -> int | None:
        """ceil(LB / Q), None for plus infinity."""
        return None if self.bound is None else -(-self.bound // self.denominator)

    def fix(self, domains: Domains, upper: int) -> Domains:
        """The domains after fixing against incumbent cost `upper` (FORBIDDEN or more: none, only infinite reduced cost
        is
        fixed).
        """
        if self.bound is None:
            return tuple(d[:0] for d in domains)
        slack = self.denominator * (upper - 1) - self.bound
        if upper >= FORBIDDEN or slack >= INFINITE:
            return tuple(
                d if int(x.max()) < INFINITE else d[x < INFINITE]
                for d, x in zip(domains, self.reduced_costs, strict=True)
            )
        return tuple(d[x <= slack] for d, x in zip(domains, self.reduced_costs, strict=True))


def _masked(h: Ints, live: Ints | None) -> Ints:
    if live is None:
        return h
    out = np.full(h.shape, FORBIDDEN, dtype=np.int64)
    out[live] = h[live]
    return out


def score(
    network: Network,
    to_u: list[Ints],
    to_v: list[Ints],
    added: list[Ints] | None = None,
    row_term: int = 0,
) -> Score:
    """Exact bound and reduced costs of integer messages on `network`.  `added[v]` = sum_t n_t u_t,v; `row_term` = sum_t
    n_t L.
    """
    theta = [c.copy() if added is None else saturate(c + added[v]) for v, c in enumerate(network.unary)]
    bound: int | None = network.base.constant - row_term
    lows: list[tuple[Ints, Ints]] = []
    for e, arc in enumerate(network.arcs):
        for v, message, index in ((arc.u, to_u[e], arc.rows), (arc.v, to_v[e], arc.cols)):
            theta[v] += message if index is None else message[index]
        table = network.tables[arc.table]
        of_u = saturate(np.asarray(rows_min(table, _masked(-to_v[e], arc.live_cols)), dtype=np.int64))
        of_v = saturate(np.asarray(columns_min(table, _masked(-to_u[e], arc.live_rows)), dtype=np.int64))
        of_u = np.where(of_u >= INFINITE, FORBIDDEN, of_u - to_u[e])
        of_v = np.where(of_v >= INFINITE, FORBIDDEN, of_v - to_v[e])
        best = int(_masked(of_u, arc.live_rows).min())
        if best >= INFINITE:
            bound = None
            best = 0
        if bound is not None:
            bound += best
        lows.append((saturate(of_u - best), saturate(of_v - best)))
    reduced: list[Ints] = []
    for t in theta:
        saturate(t)
        low = int(t.min())
        if low >= INFINITE:
            bound = None
            low = 0
        if bound is not None:
            bound += low
        reduced.append(saturate(t - low))
    for e, arc in enumerate(network.arcs):
        for v, low_of, index in ((arc.u, lows[e][0], arc.rows), (arc.v, lows[e][1], arc.cols)):
            reduced[v] = np.minimum(reduced[v] + (low_of if index is None else low_of[index]), FORBIDDEN)
    return Score(bound, tuple(saturate(x) for x in reduced), network.base.denominator)


def spread(network: Network, to_u: list[Ints], to_v: list[Ints]) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    """Messages in the shape a record needs: all rows and columns of the original tables, zero where unreachable."""
    problem = network.base.problem
    out_u: list[Ints] = []
    out_v: list[Ints] = []
    zeros: dict[int, Ints] = {}
    for e, arc in enumerate(network.arcs):
        shape = problem.tables[problem.edges[e].table].shape
        for message, ids, size, out in (
            (to_u[e], arc.row_ids, shape[0], out_u),
            (to_v[e], arc.col_ids, shape[1], out_v),
        ):
            if not message.any():
                out.append(zeros.setdefault(size, np.zeros(size, dtype=np.int64)))
            elif ids is None:
                out.append(message)
            else:
                full = np.zeros(size, dtype=np.int64)
                full[ids] = message
                out.append(full)
    return tuple(out_u), tuple(out_v)


def gather(network: Network, dual: Dual) -> tuple[list[Ints], list[Ints]]:
    """The record's messages on the kept rows and columns of `network`."""
    to_u = [m if a.row_ids is None else m[a.row_ids] for m, a in zip(dual.to_u, network.arcs, strict=True)]
    to_v = [m if a.col_ids is None else m[a.col_ids] for m, a in zip(dual.to_v, network.arcs, strict=True)]
    return to_u, to_v


def row_costs(
    problem: SelectionProblem, domains: Domains, multipliers: tuple[tuple[int, int], ...]
) -> tuple[list[Ints] | None, int]:
    """(sum_t n_t u_t,v per vertex and position, sum_t n_t L)."""
    if not multipliers:
        return None, 0
    limit = problem.limit
    if limit is None:
        raise ValueError("multipliers need a problem with a limit")
    added = [np.zeros(d.size, dtype=np.int64) for d in domains]
    for usage in problem.usages:
        weight = sum(n for t, n in multipliers if usage.start <= t < usage.end)
        if weight:
            added[usage.vertex] += weight * usage.amount[domains[usage.vertex]]
    return added, limit * sum(n for _, n in multipliers)


def branching_vertex(network: Network, result: Score) -> int:
    """The vertex whose second cheapest label is nearest to its cheapest, larger degree and then smaller number
    first.
    """
    best: tuple[int, int, int] | None = None
    for v, d in enumerate(network.domains):
        if d.size < 2:
            continue
        second = int(np.partition(result.reduced_costs[v], 1)[1])
        key = (second, -len(network.around[v]), v)
        if best is None or key < best:
            best = key
    if best is None:
        raise ValueError("no vertex to branch on")
    return best[2]


def score_of(base: Base, domains: Domains, dual: Dual) -> Score:
    """What a record says on `domains`; `base` must have its denominator."""
    network = build(base, domains)
    return score(network, *gather(network, dual), *row_costs(base.problem, domains, dual.multipliers))

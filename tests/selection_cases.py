"""Test material: small random selection problems, slow reference mathematics in Python integers, and a maker of
certificates.

Nothing here shares code with the checker: `reference_dual` is the formula of `proofs/selection/certificates.py` written
as loops.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, WithinGap
from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem
from shardproof.proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Point,
    Record,
    Reduced,
    RowConflict,
    SelectionCertificate,
    Split,
)
from shardproof.proofs.selection.presolve_log import Rule

Domains = list[list[int]]


def entries(problem: SelectionProblem, x: tuple[int, ...]) -> list[int]:
    """All cost entries that `x` uses."""
    out = [problem.constant] + [int(v.cost[a]) for v, a in zip(problem.vertices, x, strict=True)]
    for e in problem.edges:
        r = x[e.u] if e.rows is None else e.rows[x[e.u]]
        c = x[e.v] if e.cols is None else e.cols[x[e.v]]
        out.append(int(problem.tables[e.table][r, c]))
    return out


def peak(problem: SelectionProblem, x: tuple[int, ...]) -> int:
    steps = {t for u in problem.usages for t in range(u.start, u.end)}
    return max(
        (sum(int(u.amount[x[u.vertex]]) for u in problem.usages if u.start <= t < u.end) for t in steps), default=0
    )


def feasible(problem: SelectionProblem, x: tuple[int, ...], rows: bool = True) -> bool:
    if any(entry >= FORBIDDEN for entry in entries(problem, x)):
        return False
    return not rows or problem.limit is None or peak(problem, x) <= problem.limit


def whole(problem: SelectionProblem) -> Domains:
    return [list(range(v.cost.size)) for v in problem.vertices]


def brute(
    problem: SelectionProblem, domains: Domains | None = None, rows: bool = True
) -> tuple[int, tuple[int, ...]] | None:
    """(least cost, its first solution) over D, or None."""
    points = itertools.product(*(domains or whole(problem)))
    return min(((sum(entries(problem, x)), x) for x in points if feasible(problem, x, rows)), default=None)


def eliminate(
    problem: SelectionProblem, rng: random.Random, domains: Domains | None = None, slack: int = 0
) -> Elimination:
    """Exact messages (lowered at random by up to `slack`) over D in a random order, by enumeration."""
    domains = domains or whole(problem)
    n = len(problem.vertices)
    pool: list[tuple[tuple[int, ...], dict[tuple[int, ...], float]]] = []

    def clean(value: int) -> float:
        return math.inf if value >= FORBIDDEN else value

    for v, vertex in enumerate(problem.vertices):
        pool.append(((v,), {(a,): clean(int(vertex.cost[a])) for a in domains[v]}))
    for e in problem.edges:
        row = list(range(len(problem.vertices[e.u].cost))) if e.rows is None else e.rows.tolist()
        col = list(range(len(problem.vertices[e.v].cost))) if e.cols is None else e.cols.tolist()
        values = {
            (a, b): clean(int(problem.tables[e.table][row[a], col[b]])) for a in domains[e.u] for b in domains[e.v]
        }
        pool.append(((e.u, e.v), values))
    order = rng.sample(range(n), n)
    scopes, messages = [], []
    for v in order:
        used = [f for f in pool if v in f[0]]
        pool = [f for f in pool if v not in f[0]]
        scope = tuple(sorted({w for f in used for w in f[0]} - {v}))
        message = np.zeros([len(domains[w]) for w in scope], dtype=np.int64)
        values = {}
        for s in itertools.product(*(domains[w] for w in scope)):
            at = dict(zip(scope, s, strict=True))
            low = min(sum(f[1][tuple({**at, v: a}[w] for w in f[0])] for f in used) for a in domains[v])
            stored = FORBIDDEN if low == math.inf else int(low) - rng.randint(0, slack)
            message[tuple(domains[w].index(a) for w, a in zip(scope, s, strict=True))] = stored
            values[s] = clean(stored)
        scopes.append(scope)
        messages.append(message)
        pool.append((scope, values))
    return Elimination(tuple(order), tuple(scopes), tuple(messages))


def random_dual(
    problem: SelectionProblem, rng: random.Random, then: Record | None = None, size: int = 8, q: int | None = None
) -> Dual:
    """Any integers are a valid Dual."""

    def message(length: int) -> np.ndarray:
        return np.array([rng.randint(-size, size) for _ in range(length)], dtype=np.int64)

    to_u = tuple(message(problem.tables[e.table].shape[0]) for e in problem.edges)
    to_v = tuple(message(problem.tables[e.table].shape[1]) for e in problem.edges)
    steps = sorted(rng.sample(range(-1, 9), rng.randint(0, 3))) if problem.limit is not None else []
    return Dual(to_u, to_v, q or rng.randint(1, 5), tuple((t, rng.randint(1, 3)) for t in steps), then)


def reference_dual(problem: SelectionProblem, dual: Dual, domains: Domains, ub: float) -> tuple[float, Domains]:
    """(ceil(LB(D)/Q), D after fixing) by the formula, entry by entry in Python integers."""
    q = dual.denominator

    def clean(value: int) -> float:
        return math.inf if value >= FORBIDDEN else q * value

    theta: list[dict[int, float]] = []
    for v, vertex in enumerate(problem.vertices):
        theta.append({})
        for a in domains[v]:
            value = clean(int(vertex.cost[a]))
            for u in problem.usages:
                if u.vertex == v:
                    value += sum(n for t, n in dual.multipliers if u.start <= t < u.end) * int(u.amount[a])
            for e, edge in enumerate(problem.edges):
                if edge.u == v:
                    value += int(dual.to_u[e][a if edge.rows is None else edge.rows[a]])
                if edge.v == v:
                    value += int(dual.to_v[e][a if edge.cols is None else edge.cols[a]])
            theta[v][a] = value
    bracket: list[dict[tuple[int, int], float]] = []
    for e, edge in enumerate(problem.edges):
        bracket.append({})
        for a in domains[edge.u]:
            for b in domains[edge.v]:
                r, c = a if edge.rows is None else edge.rows[a], b if edge.cols is None else edge.cols[b]
                bracket[e][a, b] = (
                    clean(int(problem.tables[edge.table][r, c])) - int(dual.to_u[e][r]) - int(dual.to_v[e][c])
                )
    lb = q * problem.constant - sum(n * (problem.limit or 0) for _, n in dual.multipliers)
    lb += sum(min(t.values()) for t in theta) + sum(min(b.values()) for b in bracket)
    if lb == math.inf:
        return math.inf, domains
    kept: Domains = []
    for v in range(len(problem.vertices)):
        kept.append([])
        for a in domains[v]:
            value = lb + theta[v][a] - min(theta[v].values())
            for edge, b in zip(problem.edges, bracket, strict=True):
                if edge.u == v:
                    value += min(b[a, y] for y in domains[edge.v]) - min(b.values())
                if edge.v == v:
                    value += min(b[x, a] for x in domains[edge.u]) - min(b.values())
            if value < math.inf and (ub == math.inf or value <= q * (ub - 1)):
                kept[v].append(a)
    return -(-lb // q), kept


def random_tree(
    problem: SelectionProblem, rng: random.Random, ub: float, domains: Domains | None = None, depth: int = 4
) -> Record:
    """A tree of records that is valid by construction on D; leaves are exact, weak or open."""
    domains = domains or whole(problem)
    if all(len(d) == 1 for d in domains):
        return Point()
    wide = [v for v, d in enumerate(domains) if len(d) > 1]
    match (
        rng.choice(["dual", "split", "split", "elimination"]) if depth else rng.choice(["elimination", "dual", "open"])
    ):
        case "dual":
            dual = random_dual(problem, rng)
            bound, kept = reference_dual(problem, dual, domains, ub)
            if bound >= ub or not all(kept) or not depth:
                return dual
            return Dual(
                dual.to_u, dual.to_v, dual.denominator, dual.multipliers, random_tree(problem, rng, ub, kept, depth - 1)
            )
        case "split":
            v = rng.choice(wide)
            cut = rng.randint(1, len(domains[v]) - 1)
            parts = [domains[v][:cut], domains[v][cut:]]
            if rng.random() < 0.2:
                parts[0] = sorted({*parts[0], domains[v][-1]})  # overlap is allowed
            children = tuple(
                random_tree(problem, rng, ub, [*domains[:v], part, *domains[v + 1 :]], depth - 1) for part in parts
            )
            return Split(v, tuple(map(tuple, parts)), children)
        case "elimination":
            return eliminate(problem, rng, domains, slack=rng.choice([0, 0, 3]))
        case _:
            return Open()


def points(problem: SelectionProblem, domains: Domains | None = None, conflicts: bool = False) -> Record:
    """The full tree over D down to points (with `conflicts`, resource conflicts where one row says so): proves any
    true claim.
    """
    domains = domains or whole(problem)
    if conflicts and problem.limit is not None:
        for t in sorted({u.start for u in problem.usages if u.start < u.end}):
            live = [u for u in problem.usages if u.start <= t < u.end]
            least = sum(
                min(sum(int(u.amount[a]) for u in live if u.vertex == v) for a in d) for v, d in enumerate(domains)
            )
            if least > problem.limit:
                return RowConflict(((t, 1),))
    for v, d in enumerate(domains):
        if len(d) > 1:
            children = tuple(points(problem, [*domains[:v], [a], *domains[v + 1 :]], conflicts) for a in d)
            return Split(v, tuple((a,) for a in d), children)
    return Point()


@dataclass(frozen=True)
class Case:
    """A problem with a claim and its certificate."""

    problem: SelectionProblem
    certificate: SelectionCertificate


def certified(problem: SelectionProblem, claim: SelectionClaim, proof: Record) -> SelectionCertificate:
    return SelectionCertificate(problem.sha256(), claim, proof)


def all_claims(
    problem: SelectionProblem, proof: Callable[[SelectionProblem], Record] | None = None
) -> list[SelectionClaim]:
    """Every kind of true claim about the problem; an Infeasible one names what `proof` (`points`) uses."""
    best = brute(problem)
    if best is None:
        return [named(problem, points(problem) if proof is None else proof(problem))]
    return [Optimal(best[1], best[0]), WithinGap(best[1], best[0], best[0] - 2), LowerBound(best[0])]


def named(problem: SelectionProblem, proof: Record) -> Infeasible:
    """The claim that goes with a proof: steps of its row conflicts and OVERFULL entries, every vertex unless it
    holds splits and row conflicts only.
    """
    vertices = _vertices(problem, proof)
    every = tuple(range(len(problem.vertices)))
    return Infeasible(
        tuple(sorted(_steps(problem.events(), proof))),
        every if vertices is None else tuple(sorted(vertices)),
        None,
        None,
    )


def _vertices(problem: SelectionProblem, proof: Record) -> set[int] | None:
    if isinstance(proof, RowConflict):
        return {u.vertex for u in problem.usages if any(u.start <= t < u.end for t, _ in proof.multipliers)}
    if isinstance(proof, Split):
        found = [_vertices(problem, child) for child in proof.children]
        return None if None in found else {proof.vertex}.union(*(f for f in found if f is not None))
    return None


def _steps(stands: list[int], proof: Record, renumbered: bool = False) -> set[int]:
    """`stands`: what the events of the problem that the record is about stand for; `renumbered`: its steps are
    their numbers.
    """
    match proof:
        case RowConflict():
            return {stands[t] if renumbered else t for t, _ in proof.multipliers}
        case Split():
            return set().union(*(_steps(stands, child, renumbered) for child in proof.children))
        case Dual() | Elimination():
            return set() if proof.then is None else _steps(stands, proof.then, renumbered)
        case Reduced():

            def back(t: int) -> int:
                return stands[t] if renumbered else t

            kept = [back(t) for t in proof.steps[-1].tolist()] if proof.steps else stands
            return {back(t) for t in proof.log[proof.log[:, 0] == Rule.OVERFULL, 3].tolist()} | _steps(
                kept, proof.then, True
            )
    return set()

"""Slow, literal definitions for tests: brute force, random problems, and the bound that a record establishes.

`bound_of(problem, record, domains, upper)` evaluates B(record, D) exactly as `proofs.selection.certificates` states it,
with Python integers and loops, so that it shares nothing with the solver and nothing with the checker.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

from selection_log_oracle import reduced

from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem
from shardproof.proofs.selection.certificates import Dual, Elimination, Open, Point, Record, Reduced, RowConflict, Split

Domain = list[list[int]]
INF = math.inf


def brute_force(problem: SelectionProblem) -> tuple[int | None, tuple[int, ...] | None]:
    """(optimum, first optimal solution), or (None, None) when nothing is feasible."""
    best: int | None = None
    arg: tuple[int, ...] | None = None
    for x in itertools.product(*(range(v.cost.size) for v in problem.vertices)):
        cost = problem.cost_of(x)
        fits = problem.limit is None or problem.peak_of(x)[0] <= problem.limit
        if (
            cost < FORBIDDEN // 2 and (best is None or cost < best) and fits
        ):  # // 2: negative costs beside a forbidden one
            best, arg = cost, x
    return best, arg


def everything(problem: SelectionProblem) -> Domain:
    """All choices of all vertices."""
    return [list(range(v.cost.size)) for v in problem.vertices]


def bound_of(problem: SelectionProblem, record: Record, domains: Domain, upper: float) -> float | int:
    """B(record, D) from the definition; plus or minus `math.inf` where it is infinite."""
    if any(not d for d in domains):
        return INF
    match record:
        case Open():
            return -INF
        case Point():
            assert all(len(d) == 1 for d in domains)
            x = tuple(d[0] for d in domains)
            fits = problem.limit is None or problem.peak_of(x)[0] <= problem.limit
            return problem.cost_of(x) if problem.cost_of(x) < FORBIDDEN // 2 and fits else INF
        case RowConflict():
            assert problem.limit is not None
            used = _row_terms(problem, record.multipliers)
            least = sum(min(used[v][a] for a in d) for v, d in enumerate(domains))
            return INF if least > problem.limit * sum(n for _, n in record.multipliers) else -INF
        case Split():
            covered = {a for part in record.parts for a in part}
            assert covered >= set(domains[record.vertex])
            worst: float | int = INF
            for part, child in zip(record.parts, record.children, strict=True):
                inner = [d if v != record.vertex else sorted(set(part)) for v, d in enumerate(domains)]
                worst = min(worst, bound_of(problem, child, inner, upper))
            return worst
        case Elimination():
            return _elimination(problem, record, domains)
        case Dual():
            return _dual(problem, record, domains, upper)
        case Reduced():
            left = reduced(problem, record, domains)
            return INF if left is None else bound_of(left, record.then, everything(left), upper)
    raise AssertionError(record)


def _row_terms(problem: SelectionProblem, multipliers: tuple[tuple[int, int], ...]) -> list[list[int]]:
    steps = [t for t, _ in multipliers]
    assert steps == sorted(set(steps)) and all(n > 0 for _, n in multipliers)
    out = [[0] * v.cost.size for v in problem.vertices]
    for usage in problem.usages:
        weight = sum(n for t, n in multipliers if usage.start <= t < usage.end)
        for a, amount in enumerate(usage.amount):
            out[usage.vertex][a] += weight * int(amount)
    return out


def _cost(value: int) -> float | int:
    return INF if value >= FORBIDDEN else int(value)


def _dual(problem: SelectionProblem, record: Dual, domains: Domain, upper: float) -> float | int:
    q = record.denominator
    extra = _row_terms(problem, record.multipliers)
    theta: list[dict[int, float | int]] = []
    for v, d in enumerate(domains):
        theta.append({a: q * _cost(int(problem.vertices[v].cost[a])) + extra[v][a] for a in d})
    total: float | int = q * problem.constant - sum(n for _, n in record.multipliers) * (problem.limit or 0)
    lows = []
    for k, e in enumerate(problem.edges):
        m_u, m_v = record.to_u[k], record.to_v[k]
        table = problem.tables[e.table]
        assert m_u.shape == (table.shape[0],) and m_v.shape == (table.shape[1],)
        row = {a: a if e.rows is None else int(e.rows[a]) for a in domains[e.u]}
        col = {b: b if e.cols is None else int(e.cols[b]) for b in domains[e.v]}
        for a in domains[e.u]:
            theta[e.u][a] += int(m_u[row[a]])
        for b in domains[e.v]:
            theta[e.v][b] += int(m_v[col[b]])
        bracket = {
            (a, b): q * _cost(int(table[row[a], col[b]])) - int(m_u[row[a]]) - int(m_v[col[b]])
            for a in domains[e.u]
            for b in domains[e.v]
        }
        least = min(bracket.values())
        of_u = {a: min(bracket[a, b] for b in domains[e.v]) for a in domains[e.u]}
        of_v = {b: min(bracket[a, b] for a in domains[e.u]) for b in domains[e.v]}
        lows.append((e, least, of_u, of_v))
        total += least
    total += sum(min(t.values()) for t in theta)
    bound = INF if total == INF else math.ceil(Fraction(total, q))
    if bound >= upper or record.then is None:
        return bound
    kept = []
    for v, d in enumerate(domains):
        keep = []
        for a in d:
            value = total + theta[v][a] - min(theta[v].values())
            for e, least, of_u, of_v in lows:
                if e.u == v:
                    value += of_u[a] - least
                if e.v == v:
                    value += of_v[a] - least
            if value != INF and not value > q * (upper - 1):
                keep.append(a)
        kept.append(keep)
    return max(bound, bound_of(problem, record.then, kept, upper))


def _elimination(problem: SelectionProblem, record: Elimination, domains: Domain) -> float | int:
    assert sorted(record.order) == list(range(len(domains)))
    pool: list[tuple[tuple[int, ...], dict[tuple[int, ...], float | int]]] = []
    for v, d in enumerate(domains):
        pool.append(((v,), {(a,): _cost(int(problem.vertices[v].cost[a])) for a in d}))
    for e in problem.edges:
        table = problem.tables[e.table]
        pool.append(
            (
                (e.u, e.v),
                {
                    (a, b): _cost(int(table[a if e.rows is None else e.rows[a], b if e.cols is None else e.cols[b]]))
                    for a in domains[e.u]
                    for b in domains[e.v]
                },
            )
        )
    total: float | int = problem.constant
    for v, scope, message in zip(record.order, record.scopes, record.messages, strict=True):
        consumed = [f for f in pool if v in f[0]]
        pool = [f for f in pool if v not in f[0]]
        assert list(scope) == sorted(set(scope)) and v not in scope
        assert message.shape == tuple(len(domains[w]) for w in scope)
        for f in consumed:
            assert set(f[0]) <= {v, *scope}
        entries: dict[tuple[int, ...], float | int] = {}
        for where in itertools.product(*(range(len(domains[w])) for w in scope)):
            labels = {w: domains[w][i] for w, i in zip(scope, where, strict=True)}
            sums = [sum(f[1][tuple({**labels, v: a}[w] for w in f[0])] for f in consumed) for a in domains[v]]
            said = _cost(int(message[where]))
            assert all(said <= s for s in sums), "message above a sum"
            entries[tuple(labels[w] for w in scope)] = said
        if scope:
            pool.append((scope, entries))
        else:
            total += entries[()]
    assert not pool
    return total

"""Section 5: what a dual, a split and an elimination establish."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

from .problem import FORBIDDEN, Problem
from .reading import Refuted, need

INFINITE = float("inf")


def multipliers(p: Problem, pairs: list) -> None:
    need(not pairs or p.limit is not None, "multiplies rows of a problem without a limit", Refuted)
    need(all(a[0] < b[0] for a, b in pairwise(pairs)), "steps do not ascend", Refuted)
    need(all(n >= 1 for _, n in pairs), "a multiplier is not positive", Refuted)


def weighted(p: Problem, pairs: list, v: int, a: int) -> int:
    return sum(n * p.usage(t, v, a) for t, n in pairs)


def covering(p: Problem, r: dict, domains: list) -> list:
    v, parts = r["vertex"], r["parts"]
    need(0 <= v < len(domains), "splits no vertex", Refuted)
    need(len(parts) == len(r["children"]), "parts and children differ in number", Refuted)
    need(all(part and all(0 <= a < len(p.costs[v]) for a in part) for part in parts), "a part is no part", Refuted)
    need(set(domains[v]) <= {a for part in parts for a in part}, "a choice is in no part", Refuted)
    return [sorted(set(part)) for part in parts]


def dual(p: Problem, r: dict, domains: list, ub: float) -> tuple[float, list | None]:
    """(b, domains after fixing, or None if `then` is not to be looked at)."""
    q, to_u, to_v = r["q"], r["to_u"], r["to_v"]
    need(q >= 1, "denominator", Refuted)
    multipliers(p, r["multipliers"])
    need(len(to_u) == len(to_v) == len(p.edges), "one message per edge and side", Refuted)
    for (_, _, t, _, _), a, b in zip(p.edges, to_u, to_v, strict=True):
        need(a.shape == (p.tables[t].shape[0],) and b.shape == (p.tables[t].shape[1],), "shape of a message", Refuted)
    lb = q * p.constant - sum(n for _, n in r["multipliers"]) * (p.limit or 0)
    theta = [{a: q * p.costs[v][a] + weighted(p, r["multipliers"], v, a) for a in d} for v, d in enumerate(domains)]
    for t, n, g, z in r["rounded"]:
        need(p.limit is not None and n >= 1 and g >= 1, "rounded row", Refuted)
        need(z.shape == (len(domains),), "reference of a rounded row", Refuted)
        need(all(0 <= a < len(c) for a, c in zip(z.numbers, p.costs, strict=True)), "reference", Refuted)
        s = [p.usage(t, v, a) for v, a in enumerate(z.numbers)]
        c = p.limit - sum(s)
        rest = c % g
        lb -= n * (g - rest) * (c // g)
        for v, row in enumerate(theta):
            for a in row:
                d = p.usage(t, v, a) - s[v]
                row[a] += n * ((g - rest) * (d // g) + max(0, d % g - rest))
    for e, (u, v, _, rows, cols) in enumerate(p.edges):
        for a in domains[u]:
            theta[u][a] += to_u[e][a if rows is None else rows[a]]
        for b in domains[v]:
            theta[v][b] += to_v[e][b if cols is None else cols[b]]
    allowed = [[a for a in d if p.costs[v][a] < FORBIDDEN] for v, d in enumerate(domains)]
    if not all(allowed):
        return INFINITE, None
    low = [min(theta[v][a] for a in mine) for v, mine in enumerate(allowed)]
    brackets = []
    for e, (u, v, t, rows, cols) in enumerate(p.edges):
        reach_u = {a if rows is None else rows[a] for a in domains[u]}
        reach_v = {b if cols is None else cols[b] for b in domains[v]}
        by_row, by_col = dict.fromkeys(reach_u, INFINITE), dict.fromkeys(reach_v, INFINITE)
        for i, j in product(reach_u, reach_v):
            entry = p.tables[t][i, j]
            if entry < FORBIDDEN:
                here = q * entry - to_u[e][i] - to_v[e][j]
                by_row[i], by_col[j] = min(by_row[i], here), min(by_col[j], here)
        least = min(by_row.values())
        if least == INFINITE:
            return INFINITE, None
        lb += least
        brackets.append((by_row, by_col, least))
    lb += sum(low)
    b = -(-lb // q)
    if not r["then"] or b >= ub:
        return b, None
    left = []
    for v, mine in enumerate(allowed):
        kept = []
        for a in mine:
            excess = theta[v][a] - low[v]
            for e, (u, w, _, rows, cols) in enumerate(p.edges):
                by_row, by_col, least = brackets[e]
                if u == v:
                    excess += by_row[a if rows is None else rows[a]] - least
                elif w == v:
                    excess += by_col[a if cols is None else cols[a]] - least
            if excess != INFINITE and (ub == INFINITE or lb + excess <= q * (ub - 1)):
                kept.append(a)
        left.append(kept)
    return b, left


def eliminate(p: Problem, r: dict, domains: list, fine: bool) -> tuple[float, list]:
    """(b, steps): a step is (vertex, scope, consumed tables, message); a table is (scope, {choices: number})."""
    n, order, scopes, messages = len(domains), r["order"], r["scopes"], r["messages"]
    need(sorted(order) == list(range(n)), "order", Refuted)
    need(len(scopes) == n and len(messages) in (0, n), "scopes and messages", Refuted)
    need(all(0 <= w < n for scope in scopes for w in scope), "scope", Refuted)

    def number(coarse: int, digit: int) -> float:
        return INFINITE if coarse >= FORBIDDEN else (coarse << p.bits) + digit if fine else coarse

    pool = []
    for v, d in enumerate(domains):
        pool.append(((v,), {(a,): number(p.costs[v][a], p.digits[v][a] if fine else 0) for a in d}))
    for u, v, t, rows, cols in p.edges:
        table, entries = p.tables[t], {}
        for a, b in product(domains[u], domains[v]):
            i, j = a if rows is None else rows[a], b if cols is None else cols[b]
            entries[a, b] = number(table[i, j], p.digits[n + t][i * table.shape[1] + j] if fine else 0)
        pool.append(((u, v), entries))
    bound: float = p.constant << (p.bits if fine else 0)
    gone, steps = set(), []
    for k, (v, scope) in enumerate(zip(order, scopes, strict=True)):
        consumed = [t for t in pool if v in t[0]]
        pool = [t for t in pool if v not in t[0]]
        gone.add(v)
        need(all(a < b for a, b in pairwise(scope)) and not gone & set(scope), "scope", Refuted)
        need({w for t in consumed for w in t[0]} - {v} <= set(scope), "a scope leaves out a vertex", Refuted)
        given = messages[k] if messages else None
        shape = tuple(len(domains[w]) for w in scope)
        need(given is None or given.shape == shape, "shape of a message", Refuted)
        message = {}
        for place in product(*(range(size) for size in shape)):
            s = tuple(domains[w][i] for w, i in zip(scope, place, strict=True))
            least = min(total(consumed, scope, s, v, a) for a in domains[v])
            if given is None:
                message[s] = least
                continue
            stated = given.numbers[0] if not place else given[place]
            need(least == INFINITE or stated <= least and stated < FORBIDDEN, "a message is above its sum", Refuted)
            message[s] = INFINITE if stated >= FORBIDDEN else stated
        steps.append((v, scope, consumed, message))
        if scope:
            pool.append((tuple(scope), message))
        else:
            bound += message[()]
    return bound, steps


def total(consumed: list, scope: list, s: tuple, v: int, a: int) -> float:
    at = {**dict(zip(scope, s, strict=True)), v: a}
    return sum(entries[tuple(at[w] for w in axes)] for axes, entries in consumed)


def near(p: Problem, steps: list, domains: list, slack: int) -> list:
    """What an elimination leaves of the domains."""
    if slack >= 1 << 62:
        return domains
    left = [list(d) for d in domains]
    for v, scope, consumed, message in reversed(steps):
        if len(left[v]) * prod(len(left[w]) for w in scope) > 1 << 22:
            continue
        kept = []
        for a in left[v]:
            for s in product(*(left[w] for w in scope)):
                here = total(consumed, scope, s, v, a)
                if here != INFINITE and here - message[s] <= slack:
                    kept.append(a)
                    break
        left[v] = kept
    return left

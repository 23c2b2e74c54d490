"""Checks dual records: a bound from integer messages and multipliers, and the labels that it fixes.

    bracket_e(r, s) = Q T_e(r, s) - m_e,u(r) - m_e,v(s)          minima over the rows and columns that D reaches
    LB(D) = Q constant + sum_v min theta_v + sum_e min bracket_e - sum_t n_t L          (see
    proofs/selection/certificates.py)
    (rounded rows: selection_rounded)

Any integers are valid messages: they cancel between theta and the brackets, row multipliers only subtract slack.  So
nothing about the messages has to be tested except shapes; the bound is computed here from the problem's own tables.

Forbidden entries count as plus infinity: no feasible x uses one, so a minimum may skip it.  They are first set to
    cap = F + 2 M // Q + 2      F: largest |allowed entry|, M: largest |m_u| + largest |m_v|
so that every clipped bracket is > Q F + M and every allowed one is <= Q F + M: infinite minima are recognised exactly.

Overflow: before each vectorised step its largest possible |result| is computed in Python integers; at 2**62 or more the
step is done on arrays of Python integers instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.problem.selection_problem import FORBIDDEN, Edge, Ints
from ...proofs.container.effort import OBJECT
from ...proofs.selection.certificates import Dual
from .flat import flat_bound
from .ground import INFINITE, Bound, Domains, Ground, Refuted, check_multipliers, live_multipliers, weighted_usage
from .rounded import Terms, rounded_terms

Mask = NDArray[np.bool_]

CELLS: Final = 1 << 17
"""Entries per block: 1 MiB of int64, so that the passes over a block run in cache."""

SAFE: Final = 1 << 62

SORT_COST: Final = 24
"""Cells of one choice whose map to a row of a table is sorted."""

CELL_COST: Final = 2
"""Cells that an entry of a bracket costs: it is gathered, clipped, multiplied, reduced twice."""


@dataclass(frozen=True)
class Minima:
    """Minima of one bracket: `low` overall (or INFINITE), `by_row` and, if asked for, `by_col` over the reached rows
    and columns; entries > `top` are infinite."""

    low: Bound
    by_row: Ints
    by_col: Ints
    top: int


def dual_bound(ground: Ground, record: Dual, domains: Domains, ub: Bound, place: str) -> tuple[Bound, Domains | None]:
    """(B without `then`, domains after fixing or None if nothing was left to fix: no `then`, or B >= UB)."""
    problem, q = ground.problem, record.denominator
    if type(q) is not int or q < 1:
        raise Refuted(place, f"denominator {q!r} is not a positive integer")
    check_multipliers(problem, record.multipliers, place)
    _check_shapes(ground, record, place)
    if ground.flat.plain and not record.multipliers and not record.rounded:
        flat = flat_bound(ground.flat, record, domains, ub, ground.budget, place)
        if flat is not None:
            return flat
    live = live_multipliers(problem, record.multipliers)
    sizes: dict[int, int] = {}
    for message in (*record.to_u, *record.to_v):
        if id(message) not in sizes:
            sizes[id(message)] = max(abs(int(message.min())), abs(int(message.max()))) if message.size else 0

    total = q * problem.constant - sum(n for _, n in record.multipliers) * (problem.limit or 0)
    terms, rounded = rounded_terms(ground, record.rounded, domains, place) if record.rounded else ({}, 0)
    total -= rounded
    thetas: list[tuple[Mask, Ints, int]] = []
    for v, domain in enumerate(domains):
        allowed, theta = _theta(ground, record, v, domain, live, sizes, terms)
        if not allowed.any():
            return INFINITE, None
        low = int(theta[allowed].min())
        thetas.append((allowed, theta, low))
        total += low

    mapped = sum(
        domains[e.u].size * (e.rows is not None) + domains[e.v].size * (e.cols is not None) for e in problem.edges
    )
    ground.budget.charge(
        2 * sum(d.size * (2 + len(at)) for d, at in zip(domains, ground.edges_at, strict=True)) + SORT_COST * mapped,
        place,
    )
    sides = record.then is not None
    done: dict[tuple[object, ...], Minima] = {}  # repeated structure: equal (table, rows, columns, messages) once
    minima: list[Minima] = []
    for e, edge in enumerate(problem.edges):
        rows, cols = (
            used_rows(edge.rows, domains[edge.u], ground.full[edge.u]),
            used_rows(edge.cols, domains[edge.v], ground.full[edge.v]),
        )
        key = (edge.table, _key(rows), _key(cols), id(record.to_u[e]), id(record.to_v[e]))
        if key not in done:
            size = sizes[id(record.to_u[e])] + sizes[id(record.to_v[e])]
            done[key] = _minima(ground, edge, (rows, cols), (record.to_u[e], record.to_v[e]), size, q, sides, place)
        found = done[key]
        if found.low == INFINITE:
            return INFINITE, None
        total += int(found.low)
        minima.append(found)

    bound = -(-total // q)
    if not sides or bound >= ub:
        return bound, None
    return bound, [_fix(ground, v, domains, thetas[v], minima, ub, total, q) for v in range(len(domains))]


def used_rows(index: Ints | None, domain: Ints, full: Ints) -> Ints | None:
    """Sorted table rows (or columns) that the choices in `domain` use; None for an identity map of every choice:
    all of them.
    """
    if index is None:
        return None if domain is full else domain
    return np.unique(index[domain])


def _check_shapes(ground: Ground, record: Dual, place: str) -> None:
    edges, tables = ground.problem.edges, ground.problem.tables
    for side, messages in enumerate((record.to_u, record.to_v)):
        if len(messages) != len(edges):
            raise Refuted(place, f"has {len(messages)} messages {'to v' if side else 'to u'} for {len(edges)} edges")
        for e, message in enumerate(messages):
            expected = tables[edges[e].table].shape[side]
            if message.dtype != np.int64 or message.shape != (expected,):
                raise Refuted(
                    f"{place}, edge {e}", f"message has shape {message.shape}, the table needs ({expected},) int64"
                )


def _theta(
    ground: Ground, record: Dual, v: int, domain: Ints, live: list[int], sizes: dict[int, int], terms: Terms
) -> tuple[Mask, Ints]:
    """(mask of allowed choices, theta_v) on the domain; theta is meaningless where not allowed."""
    problem, q = ground.problem, record.denominator
    ends = []
    for e in ground.edges_at[v]:
        edge = problem.edges[e]
        ends.append((record.to_u[e], edge.rows) if edge.u == v else (record.to_v[e], edge.cols))
    size, holes = ground.costs[v]
    extra, extra_bound = terms.get(v, (None, 0))
    rest = q * (size + 1) + sum(sizes[id(message)] for message, _ in ends) + extra_bound
    usage, usage_bound = weighted_usage(ground, v, domain, live, rest)
    exact = rest + usage_bound < SAFE
    cost = problem.vertices[v].cost[domain]
    allowed = cost < FORBIDDEN
    if holes:
        cost = np.where(allowed, cost, 0)
    theta: Ints = (cost if exact else cost.astype(object)) * q
    for message, index in ends:
        theta = theta + message[domain if index is None else index[domain]]
    if extra is not None:
        theta = theta + extra
    return allowed, theta if usage is None else theta + usage


def _minima(
    ground: Ground,
    edge: Edge,
    reached: tuple[Ints | None, Ints | None],
    messages: tuple[Ints, Ints],
    m_size: int,
    q: int,
    sides: bool,
    place: str,
) -> Minima:
    """Minima of the bracket over the reached rows x columns (None: all), in blocks of rows.

    `m_size`: largest |m_u| + largest |m_v|, reached or not: a larger one makes `cap` larger, which stays above every
    allowed entry.
    """
    table, (largest, holes) = ground.problem.tables[edge.table], ground.tables[edge.table]
    (rows, cols), (to_u, to_v) = reached, messages
    if rows is not None and rows.size == table.shape[0]:
        rows = None
    if cols is not None and cols.size == table.shape[1]:
        cols = None
    m_u, m_v = to_u if rows is None else to_u[rows], to_v if cols is None else to_v[cols]
    cap, top = largest + 2 * m_size // q + 2, q * largest + m_size
    exact = q * cap + m_size < SAFE
    ground.budget.charge(m_u.size * m_v.size * (CELL_COST if exact else CELL_COST * OBJECT), place)
    if not exact:
        m_u, m_v = m_u.astype(object), m_v.astype(object)
    by_row = np.zeros(m_u.size, dtype=m_u.dtype)
    by_col = np.full(m_v.size if sides else 0, q * cap + m_size, dtype=m_v.dtype)  # no clipped bracket is larger
    height = max(1, CELLS // m_v.size)
    for start in range(0, m_u.size, height):
        part = slice(start, min(start + height, m_u.size))
        block = table[part] if rows is None else table[rows[part]]
        if cols is not None:
            block = block[:, cols]
        if not exact:
            block = block.astype(object)
        if holes:
            block = np.minimum(block, cap) if cap <= FORBIDDEN else np.where(block >= FORBIDDEN, cap, block)
        if q != 1:
            block = block * q
        work = block - m_v
        by_row[part] = work.min(axis=1) - m_u[part]
        if sides:
            work -= m_u[part, None]
            by_col = np.minimum(by_col, work.min(axis=0))
    low = int(by_row.min())
    return Minima(INFINITE if low > top else low, by_row, by_col, top)


def _fix(
    ground: Ground,
    v: int,
    domains: Domains,
    theta: tuple[Mask, Ints, int],
    minima: list[Minima],
    ub: Bound,
    total: int,
    q: int,
) -> Ints:
    """Choices of v that stay: excess over LB(D) is at most Q (UB - 1) - LB(D), and nothing infinite is involved."""
    domain = domains[v]
    allowed, values, low = theta
    terms: list[Ints] = []
    stay = allowed.copy()
    for e in ground.edges_at[v]:
        edge, found = ground.problem.edges[e], minima[e]
        side, index = (found.by_row, edge.rows) if edge.u == v else (found.by_col, edge.cols)
        other = used_rows(index, domain, ground.full[v])
        at = side[np.searchsorted(other, domain if index is None else index[domain])] if other is not None else side
        stay &= np.asarray(at <= found.top, dtype=bool)
        terms.append(_excess(at, stay, int(found.low)))
    terms.append(_excess(values, stay, low))
    if ub == INFINITE:
        return domain[stay]
    if sum(int(term.max()) for term in terms) >= SAFE:
        terms = [term.astype(object) for term in terms]
    excess = sum(terms[1:], start=terms[0])
    stay &= np.asarray(excess <= q * (int(ub) - 1) - total, dtype=bool)
    return domain[stay]


def _excess(values: Ints, stay: Mask, low: int) -> Ints:
    """values - low >= 0 where `stay`, 0 elsewhere; |values| < 2**62 or Python integers, so the difference fits."""
    return np.where(stay, values - low, 0)


def _key(index: Ints | None) -> bytes | None:
    return None if index is None else index.tobytes()

"""Checks dual records of small plain tables, all vertices and edges at once.

The formula is that of `dual`, for problems without resource rows whose edges reach their tables directly and are small
on D: there a few calls of numpy on every vertex and edge take far longer than what they add up.  Everything is laid out
end to end instead:

    slot     a vertex and a choice of D_v
    side     an edge, one of its ends and a choice of D there: adds its message to its slot, its least bracket to the
             excess of its slot
    entry    an edge and a pair of choices of D

Forbidden entries are set to one cap, that of `dual` for the largest entry and messages of all edges, so that a bracket
is infinite exactly above `top`.  Overflow: the largest possible sum is computed in Python integers first; at 2**62 or
more, or where the tables are large, the answer is None and `dual` does it edge by edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints
from ...proofs.selection.certificates import Dual
from ..budget import Budget
from .ground import INFINITE, Bound, Domains
from .layout import Flat, starts_of

SAFE: Final = 1 << 62

BLOCK: Final = 1 << 15
"""Entries that are looked at together: a dozen arrays of so many stay in cache."""

WIDE: Final = 1 << 10
"""Entries of an edge on D, in the mean, from which edge by edge is as fast."""

CELL_COST: Final = 2
"""Cells that an entry of a bracket costs, as in `dual`."""


@dataclass(frozen=True, eq=False)
class _Sides:
    """One end of every edge: `slot` of every side, `first`: where the sides of an edge begin."""

    slot: Ints
    edge: Ints
    first: Ints
    message: Ints


def flat_bound(
    flat: Flat, record: Dual, domains: Domains, ub: Bound, budget: Budget, place: str
) -> tuple[Bound, Domains | None] | None:
    """As `dual_bound`, for a record of the right shapes without multipliers and rounded rows; None where that has to be
    asked.
    """
    counts = np.array([d.size for d in domains], dtype=np.int64)
    u, v = flat.ends
    entries = int((counts[u] * counts[v]).sum())
    if not counts.all() or entries > WIDE * u.size:
        return None
    q, problem = record.denominator, flat.problem
    to_u, to_v = np.concatenate(record.to_u), np.concatenate(record.to_v)
    size = sum(max(-int(m.min()), int(m.max())) for m in (to_u, to_v))
    largest_cost, largest = flat.largest
    cap, top = largest + 2 * size // q + 2, q * largest + size
    if (flat.degree + 2) * 4 * (q * (largest_cost + cap + 1) + size) >= SAFE:
        return None
    budget.charge(2 * (2 * int(counts.sum()) + int(counts[u].sum() + counts[v].sum())) + CELL_COST * entries, place)
    first, labels = starts_of(counts), np.concatenate(domains)
    cost, begin = flat.cost
    theta = cost[np.repeat(begin, counts) + labels]
    allowed = theta < FORBIDDEN
    theta = np.where(allowed, theta, 0) * q
    sides = tuple(
        _sides(end, counts, first, labels, starts, messages)
        for end, starts, messages in zip(flat.ends, flat.starts, (to_u, to_v), strict=True)
    )
    for side in sides:
        np.add.at(theta, side.slot, side.message)
    low = np.minimum.reduceat(np.where(allowed, theta, SAFE), first)
    if (low == SAFE).any():
        return INFINITE, None
    by_row, by_col, least = _brackets(flat, sides, counts, labels, q, cap, record.then is not None)
    if (least > top).any():
        return INFINITE, None
    total = q * problem.constant + sum(low.tolist()) + sum(least.tolist())
    bound = -(-total // q)
    if record.then is None or bound >= ub:
        return bound, None
    excess, stay = theta - np.repeat(low, counts), allowed
    for side, found in zip(sides, (by_row, by_col), strict=True):
        stay[side.slot[found > top]] = False
        np.add.at(excess, side.slot, found - least[side.edge])
    if ub != INFINITE:
        stay &= excess <= max(-1, min(q * (int(ub) - 1) - total, SAFE))
    ends = np.concatenate([[0], np.cumsum(np.add.reduceat(stay.astype(np.int64), first))]).tolist()
    kept = labels[stay]
    return bound, [kept[a:b] for a, b in pairwise(ends)]


def _sides(end: Ints, counts: Ints, first: Ints, labels: Ints, starts: Ints, messages: Ints) -> _Sides:
    sizes = counts[end]
    begin = starts_of(sizes)
    edge = np.repeat(np.arange(end.size), sizes)
    slot = np.arange(edge.size) + (first[end] - begin)[edge]
    return _Sides(slot, edge, begin, messages[starts[edge] + labels[slot]])


def _brackets(
    flat: Flat, sides: tuple[_Sides, ...], counts: Ints, labels: Ints, q: int, cap: int, both: bool
) -> tuple[Ints, Ints, Ints]:
    """(minima by row, by column, by edge); above every allowed one where nothing is allowed.  By column only if asked
    for, otherwise zeros.
    """
    rows, cols = sides
    at, width = flat.at
    base = at[rows.edge] + labels[rows.slot] * width[rows.edge]
    across = counts[flat.ends[1]]
    by_row = np.empty(base.size, dtype=np.int64)
    by_col = np.full(cols.slot.size, SAFE if both else 0, dtype=np.int64)
    columns = labels[cols.slot]
    ends = np.cumsum(across[rows.edge])  # entries up to every row
    cuts = np.searchsorted(ends, np.arange(BLOCK, int(ends[-1]), BLOCK)) + 1
    for a, b in pairwise(sorted({0, *cuts.tolist(), base.size})):
        sizes = across[rows.edge[a:b]]
        begin = starts_of(sizes)
        row = np.repeat(np.arange(a, b), sizes)
        col = np.arange(row.size) + np.repeat(cols.first[rows.edge[a:b]] - begin, sizes)
        value = np.minimum(flat.cells[base[row] + columns[col]], cap) * q - rows.message[row] - cols.message[col]
        by_row[a:b] = np.minimum.reduceat(value, begin)
        if both:
            np.minimum.at(by_col, col, value)
    return by_row, by_col, np.minimum.reduceat(by_row, rows.first)

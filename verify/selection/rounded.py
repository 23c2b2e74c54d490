"""Checks rounded resource rows of a `Dual` record (proofs/selection/certificates.py), for step t, modulus g
and reference choices z:

    d_v(a) = u_v(a) - u_v(z_v)        C = L - sum_v u_v(z_v)        r = C mod g
    F(d) = (g - r) floor(d / g) + max(0, d mod g - r)               sum_v F(d_v(x_v)) <= F(C)

The record says t, n, g and z only; usages, r and F are computed here.  Why the row is valid: F(0) = 0, F never
decreases, and F(a) + F(b) <= F(a + b): write a mod g = p, b mod g = q; the floors add up, and if p + q < g then max(0,
p - r) + max(0, q - r) <= max(0, p + q - r), else the left remainders are at most g - r + max(0, p + q - g - r).  So sum
F(d_v) <= F(sum d_v) <= F(C).

Overflow: |F(d)| <= |d| + g.  Where n (|d| + g) may reach 2**62 arrays of Python integers are used.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.container.effort import OBJECT, PART
from ...proofs.selection.certificates import Rounded
from .ground import Domains, Ground, Refuted

SAFE: Final = 1 << 62

Terms = dict[int, tuple[Ints, int]]
"""Per vertex: what the rows add to theta, on the domain, and the largest |entry| it can have."""


def rounded_terms(ground: Ground, rows: tuple[Rounded, ...], domains: Domains, place: str) -> tuple[Terms, int]:
    """(terms of all rows, sum of n F(C)).  `Refuted` for a row that does not exist or is malformed."""
    terms: Terms = {}
    total = 0
    ground.budget.charge(len(rows) * (PART * len(ground.problem.usages) + OBJECT * sum(d.size for d in domains)), place)
    spans = np.array([(u.start, u.end) for u in ground.problem.usages], dtype=np.int64).reshape(-1, 2)
    for number, row in enumerate(rows):
        where = f"{place}, rounded row {number}"
        limit = _check(ground, row, where)
        live = np.flatnonzero((spans[:, 0] <= row.step) & (row.step < spans[:, 1])).tolist()
        usage = _usage(ground, live)
        cap = limit - sum(int(amount[row.reference[v]]) for v, amount in usage.items())
        rest = cap % row.modulus
        total += row.multiplier * (row.modulus - rest) * (cap // row.modulus)
        for v, amount in usage.items():
            d = amount[domains[v]] - amount[row.reference[v]]
            size = row.multiplier * (max(abs(int(d.min(initial=0))), abs(int(d.max(initial=0)))) + row.modulus)
            d = d if size < SAFE else d.astype(object)
            value = (d // row.modulus) * (row.modulus - rest) + np.maximum(0, d % row.modulus - rest)
            known, bound = terms.get(v, (np.zeros(domains[v].size, dtype=np.int64), 0))
            if bound + size >= SAFE:
                known = known.astype(object)
            terms[v] = known + row.multiplier * value, bound + size
    return terms, total


def _check(ground: Ground, row: Rounded, place: str) -> int:
    """The limit."""
    problem = ground.problem
    if problem.limit is None:
        raise Refuted(place, "rounds a resource row, but the problem has no limit")
    if type(row.step) is not int or type(row.multiplier) is not int or type(row.modulus) is not int:
        raise Refuted(place, "step, multiplier and modulus must be integers")
    if row.multiplier <= 0:
        raise Refuted(place, f"multiplier {row.multiplier} is not positive")
    if row.modulus < 1:
        raise Refuted(place, f"modulus {row.modulus} is not positive")
    reference, sizes = row.reference, np.array([full.size for full in ground.full], dtype=np.int64)
    if reference.dtype != np.int64 or reference.shape != sizes.shape:
        raise Refuted(place, f"reference has shape {reference.shape}, {sizes.shape} int64 is needed")
    if ((reference < 0) | (reference >= sizes)).any():
        raise Refuted(place, "a reference choice does not exist")
    return problem.limit


def _usage(ground: Ground, live: list[int]) -> dict[int, Ints]:
    """Total usage of every choice, per vertex with a live usage; ascending vertices."""
    found: dict[int, Ints] = {}
    exact = sum(int(ground.problem.usages[a].amount.max()) for a in live) < SAFE
    for a in live:
        usage = ground.problem.usages[a]
        amount = usage.amount if exact else usage.amount.astype(object)
        found[usage.vertex] = found[usage.vertex] + amount if usage.vertex in found else amount
    return dict(sorted(found.items()))

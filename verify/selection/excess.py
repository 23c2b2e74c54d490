"""What an elimination record rules out besides its bound: choices that no x cheaper than the claimed
solution makes.

With the steps of the record (`elimination`), for every x in D

    coarse(x) = B + sum over steps of excess_k(x),      excess_k = sum of the consumed tables at x - message_k at x  >=
    0,

so an x with coarse(x) < UB has every excess <= slack := UB - 1 - B.  Going backwards, the scope of a step has its
choices left already, and

    D'_v = { a in D_v : excess_k(s, a) <= slack for some s in the product of D'_w over the scope }

still holds the choices of every such x.  Where that product is too large nothing is removed, which is sound as well.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from ...models.problem.selection_problem import Ints
from .elimination import CELL_COST, Factor, Step, top_of
from .ground import Domains, Ground

MOST_CELLS: Final = 1 << 22
"""Entries of a product of what is left that are looked at together."""


def left_within(ground: Ground, steps: list[Step], domains: Domains, slack: int, place: str) -> Domains:
    """D' of the module docstring, for steps that were tested on `domains`."""
    if slack >= 1 << 62:
        return domains
    left: list[Ints] = [np.arange(domain.size, dtype=np.int64) for domain in domains]
    for step in reversed(steps):
        axes = (*step.scope, step.v)
        if prod(left[w].size for w in axes) > MOST_CELLS:
            continue
        ground.budget.charge(prod(left[w].size for w in axes) * (1 + len(step.consumed)) * CELL_COST, place)
        top = top_of(sum(factor.size for factor in step.consumed) + step.message.size)
        kind: type = np.int64 if top == 1 << 60 else object
        total: Ints = np.zeros([left[w].size for w in axes], dtype=kind)
        for factor in step.consumed:
            values = _picked(factor, axes, left)
            total = np.minimum(total + np.where(values >= 1 << 60, top, values.astype(kind)), top)
        excess = total - _picked(step.message, axes, left).astype(kind)
        near = np.asarray((total < top // 2) & (excess <= slack), dtype=bool)
        left[step.v] = np.flatnonzero(near.any(axis=tuple(range(len(step.scope)))))
    return [domain[kept] for domain, kept in zip(domains, left, strict=True)]


def _picked(factor: Factor, axes: tuple[int, ...], left: list[Ints]) -> Ints:
    """Entries of the factor at what is left, one array axis per element of `axes`, of length 1 where not in scope."""
    where = [left[w] for w in factor.scope]
    if factor.indices:
        where = [index[kept] for index, kept in zip(factor.indices, where, strict=True)]
    values = factor.table[np.ix_(*where)] if where else factor.table
    order = sorted(range(len(factor.scope)), key=lambda i: axes.index(factor.scope[i]))
    return np.asarray(values.transpose(order)[tuple(slice(None) if w in factor.scope else None for w in axes)])

"""Checks that a list of placements is the whole space.

    placements of a space = matrices X with a row per axis and one of replication, X[i][j] >= 1, product of column j =
    h_j,
                            product of row i divides the extent n_i (uneven: is at most n_i), rows that may not be split
                            are 1, at most `rows_per_level` entries of a column above 1

A list of distinct matrices that all belong to the space and are as many as it has is the space (`check_list`); so an
optimum over the list is an optimum over the space.  How many it has is counted without listing them
(`models.cost.limits.Counter`), and never by what listed them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...models.cost.limits import Counter
from ...models.layout.placement import Space
from ...models.problem.selection_problem import Ints


def check_list(
    placements: Ints, extents: Sequence[int], splittable: Sequence[bool], where: Space, counter: Counter
) -> str:
    """Why `placements`, shape (K, axes + 1, levels), are not all placements of the space, each once; empty if they
    are.
    """
    hierarchy = np.array(counter.hierarchy, dtype=np.int64)
    if placements.ndim != 3 or placements.shape[1:] != (len(extents) + 1, hierarchy.size):
        return f"placements have shape {placements.shape}"
    limit = np.array([n if s else 1 for n, s in zip(extents, splittable, strict=True)], dtype=np.int64)
    degree = placements[:, :-1, :].prod(axis=2)
    fits = (degree <= limit) if where.uneven else (limit % np.maximum(degree, 1) == 0)
    good = (placements >= 1).all(axis=(1, 2)) & (placements.prod(axis=1) == hierarchy).all(axis=1) & fits.all(axis=1)
    if where.rows_per_level is not None:
        good &= ((placements > 1).sum(axis=1) <= where.rows_per_level).all(axis=1)
    if not good.all():
        return f"choice {int(np.nonzero(~good)[0][0])} is not a placement of the space"
    flat = placements.reshape(placements.shape[0], -1)
    if len({row.tobytes() for row in flat}) != flat.shape[0]:
        return "a placement occurs twice"
    expected = counter.count(limit.tolist())
    return "" if flat.shape[0] == expected else f"{flat.shape[0]} placements, the space has {expected}"

"""Which collectives a resharding consists of, level by level, where a level's collectives have
measured times.

    step        operation, level j, g members, s elements that each of them contributes, times the devices below a
                level-j subtree, which share its link
    reduction   of n elements (L2, with its g_j, r_j, w_j; n after the division at level j):
                one all_reduce, s = w_j n, at the outermost level with g_j > 1 if r_j = g_j;
                else reduce_scatter, g_j members, s = w_j n, and, if r_j > 1, all_gather, r_j members, s = w_j n
                with the n of that phase
    fetch       at every level i with load_i > 0 (L1):
                all_gather where the last level's load is at most max |B_d| - max |A_d|: what was held is still held;
                members ceil(max |B_d| / max |A_d|), at least 2 and at most h_i
                else alltoall of h_i members;  s = ceil( load_i / (members - 1) )

A level of one child has no collective.  What a phase of level j moves on links inside level j is no step of theirs: it
is between nodes, whose ports hang on the devices.  Numbers are elements; in bytes s is the element size times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..problem.selection_problem import Ints


@dataclass(frozen=True, eq=False)
class Step:
    """One kind of collective for many pairs of layouts: `members` and `share` have one shape, share 0: none here.
    `rows`: layouts of A that the first dimension means; None: all.
    """

    operation: str
    level: int
    members: Ints
    share: Ints
    rows: Ints | None = None


def fetch_steps(
    loads: Sequence[Ints], held: Ints, wanted: Ints, hierarchy: tuple[int, ...], levels: Sequence[int]
) -> list[Step]:
    """Collectives of the fetches with these loads.  `held`, `wanted`: elements of the largest boxes, per layout."""
    gather = loads[-1] <= wanted[None, :] - held[:, None]
    ratio = -(-wanted[None, :] // np.maximum(held, 1)[:, None])
    out = []
    for i in levels:
        size = hierarchy[i]
        if size > 1:
            members = np.clip(ratio, 2, size)
            share = -(-loads[i] // (members - 1))
            out.append(Step("all_gather", i, members, np.where(gather, share, 0)))
            share = -(-loads[i] // (size - 1))
            out.append(Step("alltoall", i, np.full_like(share, size), np.where(gather, 0, share)))
    return out


def reduction_steps(
    parts: Ints, opened: Sequence[Ints | int], kept: Sequence[Ints], hierarchy: tuple[int, ...], levels: Sequence[int]
) -> list[Step]:
    """Collectives of reductions to tiles of `parts` x prod of `kept` elements; `opened`, `kept`: g_j, r_j per level,
    broadcast to the shape of `parts`.

    >>> one = np.ones(1, dtype=np.int64)
    >>> [(s.operation, s.level, int(s.share[0])) for s in reduction_steps(one, [4 * one], [4 * one], (4,), [0])]
    [('reduce_scatter', 0, 0), ('all_gather', 0, 0), ('all_reduce', 0, 1)]
    """
    shape = parts.shape
    g = [np.broadcast_to(np.asarray(x, dtype=np.int64), shape) for x in opened]
    n = parts * prod(g, start=np.ones(shape, dtype=np.int64))
    outside = np.ones(shape, dtype=bool)
    first = []  # per level: whether it is the outermost one that is reduced over
    for x in g:
        first.append(outside & (x > 1))
        outside &= x == 1
    scattered: list[Ints] = [n] * len(hierarchy)
    for j in reversed(range(len(hierarchy))):
        n = n // g[j]
        scattered[j] = n
    out = []
    for j in range(len(hierarchy)):
        if j in levels:
            below = prod(hierarchy[j + 1 :])
            whole = first[j] & (kept[j] == g[j])
            out += [
                Step("reduce_scatter", j, g[j], np.where((g[j] > 1) & ~whole, below * scattered[j], 0)),
                Step("all_gather", j, kept[j], np.where((kept[j] > 1) & ~whole, below * n, 0)),
                Step("all_reduce", j, g[j], np.where(whole, below * scattered[j], 0)),
            ]
        n = n * kept[j]
    return out

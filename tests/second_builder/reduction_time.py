"""(L2): what a reduction moves through the link of a subtree, level by level.

g_j, r_j   products of the open and of the replicated primes at level j;  w_i devices below a subtree of level i
q = ceil(t / prod r_j),  n := q prod g_j
reduce-scatter, innermost level first, where g_j > 1:   n := n / g_j,  load_i += w_i (g_j - 1) n   for i >= j
all-gather, outermost level first, where r_j > 1:       load_i += w_i (r_j - 1) n   for i >= j,  n := n r_j
each of these is a phase, unless nothing is wanted (n = 0)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from .measured_time import Phase, phases_of_reduction
from .tilings import Digit

Moved = tuple[tuple[int, ...], tuple[int, ...], tuple[Phase, ...]]
"""Elements through the busiest link, and collective phases, per level; the collectives."""


def reduction(tile: int, digits: Sequence[Digit], replicated: Collection[Digit], sizes: Sequence[int]) -> Moved:
    """Combine along `digits` tiles of `tile` elements, which all members want along the `replicated` ones."""
    levels = range(len(sizes))
    opened = [prod(d.prime for d in digits if d.level == j) for j in levels]
    gathered = [prod(d.prime for d in digits if d.level == j and d in replicated) for j in levels]
    below = [prod(sizes[i + 1 :]) for i in levels]
    loads, phases = [0] * len(sizes), [0] * len(sizes)
    n = -(-tile // prod(gathered)) * prod(opened)
    for j in reversed(levels):
        if opened[j] > 1:
            n //= opened[j]
            phases[j] += n > 0
            for i in range(j, len(sizes)):
                loads[i] += below[i] * (opened[j] - 1) * n
    for j in levels:
        if gathered[j] > 1:
            phases[j] += n > 0
            for i in range(j, len(sizes)):
                loads[i] += below[i] * (gathered[j] - 1) * n
            n *= gathered[j]
    return tuple(loads), tuple(phases), phases_of_reduction(tile, digits, replicated, sizes)

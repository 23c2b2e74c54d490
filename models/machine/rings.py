"""How many rings the links of a node hold: edge-disjoint Hamiltonian cycles of a group, both ways
round.

    ring        a cycle through every member; each member sends to the next and receives from the one before
    links       full duplex, several between one pair: one ring needs one direction of one link of each of its edges
    rings       2 x the largest packing of Hamiltonian cycles; a pair with k links holds k rings; 0: no ring

Behind a switch every member has the same port whatever the group, and this count is not needed.

>>> [rings(CUBE_MESH, range(n)) for n in (2, 3, 4, 8)]          # rates measured on V100: 22, 45, 85, 134 GB/s
[1, 2, 4, 6]
>>> rings(CUBE_MESH, (0, 2, 4, 6)), rings(CUBE_MESH, range(5))
(2, 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise, permutations
from types import MappingProxyType
from typing import Final

__all__ = ["CUBE_MESH", "links_between", "rings"]

Links = Mapping[tuple[int, int], int]

CUBE_MESH: Final[Links] = MappingProxyType(
    {
        (0, 1): 1,
        (0, 2): 1,
        (0, 3): 2,
        (0, 4): 2,
        (1, 2): 2,
        (1, 3): 1,
        (1, 5): 2,
        (2, 3): 2,
        (2, 6): 1,
        (3, 7): 1,
        (4, 5): 1,
        (4, 6): 1,
        (4, 7): 2,
        (5, 6): 2,
        (5, 7): 1,
        (6, 7): 2,
    }
)
"""The hybrid cube mesh of eight V100 (DGX-1V, p3.16xlarge): six links a GPU, number of links per pair.  Source: the
topology matrix that NVIDIA's DGX-1 with V100 white paper draws."""


def links_between(links: Links, a: int, b: int) -> int:
    """Links between two devices.

    >>> links_between(CUBE_MESH, 4, 0), links_between(CUBE_MESH, 0, 5)
    (2, 0)
    """
    return links.get((a, b), 0) or links.get((b, a), 0)


def rings(links: Links, group: Iterable[int]) -> int:
    """Rings that a group has for itself; at most eight members (the search is over all orders)."""
    members = tuple(sorted(group))
    if len(members) > 8:
        raise ValueError(f"rings are counted for at most 8 devices, not {len(members)}")
    return _rings(tuple(sorted(links.items())), members)


@cache
def _rings(links: tuple[tuple[tuple[int, int], int], ...], members: tuple[int, ...]) -> int:
    table = dict(links)
    if len(members) < 2:
        return 1
    if len(members) == 2:
        return links_between(table, *members)
    left = {(a, b): links_between(table, a, b) for a in members for b in members if a < b}
    cycles = []
    for order in permutations(members[1:]):
        if order[0] > order[-1]:  # the same cycle the other way round
            continue
        around = (members[0], *order, members[0])
        edges = [(min(e), max(e)) for e in pairwise(around)]
        if all(left[e] for e in edges):
            cycles.append(edges)
    most = min(sum(n for e, n in left.items() if m in e) for m in members) // 2

    def pack_rings(start: int, found: int) -> int:
        best = found
        for c in range(start, len(cycles)):
            if best == most:
                break
            if all(left[e] for e in cycles[c]):
                for e in cycles[c]:
                    left[e] -= 1
                best = max(best, pack_rings(c, found + 1))
                for e in cycles[c]:
                    left[e] += 1
        return best

    return 2 * pack_rings(0, 0)

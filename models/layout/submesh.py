"""Views: boxes of subtrees of a machine, on which some operators run while others run elsewhere.

    view           per level j an aligned run of children  [start_j, start_j + count_j):  count_j divides h_j, start_j
    its devices    those whose coordinate is in the run at every level
    its machine    level sizes count_j; level j keeps the share  prod_{i > j} count_i / h_i  of its bandwidth: what the
                   devices of a subtree that are in the view may use of the subtree's link

Views without a common device therefore never use more of a link than there is (flag `shared-links-divided` where a
share is below 1).  Runs are aligned so that a digit of the device number inside the view is a digit of the whole
machine's.

Source: machine views of Unity (OSDI 2022), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ..problem.selection_problem import Ints


@dataclass(frozen=True, order=True)
class Submesh:
    """`starts`, `counts`: per level, outermost first."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]

    def fits(self, hierarchy: Sequence[int]) -> bool:
        """Whether it is a view of a machine with these level sizes.

        >>> Submesh((2, 0), (2, 8)).fits((4, 8)), Submesh((1, 0), (2, 8)).fits((4, 8))
        (True, False)
        """
        return len(self.starts) == len(self.counts) == len(hierarchy) and all(
            c >= 1 and h % c == 0 and 0 <= s < h and s % c == 0
            for s, c, h in zip(self.starts, self.counts, hierarchy, strict=True)
        )

    def devices(self, hierarchy: tuple[int, ...]) -> tuple[int, ...]:
        """Its devices, ascending: device k of the view's own hierarchy is the k-th.

        >>> Submesh((0, 4), (2, 2)).devices((2, 8))
        (4, 5, 12, 13)
        """
        return _devices(self, hierarchy)

    def divides_links(self, hierarchy: Sequence[int]) -> bool:
        """Whether a link that it uses is one of other devices too: several children of a level, of which it has a part
        each.

        >>> Submesh((0, 0), (4, 4)).divides_links((4, 8)), Submesh((0, 0), (1, 4)).divides_links((4, 8))
        (True, False)
        """
        return any(
            c != h and prod(self.counts[:j]) > 1 for j, (c, h) in enumerate(zip(self.counts, hierarchy, strict=True))
        )

    def meets(self, other: Submesh) -> bool:
        """Whether a device is in both."""
        return all(
            a < b + n and b < a + m
            for a, m, b, n in zip(self.starts, self.counts, other.starts, other.counts, strict=True)
        )

    def embed_boxes(self, boxes: Ints, hierarchy: tuple[int, ...]) -> Ints:
        """Boxes of the view's devices, shape (.., devices, ..) along axis 0, as boxes of all devices: others hold
        nothing.
        """
        out = np.zeros((prod(hierarchy), *boxes.shape[1:]), dtype=np.int64)
        out[list(self.devices(hierarchy))] = boxes
        return out

    def words(self, levels: Sequence[str], hierarchy: Sequence[int]) -> str:
        """`nodes 2-3`; levels that are whole are left out.

        >>> Submesh((2, 0), (2, 1)).words(("nodes", "gpus"), (4, 8))
        'nodes 2-3, gpus 0'
        """
        parts = [
            f"{name} {s}" if c == 1 else f"{name} {s}-{s + c - 1}"
            for name, s, c, h in zip(levels, self.starts, self.counts, hierarchy, strict=True)
            if c != h
        ]
        return ", ".join(parts) or "the whole machine"


@lru_cache(maxsize=4096)
def _devices(view: Submesh, hierarchy: tuple[int, ...]) -> tuple[int, ...]:
    found = [0]
    for start, count, size in zip(view.starts, view.counts, hierarchy, strict=True):
        found = [d * size + c for d in found for c in range(start, start + count)]
    return tuple(found)

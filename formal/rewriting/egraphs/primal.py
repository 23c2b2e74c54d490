"""Finds extractions without a proof: cheapest trees under changing weights, and sets of costs shared from
the leaves up.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ....models.problem.selection_problem import Ints
from .kernels import cheapest_trees, needed_nodes
from .reduced import Reduced

MOST_MERGED = 1 << 22
"""Entries that the shared costs may take in all."""


def tree_extraction(p: Reduced, weight: np.ndarray) -> Ints:
    """Nodes of the cheapest trees under weights; they share what they can."""
    choice = cheapest_trees(np.maximum(weight, 0.0), p.owner, p.kids, p.parents)
    return needed_nodes(choice, p.roots, p.kids) if len(p.roots) else np.zeros(0, dtype=np.int64)


def shared_extraction(p: Reduced, weight: np.ndarray) -> Ints | None:
    """From the leaves up, every class keeps the cheapest set of nodes that it found, shared nodes counted once.

    None if the sets become too large, or a root's set contradicts another's.
    """
    best: list[tuple[float, dict[int, int]] | None] = [None] * len(p.classes)
    weights, owner = weight.tolist(), p.owner.tolist()
    kids = [p.kids_of(n).tolist() for n in range(len(p.nodes))]
    queue = deque(n for n, k in enumerate(kids) if not k)
    waiting = set(queue)
    merged = 0
    while queue and merged < MOST_MERGED:
        n = queue.popleft()
        waiting.discard(n)
        c = owner[n]
        chosen = {c: n}
        for d in kids[n]:
            found = best[d]
            if found is None or c in found[1]:
                break
            for k, v in found[1].items():
                chosen.setdefault(k, v)
        else:
            merged += len(chosen)
            total = sum(weights[v] for v in chosen.values())
            before = best[c]
            if before is None or total < before[0] - 1e-9 * abs(before[0]):
                best[c] = (total, chosen)
                for m in p.parents[1][p.parents[0][c] : p.parents[0][c + 1]].tolist():
                    if m not in waiting:
                        waiting.add(m)
                        queue.append(m)
    choice = np.full(len(p.classes), -1, dtype=np.int64)
    for r in p.roots.tolist():
        found = best[r]
        if found is None:
            return None
        for c, n in found[1].items():
            if choice[c] < 0:
                choice[c] = n
    nodes = [n for n in choice.tolist() if n >= 0]
    return acyclic(p, np.array(nodes, dtype=np.int64))


def acyclic(p: Reduced, chosen: Ints) -> Ints | None:
    """The nodes that roots need among `chosen` (at most one a class); None if something is missing or runs in a
    circle.
    """
    choice = np.full(len(p.classes), -1, dtype=np.int64)
    choice[p.owner[chosen]] = chosen
    state: dict[int, int] = {}
    out: list[int] = []
    stack = [int(r) for r in p.roots]
    while stack:
        c = stack[-1]
        if state.get(c) == 2:
            stack.pop()
            continue
        if choice[c] < 0:
            return None
        if state.get(c) == 1:
            state[c] = 2
            out.append(int(choice[c]))
            stack.pop()
            continue
        state[c] = 1
        for d in p.kids_of(int(choice[c])).tolist():
            if state.get(d) == 1:
                return None
            if d not in state:
                stack.append(d)
    return np.array(sorted(out), dtype=np.int64)

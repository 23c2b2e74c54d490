"""Runs tabu search over extractions of e-graphs without circles: one class takes another node, what it
needs follows.

Every class keeps a node, needed or not; references count how many chosen nodes need a class.  A move adds the new
node's references, takes the old one's away, and lets classes come and go with their counts; its gain is known when it
has been made, and a move that is not wanted is made backwards.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints
from ...compiling import njit
from .kernels import cheapest_trees, needed_nodes
from .reduced import Ragged, Reduced

SAMPLE = 256
"""Moves that are tried before one is made."""

TENURE = 7


def without_circles(p: Reduced) -> bool:
    """Whether no class can need itself, whatever is chosen."""
    left = np.bincount(p.owner[p.arcs[0]], minlength=len(p.classes))
    ready = [c for c, count in enumerate(left.tolist()) if count == 0]
    done = 0
    waiting = left.tolist()
    while ready:
        c = ready.pop()
        done += 1
        for n in p.parents[1][p.parents[0][c] : p.parents[0][c + 1]].tolist():
            o = int(p.owner[n])
            waiting[o] -= 1
            if waiting[o] == 0:
                ready.append(o)
    return done == len(p.classes)


def tabu_search(p: Reduced, cost: np.ndarray, start: Ints, rounds: int, seed: int) -> Ints:
    """The best extraction that `rounds` moves from `start` (nodes of one) come by."""
    choice = cheapest_trees(np.maximum(cost, 0.0), p.owner, p.kids, p.parents)
    choice[p.owner[start]] = start
    best = _tabu(choice, cost, p.kids, p.members, p.roots, rounds, seed)
    found: Ints = needed_nodes(best, p.roots, p.kids)
    return found


@njit(cache=True)
def _count(
    step: int, first: int, references: Ints, choice: Ints, cost: np.ndarray, ko: Ints, kc: Ints, stack: Ints
) -> float:
    """Add `step` to the references of a node's children, and of those of classes that come or go; the cost of those."""
    total = 0.0
    stack[0] = first
    high = 1
    while high:
        high -= 1
        n = stack[high]
        for z in range(ko[n], ko[n + 1]):
            d = kc[z]
            before = references[d]
            references[d] = before + step
            if (step > 0 and before == 0) or (step < 0 and before == 1):
                total += step * cost[choice[d]]
                stack[high] = choice[d]
                high += 1
    return total


@njit(cache=True)
def _move(c: int, n: int, references: Ints, choice: Ints, cost: np.ndarray, ko: Ints, kc: Ints, stack: Ints) -> float:
    old = choice[c]
    gain: float = cost[n] - cost[old] + _count(1, n, references, choice, cost, ko, kc, stack)
    gain += _count(-1, old, references, choice, cost, ko, kc, stack)
    choice[c] = n
    return gain


@njit(cache=True)
def _tabu(choice: Ints, cost: np.ndarray, kids: Ragged, members: Ragged, roots: Ints, rounds: int, seed: int) -> Ints:
    np.random.seed(seed)
    (ko, kc), (mo, mc) = kids, members
    classes = len(mo) - 1
    references = np.zeros(classes, np.int64)
    stack = np.empty(len(kc) + len(ko), np.int64)
    total = 0.0
    for r in roots:
        references[r] += 1
        if references[r] == 1:
            total += cost[choice[r]] + _count(1, choice[r], references, choice, cost, ko, kc, stack)
    several = np.array([c for c in range(classes) if mo[c + 1] - mo[c] > 1], dtype=np.int64)
    best, least = choice.copy(), total
    if len(several) == 0:
        return best
    until = np.zeros(classes, np.int64)
    moves = 0
    for c in several:
        moves += mo[c + 1] - mo[c] - 1
    every = moves <= SAMPLE
    tries = len(several) if every else SAMPLE
    for k in range(rounds):
        pick, node, gain = -1, -1, np.inf
        for t in range(tries):
            c = several[t] if every else several[np.random.randint(len(several))]
            if references[c] == 0:
                continue
            low, high = mo[c], mo[c + 1]
            if not every:
                low = mo[c] + np.random.randint(mo[c + 1] - mo[c])
                high = low + 1
            for e in range(low, high):
                n = mc[e]
                if n == choice[c]:
                    continue
                old = choice[c]
                delta = _move(c, n, references, choice, cost, ko, kc, stack)
                _move(c, old, references, choice, cost, ko, kc, stack)
                if until[c] > k and total + delta >= least - 1e-9:
                    continue
                value = delta + 1e-7 * np.random.random()
                if value < gain:
                    pick, node, gain = c, n, value
        if pick < 0:
            continue
        total += _move(pick, node, references, choice, cost, ko, kc, stack)
        until[pick] = k + TENURE + np.random.randint(TENURE)
        if total < least - 1e-9:
            least = total
            best[:] = choice
    return best

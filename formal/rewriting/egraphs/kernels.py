"""Compiled loops over the arrays of a reduced e-graph: what can still be chosen, sets for cuts, cheap extractions."""

from __future__ import annotations

import heapq

import numpy as np

from ....models.problem.selection_problem import Ints
from ...compiling import njit
from .reduced import Flags, Ragged


@njit(cache=True)
def narrow(
    allowed: Flags, needed: Flags, owner: Ints, kids: Ragged, parents: Ragged, members: Ragged, roots: Ints
) -> bool:
    """Take from `allowed` what cannot be extracted or reached, add to `needed` what must be; False: nothing is left."""
    _forbid_circular(allowed, owner, kids, parents)
    seen = _reach(allowed, kids, members, roots)
    mo, mc = members
    for c in range(len(seen)):
        if not seen[c]:
            if needed[c]:
                return False
            for e in range(mo[c], mo[c + 1]):
                allowed[mc[e]] = False
    fits: bool = _need(allowed, needed, kids, members)
    return fits


@njit(cache=True)
def _forbid_circular(allowed: Flags, owner: Ints, kids: Ragged, parents: Ragged) -> None:
    """Take from `allowed` the nodes that cannot be extracted without circles."""
    ko, po, pc = kids[0], parents[0], parents[1]
    nodes, classes = len(owner), len(po) - 1
    left = np.empty(nodes, np.int64)
    known = np.zeros(classes, np.bool_)
    stack = np.empty(classes, np.int64)
    top = 0
    for n in range(nodes):
        left[n] = ko[n + 1] - ko[n]
        if left[n] == 0 and allowed[n] and not known[owner[n]]:
            known[owner[n]] = True
            stack[top] = owner[n]
            top += 1
    while top:
        top -= 1
        c = stack[top]
        for e in range(po[c], po[c + 1]):
            m = pc[e]
            left[m] -= 1
            if left[m] == 0 and allowed[m] and not known[owner[m]]:
                known[owner[m]] = True
                stack[top] = owner[m]
                top += 1
    for n in range(nodes):
        if left[n] > 0:
            allowed[n] = False


@njit(cache=True)
def _reach(allowed: Flags, kids: Ragged, members: Ragged, roots: Ints) -> Flags:
    """Classes that the roots reach through allowed nodes."""
    (ko, kc), (mo, mc) = kids, members
    classes = len(mo) - 1
    seen = np.zeros(classes, np.bool_)
    stack = np.empty(classes + len(roots), np.int64)
    top = 0
    for r in roots:
        seen[r] = True
        stack[top] = r
        top += 1
    while top:
        top -= 1
        c = stack[top]
        for e in range(mo[c], mo[c + 1]):
            n = mc[e]
            if allowed[n]:
                for z in range(ko[n], ko[n + 1]):
                    d = kc[z]
                    if not seen[d]:
                        seen[d] = True
                        stack[top] = d
                        top += 1
    return seen


@njit(cache=True)
def _need(allowed: Flags, needed: Flags, kids: Ragged, members: Ragged) -> bool:
    """Add to `needed` the classes that all allowed nodes of a needed one have as a child; False: one has no node."""
    (ko, kc), (mo, mc) = kids, members
    classes = len(mo) - 1
    stack = np.empty(classes, np.int64)
    count = np.zeros(classes, np.int64)
    top = 0
    for c in range(classes):
        if needed[c]:
            stack[top] = c
            top += 1
    while top:
        top -= 1
        c = stack[top]
        alive = 0
        for e in range(mo[c], mo[c + 1]):
            n = mc[e]
            if allowed[n]:
                alive += 1
                for z in range(ko[n], ko[n + 1]):
                    count[kc[z]] += 1
        if alive == 0:
            return False
        for e in range(mo[c], mo[c + 1]):
            n = mc[e]
            if allowed[n]:
                for z in range(ko[n], ko[n + 1]):
                    d = kc[z]
                    if count[d] == alive and not needed[d]:
                        needed[d] = True
                        stack[top] = d
                        top += 1
        for e in range(mo[c], mo[c + 1]):
            n = mc[e]
            if allowed[n]:
                for z in range(ko[n], ko[n + 1]):
                    count[kc[z]] = 0
    return True


@njit(cache=True)
def blocking_set(top: int, order: Ints, owner: Ints, kids: Ragged, parents: Ragged) -> Flags:
    """A largest set of nodes, taken in `order`, from which `top` cannot be extracted: the classes that they leave out.

    The classes left out are a set S of a cut with that top, and the nodes of D(S) are those that were not taken, so
    that no smaller part of D(S) would do.
    """
    (ko, kc), (po, pc) = kids, parents
    nodes, classes = len(owner), len(po) - 1
    left = np.empty(nodes, np.int64)
    for n in range(nodes):
        left[n] = ko[n + 1] - ko[n]
    known = np.zeros(classes, np.bool_)
    taken = np.zeros(nodes, np.bool_)
    stack = np.empty(classes, np.int64)
    trail = np.empty(classes, np.int64)
    for n in order:
        taken[n] = True
        if left[n] > 0 or known[owner[n]]:
            continue
        size, high, bad = 1, 1, owner[n] == top
        trail[0] = stack[0] = owner[n]
        known[owner[n]] = True
        done = 0
        while high and not bad:
            high -= 1
            c = stack[high]
            done += 1
            for e in range(po[c], po[c + 1]):
                m = pc[e]
                left[m] -= 1
                if left[m] == 0 and taken[m] and not known[owner[m]]:
                    d = owner[m]
                    known[d] = True
                    trail[size] = d
                    size += 1
                    stack[high] = d
                    high += 1
                    bad = bad or d == top
        if bad:
            taken[n] = False
            for t in range(size):
                known[trail[t]] = False
            for t in range(size):
                c = trail[t]
                for e in range(po[c], po[c + 1]):
                    m = pc[e]
                    left[m] = 0
                    for z in range(ko[m], ko[m + 1]):
                        if not known[kc[z]]:
                            left[m] += 1
    return ~known


@njit(cache=True)
def trim_set(top: int, inside: Flags, kids: Ragged, members: Ragged) -> Flags:
    """A smaller set with the same top, and no node in its D(S) that was not there before.

    For every node that has children in the set one of them is kept.
    """
    (ko, kc), (mo, mc) = kids, members
    classes = len(mo) - 1
    kept = np.zeros(classes, np.bool_)
    stack = np.empty(classes, np.int64)
    kept[top] = True
    stack[0] = top
    high = 1
    while high:
        high -= 1
        c = stack[high]
        for e in range(mo[c], mo[c + 1]):
            n = mc[e]
            witness = -1
            for z in range(ko[n], ko[n + 1]):
                d = kc[z]
                if kept[d]:
                    witness = -1
                    break
                if inside[d] and witness < 0:
                    witness = d
            if witness >= 0:
                kept[witness] = True
                stack[high] = witness
                high += 1
    return kept


@njit(cache=True)
def landmark(inside: Flags, kids: Ragged, members: Ragged) -> Ints:
    """D(S): nodes of classes inside that have no child inside."""
    (ko, kc), (mo, mc) = kids, members
    out = []
    for c in range(len(mo) - 1):
        if inside[c]:
            for e in range(mo[c], mo[c + 1]):
                n = mc[e]
                hit = False
                for z in range(ko[n], ko[n + 1]):
                    if inside[kc[z]]:
                        hit = True
                        break
                if not hit:
                    out.append(n)
    return np.array(out, dtype=np.int64)


@njit(cache=True)
def cheapest_trees(weight: np.ndarray, owner: Ints, kids: Ragged, parents: Ragged) -> Ints:
    """For every class the node of its cheapest tree under weights >= 0 (Knuth's generalisation of Dijkstra), or -1.

    The choice has no circles, whatever the weights: a class is settled after the children of its node.
    """
    ko, po, pc = kids[0], parents[0], parents[1]
    nodes, classes = len(owner), len(po) - 1
    left = np.empty(nodes, np.int64)
    total = weight.copy()
    choice = np.full(classes, -1, np.int64)
    heap = [(0.0, -1)]
    heap.pop()
    for n in range(nodes):
        left[n] = ko[n + 1] - ko[n]
        if left[n] == 0:
            heapq.heappush(heap, (total[n], n))
    while len(heap):
        value, n = heapq.heappop(heap)
        c = owner[n]
        if choice[c] >= 0:
            continue
        choice[c] = n
        for e in range(po[c], po[c + 1]):
            m = pc[e]
            total[m] += value
            left[m] -= 1
            if left[m] == 0:
                heapq.heappush(heap, (total[m], m))
    return choice


@njit(cache=True)
def needed_nodes(choice: Ints, roots: Ints, kids: Ragged) -> Ints:
    """Chosen nodes of the classes that roots need under `choice` (a node per class)."""
    ko, kc = kids
    seen = np.zeros(len(choice), np.bool_)
    stack = np.empty(len(choice), np.int64)
    out = []
    high = 0
    for r in roots:
        if not seen[r]:
            seen[r] = True
            stack[high] = r
            high += 1
    while high:
        high -= 1
        n = choice[stack[high]]
        out.append(n)
        for z in range(ko[n], ko[n + 1]):
            d = kc[z]
            if not seen[d]:
                seen[d] = True
                stack[high] = d
                high += 1
    return np.array(out, dtype=np.int64)

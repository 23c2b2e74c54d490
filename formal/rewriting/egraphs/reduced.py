"""The e-graph that the search works on, as arrays: what can be in no cheapest extraction has left.

Free classes, nodes with a child in their own class, dominated nodes (the pairs go into the certificate), nodes that
cannot be extracted without circles, and classes that no root reaches.  What the first three are is said where the
certificate is (`proofs.egraphs.certificate`); none of this is believed by the checker, which reduces for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ....models.egraphs.egraph import EGraph
from ....models.problem.selection_problem import Ints

Flags = NDArray[np.bool_]
Ragged = tuple[Ints, Ints]
"""Lists of different lengths: offsets and contents; list i is contents[offsets[i] : offsets[i + 1]]."""

MOST_COMPARED = 1 << 22
"""Pairs of nodes of a class that are compared for dominance; in larger classes only those that follow each other."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """Class i is class `classes[i]` of the e-graph, node j its node `nodes[j]`; `owner` has shape (nodes,).

    Ragged lists: `kids` of a node (classes), `parents` of a class (nodes that have it as
    a child), `members` of a class (nodes).  `units[j]` is the exact cost, `step` the greatest common divisor of all
    costs of the e-graph.
    `free` maps free classes of the e-graph to the node that is chosen in them.
    """

    egraph: EGraph
    classes: tuple[int, ...]
    nodes: tuple[int, ...]
    owner: Ints
    kids: Ragged
    parents: Ragged
    members: Ragged
    units: tuple[int, ...]
    step: int
    roots: Ints
    free: dict[int, int]
    dominated: tuple[tuple[int, int], ...]

    @property
    def arcs(self) -> tuple[Ints, Ints]:
        """Node and child class of every arc."""
        return np.repeat(np.arange(len(self.nodes)), np.diff(self.kids[0])), self.kids[1]

    def members_of(self, c: int) -> Ints:
        """Nodes of a class."""
        return self.members[1][self.members[0][c] : self.members[0][c + 1]]

    def kids_of(self, n: int) -> Ints:
        """Child classes of a node."""
        return self.kids[1][self.kids[0][n] : self.kids[0][n + 1]]

    def cost(self, chosen: Ints) -> int:
        """Exact cost of nodes."""
        return sum(self.units[int(n)] for n in chosen)

    def complete(self, chosen: Ints) -> tuple[int, ...]:
        """Nodes of the e-graph: the chosen ones, and those of the free classes that they need."""
        graph = self.egraph
        choice = {graph.owner[n]: n for n in (self.nodes[int(j)] for j in chosen)} | self.free
        seen, stack = set(graph.roots), list(graph.roots)
        while stack:
            new = set(graph.children[choice[stack.pop()]]) - seen
            seen |= new
            stack += new
        return tuple(sorted(choice[c] for c in seen))


def reduce_egraph(graph: EGraph) -> Reduced | None:
    """The reduced e-graph; None if some root has no extraction."""
    free = {} if graph.has_negative_cost else _free(graph)
    kids = {
        n: frozenset(children).difference(free)
        for n, (c, children) in enumerate(zip(graph.owner, graph.children, strict=True))
        if c not in free and c not in children
    }
    roots = [r for r in graph.roots if r not in free]
    members = _useful(graph, kids, roots)
    if any(r not in members for r in roots):
        return None
    pairs: list[tuple[int, int]] = []
    if not graph.has_negative_cost:
        for c, nodes in members.items():
            members[c] = _undominated(graph, kids, nodes, pairs)
        members = _useful(graph, {n: kids[n] for nodes in members.values() for n in nodes}, roots)
    return _arrays(graph, members, kids, roots, free, pairs)


def _free(graph: EGraph) -> dict[int, int]:
    """Free classes with the node of cost 0 that made them so."""
    parents: list[list[int]] = [[] for _ in graph.classes]
    left = [len(k) for k in graph.children]
    for n, children in enumerate(graph.children):
        for d in children:
            parents[d].append(n)
    free: dict[int, int] = {}
    ready = [n for n, cost in enumerate(graph.cost) if cost == 0 and left[n] == 0]
    while ready:
        n = ready.pop()
        if graph.owner[n] in free:
            continue
        free[graph.owner[n]] = n
        for m in parents[graph.owner[n]]:
            left[m] -= 1
            if left[m] == 0 and graph.cost[m] == 0:
                ready.append(m)
    return free


def _useful(graph: EGraph, kids: dict[int, frozenset[int]], roots: list[int]) -> dict[int, list[int]]:
    """Classes that roots reach, with their nodes that can be extracted."""
    parents: dict[int, list[int]] = {}
    for n, children in kids.items():
        for d in children:
            parents.setdefault(d, []).append(n)
    left = {n: len(children) for n, children in kids.items()}
    ready = [n for n, count in left.items() if count == 0]
    known: set[int] = set()
    while ready:
        c = graph.owner[ready.pop()]
        if c not in known:
            known.add(c)
            for n in parents.get(c, ()):
                left[n] -= 1
                if left[n] == 0:
                    ready.append(n)
    members: dict[int, list[int]] = {}
    for n, count in left.items():
        if count == 0:
            members.setdefault(graph.owner[n], []).append(n)
    seen = {r for r in roots if r in members}
    stack = list(seen)
    while stack:
        new = {d for n in members[stack.pop()] for d in kids[n]} - seen
        seen |= new
        stack += new
    return {c: members[c] for c in sorted(seen)}


def _undominated(
    graph: EGraph, kids: dict[int, frozenset[int]], nodes: list[int], pairs: list[tuple[int, int]]
) -> list[int]:
    """Nodes of a class that none of them dominates; the others go into `pairs` with the node that stays."""
    order = sorted(nodes, key=lambda n: (len(kids[n]), graph.cost[n], n))
    few = len(nodes) * len(nodes) <= MOST_COMPARED
    kept: list[int] = []
    seen: dict[frozenset[int], int] = {}
    for n in order:
        m = seen.get(kids[n])
        if m is None and few:
            m = next((k for k in kept if graph.cost[k] <= graph.cost[n] and kids[k] <= kids[n]), None)
        if m is None or graph.cost[m] > graph.cost[n]:
            kept.append(n)
            seen[kids[n]] = n
        else:
            pairs.append((n, m))
    return kept


def _arrays(
    graph: EGraph,
    members: dict[int, list[int]],
    kids: dict[int, frozenset[int]],
    roots: list[int],
    free: dict[int, int],
    pairs: list[tuple[int, int]],
) -> Reduced:
    classes = tuple(members)
    number = {c: i for i, c in enumerate(classes)}
    nodes = tuple(n for c in classes for n in members[c])
    owner = np.array([number[graph.owner[n]] for n in nodes], dtype=np.int64)
    children = [sorted(number[d] for d in kids[n]) for n in nodes]
    parents: list[list[int]] = [[] for _ in classes]
    for j, found in enumerate(children):
        for d in found:
            parents[d].append(j)
    units = tuple(graph.cost[n] for n in nodes)
    return Reduced(
        graph,
        classes,
        nodes,
        owner,
        _ragged(children),
        _ragged(parents),
        _ragged([[] for _ in classes] if not nodes else _grouped(owner, len(classes))),
        units,
        gcd(*graph.cost) or 1,
        np.array([number[r] for r in roots], dtype=np.int64),
        free,
        tuple(pairs),
    )


def _grouped(owner: Ints, classes: int) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(classes)]
    for j, c in enumerate(owner.tolist()):
        out[c].append(j)
    return out


def _ragged(lists: list[list[int]]) -> Ragged:
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(x) for x in lists], out=offsets[1:])
    return offsets, np.array([x for found in lists for x in found], dtype=np.int64)

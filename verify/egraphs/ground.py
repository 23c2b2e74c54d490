"""Rebuilds the e-graph that a proof is about, and what is left of its choices in a case of the proof.

If no cost is negative, free classes and dominated nodes leave first:

* *Free* classes are those with a node of cost 0 whose children are free (the least such set).  Whatever is extracted,
  they can be added for nothing and among themselves without circles, so that nobody's choice depends on them.
* A node n is *dominated* by m of the same class, which stays, if m costs no more and every child of m is a child of n:
  m can take the place of n in any extraction, which then costs no more, and needs nothing new.

Nodes with a child in their own class leave always.  A `Case` says which nodes may still be chosen and which classes are
needed; `narrow` draws the conclusions:

* a class is extractable if some allowed node of it has extractable children only (least fixpoint): no other node can be
  in an extraction without circles;
* a class is reachable from the roots through allowed nodes, or nothing of it is chosen;
* a child of all allowed nodes of a needed class is needed;
* a needed class without an allowed node contradicts the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

from ...models.egraphs.egraph import EGraph
from ...proofs.container.effort import OBJECT
from ..budget import Budget


class BadProof(ValueError):
    """The proof states something false; the message names the place."""


class Ground:
    """Classes and nodes keep the numbers of the e-graph.  `members[c]`: nodes of a class; `children[n]`: of a node."""

    def __init__(self, egraph: EGraph, dominated: Iterable[tuple[int, int]], budget: Budget) -> None:
        self.cost = egraph.cost
        self.step = gcd(*egraph.cost) or 1
        self.owner = egraph.owner
        self.classes = len(egraph.classes)
        size = len(egraph.nodes) + sum(map(len, egraph.children))
        self.cells = OBJECT * (size + self.classes)
        budget.charge(8 * self.cells, "e-graph")
        free = set() if egraph.has_negative_cost else _free(egraph)
        gone = {n for n, (c, kids) in enumerate(zip(egraph.owner, egraph.children, strict=True)) if c in kids}
        gone |= {n for n, c in enumerate(egraph.owner) if c in free}
        self.children = tuple(
            () if n in gone else tuple(c for c in kids if c not in free) for n, kids in enumerate(egraph.children)
        )
        self._dominated(egraph, dominated, gone, budget)
        self.present = bytearray(1 if n not in gone else 0 for n in range(len(egraph.nodes)))
        self.members = tuple(tuple(n for n in m if self.present[n]) for m in egraph.members)
        self.roots = tuple(r for r in egraph.roots if r not in free)
        self.is_root = frozenset(self.roots)
        self.free = free
        self.with_child: dict[tuple[int, int], list[int]] = {}
        self.parents: list[list[int]] = [[] for _ in range(self.classes)]
        for n in range(len(egraph.nodes)):
            if self.present[n]:
                for d in self.children[n]:
                    self.with_child.setdefault((self.owner[n], d), []).append(n)
                    self.parents[d].append(n)

    def _dominated(self, egraph: EGraph, dominated: Iterable[tuple[int, int]], gone: set[int], budget: Budget) -> None:
        for n, m in dominated:
            place = f"dominated pair ({n}, {m})"
            if egraph.has_negative_cost:
                raise BadProof(f"{place}: costs are negative somewhere, so that no node is dominated")
            if not (n < len(egraph.nodes) and m < len(egraph.nodes)) or n == m or n in gone or m in gone:
                raise BadProof(f"{place}: must be two nodes that are still there")
            budget.charge(OBJECT * (1 + len(self.children[n]) + len(self.children[m])), place)
            if self.owner[n] != self.owner[m] or self.cost[m] > self.cost[n]:
                raise BadProof(f"{place}: the second is no node of the same class that costs no more")
            if not set(self.children[m]) <= set(self.children[n]):
                raise BadProof(f"{place}: the second has a child that the first has not")
            gone.add(n)

    def landmark(self, classes: Sequence[int]) -> list[int]:
        """D(S): nodes of the classes without a child among them."""
        inside = set(classes)
        return [n for c in classes for n in self.members[c] if inside.isdisjoint(self.children[n])]

    def everything(self) -> Case:
        """The case of all choices; roots are needed."""
        needed = bytearray(self.classes)
        for r in self.roots:
            needed[r] = 1
        return Case(bytearray(self.present), needed)


def _free(egraph: EGraph) -> set[int]:
    parents: list[list[int]] = [[] for _ in egraph.classes]
    left = list(map(len, egraph.children))
    for n, kids in enumerate(egraph.children):
        for d in kids:
            parents[d].append(n)
    free: set[int] = set()
    ready = [n for n, count in enumerate(left) if count == 0]
    while ready:
        n = ready.pop()
        if egraph.cost[n] != 0 or egraph.owner[n] in free:
            continue
        free.add(egraph.owner[n])
        for m in parents[egraph.owner[n]]:
            left[m] -= 1
            if left[m] == 0:
                ready.append(m)
    return free


@dataclass
class Case:
    """`allowed[n]`: node n may be chosen; `needed[c]`: class c is."""

    allowed: bytearray
    needed: bytearray

    def copy(self) -> Case:
        return Case(bytearray(self.allowed), bytearray(self.needed))

    def narrow(self, ground: Ground) -> bool:
        """Draw the conclusions; False if the case contradicts itself."""
        self._extractable(ground)
        return self._reachable(ground) and self._needs(ground)

    def _extractable(self, ground: Ground) -> None:
        allowed, owner = self.allowed, ground.owner
        left = list(map(len, ground.children))
        known = bytearray(ground.classes)
        ready = [n for n, count in enumerate(left) if count == 0 and allowed[n]]
        while ready:
            c = owner[ready.pop()]
            if known[c]:
                continue
            known[c] = 1
            for m in ground.parents[c]:
                left[m] -= 1
                if left[m] == 0 and allowed[m]:
                    ready.append(m)
        for n, count in enumerate(left):
            if count:
                allowed[n] = 0

    def _reachable(self, ground: Ground) -> bool:
        seen = bytearray(ground.classes)
        stack = list(ground.roots)
        for r in stack:
            seen[r] = 1
        while stack:
            for n in ground.members[stack.pop()]:
                if self.allowed[n]:
                    for d in ground.children[n]:
                        if not seen[d]:
                            seen[d] = 1
                            stack.append(d)
        for c, members in enumerate(ground.members):
            if not seen[c]:
                if self.needed[c]:
                    return False
                for n in members:
                    self.allowed[n] = 0
        return True

    def _needs(self, ground: Ground) -> bool:
        stack = [c for c in range(ground.classes) if self.needed[c]]
        while stack:
            shared: set[int] | None = None
            for n in ground.members[stack.pop()]:
                if self.allowed[n]:
                    kids = ground.children[n]
                    shared = set(kids) if shared is None else shared.intersection(kids)
            if shared is None:
                return False
            for d in shared:
                if not self.needed[d]:
                    self.needed[d] = 1
                    stack.append(d)
        return True

"""Finds cliques of choices that exclude each other: every pair of them is forbidden, so at most one is taken.

    pairs alone      x_1 + x_2 <= 1, x_1 + x_3 <= 1, x_2 + x_3 <= 1      the bound of messages allows 1/2 of each
    a clique         x_1 + x_2 + x_3 <= 1                                the bound of messages allows 1 of all

A clique becomes a vertex (`State.add_clique`), into which presolve merges those of two choices that it decides.  Only
these are looked at.  The cover is greedy: from the first pair that is in no clique yet, always the choice with most
such pairs, then with most that can still follow.
Source: Atamturk, Nemhauser, Savelsbergh, "Conflict graphs in solving integer programming problems", EJOR 2000.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN
from ..options.presolve import PresolveOptions
from .state import Clique, State

Literal = tuple[int, int]
"""Vertex and choice."""

Pair = tuple[Literal, Literal]


def exclusions(state: State, options: PresolveOptions) -> Iterator[Clique]:
    """Cliques of at least `options.clique` choices of vertices with two, which are all on hand before the first is
    taken.
    """
    near = _conflicts(state, options.exclusions)
    open_ = sorted((x, y) for x, others in near.items() for y in others if x < y)
    left = set(open_)
    found: list[Clique] = []
    for pair in open_:
        if pair in left:
            clique = _grown(pair, near, left)
            left.difference_update((x, y) for x in clique for y in clique)
            if len(clique) >= options.clique:
                found.append(Clique(tuple((v, (a,)) for v, a in clique)))
    yield from found


def _conflicts(state: State, most: int) -> dict[Literal, set[Literal]]:
    """Choices that exclude each other; none where there are more pairs than `most`."""
    two = [d.size == 2 for d in state.labels]
    near: dict[Literal, set[Literal]] = {}
    for i in np.flatnonzero(two).tolist():
        for j in (j for j in state.near[i] if j > i and two[j]):
            for x, y in np.argwhere(state.table(i, j) >= FORBIDDEN).tolist():
                one, other = (i, int(state.labels[i][x])), (j, int(state.labels[j][y]))
                near.setdefault(one, set()).add(other)
                near.setdefault(other, set()).add(one)
                most -= 1
        if most < 0:
            return {}
    return near


def _grown(pair: Pair, near: dict[Literal, set[Literal]], left: set[Pair]) -> list[Literal]:
    """A clique with `pair`, ascending."""
    clique = list(pair)
    can = near[pair[0]] & near[pair[1]]
    while can:
        gains = {x: (sum((min(x, y), max(x, y)) in left for y in clique), len(near[x] & can), x) for x in can}
        best = max(can, key=gains.__getitem__)
        clique.append(best)
        can &= near[best]
    return sorted(clique)

"""Finds cuts that a fractional point breaks: sets of classes S whose D(S) holds less than a class of S that
is needed.

For a class k the nodes are taken one after another as long as k cannot be extracted from those taken, largest x first,
then small reduced cost, then small cost: what is refused is a landmark that no smaller one is contained in, of little x
and large cost (Haslum, Slaney and Thiebaux, ICAPS 2012, build the landmarks of delete relaxation so).
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints
from ...selection.model.clock import Clock
from .kernels import blocking_set, landmark, narrow, trim_set
from .reduced import Flags, Reduced
from .relaxation import Landmark, Point

VIOLATION = 1e-4
SWEEPS = 60
TOPS = 100


def everything(p: Reduced) -> tuple[Flags, Flags]:
    """The case of all choices: allowed nodes, needed classes."""
    needed = np.zeros(len(p.classes), dtype=bool)
    needed[p.roots] = True
    return np.ones(len(p.nodes), dtype=bool), needed


def narrow_flags(p: Reduced, allowed: Flags, needed: Flags) -> bool:
    """`kernels.narrow` on a problem; the flags are changed."""
    return bool(narrow(allowed, needed, p.owner, p.kids, p.parents, p.members, p.roots))


def support(p: Reduced, x: np.ndarray) -> np.ndarray:
    """Per class an amount that it can be extracted with when nodes have capacity x: small where circles feed it."""
    node, kid = p.arcs
    known = np.zeros(len(p.classes))
    for _ in range(SWEEPS):
        passed = x.copy()
        np.minimum.at(passed, node, known[kid])
        new = np.minimum(1, np.bincount(p.owner, passed, len(p.classes)))
        if np.abs(new - known).max(initial=0) < 1e-6:
            break
        known = new
    return known


def separate(
    p: Reduced, point: Point, needed: Flags, rng: np.random.Generator, known: set[bytes], most: int = TOPS
) -> list[Landmark]:
    """Cuts that the point breaks; what is in `known` is not found again."""
    lack = point.classes - support(p, point.nodes)
    lacking = [int(k) for k in np.argsort(-lack) if lack[k] > 1e-3][:most]
    others = rng.permutation(np.flatnonzero(needed))[: 2 * most]
    tops = dict.fromkeys([*p.roots[: 2 * most].tolist(), *others.tolist(), *lacking])
    cost = np.array([u / p.step if abs(u) < 10**300 else 0.0 for u in p.units])
    order = np.lexsort(
        (rng.random(len(p.nodes)), cost, np.maximum(point.reduced, 0).round(6), -np.round(point.nodes, 2))
    )
    found = []
    for top in tops:
        if point.classes[top] < 1e-3:
            continue
        cut = cut_of(p, top, order)
        if point.nodes[cut.nodes].sum() < point.classes[top] - VIOLATION and _new(cut, known):
            found.append(cut)
    return found


def cut_of(p: Reduced, top: int, order: Ints) -> Landmark:
    """The cut that refusing nodes in `order` leads to."""
    inside = blocking_set(top, order, p.owner, p.kids, p.parents)
    inside = trim_set(top, inside, p.kids, p.members)
    return Landmark(top, np.flatnonzero(inside), landmark(inside, p.kids, p.members))


def _new(cut: Landmark, known: set[bytes]) -> bool:
    key = np.append(cut.nodes, cut.top).tobytes()
    if key in known:
        return False
    known.add(key)
    return True


def necessary(p: Reduced, chosen: Ints, needed: Flags, known: set[bytes], clock: Clock) -> list[Landmark]:
    """Cuts that say that a class is needed by every extraction, for those of the classes of an extraction of which
    `needed` does not say it; as many as there is time for.
    """
    out = []
    for c in p.owner[chosen].tolist():
        if needed[c]:
            continue
        if clock.over():
            break
        clock.charge(len(p.nodes))
        nodes = np.arange(len(p.nodes))
        order = np.concatenate([nodes[p.owner != c], nodes[p.owner == c]])
        allowed, wanted = everything(p)
        allowed[p.owner == c] = False
        if narrow_flags(p, allowed, wanted):
            continue
        for top in p.roots.tolist():
            inside = blocking_set(top, order[: len(nodes) - len(p.members_of(c))], p.owner, p.kids, p.parents)
            if inside[top]:
                inside = trim_set(top, inside, p.kids, p.members)
                cut = Landmark(int(top), np.flatnonzero(inside), landmark(inside, p.kids, p.members))
                if _new(cut, known):
                    out.append(cut)
                break
    return out

"""Finds programs to begin with: the user's, and those in which equal places are rewritten alike.

    kind of a class   the functions of its e-nodes: repeated layers have the same kinds
    uniform modes     for every kind one position in its list of e-nodes, taken by all classes of the kind

With modes fixed a joint problem is the problem of one program, which the search for plans solves with its repeated
blocks.  Uniform modes are improved kind by kind, from the user's program on; each program is planned, the best plans
are where the joint search begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ....models.joint.egraph import EGraph, Modes
from ....models.program.fused import epilogue

Kind = tuple[object, ...]


def kinds(egraph: EGraph) -> dict[Kind, list[str]]:
    """Classes with several e-nodes, by kind, in order."""
    found: dict[Kind, list[str]] = {}
    for t, nodes in egraph.nodes.items():
        if len(nodes) > 1:
            found.setdefault(
                tuple(
                    (
                        n.function,
                        epilogue(n),
                        tuple(a.tensor in egraph.nodes for a in n.inputs),
                        t in egraph.wanted_classes,
                    )
                    for n in nodes
                ),
                [],
            ).append(t)
    return found


def uniform(egraph: EGraph, taken: dict[Kind, int]) -> Modes:
    """Modes in which every class of a kind takes the e-node at one position; what nobody reads is absent."""
    named = {t: egraph.nodes[t][taken.get(kind, 0)].name for kind, classes in kinds(egraph).items() for t in classes}
    return egraph.close_modes(named)


def descend(
    egraph: EGraph, cost: Callable[[Modes], int | None], over: Callable[[], bool], rounds: int = 2
) -> Iterator[Modes]:
    """Uniform modes whose cost was asked for, the user's first; kinds are changed one at a time while that pays."""
    every = kinds(egraph)
    taken = dict.fromkeys(every, 0)
    modes = uniform(egraph, taken)
    best = cost(modes)
    yield modes
    known = {tuple(taken.values())}
    for _ in range(rounds):
        before = dict(taken)
        for kind in every:
            size = len(egraph.nodes[every[kind][0]])
            for k in range(size):
                candidate = {**taken, kind: k}
                if over():
                    return
                if tuple(candidate.values()) in known:
                    continue
                known.add(tuple(candidate.values()))
                modes = uniform(egraph, candidate)
                found = cost(modes)
                yield modes
                if found is not None and (best is None or found < best):
                    best, taken = found, candidate
        if taken == before:
            return

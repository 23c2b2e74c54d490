"""Plans the second phase of branches: which operators of a training step belong to them behind the forward
pass.

    own      tensors that a branch writes and hands to nobody else in the forward pass, and parameters and inputs that
             only its operators read there
    second   operators behind the forward pass that read own tensors of one branch, of no other, and nothing that comes
             back from the second phase of their region: gradients of the branch, and the updates of its parameters

What reads own tensors of several branches (the norm of all gradients, say) belongs to none, and neither does what
waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....models.program.graph import Graph
from ....models.views.regions import Branch

Branches = tuple[Branch, ...]
Place = tuple[int, int]
"""Region and branch."""


def forward(graph: Graph) -> set[str]:
    """Names of the operators that the outputs of a graph depend on."""
    writer, needed, left = graph.writer(), set[str](), [t for t in graph.outputs]
    while left:
        at = writer.get(left.pop())
        if at is not None and (op := graph.operators[at]).name not in needed:
            needed.add(op.name)
            left += [a.tensor for a in op.inputs]
    return needed


def tied(graph: Graph, regions: Sequence[Branches]) -> tuple[Branches, ...]:
    """The branches of all regions, of one phase, with their second; those of a region without any, or whose second
    phase would have to wait for itself, as they are.

    >>> from ....models.sources.training import build_step
    >>> from ....models.sources.zoo import build
    >>> from .regions import branches_of
    >>> step = build_step(build("candle-uno", batch=8, width=12, tower=2, layers=1), "sgd").graph
    >>> [(len(first), len(second)) for first, second in tied(step, branches_of(step))[0]]
    [(4, 7), (4, 7), (4, 7), (4, 7), (4, 7)]
    """
    second = _second(graph, regions)
    out = list(regions)
    for r, branches in enumerate(regions):
        both = tuple((branch[0], second[r, b]) for b, branch in enumerate(branches))
        if any(names for _, names in both):
            out[r] = both
            if not runs(graph, out):
                out[r] = branches
    return tuple(out)


def _second(graph: Graph, regions: Sequence[Branches]) -> dict[Place, tuple[str, ...]]:
    """The operators of every branch behind the forward pass."""
    ahead = forward(graph)
    member = {
        name: (r, b) for r, branches in enumerate(regions) for b, (names,) in enumerate(branches) for name in names
    }
    owner: dict[str, Place | None] = {op.output.tensor: member[op.name] for op in graph.operators if op.name in member}
    for op in graph.operators:
        mine = member.get(op.name)
        for a in op.inputs if op.name in ahead else ():
            owner[a.tensor] = mine if owner.get(a.tensor, mine) == mine else None
    found: dict[Place, list[str]] = {at: [] for at in member.values()}
    back: dict[str, set[int]] = {}  # regions whose second phase a tensor depends on
    for op in graph.operators:
        if op.name in ahead:
            continue
        read = [a.tensor for a in op.inputs]
        behind = {r for t in read for r in back.get(t, ())}
        places = {at for t in read if (at := owner.get(t)) is not None}
        own = next(iter(places)) if len(places) == 1 else None
        if own is not None and not any(own[0] in back.get(t, ()) and owner.get(t) != own for t in read):
            found[own].append(op.name)
            owner[op.output.tensor] = own
            behind.add(own[0])
        back[op.output.tensor] = behind
    return {at: tuple(names) for at, names in found.items()}


def runs(graph: Graph, regions: Iterable[Branches]) -> bool:
    """Whether every phase of every region can wait for all that enters it, and what leaves it for all of it."""
    node: dict[str, object] = {
        n: (r, p)
        for r, branches in enumerate(regions)
        for branch in branches
        for p, names in enumerate(branch)
        for n in names
    }
    writer = {op.output.tensor: op.name for op in graph.operators}
    replaced = {new: old for old, new in graph.state}
    after: dict[object, set[object]] = {}
    waits: dict[object, int] = {node.get(op.name, op.name): 0 for op in graph.operators}
    readers: dict[str, list[str]] = {}
    for op in graph.operators:
        for a in op.inputs:
            readers.setdefault(a.tensor, []).append(op.name)
    for op in graph.operators:
        before = {writer[a.tensor] for a in op.inputs if a.tensor in writer}
        before |= set(readers.get(replaced.get(op.output.tensor, ""), ())) - {op.name}
        here = node.get(op.name, op.name)
        for there in {node.get(n, n) for n in before} - {here}:
            if here not in after.setdefault(there, set()):
                after[there].add(here)
                waits[here] += 1
    free, done = [n for n, k in waits.items() if not k], 0
    while free:
        done += 1
        for n in after.get(free.pop(), ()):
            waits[n] -= 1
            if not waits[n]:
                free.append(n)
    return done == len(waits)

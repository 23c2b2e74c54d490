"""What a pipelined plan goes without, stated in its claim: placements that are taken out of the
problem built again.

    tensor     operators of the forward and backward pass are split along the batch alone
    data       nothing is split along the batch
    sharding   parameters, moments and other states lie whole on every device of a stage

An operator or copy that has nothing else keeps its placements.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ...models.cost.selection import DecisionKind, Planning
from ...models.problem.selection_problem import FORBIDDEN, Ints, Vertex
from ...models.program.graph import Role
from ...proofs.container.effort import PART
from ...proofs.pipelines.words import FORBIDDEN_WORDS
from .division import batch_places
from .leaves import Units


def forbid(units: Units, words: tuple[str, ...]) -> str:
    """Take these placements out of a rebuilt problem; what is wrong with the words, if anything."""
    if list(words) != [w for w in FORBIDDEN_WORDS if w in words]:
        return f"what is forbidden must be some of {', '.join(FORBIDDEN_WORDS)}, each once and in this order"
    planning, shared = units.planning, dict[tuple[int, bytes], Ints]()
    tensors, axes = batch_places(units.graph)
    vertices = []
    for d, vertex in zip(planning.decisions, planning.problem.vertices, strict=True):
        kept = np.ones(len(vertex.cost), dtype=np.bool_)
        operator = d.kind is DecisionKind.OPERATOR
        units.entries.budget.charge((PART >> 1) * d.placements.shape[0] * (1 + len(d.axes)), "what is forbidden")
        for choice, matrix in enumerate(d.placements):
            split = {str(a) for row, a in zip(matrix, d.axes, strict=False) if prod(map(int, row)) > 1}
            along = {a for a in split if (a in axes.get(d.name, ()) if operator else (d.name, int(a)) in tensors)}
            if "tensor" in words and operator and units.phase[d.name] != "U" and split - along:
                kept[choice] = False
            if "data" in words and along:
                kept[choice] = False
            if "sharding" in words and not operator and units.graph.tensor(d.name).role is Role.PARAMETER and split:
                kept[choice] = False
        if not (kept & (vertex.cost < FORBIDDEN)).any():
            kept[:] = True
        key = id(vertex.cost), kept.tobytes()
        if key not in shared:  # equal leaves are told by their arrays
            shared[key] = vertex.cost if kept.all() else np.where(kept, vertex.cost, FORBIDDEN)
        vertices.append(Vertex(vertex.name, shared[key]))
    units.planning = replace(planning, problem=replace(planning.problem, vertices=tuple(vertices)))
    return ""


def is_allowed(planning: Planning, vertex: int, choice: int) -> bool:
    """Whether a choice is one of the problem, none of those taken out."""
    return int(planning.problem.vertices[vertex].cost[choice]) < FORBIDDEN

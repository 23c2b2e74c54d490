"""A planning problem with an ingredient of parallel training forbidden: its placements cost more than
anything.

    tensor     operators of the forward and backward pass are split along the batch alone
    data       nothing is split along the batch
    sharding   parameters, moments and other states lie whole on every device of a stage

What has no other placement keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ..cost.selection import DecisionKind, Planning
from ..problem.selection_problem import FORBIDDEN, Ints, Vertex
from ..program.graph import Role
from .division import Division
from .micro import batch_test


def without(planning: Planning, division: Division, words: Sequence[str]) -> Planning:
    """The problem with the choices forbidden that `words` name; equal costs stay one array."""
    if not words:
        return planning
    graph, problem = planning.graph, planning.problem
    along, phase = batch_test(graph), dict(zip((op.name for op in graph.operators), division.phase, strict=True))
    known: dict[tuple[int, bytes], Ints] = {}
    vertices = []
    for d, vertex in zip(planning.decisions, problem.vertices, strict=True):
        copy = d.kind is DecisionKind.COPY
        state = copy and graph.tensor(d.name).role is Role.PARAMETER
        wrong = np.zeros(len(vertex.cost), dtype=np.bool_)
        batch = {str(a): along(("tensor" if copy else "axis", d.name, str(a))) for a in d.axes}
        for k, matrix in enumerate(d.placements):
            split = [str(a) for r, a in enumerate(d.axes) if prod(int(x) for x in matrix[r]) > 1]
            tensor = not copy and phase[d.name] != "U" and not all(batch[a] for a in split)
            data = any(batch[a] for a in split)
            wrong[k] = any(
                (word == "tensor" and tensor) or (word == "data" and data) or (word == "sharding" and state and split)
                for word in words
            )
        if ((vertex.cost >= FORBIDDEN) | wrong).all() or not wrong.any():
            vertices.append(vertex)
            continue
        key = id(vertex.cost), wrong.tobytes()
        if key not in known:
            known[key] = np.where(wrong, FORBIDDEN, vertex.cost)
        vertices.append(Vertex(vertex.name, known[key]))
    return replace(planning, problem=replace(problem, vertices=tuple(vertices)))

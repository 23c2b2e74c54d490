"""Programs of an e-graph with their placements, and the solutions of the joint problem that stand for them."""

from __future__ import annotations

from collections.abc import Callable

from ....models.communication.choices import Choices
from ....models.joint.egraph import Modes
from ....models.joint.problem import JointPlanning
from ....models.program.graph import GraphError

Known = tuple[Modes, Choices]
"""A program and its placements."""


def program_of_solution(planning: JointPlanning, x: tuple[int, ...]) -> Known:
    """Modes and placements of a solution."""
    return planning.modes(x), planning.plan(x)[1]


def choices_of_program(planning: JointPlanning, modes: Modes) -> dict[int, tuple[int, ...]]:
    """Choices of every class in which one program takes it."""
    return choices_with_modes(planning, lambda t, name: name == modes[t])


def choices_with_modes(planning: JointPlanning, taken: Callable[[str, str | None], bool]) -> dict[int, tuple[int, ...]]:
    """Choices of every class whose e-node, or None for an absent class, is `taken`."""
    out = {}
    for t, v in planning.classes.items():
        d = planning.decisions[v]
        named = [None if b.node is None else b.node.name for b in d.blocks]
        out[v] = tuple(k for i, name in enumerate(named) if taken(t, name) for k in range(*d.span(i)))
    return out


def embed_solution(joint: JointPlanning, modes: Modes, choices: Choices) -> tuple[int, ...] | None:
    """The solution of the joint problem that stands for a plan of one of its programs; None where axes stand in
    another order there, or where its e-nodes are lacking.
    """
    try:
        return joint.solution(modes, choices)
    except (LookupError, GraphError):
        return None

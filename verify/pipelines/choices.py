"""Reads the placements of a stage: which choice each of them is of the vertices of a rebuilt problem."""

from __future__ import annotations

from ...models.communication.choices import Choices
from ...models.cost.selection import Planning
from ...models.layout.placement import SpaceError


class Wrong(Exception):
    """What is claimed and not so."""


def solution(planning: Planning, choices: Choices) -> dict[int, int]:
    """Vertex -> choice; `Wrong` for what is decided nowhere, or outside the space."""
    found: dict[int, int] = {}
    try:
        for items, known in ((choices.operators, planning.operators), (choices.copies, planning.copies)):
            for name, placement in items:
                if name not in known:
                    raise Wrong(f"choices: {name!r} is decided nowhere")
                found[known[name]] = planning.decisions[known[name]].choice(placement)
    except SpaceError as error:
        raise Wrong(f"choices: {error}") from None
    return found

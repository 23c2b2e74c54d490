"""Even layouts of what crosses cuts: each device of a view has an equal part of the tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ....models.cost.selection import Planning
from ....models.problem.selection_problem import FORBIDDEN


def even_choice(planning: Planning, tensor: str, order: tuple[int, ...]) -> int | None:
    """The choice of a tensor's copy without replication that splits early dimensions of `order` most, and where
    several do, these over the outermost levels: what is left for the dimensions behind them stays in a node.
    """
    d = planning.decisions[planning.copies[tensor]]
    shape, cost = planning.graph.tensor(tensor).shape, planning.problem.vertices[planning.copies[tensor]].cost
    best: tuple[tuple[tuple[int, ...], ...], int] | None = None
    for choice, matrix in enumerate(d.placements):
        if (matrix[-1] != 1).any() or cost[choice] >= FORBIDDEN:
            continue
        degree = {int(a): prod(int(x) for x in matrix[k]) for k, a in enumerate(d.axes)}
        if any(shape[k] % n for k, n in degree.items()):
            continue
        rows = {int(a): tuple(int(x) for x in matrix[k]) for k, a in enumerate(d.axes)}
        known = [k for k in order if k < len(shape)]
        score = tuple(degree.get(k, 1) for k in known), *(rows.get(k, ()) for k in known)
        if best is None or score > best[0]:
            best = score, choice
    return None if best is None else best[1]


def even_choices(planning: Planning, cuts: Iterable[Sequence[str]], order: tuple[int, ...]) -> dict[str, int] | None:
    """That of everything that crosses cuts; None if some tensor has none."""
    out: dict[str, int] = {}
    for name in (name for names in cuts for name in names):
        choice = even_choice(planning, name, order)
        if choice is None:
            return None
        out[name] = choice
    return out

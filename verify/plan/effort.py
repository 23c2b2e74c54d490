"""What it takes to rebuild the tables of a problem and to recompute them, in cells of the budget of a
check, before either is done.

    building      entries of tables, overlaps and segments of intervals, subtrees that are compared, boxes of
                  placements, and tables however small: bounds from above, counted by the function that the planner
                  asks first (`models/cost/limits.py`)
    entries       a movement, an operator or a row of memory alone takes some calls of numpy and a walk over its devices
    movements     cells of the grid of end points of all boxes

Weights are what these took on a slow computer, in units of 3 nanoseconds, rounded up to powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from ...models.cost.limits import LARGE, SMALL, Counter, Listing, OverBudget, Steps, check_sizes
from ...models.cost.limits import Budget as Sizes
from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...proofs.container.canonical import ContainerError
from ..budget import Budget, beyond
from .boxes import MOST_CELLS, Ends

if TYPE_CHECKING:
    from .box_tables import Layouts

OPERATOR: Final = 1 << 16
"""Cells of one operator: what is read of it in every part of a check."""
TENSOR: Final = 1 << 14
"""Cells of one tensor, which parts of a check list however little is done with it."""
ENTRY, OVERLAP, SEGMENT, COUPLED, BOX, STEP = 1 << 6, 1 << 2, 2, 1, 1 << 3, 1 << 11
TABLE, COMPARED = 1 << 20, 1 << 3
ALONE: Final = 1 << 16
"""Cells of one entry that is recomputed alone, on one device; and of every device and dimension more:"""
EACH: Final = 1 << 9
AGAIN: Final = 1 << 13
"""Cells of one entry that is equal to one before."""
GRID: Final = 1 << 10
"""Cells of one cell of the grid of a movement that is derived and followed."""
HELD: Final = 24
"""Cells of a grid that stand for a device in a movement of few: its boxes are listed and compared in Python."""
FILLED: Final = 1 << 2
"""Cells of one cell that is filled where whole arrays are recomputed."""


def sizes_of(budget: Budget) -> Sizes:
    """What each part of a problem may take alone."""
    return LARGE if budget.large else SMALL


def charge_graph(graph: Graph, budget: Budget, place: str) -> None:
    """Charge what every part of a check reads of a graph."""
    budget.charge(OPERATOR * len(graph.operators) + TENSOR * len(graph.tensors), place)


def charge_tables(graph: Graph, machine: Machine, where: Space, budget: Budget, place: str) -> None:
    """Charge building the problem of a graph.  `TooLarge` for what nobody plans, `ContainerError` for what is beyond
    the budget.
    """
    charge_graph(graph, budget, place)
    sizes = sizes_of(budget)
    try:
        needed = check_sizes(graph, machine, where, replace(sizes, steps=min(sizes.steps, budget.work // STEP)))
    except OverBudget as error:
        raise beyond(place, str(error)) from None
    budget.asks |= any(getattr(needed, f.name) > getattr(SMALL, f.name) for f in fields(needed))
    budget.charge(
        ENTRY * needed.entries
        + OVERLAP * needed.overlaps
        + SEGMENT * needed.segments
        + COUPLED * needed.coupled
        + BOX * needed.boxes
        + STEP * needed.steps
        + TABLE * needed.tables
        + COMPARED * needed.compared,
        place,
    )


def charge_placements(
    limits: Sequence[int], hierarchy: tuple[int, ...], where: Space, budget: Budget, place: str
) -> int:
    """Charge listing all placements of axes of these extents (1: never split) on a machine of these sizes; how many
    there are.
    """
    steps = Steps(min(sizes_of(budget).steps, budget.work // STEP))
    try:
        listing, counter = Listing(hierarchy, where, steps), Counter(hierarchy, where, steps)
        filled, count = listing.entries(limits), counter.count(limits)
    except OverBudget as error:
        raise beyond(place, str(error)) from None
    budget.hold(filled, place)
    budget.charge(STEP * steps.taken + BOX * filled, place)
    return count


def charge_communication(source: Layouts, target: Layouts, budget: Budget) -> None:
    """Charge the reshardings from every layout of one end to every one of the other."""
    hierarchy, dimensions = source.hierarchy, max(1, source.boxes.shape[2])
    subtrees = sum(prod(hierarchy[: i + 1]) for i in range(len(hierarchy)))
    table = len(source.boxes) * len(target.boxes)
    budget.hold(table, "a table of reshardings")
    budget.charge(AGAIN + FILLED * table * subtrees * dimensions, "a table of reshardings")


def charge_hulls(layouts: int, devices: int, below: int, dimensions: int, budget: Budget) -> None:
    """Charge comparing the boxes below every subtree with each other."""
    budget.charge(FILLED * layouts * devices * below * max(1, dimensions), "unions of boxes")


def charge_entry(devices: int, dimensions: int, budget: Budget) -> None:
    """Charge one entry that is recomputed alone."""
    budget.charge(ALONE + EACH * devices * (1 + dimensions), "an entry")


def charge_fetch(hierarchy: tuple[int, ...], source: Ends, target: Ends, budget: Budget) -> None:
    """Charge what is compared below the subtrees of every level when one resharding is recomputed alone: cells of
    the grids that the ends of their boxes make.
    """
    cuts = [len(np.unique(np.concatenate([source[:, k], target[:, k]]))) for k in range(source.shape[1])]
    cells = 0
    for level in range(len(hierarchy) - 1):
        below = prod(hierarchy[level + 1 :])
        if below > 1:
            cells += len(source) // below * min(MOST_CELLS, prod(max(1, min(n, 4 * below) - 1) for n in cuts))
    budget.charge(cells, "a resharding")


def charge_steps(place: str, cells: int, devices: int, budget: Budget) -> None:
    """Charge deriving and following the steps of one movement, of so many cells of the grid of its boxes."""
    if cells > LARGE.cells_at_once:
        raise ContainerError(
            "plan",
            f"{place}: its boxes have {cells} cells, too many to be checked, at most {LARGE.cells_at_once}",
        )
    budget.asks |= cells > SMALL.cells_at_once
    if cells > (most := sizes_of(budget).cells_at_once):
        raise beyond("plan", f"{place}: its boxes have {cells} cells, at most {most} are held")
    budget.charge(GRID * (cells + HELD * devices), place)


def charge_unions(pairs: int, below: int, source: Ends, target: Ends, budget: Budget) -> None:
    """Charge comparing so many pairs of layouts box by box below every subtree of `below` devices; boxes: shape
    (layouts, devices, dimensions, 2).
    """
    cuts = [a + b for a, b in zip(_most_ends(source), _most_ends(target), strict=True)]
    grid = min(MOST_CELLS, prod(max(1, min(n, 4 * below) - 1) for n in cuts))
    runs = source.shape[1] // below
    budget.charge(pairs * runs * (AGAIN + EACH * below * (1 + len(cuts)) + grid), "unions of boxes")


def _most_ends(boxes: Ends) -> list[int]:
    """Per dimension how many different ends the boxes of one layout have at most."""
    found = []
    for k in range(boxes.shape[2]):
        ends = np.sort(boxes[:, :, k].reshape(boxes.shape[0], -1), axis=1)
        found.append(1 + int((ends[:, 1:] != ends[:, :-1]).sum(axis=1).max(initial=0)))
    return found

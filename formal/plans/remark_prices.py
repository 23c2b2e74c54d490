"""Computes numbers for remarks about a plan (`remarks`): what it leaves idle, the memory it needs, and what
other spaces and fewer devices would cost.

Prices are of plans that were found, under the same cost model, in spaces so small that their search takes a moment.
They are exact, and no bounds: a cheaper plan may exist.  What is not found in that moment is not priced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Final

import numpy as np

from ...models.communication.choices import copy_layout, input_layout, output_layout
from ...models.cost.limits import Budget, TooLarge, check_sizes
from ...models.cost.memory import usages
from ...models.cost.selection import Planning, build
from ...models.layout.layout import Layout, LayoutSet
from ...models.layout.placement import space
from ...models.machine.machine import Machine, MachineError
from ...models.problem.selection_problem import ProblemError, SelectionProblem
from ...models.program.graph import Graph
from ..selection.model.clock import Clock
from ..selection.relax_resources import relax_resources
from ..selection.tree.infeasible import least_use
from .simple import simple_plans
from .tables import SMALLER

MOMENT: Final = Budget(1 << 18, 1 << 24)
"""What a problem that is priced for a remark may take: its tables are built in about a second."""

SEARCH_S: Final = 1.0
"""Seconds for the search of one of them; most are closed in a few hundredths."""

ALL_S: Final = 4.0
"""Seconds after which no other one is begun."""


@dataclass(frozen=True)
class Waste:
    """Device time of the operators: `time` of them all, and the shares of it in which a device computes nothing that no
    other device computes.

    `chosen`: under the plan; `least`: under the placement of each operator that leaves least (fewer blocks than
    devices: no choice of the space uses more).  `cramped`: names of operators for which that is more than nothing.
    """

    time: int
    chosen: Fraction
    least: Fraction
    cramped: tuple[str, ...]


@dataclass(frozen=True)
class Price:
    """A plan of `space` on `machine` costs `cost` seconds."""

    space: str
    machine: Machine
    cost: Fraction


def waste(planning: Planning, x: tuple[int, ...]) -> Waste:
    """What the choices leave idle or compute more than once.  Blocks of an operator: products of the blocks of its
    axes that are not empty.
    """
    devices, total, cramped = planning.machine.devices, 0, []
    chosen = least = Fraction(0)
    known: dict[object, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {}
    for op in planning.graph.operators:
        v = planning.operators[op.name]
        decision = planning.decisions[v]
        extents = [op.axis(a).extent for a in decision.axes]
        key = (id(decision.placements), tuple(extents))
        if key not in known:
            degrees = decision.placements[:, :-1, :].prod(axis=2)
            n = np.array(extents, dtype=np.int64)
            known[key] = (-(-n // -(-n // degrees))).prod(axis=1)
        blocks = known[key]
        time = planning.problem.vertex_cost(v, x[v])
        total += time
        chosen += time * (1 - Fraction(int(blocks[x[v]]), devices))
        left = 1 - Fraction(int(blocks.max()), devices)
        least += time * left
        if left:
            cramped.append(op.name)
    return Waste(
        total, chosen / total if total else Fraction(0), least / total if total else Fraction(0), tuple(cramped)
    )


def peak_bytes(planning: Planning, x: tuple[int, ...]) -> int:
    """Bytes on the fullest device by the rows of `models.cost.memory`, whether the problem has them or not."""
    if planning.problem.usages:
        return planning.problem.peak_of(x)[0]
    graph, hierarchy = planning.graph, planning.machine.hierarchy
    placed = [
        (op, planning.decisions[v].placement(x[v])) for op in graph.operators for v in (planning.operators[op.name],)
    ]
    rows = usages(
        graph,
        planning.operators,
        planning.copies,
        [_alone(output_layout(op, graph, p, hierarchy)) for op, p in placed],
        [[_alone(input_layout(op, j, graph, p, hierarchy)) for j in range(len(op.inputs))] for op, p in placed],
        {
            name: _alone(copy_layout(name, graph, planning.decisions[v].placement(x[v]), hierarchy))
            for name, v in planning.copies.items()
        },
    )
    return SelectionProblem("peak", (), (), (), rows).peak_of((0,) * len(planning.decisions))[0]


def _alone(layout: Layout) -> LayoutSet:
    """The set of one layout."""
    none = np.zeros(1, dtype=np.int64)
    dims = tuple(layout.boxes[None, :, k, :] for k in range(len(layout.shape)))
    return LayoutSet(
        layout.hierarchy,
        layout.shape,
        dims,
        np.zeros((1, len(dims)), dtype=np.int64),
        (layout.open,),
        none,
        none,
        layout.combine,
        layout.coupled,
    )


def uneven_price(planning: Planning, clock: Clock) -> Price | None:
    """A plan with uneven splits."""
    return _price(planning, planning.machine, ",uneven", clock)


def fewer_devices(planning: Planning, clock: Clock) -> Price | None:
    """The cheapest plan on fewer devices that is found; of equally cheap ones that on the fewest."""
    option = ",uneven" if planning.space.uneven else ""
    prices = [p for m in smaller_machines(planning.machine) if (p := _price(planning, m, option, clock)) is not None]
    return min(prices, key=lambda p: (p.cost, p.machine.devices), default=None)


def smaller_machines(machine: Machine) -> tuple[Machine, ...]:
    """Parts of a machine: one device; half of a level, or the largest power of two below its size; each device class
    alone.

    >>> from ...models.machine.machine import load_machine
    >>> [m.hierarchy for m in smaller_machines(load_machine("2x6"))]
    [(1, 1), (1, 6), (2, 3), (2, 4)]
    """
    sizes = machine.hierarchy
    parts: list[tuple[Machine, tuple[int, ...]]]
    if machine.others:
        rest = sizes[0] - sum(len(c.blocks) for c in machine.others)
        parts = [
            (replace(machine, device=replace(c, blocks=()), others=()), (len(c.blocks) or rest, *sizes[1:]))
            for c in machine.classes
        ]
    else:
        found = {(1,) * len(sizes)}
        for j, n in enumerate(sizes):
            halves = {n // 2 if n % 2 == 0 else 1, 1 << (n - 1).bit_length() - 1} if n > 1 else {1}
            found |= {(*sizes[:j], k, *sizes[j + 1 :]) for k in halves}
        parts = [(machine, hierarchy) for hierarchy in sorted(found, key=lambda h: (prod(h), h)) if hierarchy != sizes]
    out = []
    for whole, hierarchy in parts:
        try:
            out.append(whole.resized(hierarchy))
        except MachineError:  # a switch shared by more devices than are left
            continue
    return tuple(out)


def _price(planning: Planning, machine: Machine, option: str, clock: Clock) -> Price | None:
    """The best plan found in the largest space, not above the plan's own, that takes a moment; it keeps the plan's
    memory limit, or fits the devices.
    """
    limit = planning.problem.limit if planning.problem.limit is not None else least_memory(machine)[1]
    for base in SMALLER[SMALLER.index(planning.space.base) :]:
        where = space(base + option)
        if clock.over():  # counting placements takes a second too
            return None
        try:
            check_sizes(planning.graph, machine, where, MOMENT)
        except TooLarge:
            continue
        try:
            small = build(planning.graph, machine, where, limit)
        except (MachineError, ProblemError):
            return None
        events = np.array(small.problem.events(), dtype=np.int64)
        if clock.over() or (events.size and int(least_use(small.problem, events).max()) > limit):
            return None  # nothing fits
        answer = relax_resources(small.problem, clock=clock.at_most(SEARCH_S), brought=simple_plans(small))
        return None if answer.cost is None else Price(where.name, machine, Fraction(answer.cost, small.problem.scale))
    return None


def least_memory(machine: Machine) -> tuple[str, int]:
    """The device class with the least memory, and that in bytes."""
    device = min(machine.classes, key=lambda c: c.memory)
    return device.name, device.memory


def in_words(graph: Graph, names: tuple[str, ...], most: int = 4) -> str:
    """The longest axes of these operators that may be split, once each, longest first."""
    axes = sorted({(-a.extent, a.name) for name in names for a in graph.operator(name).axes if a.splittable})
    return ", ".join(f"{name} {-n}" for n, name in axes[:most]) + (", .." if len(axes) > most else "")

"""What a branch takes on a view, a second time: from index sets (`verify/plan/entry_tables.py`), never
from the search.

machine     of a view: its level sizes; level j keeps of its bandwidth the share of the devices below it that are
            in the view
classes     choices of a decision at the border that agree in the boxes of all tensors that cross it there,
            numbered by their first choice
times       of a branch, per classes of all its decisions at the border: the least sum of its operators and inner
            movements.  Decisions are taken up in the order of the graph; one is let go as soon as all its
            movements have been counted, unless it is at the border
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np

from ...models.cost.limits import Counter
from ...models.cost.selection import DecisionKind
from ...models.layout.placement import matrices
from ...models.layout.submesh import Submesh
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import Ints
from ...proofs.container.canonical import ContainerError
from ...proofs.container.effort import OBJECT
from ..budget import Budget
from ..plan.box_tables import Layouts, Operand, copy_operand, layouts, shape_of
from ..plan.effort import AGAIN, BOX, charge_communication, charge_placements
from ..plan.entry_tables import communication_times, operator_times
from ..plan.space import check_list
from ..plan.structure import Move
from ..plan.used_entries import Entries
from .structure import Parts, Place, devices
from .trades import tradeoff_labels

MOST_CELLS = 1 << 25
MOST_LABELS = 1 << 13


def part_of(machine: Machine, view: Submesh) -> Machine:
    """The machine of a view."""
    levels = []
    for j, level in enumerate(machine.levels):
        below = Fraction(prod(view.counts[j + 1 :]), prod(machine.hierarchy[j + 1 :]))
        levels.append(replace(level, size=view.counts[j], bandwidth=level.bandwidth * below))
    return replace(machine, levels=tuple(levels), resources=())


@dataclass(frozen=True, eq=False)
class Branch:
    """`border`: vertices with a crossing movement; `classes`: of their choices.  `labels`, `times`: classes and times
    per phase, in order.
    """

    border: tuple[int, ...]
    classes: tuple[Ints, ...]
    labels: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]


class Prices:
    """Prices on the machine and on its views; equal views are priced once."""

    def __init__(self, entries: Entries, parts: Parts) -> None:
        self.entries, self.parts, self.graph = entries, parts, entries.graph
        self.machine, self.scale = entries.machine, entries.problem.scale
        self.listed: dict[tuple[int, tuple[int, ...]], Ints] = {}
        self.held: dict[tuple[object, ...], Layouts] = {}
        self.known: dict[tuple[Place, tuple[int, ...], int], Branch] = {}
        self.counted: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self.budget = entries.budget

    def placements(self, vertex: int, counts: tuple[int, ...]) -> Ints:
        """All placements of a decision on a machine of these sizes, and nothing else."""
        if (vertex, counts) not in self.listed:
            d, where = self.entries.planning.decisions[vertex], self.entries.planning.space
            if d.kind is DecisionKind.OPERATOR:
                axes = [self.entries.operators[d.name].axis(n) for n in d.axes]
                extents, split = [a.extent for a in axes], [a.splittable for a in axes]
            else:
                extents = [self.graph.tensor(d.name).shape[int(k)] for k in d.axes]
                split = [True] * len(extents)
            self.budget.charge(AGAIN, "placements on a submesh")
            fits = tuple(n if s else 1 for n, s in zip(extents, split, strict=True))
            if (fits, counts) not in self.counted:
                place = f"placements of {d.name!r} on a submesh"
                self.counted[fits, counts] = charge_placements(fits, counts, where, self.budget, place)
            self.budget.charge(
                BOX * self.counted[fits, counts] * len(counts) * (1 + len(fits)), "placements on a submesh"
            )
            found = matrices(extents, split, counts, where)
            if wrong := check_list(found, extents, split, where, Counter(counts, where)):
                raise ContainerError("views", f"placements of {d.name!r} on a submesh: {wrong}")
            self.listed[vertex, counts] = found
        return self.listed[vertex, counts]

    def side(self, vertex: int, move: Move, counts: tuple[int, ...]) -> Layouts:
        """What every device holds of the tensor of a movement under all placements of one of its ends."""
        d = self.entries.planning.decisions[vertex]
        operand: Operand
        if d.kind is DecisionKind.COPY:
            shape = self.graph.tensor(d.name).shape
            operand, extents = copy_operand(shape, d.axes), tuple(shape[int(k)] for k in d.axes)
        else:
            form = shape_of(self.entries.operators[d.name], self.graph, d.axes)
            operand = form.output if d.name == move.writer else form.inputs[move.position]
            extents = form.extents
        listed = self.placements(vertex, counts)  # axes that are never split have fewer: extents do not say which
        key = (operand, extents, counts, listed.shape, listed.tobytes())
        if key not in self.held:
            width = prod(counts) * (1 + len(extents) + len(operand.shape))
            self.budget.charge(BOX * listed.shape[0] * width, "boxes on a submesh")
            self.held[key] = layouts(operand, extents, listed, counts)
        return self.held[key]

    def ends(self, move: Move) -> tuple[int, int]:
        """Vertices of a movement."""
        return self.entries.vertex(move.writer, move.tensor), self.entries.vertex(move.reader, move.tensor)

    def crossing(self, number: int, place: Place, view: Submesh) -> tuple[int, int, Layouts, Layouts, Ints]:
        """A movement over the border of a view: vertex inside, vertex outside, layouts of both, and its times, a row
        per layout inside.
        """
        move = self.entries.moves[number]
        u, v = self.ends(move)
        first = self.parts.place.get(u) == place
        inside, outside = (u, v) if first else (v, u)
        mine = self.side(inside, move, view.counts)
        cells = mine.boxes.shape[0] * self.machine.devices * max(1, mine.boxes.shape[2])
        self.budget.hold(2 * cells, "boxes that cross the border of a submesh")
        self.budget.charge(BOX * cells, "boxes that cross the border of a submesh")
        whole = np.zeros((mine.boxes.shape[0], self.machine.devices, *mine.boxes.shape[2:]), dtype=np.int64)
        whole[:, devices(view, self.machine)] = mine.boxes
        here = Layouts(self.machine.hierarchy, whole, mine.open, mine.of)
        there = self.side(outside, move, self.machine.hierarchy)
        size = self.graph.tensor(move.tensor).element_bytes
        charge_communication(here, there, self.budget)
        if first:
            return u, v, mine, there, communication_times(here, there, size, self.machine, self.scale, self.budget)
        return v, u, mine, there, communication_times(there, here, size, self.machine, self.scale, self.budget).T

    def branch(self, place: Place, view: Submesh, phases: int) -> Branch:
        """Labels of a branch on a view."""
        key = place, view.counts, phases
        if key not in self.known:
            self.known[key] = self._branch(place, view, phases)
        return self.known[key]

    def _branch(self, place: Place, view: Submesh, phases: int) -> Branch:
        machine, members = part_of(self.machine, view), self.parts.members(place)
        agree: dict[int, list[Ints]] = {}
        for number in self.parts.crossing[place]:
            move = self.entries.moves[number]
            vertex = next(v for v in self.ends(move) if self.parts.place.get(v) == place)
            agree.setdefault(vertex, []).append(self.side(vertex, move, view.counts).of)
        border = sorted(agree)
        classes = tuple(row_numbers(list(zip(*(of.tolist() for of in agree[v]), strict=True))) for v in border)
        costs = {v: self._cost(v, machine) for v in members}
        links: list[tuple[int, int, int, Ints]] = []
        pairs = 0
        for number in self.parts.inner[place]:
            move = self.entries.moves[number]
            u, v = self.ends(move)
            a, b = self.side(u, move, view.counts), self.side(v, move, view.counts)
            size = self.graph.tensor(move.tensor).element_bytes
            charge_communication(a, b, self.budget)
            pairs += a.of.size * b.of.size
            self.budget.hold(pairs, "communication inside a branch")
            self.budget.charge(BOX * a.of.size * b.of.size, "communication inside a branch")
            times = communication_times(a, b, size, machine, self.scale, self.budget)[np.ix_(a.of, b.of)]
            phase = self.parts.phase[move.reader if move.reader is not None else str(move.writer)]
            links.append((u, v, phase, times))
        if phases == 1:
            table = _least(members, border, costs, links, self.budget)
            best = np.full([int(c.max()) + 1 for c in classes], -1, dtype=np.int64)
            self.budget.charge(AGAIN * best.size + BOX * table.size, "labels of a branch")
            for label in product(*(range(n) for n in best.shape)):
                best[label] = table[
                    np.ix_(*(np.flatnonzero(c == k) for c, k in zip(classes, label, strict=True)))
                ].min()
            return Branch(
                tuple(border), classes, tuple(np.ndindex(*best.shape)), tuple((int(t),) for t in best.reshape(-1))
            )
        phase_of = {
            v: self.parts.phase.get(self.entries.planning.decisions[v].name, 0)
            if self.entries.planning.decisions[v].kind is DecisionKind.OPERATOR
            else 0
            for v in members
        }
        labels, trades = tradeoff_labels(members, border, classes, costs, phase_of, links, self.budget)
        return Branch(tuple(border), classes, labels, trades)

    def _cost(self, vertex: int, machine: Machine) -> Ints:
        d = self.entries.planning.decisions[vertex]
        listed = self.placements(vertex, machine.hierarchy)
        if d.kind is DecisionKind.COPY:
            return np.zeros(listed.shape[0], dtype=np.int64)
        shape = shape_of(self.entries.operators[d.name], self.graph, d.axes)
        width = 1 + len(shape.extents) + sum(len(o.shape) for o in (*shape.inputs, shape.output))
        self.budget.charge(BOX * listed.shape[0] * machine.devices * width, "times on a submesh")
        return operator_times(shape, listed, machine, self.scale)


def row_numbers(rows: list[tuple[int, ...]]) -> Ints:
    """Number of every row by first appearance.

    >>> row_numbers([(5,), (3,), (5,)]).tolist()
    [0, 1, 0]
    """
    seen: dict[tuple[int, ...], int] = {}
    return np.array([seen.setdefault(row, len(seen)) for row in rows], dtype=np.int64)


def _least(
    members: list[int],
    border: list[int],
    costs: dict[int, Ints],
    links: list[tuple[int, int, int, Ints]],
    budget: Budget,
) -> Ints:
    """The least sum for all choices of the border (ascending), one decision after another."""
    left = {v: sum(v in (a, b) for a, b, _, _ in links) for v in members}
    held: list[int] = []
    table = np.zeros((), dtype=np.int64)
    budget.charge(OBJECT * len(members) * (1 + len(links)), "a branch")
    for v in members:
        if table.size * costs[v].size > MOST_CELLS:
            raise ContainerError("views", f"a branch of {len(members)} decisions is too entangled to be checked")
        near = sum(v in (a, b) for a, b, _, _ in links)
        budget.charge(BOX * table.size * costs[v].size * (2 + near), "a branch")
        table = table[..., None] + costs[v]
        held.append(v)
        for a, b, _, times in links:
            if v in (a, b) and a in held and b in held:
                i, j = held.index(a), held.index(b)
                shape = [1] * len(held)
                shape[i], shape[j] = times.shape
                table = table + (times if i < j else times.T).reshape(shape)
                left[a] -= 1
                left[b] -= 1
        for w in [w for w in held if not left[w] and w not in border]:
            table = table.min(axis=held.index(w))
            held.remove(w)
    return table.transpose([held.index(v) for v in border])

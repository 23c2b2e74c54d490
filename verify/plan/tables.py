"""Recomputes every distinct entry of a rebuilt problem, as far as a budget goes, against whole arrays from
index sets (`verify/plan/entry_tables.py`).

    distinct   vertices that share a cost array and the operator's shape; edges that share table, maps and both ends;
               rows that share an amount and what they count: one of each stands for all
    budget     cells of arrays that are filled.  The smallest groups come first and are checked whole.  Of each that is
               left a part is drawn from sha256(identity, counter): choices of a vertex, or choices of both ends of an
               edge and all their pairs

How many entries there are and how many were compared is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isqrt, prod

import numpy as np

from ...models.cost.selection import DecisionKind
from ...models.problem.selection_problem import Ints
from ..verdict import Coverage
from .box_tables import Layouts, Operand, Shape, copy_operand, layouts, shape_of
from .effort import AGAIN, FILLED
from .entry_tables import communication_times, operator_times
from .structure import Received
from .used_entries import Draw, Entries, Progress

_DRAWN = 1 << 14
"""Cells that are filled at least of every group that is not checked whole."""


@dataclass(frozen=True)
class Side:
    """One end of a movement, or what a memory row counts: an operand under the placements of a vertex."""

    vertex: int
    operand: Operand
    extents: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """Entries that stand or fall together.  `compare(rows, columns)` compares those of some choices (None: all);
    what is wrong, and how many.
    """

    entries: int
    cells: int
    choices: tuple[int, ...]
    compare: Callable[[tuple[Ints | None, ...]], tuple[str, int]]


def wrong_anywhere(entries: Entries, cells: int, seed: str, notify: Progress | None = None) -> tuple[str, Coverage]:
    """The first entry that is not what index sets give, empty if none was found; and how many were compared."""
    tables = _Tables(entries)
    groups = sorted(tables.groups(), key=lambda g: g.cells)
    total, checked, draw = sum(g.entries for g in groups), 0, Draw(seed)
    cells = min(cells, entries.budget.work // (2 * FILLED))
    left, whole = cells, 0
    while whole < len(groups) and groups[whole].cells <= left - _DRAWN * (len(groups) - whole - 1):
        left -= groups[whole].cells
        whole += 1
    share = max(_DRAWN, left // max(1, len(groups) - whole))
    for number, group in enumerate(groups):
        entries.budget.charge(AGAIN + FILLED * (group.cells if number < whole else min(group.cells, share)), "entries")
        wrong, count = group.compare(
            tuple(None for _ in group.choices) if number < whole else _drawn(group, share, draw)
        )
        checked += count
        if wrong:
            return wrong, Coverage(checked, total)
        if notify is not None:
            notify(number + 1, len(groups))
    return "", Coverage(checked, total)


def _drawn(group: Group, cells: int, draw: Draw) -> tuple[Ints, ...]:
    """Choices of every vertex of a group, as many as the cells allow."""
    every = prod(group.choices)
    wanted = max(1, every * cells // max(1, group.cells))  # a scalar's layouts fill no cells
    each = [wanted] if len(group.choices) == 1 else [isqrt(wanted) + 1] * len(group.choices)
    return tuple(
        np.array(sorted({draw.below(n) for _ in range(min(n, k))}), dtype=np.int64)
        for n, k in zip(group.choices, each, strict=True)
    )


class _Tables:
    """The groups of a problem; layouts of equal sides are listed once."""

    def __init__(self, entries: Entries) -> None:
        self.entries, self.problem, self.decisions = entries, entries.problem, entries.planning.decisions
        self.graph, self.machine = entries.graph, entries.machine
        self.shapes = {
            name: shape_of(entries.operators[name], self.graph, self.decisions[v].axes)
            for name, v in entries.planning.operators.items()
        }
        self.known: dict[tuple[Operand, tuple[int, ...], int], Layouts] = {}
        self.times: dict[tuple[Shape, int], Ints] = {}

    def groups(self) -> Iterable[Group]:
        """One group per distinct array and meaning."""
        seen = set[object]()
        for v in range(len(self.problem.vertices)):
            yield from self._time(v, seen)
        for number in range(len(self.problem.edges)):
            yield from self._communication(number, seen)
        for number in range(len(self.problem.usages)):
            yield from self._usage(number, seen)

    def _time(self, v: int, seen: set[object]) -> Iterable[Group]:
        decision, cost = self.decisions[v], self.problem.vertices[v].cost
        shape = self.shapes[decision.name] if decision.kind is DecisionKind.OPERATOR else None
        if _new((id(cost), shape, id(decision.placements)), seen):
            width = (
                1
                if shape is None
                else self.machine.devices
                * (len(shape.extents) + sum(len(o.shape) for o in (*shape.inputs, shape.output)))
            )
            yield Group(cost.size, cost.size * width, (cost.size,), lambda picked: self._wrong_time(v, shape, *picked))

    def _wrong_time(self, v: int, shape: Shape | None, picked: Ints | None) -> tuple[str, int]:
        choices = np.arange(self.problem.vertices[v].cost.size) if picked is None else picked
        found = self.problem.vertices[v].cost[choices]
        if shape is None:
            expected = np.zeros_like(found)
        else:
            expected = operator_times(shape, self.decisions[v].placements[choices], self.machine, self.problem.scale)
        here = np.nonzero(found != expected)[0]
        decision = self.decisions[v]
        who = f"{'copy of' if decision.kind is DecisionKind.COPY else 'operator'} {decision.name!r}"
        return (
            f"{who}, choice {int(choices[here[0]])}: costs {int(found[here[0]])}, not {int(expected[here[0]])}"
            if here.size
            else "",
            choices.size,
        )

    def _communication(self, number: int, seen: set[object]) -> Iterable[Group]:
        move, edge = self.entries.moves[number], self.problem.edges[number]
        source = self._side(move.writer, None, move.tensor)
        target = self._side(move.reader, move.position, move.tensor)
        size, table = self.graph.tensor(move.tensor).element_bytes, self.problem.tables[edge.table]
        key = ("edge", edge.table, id(edge.rows), id(edge.cols), self._key(source), self._key(target), size)
        if _new(key, seen):
            subtrees = sum(prod(self.machine.hierarchy[: i + 1]) for i in range(len(self.machine.hierarchy)))
            each = subtrees * max(1, len(source.operand.shape))
            ends = sum(
                self.problem.domain_size(s.vertex) * self.machine.devices * (len(s.extents) + len(s.operand.shape))
                for s in (source, target)
            )
            choices = (self.problem.domain_size(edge.u), self.problem.domain_size(edge.v))
            yield Group(
                table.size,
                table.size * each + ends,
                choices,
                lambda picked: self._wrong_communication(number, source, target, size, *picked),
            )

    def _wrong_communication(
        self, number: int, source: Side, target: Side, size: int, rows: Ints | None, columns: Ints | None
    ) -> tuple[str, int]:
        edge = self.problem.edges[number]
        (u, a, row), (v, b, column) = self._end(source, edge.rows, rows), self._end(target, edge.cols, columns)
        found = self.problem.tables[edge.table][np.ix_(row, column)]
        times = communication_times(a, b, size, self.machine, self.problem.scale, self.entries.budget)
        expected = times[np.ix_(a.of[u[1]], b.of[v[1]])]
        compared = np.unique(row).size * np.unique(column).size
        wrong = np.argwhere(found != expected)
        if not wrong.size:
            return "", compared
        i, j = wrong[0]
        return self.entries.communication_words(
            number, int(u[0][i]), int(v[0][j]), int(found[i, j]), int(expected[i, j])
        ), compared

    def _end(self, side: Side, of_choice: Ints | None, picked: Ints | None) -> tuple[tuple[Ints, Ints], Layouts, Ints]:
        """Choices that differ in layout or in row of the table: (their numbers, their places among the placements
        looked at); layouts; rows.
        """
        choices = np.arange(self.problem.domain_size(side.vertex)) if picked is None else picked
        found = self._layouts(side, picked)
        row = choices if of_choice is None else of_choice[choices]
        first = np.unique(np.stack([row, found.of], axis=1), axis=0, return_index=True)[1]
        return (choices[first], first), found, np.asarray(row[first], dtype=np.int64)

    def _usage(self, number: int, seen: set[object]) -> Iterable[Group]:
        row, usage = self.entries.rows[number], self.problem.usages[number]
        if isinstance(row, Received):
            tensors = [
                (position, self.entries.operators[row.reader].inputs[position].tensor) for position in row.positions
            ]
            sides = tuple((self._side(row.reader, p, t), self.graph.tensor(t).element_bytes) for p, t in tensors)
        else:
            side = self._side(row.writer or row.reader, None if row.writer is not None else row.position, row.tensor)
            sides = ((side, self.graph.tensor(row.tensor).element_bytes),)
        if _new(("usage", id(usage.amount), *((self._key(s), size) for s, size in sides)), seen):
            width = self.machine.devices * sum(len(s.extents) + len(s.operand.shape) for s, _ in sides)
            yield Group(
                usage.amount.size,
                usage.amount.size * width,
                (usage.amount.size,),
                lambda picked: self._wrong_usage(number, sides, *picked),
            )

    def _wrong_usage(self, number: int, sides: tuple[tuple[Side, int], ...], picked: Ints | None) -> tuple[str, int]:
        usage = self.problem.usages[number]
        choices = np.arange(usage.amount.size) if picked is None else picked
        expected = np.zeros(choices.size, dtype=np.int64)
        for side, size in sides:
            found = self._layouts(side, picked)
            expected += found.largest[found.of] * size
        here = np.nonzero(usage.amount[choices] != expected)[0]
        if not here.size:
            return "", choices.size
        choice = int(choices[here[0]])
        return self.entries.usage_words(number, choice, int(usage.amount[choice]), int(expected[here[0]])), choices.size

    def _side(self, operator: str | None, position: int | None, tensor: str) -> Side:
        v = self.entries.vertex(operator, tensor)
        if operator is None:
            shape, axes = self.graph.tensor(tensor).shape, self.decisions[v].axes
            return Side(v, copy_operand(shape, axes), tuple(shape[int(k)] for k in axes))
        known = self.shapes[operator]
        return Side(v, known.output if position is None else known.inputs[position], known.extents)

    def _key(self, side: Side) -> tuple[Operand, tuple[int, ...], int]:
        return side.operand, side.extents, id(self.decisions[side.vertex].placements)

    def _layouts(self, side: Side, picked: Ints | None) -> Layouts:
        placements = self.decisions[side.vertex].placements
        if picked is not None:
            return layouts(side.operand, side.extents, placements[picked], self.machine.hierarchy)
        key = self._key(side)
        if key not in self.known:
            self.known[key] = layouts(side.operand, side.extents, placements, self.machine.hierarchy)
        return self.known[key]


def _new(key: object, seen: set[object]) -> bool:
    fresh = key not in seen
    seen.add(key)
    return fresh

"""Checks every number of a problem over all programs, against numbers from index sets.

    class vertex   choices of an e-node: all placements of the space, each once, at the operator's time; absent: 0
    copy           all placements of the tensor; layouts that are passed on: every layout of the e-node once; all cost 0
    edge           between choices that no program has together, forbidden; where nothing is moved, 0; a layout that is
                   passed on is the writer's, all others are forbidden; else the resharding

Entries that are forbidden or 0 are compared all.  Times and reshardings are recomputed, each distinct pair of
operands once, the smallest first, as far as `cells` go; of the rest a part is drawn (`verify.plan.used_entries.Draw`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...models.cost.limits import Counter
from ...models.joint.choices import Block, Kind
from ...models.joint.problem import JointDecision, JointPlanning
from ...models.problem.selection_problem import FORBIDDEN, Ints
from ...models.program.operators import Operator
from ..budget import Budget
from ..plan.box_tables import Layouts, Operand, copy_operand, layouts, shape_of
from ..plan.effort import ALONE, EACH, FILLED
from ..plan.entry_tables import communication_times, operator_times
from ..plan.space import check_list
from ..plan.used_entries import Draw
from ..verdict import Coverage
from .skeleton import ExpectedEdge, Programs, assumed_by, together

DRAWN = 24
"""Layouts of each end of a movement that is not recomputed whole."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Side:
    """An operand under placements: `key` says which, `matrices` (K, rows, levels)."""

    operand: Operand
    extents: tuple[int, ...]
    matrices: Ints

    @property
    def key(self) -> tuple[Operand, tuple[int, ...], int]:
        return self.operand, self.extents, id(self.matrices)


@dataclass(eq=False)
class Pending:
    """Slices of tables that must hold the resharding between two operands: rows and columns by layout."""

    source: Side
    target: Side
    size: int
    found: list[tuple[str, Ints, Ints, Ints]] = field(default_factory=list)


class Numbers:
    """The numbers of a problem; `wrong_*` return what differs, or nothing."""

    def __init__(self, planning: JointPlanning, programs: Programs, budget: Budget | None = None) -> None:
        self.budget = Budget.with_large() if budget is None else budget
        self.planning, self.programs = planning, programs
        self.graph, self.machine, self.problem = planning.egraph.union, planning.machine, planning.problem
        self.orders = planning.structures.orders
        self._known: dict[object, Layouts] = {}
        self._times: dict[object, Ints] = {}

    def placements(self, tensor: str, block: Block) -> Ints | None:
        """Placements of the choices of a block; None for choices that are none."""
        if block.kind is Kind.COPY:
            return self.planning.structures.of_copy(tensor)
        return None if block.node is None else self.planning.structures.of_operator(block.node)

    def side(self, tensor: str, node: Operator | None, position: int | None) -> Side:
        """What an e-node writes (position None) or reads, or (node None) the tensor's copy."""
        if node is None:
            shape = self.graph.tensor(tensor).shape
            axes = self.planning.structures.orders["tensor:" + tensor]
            extents = tuple(shape[int(k)] for k in axes)
            return Side(copy_operand(shape, axes), extents, self.planning.structures.of_copy(tensor))
        name = f"operator:{node.name}" if node.name.startswith(("tensor:", "operator:")) else node.name
        shape_ = shape_of(node, self.graph, self.orders[name])
        operand = shape_.output if position is None else shape_.inputs[position]
        return Side(operand, shape_.extents, self.planning.structures.of_operator(node))

    def layouts(self, side: Side) -> Layouts:
        if side.key not in self._known:
            self._known[side.key] = layouts(side.operand, side.extents, side.matrices, self.machine.hierarchy)
        return self._known[side.key]

    def wrong_choices(self, counter: Counter) -> str:
        """The first vertex whose choices are not all of the space, or whose costs are not those of index sets."""
        seen = set[object]()
        for v, d in enumerate(self.planning.decisions):
            cost = self.problem.vertices[v].cost
            if cost.size != d.size or d.starts[0] != 0:
                return f"{d.name!r}: {cost.size} costs for {d.size} choices"
            for i, block in enumerate(d.blocks):
                low, high = d.span(i)
                wrong = self._wrong_block(d, block, cost[low:high], counter, seen)
                if wrong:
                    return f"{d.name!r}: {wrong}"
        return ""

    def _wrong_block(self, d: JointDecision, block: Block, cost: Ints, counter: Counter, seen: set[object]) -> str:
        if block.kind is not Kind.RUNS and cost.any():
            return "a choice that computes nothing costs something"
        if block.kind is Kind.PASSED and block.node is not None:
            count = len(self.layouts(self.side(d.tensor, block.node, None)).boxes)
            passed = self._passed(self.side(d.tensor, block.node, None), block.node)
            once = cost.size == passed.size == count and np.unique(passed).size == count
            return "" if once else f"{cost.size} layouts are passed on of {count}, or one twice"
        placements = self.placements(d.tensor, block)
        if placements is None:
            return "" if cost.size == 1 else "one choice that is nowhere is there more than once"
        if placements.shape[0] != cost.size:
            return f"{cost.size} costs for {placements.shape[0]} placements"
        side = self.side(d.tensor, block.node, None)
        split = [True] * len(side.extents)
        if block.node is not None:
            name = (
                f"operator:{block.node.name}"
                if block.node.name.startswith(("tensor:", "operator:"))
                else block.node.name
            )
            split = [block.node.axis(a).splittable for a in self.orders[name]]
        key = (id(placements), side.extents, tuple(split))
        if key not in seen:
            seen.add(key)
            wrong = check_list(placements, side.extents, split, self.planning.space, counter)
            if wrong:
                return wrong
        if block.node is None:
            return ""
        shape = shape_of(block.node, self.graph, self.orders[name])
        if (shape, id(placements)) not in self._times:
            self._times[shape, id(placements)] = operator_times(shape, placements, self.machine, self.problem.scale)
        expected = self._times[shape, id(placements)]
        here = np.nonzero(cost != expected)[0]
        if not here.size:
            return ""
        return f"{block.node.name!r}, choice {int(here[0])}: costs {int(cost[here[0]])}, not {int(expected[here[0]])}"

    def wrong_edges(self, cells: int, seed: str, notify: Progress | None = None) -> tuple[str, Coverage]:
        """The first entry of an edge that is wrong, and how many reshardings were compared of how many."""
        pending: dict[object, Pending] = {}
        seen = set[object]()
        for number in range(len(self.problem.edges)):
            if wrong := self._wrong_edge(number, seen, pending):
                return wrong, Coverage()
        every = sorted(pending.values(), key=self._cells)
        checked = total = 0
        left, draw = min(cells, self.budget.work // (2 * FILLED)), Draw(seed)
        for done, p in enumerate(every):
            cost = self._cells(p)
            whole = cost <= left
            left -= cost if whole else 0
            self.budget.charge(ALONE + (FILLED * cost if whole else DRAWN * DRAWN * EACH), "redistributions")
            wrong, compared, entries = self._wrong_communication(p, None if whole else draw)
            checked, total = checked + compared, total + entries
            if wrong:
                return wrong, Coverage(checked, total)
            if notify is not None:
                notify(done + 1, len(every))
        return "", Coverage(checked, total)

    def _cells(self, p: Pending) -> int:
        a, b = self.layouts(p.source), self.layouts(p.target)
        subtrees = sum(int(np.prod(self.machine.hierarchy[: i + 1])) for i in range(len(self.machine.hierarchy)))
        return len(a.boxes) * len(b.boxes) * subtrees * max(1, len(p.source.operand.shape))

    def _wrong_edge(self, number: int, seen: set[object], pending: dict[object, Pending]) -> str:
        edge, link = self.problem.edges[number], self.planning.links[number]
        a, b = self.planning.decisions[edge.u], self.planning.decisions[edge.v]
        wanted = ExpectedEdge(link.tensor, link.from_rest, link.reader, link.number)
        table = self.problem.tables[edge.table]
        rows = np.arange(a.size) if edge.rows is None else edge.rows
        columns = np.arange(b.size) if edge.cols is None else edge.cols
        for i, x in enumerate(a.blocks):
            for j, y in enumerate(b.blocks):
                kind, source, target = self._relation(wanted, a, x, b, y)
                (r0, r1), (c0, c1) = a.span(i), b.span(j)
                size = self.graph.tensor(link.tensor).element_bytes
                row, column = rows[r0:r1], columns[c0:c1]
                key = (
                    edge.table, id(edge.rows), r0, r1, id(edge.cols), c0, c1, kind,
                    source and source.key, target and target.key, x.kind, y.kind, size,
                )  # fmt: skip
                if key in seen:
                    continue
                seen.add(key)
                place = f"{link.tensor!r} from {a.name!r} to {b.name!r}"
                if kind in ("forbidden", "free"):
                    cut = table[np.ix_(np.unique(row), np.unique(column))]
                    if (cut < FORBIDDEN).any() if kind == "forbidden" else cut.any():
                        return f"{place}: an entry is not {kind}"
                    continue
                if source is None or target is None:
                    return f"{place}: what moves is nowhere"
                first, of_row = self._distinct(row, x, source)
                second, of_column = self._distinct(column, y, target)
                found = table[np.ix_(row[first], column[second])]
                if kind == "same":
                    if ((found == 0) != (of_row[:, None] == of_column[None, :])).any() or (
                        (found != 0) & (found < FORBIDDEN)
                    ).any():
                        return f"{place}: what is passed on is not what was written"
                    continue
                p = pending.setdefault((source.key, target.key, size), Pending(source, target, size))
                p.found.append((place, found, of_row, of_column))
        return ""

    def _distinct(self, rows: Ints, block: Block, side: Side) -> tuple[Ints, Ints]:
        """Choices that differ in row or layout, and their layouts."""
        passed = block.kind is Kind.PASSED and block.node is not None
        of = self._passed(side, block.node) if passed and block.node is not None else self.layouts(side).of
        picked = np.unique(np.stack([rows, of], axis=1), axis=0, return_index=True)[1]
        return picked, of[picked]

    def _passed(self, side: Side, node: Operator) -> Ints:
        """The layout of every choice that passes one on: that of the first placement which the problem gives it."""
        return self.layouts(side).of[self.first_placements(node)]

    def first_placements(self, node: Operator) -> Ints:
        """Per layout of an e-node's result, in the order of the choices that pass one on, the first placement that the
        problem gives it.
        """
        numbers = self.planning.structures.output_layouts(node).layouts.of_choice
        return np.asarray(np.unique(numbers, return_index=True)[1])

    def _relation(
        self, wanted: ExpectedEdge, a: JointDecision, x: Block, b: JointDecision, y: Block
    ) -> tuple[str, Side | None, Side | None]:
        """What an edge must hold between two blocks, and the operands that it moves between."""
        if not together(assumed_by(a.tensor, a.rests, x), assumed_by(b.tensor, b.rests, y)):
            return "forbidden", None, None
        source = None
        if x.kind in (Kind.RUNS, Kind.PASSED, Kind.COPY):
            source = self.side(a.tensor, x.node, None)
        if wanted.reader is None:
            if Kind.ABSENT in (x.kind, y.kind):
                return ("free" if x.kind is y.kind else "forbidden"), None, None
            if y.kind is Kind.PASSED:  # by the e-node of x: those of others do not go together
                return "same", source, source
            return "moves", source, self.side(b.tensor, None, None)
        node = y.node
        positions = [] if node is None else [k for k, i in enumerate(node.inputs) if i.tensor == wanted.tensor]
        if positions and x.kind is Kind.ABSENT:
            return "forbidden", None, None
        if not positions and x.kind is Kind.RUNS:
            return "forbidden", None, None  # computed for nobody
        if len(positions) <= wanted.number or x.kind is Kind.GIVEN:
            return "free", None, None
        return "moves", source, self.side(wanted.tensor, node, positions[wanted.number])

    def _wrong_communication(self, p: Pending, draw: Draw | None) -> tuple[str, int, int]:
        """What is wrong, how many entries were compared, and of how many."""
        a, b = self.layouts(p.source), self.layouts(p.target)
        entries = len(a.boxes) * len(b.boxes)
        rows, columns = np.arange(len(a.boxes)), np.arange(len(b.boxes))
        if draw is not None:
            rows, columns = (
                np.array(sorted({draw.below(n) for _ in range(DRAWN)}), dtype=np.int64)
                for n in (len(a.boxes), len(b.boxes))
            )
            a, b = _part(a, rows), _part(b, columns)
        expected = communication_times(a, b, p.size, self.machine, self.problem.scale, self.budget)
        at_row, at_column = (np.full(n, -1, dtype=np.int64) for n in (rows.max() + 1, columns.max() + 1))
        at_row[rows], at_column[columns] = np.arange(rows.size), np.arange(columns.size)
        for place, found, of_row, of_column in p.found:
            keep = [np.flatnonzero(np.isin(of, wanted)) for of, wanted in ((of_row, rows), (of_column, columns))]
            right = expected[np.ix_(at_row[of_row[keep[0]]], at_column[of_column[keep[1]]])]
            wrong = np.argwhere(found[np.ix_(*keep)] != right)
            if wrong.size:
                i, j = wrong[0]
                return f"{place}: costs {int(found[np.ix_(*keep)][i, j])}, not {int(right[i, j])}", 0, entries
        return "", rows.size * columns.size, entries


def _part(of: Layouts, some: Ints) -> Layouts:
    return Layouts(of.hierarchy, of.boxes[some], tuple(of.open[int(i)] for i in some), np.arange(some.size))

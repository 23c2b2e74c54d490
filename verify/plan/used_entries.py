"""Recomputes every entry that a plan uses, and seeded others, against entries recomputed from index sets
(`verify/plan/entries.py`).

    used      the time of every operator and of every movement, every memory amount, under the plan's choices
    sampled   `samples` more: kinds in turn; then a table or cost array, one of the vertices or edges that share it, and
              choices, all drawn from sha256(identity, counter), so that everybody draws the same ones and nobody can
              choose a plan that avoids them

Equal structures are computed once.  Other entries than these are compared array by array in `verify/plan/tables.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from ...models.cost.selection import DecisionKind, Planning
from ...models.layout.placement import Placement
from ...models.program.operators import Operator
from ..budget import Budget
from .boxes import DeviceBoxes, copy_of, read_by, written_by
from .effort import AGAIN, EACH, charge_entry, charge_fetch
from .entries import communication_entry, operator_entry
from .structure import Kept, Move, Received, copied_tensors, memory_rows, moves, replaces, wrong_state

Progress = Callable[[int, int], None]


REMEMBERED = 512
"""Reshardings of before that are known to cost nothing again: as many as `boxes` and `entries` keep."""


class Draw:
    """Numbers that depend on a seed text only.

    >>> draw = Draw("a")
    >>> [draw.below(10) for _ in range(4)]
    [9, 8, 7, 4]
    """

    def __init__(self, seed: str) -> None:
        self.seed, self.counter = seed, 0

    def below(self, n: int) -> int:
        """A number in 0 .. n - 1."""
        self.counter += 1
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{self.counter}".encode()).digest()[:16], "little") % n


class Entries:
    """The entries of a rebuilt problem, by name; `wrong_*` return what differs, or nothing."""

    def __init__(self, planning: Planning, budget: Budget | None = None) -> None:
        self.planning, self.budget = planning, Budget.with_large() if budget is None else budget
        self.graph, self.machine, self.problem = planning.graph, planning.machine, planning.problem
        self.operators = {op.name: op for op in self.graph.operators}
        self.moves, self.rows = list(moves(self.graph)), list(memory_rows(self.graph))
        self.replaced = replaces(self.graph)
        self.times: dict[object, int] = {}
        self.paid: dict[
            tuple[int, int], tuple[DeviceBoxes, DeviceBoxes]
        ] = {}  # what is kept is not made again at the same place

    def vertex(self, operator: str | None, tensor: str) -> int:
        """The vertex that decides an operator, or (None) a tensor's copy: of a next value, that of the parameter it
        replaces.
        """
        return (
            self.planning.copies[self.replaced.get(tensor, tensor)]
            if operator is None
            else self.planning.operators[operator]
        )

    def layout_at(self, operator: str | None, position: int | None, tensor: str, choice: int) -> DeviceBoxes:
        """Who holds what: a copy (operator None), an operator's output (position None) or an input."""
        placement = self.placement(self.vertex(operator, tensor), choice)
        if operator is None:
            return copy_of(tensor, self.graph, placement, self.machine.hierarchy)
        if position is None:
            return written_by(self.operators[operator], self.graph, placement, self.machine.hierarchy)
        return read_by(self.operators[operator], position, self.graph, placement, self.machine.hierarchy)

    def placement(self, vertex: int, choice: int) -> Placement:
        return self.planning.decisions[vertex].placement(choice)

    def ends(self, move: Move, u: int, v: int) -> tuple[DeviceBoxes, DeviceBoxes]:
        """Both ends of a movement under choices of its two vertices."""
        return self.layout_at(move.writer, None, move.tensor, u), self.layout_at(
            move.reader, move.position, move.tensor, v
        )

    def wrong_time(self, vertex: int, choice: int) -> str:
        """Cost of one choice: the operator's time; 0 for a copy."""
        decision, found = self.planning.decisions[vertex], int(self.problem.vertices[vertex].cost[choice])
        if decision.kind is DecisionKind.COPY:
            return "" if found == 0 else f"copy of {decision.name!r}, choice {choice}: costs {found}, not 0"
        op, placement = self.operators[decision.name], self.placement(vertex, choice)
        key = (placement, *self.structure(op))
        self.budget.charge(AGAIN, "an entry")
        if key not in self.times:
            dimensions = len(op.axes) + sum(len(a.index) for a in (*op.inputs, op.output))
            charge_entry(self.machine.devices, dimensions, self.budget)
            self.times[key] = operator_entry(op, self.graph, placement, self.machine, self.problem.scale)
        expected = self.times[key]
        return "" if found == expected else f"operator {op.name!r}, choice {choice}: costs {found}, not {expected}"

    def structure(self, op: Operator) -> tuple[object, ...]:
        """What an operator's time depends on, beside its placement."""
        tensors = [self.graph.tensor(a.tensor) for a in (*op.inputs, op.output)]
        return (
            op.function,
            op.attributes,
            op.axes,
            *((a.index, t.shape, t.dtype) for a, t in zip((*op.inputs, op.output), tensors, strict=True)),
        )

    def wrong_communication(self, number: int, u: int, v: int) -> str:
        """Cost of one pair of choices of an edge."""
        move, edge = self.moves[number], self.problem.edges[number]
        row, column = u if edge.rows is None else int(edge.rows[u]), v if edge.cols is None else int(edge.cols[v])
        found = int(self.problem.tables[edge.table][row, column])
        source, target = self.ends(move, u, v)
        self.charge(source, target)
        size = self.graph.tensor(move.tensor).element_bytes
        expected = communication_entry(size, source, target, self.machine, self.problem.scale)
        return "" if found == expected else self.communication_words(number, u, v, found, expected)

    def charge(self, source: DeviceBoxes, target: DeviceBoxes) -> None:
        """Charge one resharding, less where it is the one of before."""
        self.budget.charge(AGAIN, "an entry")
        if (key := (id(source), id(target))) not in self.paid:
            if len(self.paid) >= REMEMBERED:
                self.paid.clear()
            self.paid[key] = source, target
            charge_entry(self.machine.devices, 2 * len(source.shape), self.budget)
            charge_fetch(self.machine.hierarchy, source.ends, target.ends, self.budget)

    def communication_words(self, number: int, u: int, v: int, found: int, expected: int) -> str:
        """A wrong entry of an edge."""
        move = self.moves[number]
        to = "its copy" if move.reader is None else f"input {move.position} of {move.reader!r}"
        return f"{move.tensor!r} to {to}, choices {u}, {v}: costs {found}, not {expected}"

    def wrong_usage(self, number: int, choice: int) -> str:
        """Bytes of one choice in a memory row."""
        row, found, expected = self.rows[number], int(self.problem.usages[number].amount[choice]), 0
        places = len(row.positions) if isinstance(row, Received) else 1
        self.budget.charge(places * (AGAIN + EACH * self.machine.devices), "an entry")
        if isinstance(row, Received):
            for position in row.positions:
                tensor = self.operators[row.reader].inputs[position].tensor
                expected += (
                    self.layout_at(row.reader, position, tensor, choice).largest
                    * self.graph.tensor(tensor).element_bytes
                )
        else:
            held = self.layout_at(
                row.writer or row.reader, None if row.writer is not None else row.position, row.tensor, choice
            )
            expected = held.largest * self.graph.tensor(row.tensor).element_bytes
        return "" if found == expected else self.usage_words(number, choice, found, expected)

    def usage_words(self, number: int, choice: int, found: int, expected: int) -> str:
        """A wrong entry of a memory row."""
        row = self.rows[number]
        what = f"the operands of {row.reader!r}" if isinstance(row, Received) else repr(row.tensor)
        return f"memory of {what}, choice {choice}: {found} bytes, not {expected}"


def wrong_structure(entries: Entries) -> str:
    """Why the vertices, edges and memory rows of the problem are not those that the graph asks for; empty if they
    are.
    """
    planning, problem = entries.planning, entries.problem
    if wrong := wrong_state(entries.graph):
        return wrong
    for kind, names in ((DecisionKind.OPERATOR, planning.operators), (DecisionKind.COPY, planning.copies)):
        for name, v in names.items():
            if not 0 <= v < len(planning.decisions) or (planning.decisions[v].kind, planning.decisions[v].name) != (
                kind,
                name,
            ):
                return f"vertex {v} does not decide {kind.value} {name!r}"
    if list(planning.operators) != list(entries.operators) or set(planning.copies) != set(
        copied_tensors(entries.graph)
    ):
        return "the vertices are not the graph's operators and copied tensors"
    if not len(problem.vertices) == len(planning.decisions) == len(planning.operators) + len(planning.copies):
        return (
            f"{len(problem.vertices)} vertices for {len(planning.operators)} operators and {len(planning.copies)} "
            f"copies"
        )
    ends = [(entries.vertex(m.writer, m.tensor), entries.vertex(m.reader, m.tensor)) for m in entries.moves]
    if [(e.u, e.v) for e in problem.edges] != ends:
        return "the edges are not the graph's communication"
    if problem.limit is None and not problem.usages:
        return ""

    def at(row: Kept | Received) -> tuple[int, int, int]:
        if isinstance(row, Received):
            return entries.vertex(row.reader, ""), row.start, row.end
        return entries.vertex(row.writer or row.reader, row.tensor), row.start, row.end

    return (
        ""
        if [(u.vertex, u.start, u.end) for u in problem.usages] == [at(row) for row in entries.rows]
        else "the usages are not the graph's tensors"
    )


def wrong_used(entries: Entries, x: Sequence[int]) -> str:
    """The first entry used by the choices `x` that is not what index sets give; empty if there is none."""
    for v in range(len(entries.problem.vertices)):
        if wrong := entries.wrong_time(v, x[v]):
            return wrong
    for number, edge in enumerate(entries.problem.edges):
        if wrong := entries.wrong_communication(number, x[edge.u], x[edge.v]):
            return wrong
    for number, usage in enumerate(entries.problem.usages):
        if wrong := entries.wrong_usage(number, x[usage.vertex]):
            return wrong
    return ""


def wrong_sampled(entries: Entries, samples: int, seed: str, notify: Progress | None = None) -> str:
    """Like `wrong_used` for `samples` entries drawn from `seed`."""
    problem, draw = entries.problem, Draw(seed)
    kinds = [
        _by_array(id(v.cost) for v in problem.vertices),
        _by_array(e.table for e in problem.edges),
        _by_array(id(u.amount) for u in problem.usages),
    ]
    present = [kind for kind, groups in enumerate(kinds) if groups]
    for i in range(samples if present else 0):
        kind = present[i % len(present)]
        group = kinds[kind][draw.below(len(kinds[kind]))]
        number = group[draw.below(len(group))]
        if kind == 0:
            wrong = entries.wrong_time(number, draw.below(problem.domain_size(number)))
        elif kind == 1:
            edge = problem.edges[number]
            wrong = entries.wrong_communication(
                number, draw.below(problem.domain_size(edge.u)), draw.below(problem.domain_size(edge.v))
            )
        else:
            wrong = entries.wrong_usage(number, draw.below(problem.domain_size(problem.usages[number].vertex)))
        if wrong:
            return wrong
        if notify is not None:
            notify(i + 1, samples)
    return ""


def _by_array(keys: Iterable[int]) -> list[list[int]]:
    """Numbers grouped by key, in order of first appearance."""
    groups: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return list(groups.values())

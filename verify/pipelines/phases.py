"""How long a phase takes in which reshardings run beside operators, from its order alone, and what
lies in memory beside what is counted operator by operator.

A phase of a stage (forward or backward of a micro-batch, updates) has its operators on one stream and its
reshardings on another; those that take no time are on none.  What waits for what: a resharding for the operator
that writes the tensor, or for what filled its copy, where these are in the phase; an operator for the reshardings
of its operands; the writer of a next value for all other operators of the phase that read the parameter.

    start of a task  =  the latest of  start of the task before it in the order,  end of the one before it on its
                        stream,  ends of all that it waits for

An empty order: one after another, in today's sum.  With a memory limit operators keep the graph's order, and while one
of them is the last that began, there is what the stage has at it (`leaves`), and beside that at any moment

    operands                  from the start of their resharding until their operator begins, with their source,
                              if that came from elsewhere
    what an operator wrote    until it has filled its copy
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...models.program.graph import Role
from ...proofs.container.effort import OBJECT
from ...proofs.pipelines.certificate import PipelineCertificate
from .choices import Wrong
from .leaves import Units

Moment = tuple[int, int, int]
"""(bytes, from, to)."""


@dataclass(frozen=True, eq=False)
class Tasks:
    """Operators of a phase, by name, then its movements, by number; `times` in units of the problem; `waits[t]`: tasks
    that end before t starts.
    """

    operators: tuple[str, ...]
    moves: tuple[int, ...]
    times: tuple[int, ...]
    waits: tuple[frozenset[int], ...]

    def stream(self, task: int) -> int | None:
        """0: operators, 1: reshardings."""
        if task < len(self.operators):
            return 0
        return 1 if self.times[task] else None

    def spans(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """(start, end) of every task.  `Wrong` for an order that is none of these tasks."""
        if not order:
            return []
        if sorted(order) != list(range(len(self.times))):
            raise Wrong(f"an order does not list {len(self.times)} tasks, each once")
        ends: dict[int, int] = {}
        found, free, now = [(0, 0)] * len(order), [0, 0], 0
        for task in order:
            if not self.waits[task] <= ends.keys():
                raise Wrong(f"task {task} begins in its order before what it waits for")
            stream = self.stream(task)
            now = max([now, *(ends[t] for t in self.waits[task])])
            if stream is not None:
                now = max(now, free[stream])
                free[stream] = now + self.times[task]
            ends[task] = now + self.times[task]
            found[task] = now, ends[task]
        return found

    def takes(self, order: Sequence[int]) -> int:
        """Units of the problem from the first start to the last end."""
        return max((end for _, end in self.spans(order)), default=0) if order else sum(self.times)


def phases(
    c: PipelineCertificate, units: Units, s: int, x: Mapping[int, int], late: bool
) -> tuple[tuple[int, int, int], list[int]]:
    """What the phases of stage s take, and per operator the bytes that reshardings beside it add.  `late`: whether
    updates wait for another stage (`exchange`).
    """
    stage, overlap = c.stages[s], c.overlap
    if overlap is None:
        return units.seconds(stage.first, stage.end, x), []
    if late and overlap.of(s, "U"):
        raise Wrong(f"stage {s}: updates that wait for another stage have no order of their own")
    times, more = [], list[int]()
    for phase in "FBU":
        tasks, order = tasks_of(units, stage.first, stage.end, x, phase), overlap.of(s, phase)
        times.append(tasks.takes(order))
        more += [] if c.memory is None else in_flight(units, tasks, x, order)
    return (times[0], times[1], times[2]), more


def tasks_of(units: Units, first: int, end: int, x: Mapping[int, int], phase: str) -> Tasks:
    """The tasks of a phase of a stage under choices of the vertices that it has."""
    names, copies = units.decisions_of(first, end)
    problem, entries = units.planning.problem, units.entries
    units.entries.budget.charge(OBJECT * 8 * (len(units.graph.operators) + len(entries.moves)), "tasks of a phase")
    operators = tuple(name for name in units.operators(first, end) if units.phase[name] == phase)
    vertices = [units.planning.operators[name] for name in operators]
    times = [int(problem.vertices[v].cost[x[v]]) for v in vertices]
    at = {name: k for k, name in enumerate(operators)}
    moves = []
    for number, move in enumerate(entries.moves):
        ends = {name for name in (move.writer, move.reader) if name is not None}
        resting = units.next_of.get(move.tensor, move.tensor)
        here = ends <= names and (len(ends) == 2 or resting in copies)
        if here and units.pass_of(number) == phase:
            moves.append(number)
            e = problem.edges[number]
            row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
            column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
            times.append(int(problem.tables[e.table][row, column]))
    waits: list[set[int]] = [set() for _ in times]
    fills = {entries.moves[n].tensor: t for t, n in enumerate(moves, len(at)) if entries.moves[n].reader is None}
    for task, number in enumerate(moves, len(at)):
        move = entries.moves[number]
        source = fills.get(move.tensor) if move.writer is None else at.get(move.writer)
        waits[task] |= set() if source is None else {source}
        if move.reader in at:
            waits[at[move.reader]].add(task)
    writer = units.writer
    for value, parameter in units.next_of.items():
        if (last := writer[value]) in at:
            waits[at[last]] |= {at[name] for name, _ in units.used[parameter] if name in at and name != last}
    return Tasks(operators, tuple(moves), tuple(times), tuple(map(frozenset, waits)))


def in_flight(units: Units, tasks: Tasks, x: Mapping[int, int], order: Sequence[int]) -> list[int]:
    """Per operator of a phase the most bytes that are on a device beside what is counted at it, while it is the last
    that began.  `Wrong` where operators are not in the graph's order, or there are none.
    """
    count = len(tasks.operators)
    if not order:
        return [0] * count
    if [t for t in order if t < count] != list(range(count)) or not count:
        raise Wrong("with a memory limit operators keep the graph's order in their phase")
    spans, at = tasks.spans(order), {name: k for k, name in enumerate(tasks.operators)}
    blocks: list[Moment] = []
    for task, number in enumerate(tasks.moves, count):
        move, (begin, end) = units.entries.moves[number], spans[task]
        if tasks.times[task] == 0:
            continue
        if move.reader is None:
            writer = move.writer or ""
            written = spans[at[writer]][1] if writer in at else 0
            blocks.append((_largest(units, writer, None, move.tensor, x), written, end))
        elif move.reader in at:
            until = spans[at[move.reader]][0]
            blocks.append((_largest(units, move.reader, move.position, move.tensor, x), begin, until))
            made = move.tensor in units.writer and units.writer[move.tensor] in at
            if move.writer is None and not made and units.graph.tensor(move.tensor).role is not Role.PARAMETER:
                blocks.append((_largest(units, None, None, move.tensor, x), begin, until))
    starts = [spans[k][0] for k in range(count)]
    units.entries.budget.charge(OBJECT * 8 * (count + len(blocks)), "blocks of a phase")
    change = {0: 0}
    for size, begin, end in blocks:
        change[begin] = change.get(begin, 0) + size
        change[end] = change.get(end, 0) - size
    moments = sorted(change)
    level = list(accumulate(change[t] for t in moments))  # from each of them to the next
    found = []
    for k in range(count):
        begin = bisect_right(moments, starts[k] if k else 0) - 1
        until = bisect_left(moments, starts[k + 1]) if k + 1 < count else len(moments)
        found.append(max(level[begin : max(until, begin + 1)]))
    return found


def _largest(units: Units, operator: str | None, position: int | None, tensor: str, x: Mapping[int, int]) -> int:
    """Bytes of the largest block of a device, as an operator writes or reads a tensor, or of its copy."""
    held = units.entries.layout_at(operator, position, tensor, x[units.entries.vertex(operator, tensor)])
    return held.largest * units.graph.tensor(tensor).element_bytes

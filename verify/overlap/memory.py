"""What an overlapped plan holds and when, from the graph and the choices; rows that no order of its
tasks escapes.

A block is held from the start of the task that makes it to the end of the last that needs it; it is as large as the
largest box of any device, by index sets.

While operator k runs, a tensor is somewhere if something that k waits for writes it and something that waits for k
reads all of it: in the block of its writer until its copy is being filled, in the copy until it is on its way to the
reader, and then in the reader's operand.  Boxes of either kind cover it, so one of d devices has a d-th of it at least.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...models.problem.selection_problem import Usage
from ...models.program.graph import Role
from ..plan.structure import Kept, Received, copied_tensors, replaces, uses
from ..plan.used_entries import Entries

MOST_OPERATORS = 1 << 13
"""Operators up to which a table of who waits for whom is made."""

Block = tuple[int, int, tuple[int, ...]]
"""(bytes, task that makes it or -1, tasks that need it, none: it stays)."""


def blocks(entries: Entries, x: tuple[int, ...], moving: Sequence[int | None]) -> list[Block]:
    """Every block of a plan, in ascending order.  `moving[k]`: the task of movement k, None if it takes no time."""
    graph = entries.graph
    at = {op.name: k for k, op in enumerate(graph.operators)}
    own, used, parameters = set(copied_tensors(graph)), uses(graph), replaces(graph)
    writer = {op.output.tensor: op.name for op in graph.operators}
    filled: dict[str, int] = {}
    needed: dict[str, set[int]] = {t.name: set() for t in graph.tensors}
    found: list[Block] = []

    def largest(operator: str | None, position: int | None, tensor: str) -> int:
        held = entries.layout_at(operator, position, tensor, x[entries.vertex(operator, tensor)])
        return held.largest * graph.tensor(tensor).element_bytes

    for move, task in zip(entries.moves, moving, strict=True):
        if move.reader is None:
            filled[move.tensor] = at[writer[move.tensor]] if task is None else task
        else:
            begins = at[move.reader] if task is None else task
            needed[move.tensor].add(begins)
            found.append((largest(move.reader, move.position, move.tensor), begins, (at[move.reader],)))
    for t in graph.tensors:
        name = t.name
        forever = t.role is Role.PARAMETER or name in graph.outputs
        if name in own:
            begins = filled[name] if name in writer else -1
            ends = () if forever else tuple(sorted(needed[name]))  # a copy that does not stay has readers
            found.append((largest(None, None, name), begins, ends))
        if name in writer:
            if name in own or name in parameters:
                last = {filled[name]}
            else:
                last = needed[name] or {at[writer[name]]}
            found.append((largest(writer[name], None, name), at[writer[name]], tuple(sorted(last))))
        elif name not in own and used[name]:
            reader, position = used[name][0]
            found.append((largest(reader, position, name), -1, () if forever else (at[reader],)))
    return sorted(found)


def inescapable(entries: Entries) -> tuple[Usage, ...]:
    """Rows of the rebuilt problem that hold whatever the order: every parameter at all steps; at the step of an
    operator whose every choice takes time, what it writes, as it writes it, and its operands.
    """
    problem, out = entries.problem, []
    for row, usage in zip(entries.rows, problem.usages, strict=True):
        slow = int(problem.vertices[usage.vertex].cost.min()) > 0
        match row:
            case Received():
                if slow:
                    out.append(usage)
            case Kept(tensor=name, writer=None):
                if entries.graph.tensor(name).role is Role.PARAMETER:
                    out.append(usage)
            case Kept():
                if slow:
                    out.append(Usage(usage.vertex, usage.start, usage.start + 1, usage.amount, usage.name))
    return tuple(out)


def unavoidable(entries: Entries) -> tuple[Usage, ...]:
    """Per operator whose every choice takes time, what is kept past it whatever is chosen, as a row of its own; none
    for graphs of more than `MOST_OPERATORS`.
    """
    graph, problem, planning = entries.graph, entries.problem, entries.planning
    count = len(graph.operators)
    if count > MOST_OPERATORS:
        return ()
    made = {op.output.tensor: k for k, op in enumerate(graph.operators)}
    waits = [0] * count  # bit w of waits[k]: k waits for w
    for k, op in enumerate(graph.operators):
        for a in op.inputs:
            if a.tensor in made:
                waits[k] |= waits[made[a.tensor]] | 1 << made[a.tensor]
    waited = [0] * count  # bit k of waited[w]: k waits for w
    for k in range(count - 1, -1, -1):
        for tensor in {a.tensor for a in graph.operators[k].inputs} & set(made):
            waited[made[tensor]] |= waited[k] | 1 << k
    used, replaced = uses(graph), set(replaces(graph))
    at = {op.name: k for k, op in enumerate(graph.operators)}
    total = np.zeros(count, dtype=np.int64)
    for t in graph.tensors:
        if t.name not in made or t.name in replaced:
            continue
        until = 0
        for reader, position in used[t.name]:
            op = graph.operators[at[reader]]
            extents = {a.name: a.extent for a in op.axes}
            along = [index.single for index in op.inputs[position].index]
            if len(set(along)) == len(along) and [extents.get(n or "", -1) for n in along] == list(t.shape):
                until |= waits[at[reader]]
        held = (waited[made[t.name]] & until).to_bytes(count // 8 + 1, "little")
        bits = np.unpackbits(np.frombuffer(held, dtype=np.uint8), bitorder="little")[:count]
        total += bits.astype(np.int64) * (-(-t.elements // planning.machine.devices) * t.element_bytes)
    out = []
    for k, op in enumerate(graph.operators):
        v = planning.operators[op.name]
        if total[k] and int(problem.vertices[v].cost.min()) > 0:
            amount = np.full(problem.domain_size(v), total[k], dtype=np.int64)
            out.append(Usage(v, k, k + 1, amount, f"kept past {op.name}"))
    return tuple(out)

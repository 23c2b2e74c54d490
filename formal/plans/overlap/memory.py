"""Computes memory of an overlapped plan: what is held from the start of one task to the end of others, and
rows for its bound.

    copy of a value       from what fills it to the last that reads it (to the end if it is wanted)
    copy of a parameter   always; an input's from the beginning to the last that reads it
    value as written      from its writer to what moves it on, or to its reader where nothing moves
    operand               in a buffer of its own from the start of its resharding, or of the operator where that
                          takes no time, to the end of the operator

Whatever the order, while an operator runs its operands, its output as written and all parameters are there: rows that
every schedule within the limit obeys, which its lower bound may use.

Where nothing fits, one row more per operator k says it: a tensor that something before k writes and something behind k
reads whole is somewhere while k runs, as it was written, as its copy, or as the reader's operand; all devices together
hold every element, so the fullest of d holds a d-th of them at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from ....models.cost.selection import DecisionKind, Planning
from ....models.problem.selection_problem import Ints, Usage
from ....models.program.graph import Role
from ....models.program.operators import Operator
from ....models.schedules.problem import Holding, Precedence, Task

MOST_OPERATORS = 1 << 13
"""Operators up to which chains and what is kept past operators are looked for."""


def holdings(planning: Planning, x: tuple[int, ...], moving: list[int | None]) -> tuple[Holding, ...]:
    """Of a solution of a problem with memory rows.  `moving[e]`: the task of edge e, None if it takes no time."""
    graph = planning.graph
    number = {op.name: k for k, op in enumerate(graph.operators)}
    writer, readers = graph.writer(), graph.readers()
    parameter_of = {value: name for name, value in graph.state}
    fills: dict[str, int] = {}
    ends: dict[str, list[int]] = {}  # tensor -> ends of what reads it where it lies
    out = []
    for e, route in enumerate(planning.routes):
        target = planning.decisions[route.target]
        if target.kind is DecisionKind.COPY:
            task = moving[e]
            fills[route.tensor] = writer[route.tensor] if task is None else task
            continue
        reader = number[target.name]
        first = reader if moving[e] is None else moving[e]
        home = parameter_of.get(route.tensor, route.tensor)
        assert first is not None
        ends.setdefault(home, []).append(first)
        layouts = route.layouts[1]
        size = int(layouts.volumes()[layouts.of_choice[x[route.target]]]) * graph.tensor(route.tensor).element_bytes
        out.append(Holding(0, size, first, (reader,)))
    rows = iter(planning.problem.usages)
    for t in graph.tensors:
        stays = t.role is Role.PARAMETER or t.name in graph.outputs
        own = writer.get(t.name)
        reads = sorted(set(ends.get(t.name, ())))
        if t.name in planning.copies:
            first = None if own is None else fills[t.name]
            last = () if stays else tuple(reads) or (fills[t.name],)
            out.append(Holding(0, _amount(rows, x), first, last))
        if own is not None:
            moved = t.name in planning.copies or t.name in parameter_of
            last = (fills[t.name],) if moved else tuple(reads) or (own,)
            out.append(Holding(0, _amount(rows, x), own, last))
        elif t.name not in planning.copies and readers[t.name]:
            out.append(Holding(0, _amount(rows, x), None, () if stays else (readers[t.name][0][0],)))
    return tuple(sorted(out, key=lambda h: (-1 if h.first is None else h.first, h.last, h.amount)))


def _amount(rows: Iterator[Usage], x: tuple[int, ...]) -> int:
    row = next(rows)
    return int(row.amount[x[row.vertex]])


def rows_of_every_order(planning: Planning) -> tuple[Usage, ...]:
    """Usages that no order escapes: parameters always, of every operator that takes time what it writes and reads."""
    graph, problem = planning.graph, planning.problem
    rows, out = iter(problem.usages), []
    writer, readers = graph.writer(), graph.readers()
    timed = {k for k, v in enumerate(problem.vertices) if int(v.cost.min()) > 0}
    for t in graph.tensors:
        found = []
        if t.name in planning.copies:
            found.append(next(rows))
        if t.name in writer:
            row = next(rows)
            if row.vertex in timed:
                out.append(replace(row, end=row.start + 1))
        elif t.name not in planning.copies and readers[t.name]:
            found.append(next(rows))
        if t.role is Role.PARAMETER:
            out += found
    return (*out, *(row for row in rows if row.vertex in timed))


def kept_past(planning: Planning) -> tuple[Usage, ...]:
    """Per operator that takes time, what it cannot but leave in memory for those behind it; see the module docstring.
    Nothing is said of graphs of more than `MOST_OPERATORS`.
    """
    graph, devices = planning.graph, planning.machine.devices
    n = len(graph.operators)
    if n > MOST_OPERATORS:
        return ()
    writer, readers, following = graph.writer(), graph.readers(), {value for _, value in graph.state}
    before = np.zeros((n, n), dtype=bool)  # before[k, w]: k waits for w
    for k, op in enumerate(graph.operators):
        for a in op.inputs:
            if (w := writer.get(a.tensor)) is not None:
                before[k] |= before[w]
                before[k, w] = True
    kept = np.zeros(n, dtype=np.int64)
    for t in graph.tensors:
        if t.name not in writer or t.name in following:
            continue
        whole = sorted({i for i, j in readers[t.name] if _whole(graph.operators[i], j, t.shape)})
        if whole:
            kept[before[:, writer[t.name]] & before[whole].any(axis=0)] += -(-t.elements // devices) * t.element_bytes
    out = []
    for k, op in enumerate(graph.operators):
        v = planning.operators[op.name]
        if kept[k] and int(planning.problem.vertices[v].cost.min()) > 0:
            amount = np.full(planning.problem.domain_size(v), kept[k], dtype=np.int64)
            out.append(Usage(v, k, k + 1, amount, f"kept past {op.name}"))
    return tuple(out)


def _whole(op: Operator, position: int, shape: tuple[int, ...]) -> bool:
    """Whether an operator reads every element of an input, one axis along every dimension."""
    names = [index.single for index in op.inputs[position].index]
    if len(set(names)) < len(names):
        return False
    return all(name is not None and op.axis(name).extent == size for name, size in zip(names, shape, strict=True))


def program_order(tasks: tuple[Task, ...], precedences: tuple[Precedence, ...], operators: int) -> Ints:
    """Tasks one after another in the graph's order, a resharding as late as it may: just before the operator that
    waits for it, or behind its writer.
    """
    n = len(tasks)
    behind: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for p in precedences:
        behind[p.before].append(p.after)
        missing[p.after] += 1
    rank: list[int] = [2 * k + 1 for k in range(operators)] + [2 * operators] * (n - operators)
    for p in reversed(precedences):  # into a copy: at once; else: with the operator that reads
        if p.before >= operators > p.after:
            rank[p.before] = min(rank[p.before], 2 * p.after)
    for p in precedences:
        if p.after >= operators > p.before and tasks[p.after].name.endswith(" to its copy"):
            rank[p.after] = 2 * p.before + 2
    heap = [(rank[k], k) for k in range(n) if not missing[k]]
    heapify(heap)
    order = []
    while heap:
        _, k = heappop(heap)
        order.append(k)
        for b in behind[k]:
            missing[b] -= 1
            if not missing[b]:
                heappush(heap, (rank[b], b))
    return np.array(order, dtype=np.int64)

"""The tasks of a plan: operators on one stream, reshardings on another, copies to hosts and back on a third, and what
waits for what.

    operator          after the reshardings of its operands (those that take no time: after what writes them)
    resharding    after the operator that writes the tensor, or what filled its copy
    next value        its writer runs after every other operator that reads the parameter, whose storage it takes

Tasks are the operators in the graph's order, then the reshardings that take time, in their order.  With a memory
limit the problem says what is held (`memory`).
"""

from __future__ import annotations

from itertools import pairwise

from ....models.cost.selection import DecisionKind, Planning
from ....models.program.graph import Graph
from ....models.program.operators import HOST_COPIES
from ....models.schedules.problem import Precedence, ScheduleProblem, Stream, Task
from .memory import holdings

COMPUTE, LINKS, HOST = 0, 1, 2
STREAMS = (Stream(0, "compute"), Stream(0, "links"), Stream(0, "host"))
"""The last one only of programs that copy to hosts."""
LARGEST = 1 << 38
"""All times together stay below this."""


def times_of(planning: Planning, x: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Units of the problem per operator of the graph, and per edge."""
    problem = planning.problem
    operators = [
        int(problem.vertices[v].cost[x[v]]) for v in (planning.operators[o.name] for o in planning.graph.operators)
    ]
    edges = []
    for e in problem.edges:
        row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
        edges.append(int(problem.tables[e.table][row, column]))
    return operators, edges


def quantum_of(operators: list[int], edges: list[int]) -> int:
    """Units of the problem per unit of the schedule."""
    return -(-(sum(operators) + sum(edges) + 1) // LARGEST)


def copies_of(graph: Graph) -> frozenset[str]:
    """Operators on the stream of copies to hosts."""
    return frozenset(op.name for op in graph.operators if op.function in HOST_COPIES)


def tasks_of(planning: Planning, x: tuple[int, ...], quantum: int) -> ScheduleProblem:
    """The scheduling problem of a solution."""
    graph = planning.graph
    operators, edges = times_of(planning, x)
    number = {op.name: k for k, op in enumerate(graph.operators)}
    tasks = [
        Task(op.name, -(-t // quantum), (HOST if op.function in HOST_COPIES else COMPUTE,))
        for op, t in zip(graph.operators, operators, strict=True)
    ]
    streams = STREAMS if any(t.streams == (HOST,) for t in tasks) else STREAMS[:HOST]
    arcs: set[tuple[int, int]] = set()
    filled: dict[str, int] = {}
    pending: list[tuple[int | None, str, int | None, int | None]] = []
    moving: list[int | None] = []
    for k, route in enumerate(planning.routes):
        ends = [planning.decisions[v] for v in (route.source, route.target)]
        writer, reader = (number[d.name] if d.kind is DecisionKind.OPERATOR else None for d in ends)
        task = None
        if edges[k]:
            task = len(tasks)
            goal = "its copy" if reader is None else ends[1].name
            tasks.append(Task(f"{route.tensor} to {goal}", -(-edges[k] // quantum), (LINKS,)))
        moving.append(task)
        if reader is None and writer is not None:
            filled[route.tensor] = writer if task is None else task
        pending.append((writer, route.tensor, task, reader))
    for writer, tensor, task, reader in pending:
        before = writer if writer is not None else filled.get(tensor)  # None: it is there from the beginning
        chain = [k for k in (before, task, reader) if k is not None]
        arcs |= set(pairwise(chain))
    readers = graph.readers()
    for parameter, value in graph.state:
        w = graph.writer()[value]
        arcs |= {(i, w) for i, _ in readers[parameter] if i != w}
    precedences = tuple(Precedence(a, b) for a, b in sorted(arcs))
    limit = planning.problem.limit
    held = () if limit is None else holdings(planning, x, moving)
    return ScheduleProblem(graph.name, streams, tuple(tasks), precedences, held, (limit,), "quantum", 1).check()

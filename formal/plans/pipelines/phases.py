"""Finds orders for phases of stages whose reshardings run beside operators: two streams, as in
overlapped plans, inside the forward and backward pass of a micro-batch and inside the updates.

    task            operators of the phase in the graph's order, then its reshardings in the problem's
    order           the tasks as a list schedule begins them; an empty one: one after another, in the sum of all
    memory          with a limit operators keep the graph's order, and reshardings run ahead of those that read by
                    so many operators as fit: any number, 4, 1, or none ahead (one after another)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from ....models.cost.selection import DecisionKind
from ....models.pipelines.pieces import Pieces, Seconds
from ....models.program.graph import Role
from ....models.schedules.problem import Precedence, ScheduleProblem, Stream, Task
from ...schedules.overlap import overlap
from ...selection.model.clock import Clock

AHEAD = (None, 4, 1)
"""By how many operators reshardings may run ahead, where memory is limited."""

LARGEST = 1 << 38
"""All times together stay below this while orders are looked for."""

STREAMS = (Stream(0, "compute"), Stream(0, "links"))

Order = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StagePlan:
    """A stage: units first .. end-1, choices (vertex of the planning problem -> choice), its times; where
    reshardings run beside operators, the orders of its phases (`phases`), and with a memory limit per operator the
    bytes that they add.
    """

    first: int
    end: int
    choices: dict[int, int]
    seconds: Seconds
    orders: tuple[Order, Order, Order] = ((), (), ())
    extras: tuple[int, ...] = ()


@dataclass(frozen=True)
class Network:
    """A phase of a stage under some choices: positions of operators in the graph, numbers of edges, the time of every
    task, what waits for what (before, after).
    """

    operators: tuple[int, ...]
    edges: tuple[int, ...]
    times: tuple[int, ...]
    arcs: tuple[tuple[int, int], ...]

    def spans(self, order: Order) -> list[tuple[int, int]]:
        """(start, end) of every task that begins in this order, as early as it can then."""
        waits: list[list[int]] = [[] for _ in self.times]
        for a, b in self.arcs:
            waits[b].append(a)
        found, free, now = [(0, 0)] * len(self.times), [0, 0], 0
        for t in order:
            now = max([now, *(found[a][1] for a in waits[t])])
            stream = int(t >= len(self.operators))
            if stream == 0 or self.times[t]:
                now = max(now, free[stream])
                free[stream] = now + self.times[t]
            found[t] = now, now + self.times[t]
        return found

    def takes(self, order: Order) -> int:
        """From the first start to the last end."""
        return max(end for _, end in self.spans(order)) if order else sum(self.times)


def networks(pieces: Pieces, first: int, end: int, x: Mapping[int, int]) -> tuple[Network, Network, Network]:
    """Forward, backward and updates of a stage."""
    planning, graph = pieces.planning, pieces.graph
    problem, found = planning.problem, []
    everything, inside = pieces.stage_operators(first, end), pieces.stage_edges(first, end)
    for phase in "FBU":
        operators = tuple(i for i in everything if pieces.division.phase[i] == phase)
        edges = tuple(k for k in inside if ("U" if pieces.once[k] else pieces.edge_phase[k]) == phase)
        at = {graph.operators[i].name: t for t, i in enumerate(operators)}
        times = [int(problem.vertices[v].cost[x[v]]) for v in (planning.operators[name] for name in at)]
        ends = []
        for k in edges:
            e, route = problem.edges[k], planning.routes[k]
            row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
            column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
            times.append(int(problem.tables[e.table][row, column]))
            names = (planning.decisions[v] for v in (route.source, route.target))
            ends.append(tuple(d.name if d.kind is DecisionKind.OPERATOR else None for d in names))
        fills = {planning.routes[k].tensor: len(at) + t for t, k in enumerate(edges) if ends[t][1] is None}
        arcs: set[tuple[int, int]] = set()
        for t, (k, (writer, reader)) in enumerate(zip(edges, ends, strict=True), len(at)):
            before = fills.get(planning.routes[k].tensor) if writer is None else at.get(writer)
            after = None if reader is None else at.get(reader)
            arcs |= {(a, t) for a in (before,) if a is not None} | {(t, b) for b in (after,) if b is not None}
        for parameter, value in graph.state:
            last = at.get(graph.operators[pieces.writer[value]].name) if value in pieces.writer else None
            if last is not None:
                readers = (at.get(graph.operators[i].name) for i, _ in pieces.readers[parameter])
                arcs |= {(a, last) for a in readers if a is not None and a != last}
        found.append(Network(operators, edges, tuple(times), tuple(sorted(arcs))))
    return found[0], found[1], found[2]


def find_order(net: Network, clock: Clock, fixed: bool, ahead: int | None) -> Order:
    """The best order that is found, or none if it saves nothing.  `fixed`: operators in the graph's order, and
    reshardings no more than `ahead` operators ahead of what reads them.
    """
    count, total = len(net.operators), sum(net.times)
    moved = [t for t in range(count, len(net.times)) if net.times[t]]
    if not moved or not any(net.times[:count]):
        return ()
    kept = [*range(count), *moved]
    number = {t: k for k, t in enumerate(kept)}
    before: dict[int, list[int]] = {}
    for a, b in net.arcs:
        before.setdefault(b, []).append(a)
    arcs = set[tuple[int, int]]()
    for t in kept:
        for a in before.get(t, []):
            todo = [a]
            while todo:  # through what takes no time
                source = todo.pop()
                if source in number:
                    arcs.add((number[source], number[t]))
                else:
                    todo += before.get(source, [])
    if fixed:
        arcs |= set(pairwise(range(count)))
        if ahead is not None:
            arcs |= {(b - ahead - 1, number[a]) for a, b in net.arcs if a in number and a >= count > b > ahead}
    quantum = -(-total // LARGEST)
    tasks = tuple(Task("", -(-net.times[t] // quantum), (int(t >= count),)) for t in kept)
    precedences = tuple(Precedence(a, b) for a, b in sorted(arcs))
    problem = ScheduleProblem("a phase", STREAMS, tasks, precedences, (), (None,), "quantum", 1).check()
    rank = {t: 2 * t + 1 for t in range(count)}  # the program's order, what moves just before what reads it
    for a, b in net.arcs:
        if a >= count > b:
            rank[a] = min(rank.get(a, 2 * b), 2 * b)
        elif b >= count > a and b not in rank:
            rank[b] = 2 * a + 2
    ranks = [rank.get(t, 0) for t in kept]
    program = np.array(_sorted(len(kept), sorted(arcs), ranks), dtype=np.int64)
    starts = overlap(problem, clock, order=program).found.starts
    found = {t: (int(starts[k]), int(starts[k]) + tasks[k].time) for t, k in number.items()}
    keys = [0] * len(net.times)
    for t in _sorted(len(keys), list(net.arcs), keys):  # what takes no time: when what it waits for has ended
        ends = [found[a][1] for a in before.get(t, [])]
        keys[t] = found.setdefault(t, (max(ends, default=0),) * 2)[0]
    in_line = pairwise(range(count)) if fixed else ()
    order = tuple(_sorted(len(net.times), sorted({*net.arcs, *in_line}), keys))
    return order if net.takes(order) < total else ()


def _sorted(count: int, arcs: list[tuple[int, int]], keys: list[int]) -> list[int]:
    """Tasks by their keys, each behind what it waits for."""
    behind: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for a, b in arcs:
        behind[a].append(b)
        missing[b] += 1
    heap = sorted((keys[t], t) for t in range(count) if not missing[t])
    order = []
    while heap:
        _, t = heappop(heap)
        order.append(t)
        for b in behind[t]:
            missing[b] -= 1
            if not missing[b]:
                heappush(heap, (keys[b], b))
    return order


def in_flight(pieces: Pieces, net: Network, x: Mapping[int, int], order: Order) -> list[int]:
    """Per operator of a phase the most bytes that lie on a device beside what is counted at it: operands on their way
    or waiting, and what is still written to its copy.
    """
    count = len(net.operators)
    if not order:
        return [0] * count
    planning, graph, spans = pieces.planning, pieces.graph, net.spans(order)
    at = {graph.operators[i].name: t for t, i in enumerate(net.operators)}
    blocks: list[tuple[int, int, int]] = []

    def size(edge: int, end: int) -> int:
        route = planning.routes[edge]
        layouts, vertex = route.layouts[end], (route.source, route.target)[end]
        return int(layouts.volumes()[layouts.of_choice[x[vertex]]]) * graph.tensor(route.tensor).element_bytes

    for t, k in enumerate(net.edges, count):
        route, (begin, end) = planning.routes[k], spans[t]
        source, target = planning.decisions[route.source], planning.decisions[route.target]
        if net.times[t] == 0:
            continue
        if target.kind is DecisionKind.COPY:
            blocks.append((size(k, 0), spans[at[source.name]][1] if source.name in at else 0, end))
            continue
        until = spans[at[target.name]][0]
        blocks.append((size(k, 1), begin, until))
        writer = pieces.writer.get(route.tensor)
        made = writer is not None and graph.operators[writer].name in at
        parameter = graph.tensor(route.tensor).role is Role.PARAMETER
        if source.kind is DecisionKind.COPY and not made and not parameter:
            blocks.append((size(k, 0), begin, until))
    moved = np.array(blocks, dtype=np.int64).reshape(-1, 3)
    moments, index = np.unique(np.concatenate([[0], moved[:, 1], moved[:, 2]]), return_inverse=True)
    change = np.zeros(len(moments), dtype=np.int64)
    np.add.at(change, index[1:], np.concatenate([moved[:, 0], -moved[:, 0]]))
    level = np.cumsum(change)
    starts = np.array([0, *(begin for begin, _ in spans[1:count])], dtype=np.int64)
    first = np.searchsorted(moments, starts, "right") - 1
    last = np.maximum(np.append(np.searchsorted(moments, starts[1:], "left"), len(moments)), first + 1)
    return [int(level[a:b].max()) for a, b in zip(first, last, strict=True)]


def waits(pieces: Pieces, first: int, end: int) -> bool:
    """Whether updates of a stage read what another stage sends once a step."""
    unit, operators = pieces.division.unit, pieces.graph.operators
    updates = [i for i in pieces.stage_operators(first, end) if pieces.division.phase[i] == "U"]
    read = (pieces.writer.get(a.tensor) for i in updates for a in operators[i].inputs)
    return any(w is not None and unit[w] >= 0 and not first <= unit[w] < end for w in read)


def stage_with_orders(
    pieces: Pieces, run: tuple[int, int], x: dict[int, int], memory: bool, orders: tuple[Order, Order, Order]
) -> StagePlan:
    """A stage with these orders."""
    nets, extras = networks(pieces, *run, x), list[int]()
    if memory:
        extras = [more for net, order in zip(nets, orders, strict=True) for more in in_flight(pieces, net, x, order)]
    times = (net.takes(order) for net, order in zip(nets, orders, strict=True))
    return StagePlan(*run, x, Seconds(*times), orders, tuple(extras))


Memo = dict[tuple[Network, bool, int | None], Order]
"""Orders that were found."""


def stage_with_times(
    pieces: Pieces,
    run: tuple[int, int],
    x: dict[int, int],
    memory: bool,
    memo: Memo,
    ahead: int | None = None,
    clock: Clock | None = None,
) -> StagePlan:
    """A stage with the best orders of its phases that are found: without a clock, by list schedules alone.  `memory`:
    whether there is a limit; `ahead`: see `find_order`.
    """
    orders = list[Order]()
    for phase, net in zip("FBU", networks(pieces, *run, x), strict=True):
        if phase == "U" and waits(pieces, *run):  # round by round, one after another
            orders.append(())
            continue
        key = net, memory, ahead
        if key not in memo or clock is not None:
            found = find_order(net, clock or Clock(0.0), memory, ahead)
            memo[key] = min(memo.get(key, found), found, key=net.takes)
        orders.append(memo[key])
    return stage_with_orders(pieces, run, x, memory, (orders[0], orders[1], orders[2]))

"""Selection problems of runs of units: what a stage costs at least, and what it costs exactly.

Everything is a part of one problem, that of the whole training step of a micro-batch on one view (`models.cost`):

    leaf      the vertices of units i .. j-1 and the edges between them.  Every solution of a larger problem, restricted
              to them, is a solution that costs no more, because no cost is negative: a lower bound of a leaf is one for
              every stage that contains its units, whatever its boundaries.  Leaves side by side add up.
    pass      a leaf in which forward or backward operators cost nothing, without the edges to them
    weighed   a leaf whose operators and edges count with the weights of `channels`, more on a chain; edges that count
              nothing are left out
    stage     the leaf, what arrives (x_i from the left, g_j from the right, inputs), the constants that it reads, and
              the four tensors of its cuts in given layouts

Costs are counted so often: what runs for every micro-batch `micro` times, what runs once per step `once` times:

    once      updates; what they read and write; the way of a gradient to where its update wants it.  Gradients of
              micro-batches add up where they are written, open sums included, so they are reduced once a step
              (flag `accumulation-in-the-product`: adding takes no time of its own)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..cost.selection import DecisionKind, Planning
from ..problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Usage, Vertex
from ..program.graph import Role
from .channels import Channels
from .division import SHARED, Division
from .memory_rows import MemoryRow, memory_rows, rows_of_operators

MOST_USAGES = 256
"""Lists of memory rows that are kept: a search asks for those of one stage again and again."""

NOBODY = -2
"""The unit of a vertex that belongs to none: copies of inputs."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a planning problem; `vertices[k]`: what vertex k is in the whole problem."""

    problem: SelectionProblem
    vertices: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """What a leaf counts on its chains: vertices and edges of the whole problem."""

    vertices: frozenset[int]
    edges: frozenset[int]


NO_CHAIN = Chain(frozenset(), frozenset())


@dataclass(frozen=True)
class Seconds:
    """What a stage takes, in units of the problem: forward and backward of one micro-batch, updates of a step."""

    forward: int
    backward: int
    update: int


class Pieces:
    """The parts of one planning problem.  `planning.graph` is that of the micro-batch, divided as `division` says;
    `joined`: nodes are its devices; `loose`: edges that are left out then.
    """

    channels: Channels | None = None
    """Weights of what a leaf counts; None: all of it."""

    def __init__(
        self, planning: Planning, division: Division, loose: frozenset[int] = frozenset(), joined: bool = False
    ) -> None:
        self.planning, self.division, self.graph, self.joined = planning, division, planning.graph, joined
        self.readers, self.writer = self.graph.readers(), self.graph.writer()
        self.position = {op.name: i for i, op in enumerate(self.graph.operators)}
        owned = [self._owner(v) for v in range(len(planning.decisions))]
        self.unit, self.phase = [u for u, _ in owned], [p for _, p in owned]
        self.once = [self._edge_once(e) for e in range(len(planning.routes))]
        self.edge_phase = [self._edge_phase(e) for e in range(len(planning.routes))]
        self._of_unit: dict[int, list[int]] = {}
        for v, u in enumerate(self.unit):
            self._of_unit.setdefault(u, []).append(v)
        self._from: dict[int, list[int]] = {}
        for k, e in enumerate(planning.problem.edges):
            if k not in loose:
                self._from.setdefault(e.u, []).append(k)
        self._scaled: dict[tuple[int, int], Ints] = {}
        self._kept: list[Ints] = []
        self._usages: dict[tuple[int, int, int, bool], list[Usage]] = {}
        self._inside: dict[tuple[int, int], list[int]] = {}
        self._steps: dict[tuple[int, int], list[int]] = {}
        self._within: dict[tuple[int, int], list[int]] = {}

    def _owner(self, vertex: int) -> tuple[int, str]:
        d, unit, phase = self.planning.decisions[vertex], self.division.unit, self.division.phase
        if d.kind is DecisionKind.OPERATOR:
            i = self.position[d.name]
            return unit[i], phase[i]
        if d.name in self.writer:
            i = self.writer[d.name]
            return unit[i], phase[i]
        if self.graph.tensor(d.name).role is Role.INPUT:
            return NOBODY, "F"
        uses = [i for i, _ in self.readers[d.name]]
        following = [self.writer[v] for p, v in self.graph.state if p == d.name]
        places = [*uses, *following]
        return unit[places[0]], "U" if all(phase[i] == "U" for i in places) else "F"

    def gradient_of_update(self, tensor: str) -> bool:
        """Whether a tensor of the backward pass is read by updates alone."""
        phase, uses = self.division.phase, self.readers[tensor]
        return (
            tensor in self.writer
            and phase[self.writer[tensor]] == "B"
            and bool(uses)
            and all(phase[i] == "U" for i, _ in uses)
        )

    def ends(self, edge: int) -> tuple[int | None, int | None]:
        """Operators that write and read on an edge; None for a copy."""
        r, d = self.planning.routes[edge], self.planning.decisions
        ends = (d[v].name if d[v].kind is DecisionKind.OPERATOR else None for v in (r.source, r.target))
        a, b = (None if name is None else self.position[name] for name in ends)
        return a, b

    def _edge_once(self, edge: int) -> bool:
        a, b = self.ends(edge)
        phase = self.division.phase
        if any(i is not None and phase[i] == "U" for i in (a, b)):
            return True
        return self.gradient_of_update(self.planning.routes[edge].tensor)

    def _edge_phase(self, edge: int) -> str:
        a, b = self.ends(edge)
        i = b if b is not None else a
        assert i is not None  # no edge joins two copies
        return self.division.phase[i]

    def leaf_vertices(self, first: int, end: int, once: bool) -> list[int]:
        """Vertices of units first .. end-1; without `once` those of updates stay away."""
        inside = sorted(v for u in range(first, end) for v in self._of_unit.get(u, ()))
        return [v for v in inside if once or self.phase[v] != "U"]

    def _edges(self, vertices: Collection[int]) -> list[int]:
        """Edges between these vertices, in the order of the problem."""
        edges = self.planning.problem.edges
        return sorted(k for v in vertices for k in self._from.get(v, ()) if edges[k].v in vertices)

    def pass_key(self, first: int, end: int) -> tuple[object, ...]:
        """Equal for runs of units whose passes have equal problems."""
        vertices = self.leaf_vertices(first, end, False)
        return (
            self.key(first, end, False),
            tuple(self.phase[v] for v in vertices),
            tuple(self.edge_phase[k] for k in self._edges(set(vertices)) if not self.once[k]),
        )

    def key(self, first: int, end: int, once: bool) -> tuple[object, ...]:
        """Equal for leaves whose problems are equal; valid while the planning problem exists."""
        vertices = self.leaf_vertices(first, end, once)
        local = {v: k for k, v in enumerate(vertices)}
        problem = self.planning.problem
        edges = tuple(
            (local[e.u], local[e.v], e.table, id(e.rows), id(e.cols), self.once[k])
            for k, e in ((k, problem.edges[k]) for k in self._edges(local))
            if once or not self.once[k]
        )
        return tuple((id(problem.vertices[v].cost), self.phase[v] == "U") for v in vertices), edges

    def weighing(self, channels: Channels | None) -> Pieces:
        """The same parts with these weights; tables are shared."""
        other = copy(self)
        other.channels = channels
        return other

    def weighed_key(self, first: int, end: int, once: bool) -> tuple[object, ...]:
        """Equal for runs of units whose weighed problems are equal, and whose chains lie alike."""
        vertices = self.leaf_vertices(first, end, once)
        local = {v: k for k, v in enumerate(vertices)}
        edges = self._edges(local)
        cuts, operators = self.division.cuts, self.planning.operators
        ends: list[tuple[int, ...]] = []
        for c in (first, end):
            for name in cuts[c - 1] if 0 < c <= len(cuts) else ():
                near = [self.writer[name], *(i for i, _ in self.readers[name])]
                places = (operators[self.graph.operators[i].name] for i in near)
                ends.append(tuple(sorted(local[v] for v in places if v in local)))
        return (
            *self.key(first, end, once),
            tuple(self.phase[v] for v in vertices),
            tuple(self.edge_phase[k] for k in edges),
            first > 0,
            tuple(ends),
        )

    @cached_property
    def joins(self) -> bool:
        """Whether chains of units side by side are one chain: what crosses a cut depends on what crosses the one
        before it, and gradients likewise.
        """
        division, cuts = self.division, self.division.cuts
        reached = {("F", u): {cuts[u - 1][0]} for u in range(1, len(cuts))}
        reached |= {("B", u): {cuts[u][1]} for u in range(1, len(cuts))}
        for op, u, phase in zip(self.graph.operators, division.unit, division.phase, strict=True):
            near = reached.get((phase, u), set())
            if any(a.tensor in near for a in op.inputs):
                near.add(op.output.tensor)
        inner = range(1, len(cuts))
        return all(cuts[u][0] in reached["F", u] and cuts[u - 1][1] in reached["B", u] for u in inner)

    def edges_between(self, vertices: Collection[int]) -> list[int]:
        """Numbers of the edges between these vertices."""
        return self._edges(vertices)

    def leaf(self, first: int, end: int, micro: int, once: int, chain: Chain = NO_CHAIN) -> Part:
        """Units first .. end-1 alone.  Raises `ProblemError` if costs get too large."""
        return self._part(self.leaf_vertices(first, end, once > 0), micro, once, {}, chain=chain)

    def one_pass(self, first: int, end: int, phase: str, chain: Chain = NO_CHAIN) -> Part:
        """Units first .. end-1 alone, where only the forward ("F") or backward ("B") pass of a micro-batch costs."""
        return self._part(self.leaf_vertices(first, end, False), 1, 0, {}, phase, chain)

    def weight(self, phase: str, moves: bool, chained: bool) -> int:
        """How often an operator, or an edge (`moves`), of F, B or U counts, on a chain or not."""
        if self.channels is None:
            return 1
        operators, edges, chain = self.channels.of(phase)
        return (edges if moves else operators) + (chain if chained else 0)

    def _part(
        self,
        vertices: list[int],
        micro: int,
        once: int,
        fixed: Mapping[int, int],
        phase: str = "",
        chain: Chain | None = NO_CHAIN,
    ) -> Part:
        """`chain` None: everything may be on one, and counts for the search."""
        whole = self.planning.problem
        local = {v: k for k, v in enumerate(vertices)}
        tables: list[Ints] = []
        number: dict[tuple[int, int], int] = {}
        edges = []
        for k in self._edges(local):
            e, times = whole.edges[k], once if self.once[k] else micro
            mine = "U" if self.once[k] else self.edge_phase[k]
            times *= self.weight(mine, True, chain is None or k in chain.edges) or int(chain is None)
            if times and phase in ("", self.edge_phase[k]):
                at = (e.table, times)
                if at not in number:
                    number[at] = len(tables)
                    tables.append(self._times(whole.tables[e.table], times))
                edges.append(Edge(local[e.u], local[e.v], number[at], e.rows, e.cols))
        costs = [
            self._times(
                whole.vertices[v].cost,
                (once if self.phase[v] == "U" else micro)
                * self.weight(self.phase[v], False, chain is None or v in chain.vertices),
            )
            for v in vertices
        ]
        for k, v in enumerate(vertices):
            if phase and self.phase[v] != phase:
                costs[k] = np.where(costs[k] >= FORBIDDEN, FORBIDDEN, 0)
        for v, choice in fixed.items():
            cost = np.full_like(costs[local[v]], FORBIDDEN)
            cost[choice] = costs[local[v]][choice]
            costs[local[v]] = cost
        problem = SelectionProblem(
            "units of a pipeline",
            tuple(Vertex(str(k), cost) for k, cost in enumerate(costs)),
            tuple(tables),
            tuple(edges),
            scale=whole.scale,
            unit_name=whole.unit_name,
            space=whole.space,
        )
        return Part(problem.check(), tuple(vertices))

    def _times(self, values: Ints, times: int) -> Ints:
        key = (id(values), times)
        if key not in self._scaled:
            self._kept.append(values)
            self._scaled[key] = values if times == 1 else np.where(values >= FORBIDDEN, FORBIDDEN, values * times)
        return self._scaled[key]

    def stage_vertices(self, first: int, end: int) -> list[int]:
        """Vertices of a stage: of its units, of what arrives, of inputs and constants that it reads; listed once."""
        if (first, end) not in self._inside:
            self._inside[first, end] = self._stage_vertices(first, end)
        return self._inside[first, end]

    def _stage_vertices(self, first: int, end: int) -> list[int]:
        ops = self.stage_operators(first, end)
        mine = {self.graph.operators[i].name for i in ops}
        read = {a.tensor for i in ops for a in self.graph.operators[i].inputs}
        written = {self.graph.operators[i].output.tensor for i in ops}
        following = {value: name for name, value in self.graph.state}
        places = read | written | {following[t] for t in read | written if t in following}
        return [
            v
            for v, d in enumerate(self.planning.decisions)
            if (d.name in mine if d.kind is DecisionKind.OPERATOR else d.name in places)
        ]

    def stage_operators(self, first: int, end: int) -> list[int]:
        """Operators of a stage in the order in which it runs them: forward, backward, updates; listed once."""
        if (first, end) not in self._steps:
            self._steps[first, end] = self._stage_operators(first, end)
        return self._steps[first, end]

    def _stage_operators(self, first: int, end: int) -> list[int]:
        unit, phase = self.division.unit, self.division.phase
        mine = {i for i, u in enumerate(unit) if first <= u < end}
        todo = list(mine)
        while todo:
            for a in self.graph.operators[todo.pop()].inputs:
                w = self.writer.get(a.tensor)
                if w is not None and unit[w] == SHARED and w not in mine:
                    mine.add(w)
                    todo.append(w)
        return sorted(mine, key=lambda i: ("FBU".index(phase[i]), i))

    def crossing(self, first: int, end: int) -> tuple[str, ...]:
        """The tensors of the cuts at both ends of a stage."""
        cuts = self.division.cuts
        left = cuts[first - 1] if first else ()
        right = cuts[end - 1] if end <= len(cuts) else ()
        return (*left, *right)

    def stage(
        self,
        first: int,
        end: int,
        micro: int,
        once: int,
        layouts: Mapping[str, int],
        chain: Chain | None = None,
        settled: Mapping[int, int] | None = None,
    ) -> Part:
        """A stage, with the copies of what crosses its cuts in the layouts `layouts` (tensor -> choice), and other
        vertices as they are `settled`, where it has them.  `chain`: with weights of channels, what counts more; None:
        all of it.
        """
        vertices = self.stage_vertices(first, end)
        fixed = {v: choice for v, choice in (settled or {}).items() if v in set(vertices)}
        fixed |= {self.planning.copies[t]: layouts[t] for t in self.crossing(first, end)}
        return self._part(vertices, micro, once, fixed, chain=chain)

    def stage_edges(self, first: int, end: int) -> list[int]:
        """Edges inside a stage, in the order of the problem; listed once."""
        if (first, end) not in self._within:
            self._within[first, end] = self._edges(set(self.stage_vertices(first, end)))
        return self._within[first, end]

    def seconds(self, first: int, end: int, x: Mapping[int, int]) -> Seconds:
        """What a stage takes under choices x (vertex of the whole problem -> choice)."""
        whole, total = self.planning.problem, {"F": 0, "B": 0, "U": 0}
        for v in self.stage_vertices(first, end):
            total[self.phase[v]] += int(whole.vertices[v].cost[x[v]])
        for k in self.stage_edges(first, end):
            total["U" if self.once[k] else self.edge_phase[k]] += self.moving(k, x, x)
        return Seconds(total["F"], total["B"], total["U"])

    def moving(self, edge: int, x: Mapping[int, int], there: Mapping[int, int]) -> int:
        """What an edge costs from choices x to choices `there`."""
        e = self.planning.problem.edges[edge]
        r = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        c = there[e.v] if e.cols is None else int(e.cols[there[e.v]])
        return int(self.planning.problem.tables[e.table][r, c])

    def usages(self, first: int, end: int, kept: int, accumulated: bool) -> list[Usage]:
        """Memory rows of a stage that keeps activations of `kept` micro-batches at once, over vertices of the whole
        problem; steps are the operators of `stage_operators`.

        `accumulated`: gradients of several micro-batches add up where they are written, from the first step to the
        last.  What the backward pass reads of the forward pass is there `kept` times.
        """
        key = first, end, kept, accumulated
        if key not in self._usages:
            if len(self._usages) >= MOST_USAGES:
                self._usages.clear()
            self._usages[key] = self._stage_usages(*key)
        return self._usages[key]

    def _stage_usages(self, first: int, end: int, kept: int, accumulated: bool) -> list[Usage]:
        ops = self.stage_operators(first, end)
        step, last = {i: t for t, i in enumerate(ops)}, len(ops)
        updates = sum(self.division.phase[i] == "U" for i in ops)
        out: list[Usage] = []
        for k in sorted({k for i in ops for k in self._rows_of[i]}):
            row, u = self._memory_rows[k], self.planning.problem.usages[k]
            if isinstance(row, int):  # operands of an operator
                out.append(Usage(u.vertex, step[row], step[row] + 1, u.amount))
                continue
            tensor, as_written = row
            t = self.graph.tensor(tensor)
            uses = [step[i] for i, _ in self.readers[tensor] if i in step]
            w = self.writer.get(tensor)
            if t.role is Role.PARAMETER:
                out.append(Usage(u.vertex, 0, last, u.amount))
                continue
            if as_written and (w is None or w not in step):
                continue  # it lies on another stage
            begin = step[w] if w is not None and w in step else min(uses)
            stop = max([begin, *uses]) + 1
            if as_written and (tensor in self.planning.copies or tensor in self._next):
                stop = begin + 1
            if as_written and accumulated and self.gradient_of_update(tensor):
                begin, stop = 0, max(stop, last - updates)
            out.append(Usage(u.vertex, begin, stop, u.amount))
            born = "F" if w is None else self.division.phase[w]
            held = any(self.division.phase[i] == "B" for i, _ in self.readers[tensor] if i in step)
            if kept > 1 and born == "F" and held and not (as_written and stop == begin + 1):
                out.append(Usage(u.vertex, 0, last - updates, u.amount * (kept - 1)))
        return out

    @cached_property
    def _next(self) -> frozenset[str]:
        return frozenset(value for _, value in self.graph.state)

    @cached_property
    def _memory_rows(self) -> list[MemoryRow]:
        return memory_rows(self.graph, self.planning.copies)

    @cached_property
    def _rows_of(self) -> list[list[int]]:
        return rows_of_operators(self.graph, self._memory_rows)

    def with_memory_rows(self, part: Part, rows: list[Usage], limit: int) -> Part:
        """A part with memory rows."""
        local = {v: k for k, v in enumerate(part.vertices)}
        usages = tuple(replace(u, vertex=local[u.vertex]) for u in rows)
        return replace(part, problem=replace(part.problem, usages=usages, limit=limit).check())

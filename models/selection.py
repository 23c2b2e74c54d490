"""From a graph and a machine to a selection problem.

    vertex  for every operator: its placements over the space, cost t_v                              -> operator_vertex()
    vertex  for every tensor with several readers, and for every graph output: its closed layouts,
            cost 0 (flag `one-copy-per-tensor`)                                                       -> copy_vertex()
    edge    writer -> copy, copy -> every reader, or writer -> its only reader: the time of the
            redistribution between the two layouts                                                    -> route()

An input or parameter with one reader starts in the layout that the reader wants and needs neither vertex nor edge.
Everything is built once per *structure*: operators that agree up to names share placements and cost arrays, edges that
agree in both layout sets and the element size share one table, so that repeated layers cost once.

Source: DESIGN.md section 1; `shared/research/search-space.md` (formulation `lv`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from . import cost, memory
from .choices import Choices, needs_copy
from .classes import axis_orders
from .graph import Graph, Role
from .index import Access, Affine, Axis
from .layout import AxisTables, Layout, LayoutSet, axis_tables, layout_set
from .machine import Machine
from .operators import Operator
from .placement import Placement, Space, SpaceError, matrices
from .pricing import pair_loads
from .problems import Edge, Ints, SelectionProblem, Usage, Vertex


class DecisionKind(Enum):
    """What a vertex decides: the placement of an operator, or the layout of a tensor's one copy."""

    OPERATOR = "operator"
    COPY = "copy"


@dataclass(frozen=True, eq=False)
class Decision:
    """One vertex of the problem in words: choice i of the vertex is `placements[i]` (rows `axes`, then replication)."""

    kind: DecisionKind
    name: str
    axes: tuple[str, ...]
    placements: Ints

    def placement(self, choice: int) -> Placement:
        """The placement behind a choice."""
        return Placement(self.axes, tuple(tuple(int(x) for x in row) for row in self.placements[choice]))

    def choice(self, placement: Placement) -> int:
        """The choice behind a placement; `SpaceError` names the nearest one inside the space."""
        if placement.axes != self.axes:
            raise SpaceError(f"{self.kind.value} {self.name!r} has axes {list(self.axes)}, not {list(placement.axes)}")
        matrix = np.array(placement.matrix, dtype=np.int64)
        if matrix.shape == self.placements.shape[1:]:
            found = np.nonzero((self.placements == matrix).all(axis=(1, 2)))[0]
            if found.size:
                return int(found[0])
            distance = np.abs(np.log(self.placements) - np.log(np.maximum(matrix, 1))).sum(axis=(1, 2))
            nearest = self.placement(int(distance.argmin()))
            levels = [f"level {j}" for j in range(matrix.shape[1])]
            raise SpaceError(
                f"{self.kind.value} {self.name!r}: {placement.words(levels)} is outside the space; nearest inside: {nearest.words(levels)}"
            )
        raise SpaceError(f"{self.kind.value} {self.name!r}: the matrix must have shape {self.placements.shape[1:]}, not {matrix.shape}")


@dataclass(frozen=True, eq=False)
class Route:
    """What edge number `position in Planning.routes` carries: `tensor` from one layout set to another."""

    tensor: str
    source: int
    target: int
    input_position: int | None
    layouts: tuple[LayoutSet, LayoutSet]


@dataclass(frozen=True, eq=False)
class Planning:
    """A selection problem together with what its numbers mean.  `routes[e]` belongs to `problem.edges[e]`."""

    graph: Graph
    machine: Machine
    space: Space
    problem: SelectionProblem
    decisions: tuple[Decision, ...]
    routes: tuple[Route, ...]
    operators: dict[str, int]
    copies: dict[str, int]
    costs: tuple[cost.OperatorCosts | None, ...]

    def choices(self, x: tuple[int, ...]) -> Choices:
        """The solution `x` of the problem as placements."""
        return Choices(
            tuple((op.name, self.decisions[v].placement(x[v])) for op in self.graph.operators for v in (self.operators[op.name],)),
            tuple((name, self.decisions[v].placement(x[v])) for name, v in self.copies.items()),
        )

    def solution(self, choices: Choices) -> tuple[int, ...]:
        """The solution of the problem behind placements; `SpaceError` if one is outside the space."""
        x = [0] * len(self.decisions)
        for name, placement in choices.operators:
            x[self.operators[name]] = self.decisions[self.operators[name]].choice(placement)
        for name, placement in choices.copies:
            x[self.copies[name]] = self.decisions[self.copies[name]].choice(placement)
        return tuple(x)

    def layouts_of(self, edge: int, x: tuple[int, ...]) -> tuple[Layout, Layout]:
        """The two layouts that the choices `x` give to the ends of an edge."""
        r = self.routes[edge]
        a, b = r.layouts
        return a.layout(int(a.of_choice[x[r.source]])), b.layout(int(b.of_choice[x[r.target]]))


Notify = Callable[[int, int], None]
"""Progress: called with (tables built, tables to build)."""


def build(graph: Graph, machine: Machine, where: Space, memory_limit: int | None = None, notify: Notify | None = None) -> Planning:
    """The selection problem of a graph on a machine over a space.  `memory_limit`: bytes per device, or None."""
    return _Builder(graph, machine, where).planning(memory_limit, notify)


StructureKey = tuple[object, ...]


@dataclass(eq=False)
class _Structure:
    """Everything about an operator that does not depend on names."""

    key: StructureKey
    tables: AxisTables
    inputs: list[tuple[StructureKey, Access, tuple[int, ...]]]
    output: tuple[StructureKey, Access, tuple[int, ...]]


@dataclass(eq=False)
class _Builder:
    graph: Graph
    machine: Machine
    where: Space
    axis_cache: dict[StructureKey, AxisTables] = field(default_factory=dict)
    layout_cache: dict[StructureKey, LayoutSet] = field(default_factory=dict)
    cost_cache: dict[StructureKey, cost.OperatorCosts] = field(default_factory=dict)
    table_number: dict[StructureKey, int] = field(default_factory=dict)
    tables: list[Ints] = field(default_factory=list)
    maps: dict[StructureKey, Ints | None] = field(default_factory=dict)

    def planning(self, memory_limit: int | None, notify: Notify | None) -> Planning:
        graph = self.graph
        orders = axis_orders(graph)
        structures = [self.structure(op, orders[op.name]) for op in graph.operators]
        readers, writer = graph.readers(), graph.writer()
        vertices: list[Vertex] = []
        decisions: list[Decision] = []
        costs: list[cost.OperatorCosts | None] = []
        operators: dict[str, int] = {}
        copies: dict[str, int] = {}
        copy_sets: dict[str, tuple[StructureKey, LayoutSet]] = {}
        pending: list[tuple[str, int, int, int | None, StructureKey, LayoutSet, StructureKey, LayoutSet]] = []

        def copy_vertex(name: str) -> None:
            order = orders["tensor:" + name]
            shape = graph.tensor(name).shape
            axes = tuple(Axis(k, shape[int(k)]) for k in order)
            tables = self.tables_for(axes)
            key = ("copy", tuple(shape), order)
            if key not in self.layout_cache:
                index = tuple(Affine.axis(str(k)) for k in range(len(shape)))
                self.layout_cache[key] = layout_set(Access(name, index), shape, tables)
            copies[name] = len(vertices)
            copy_sets[name] = (key, self.layout_cache[key])
            zero = self.cost_cache.get(("zero", tables.placements.shape[0]))
            if zero is None:
                n = np.zeros(tables.placements.shape[0], dtype=np.int64)
                zero = self.cost_cache[("zero", tables.placements.shape[0])] = cost.OperatorCosts(n, n, n, n, n)
            vertices.append(Vertex("copy of " + name, zero.times))
            decisions.append(Decision(DecisionKind.COPY, name, order, tables.placements))
            costs.append(None)

        def reads(name: str) -> None:
            source: tuple[int, StructureKey, LayoutSet]
            if name in copies:
                source = (copies[name], *copy_sets[name])
                if name in writer:
                    w = writer[name]
                    pending.append((name, operators[graph.operators[w].name], copies[name], None, *self.written(structures[w]), *copy_sets[name]))
            elif name in writer:
                w = writer[name]
                source = (operators[graph.operators[w].name], *self.written(structures[w]))
            else:
                return
            for i, j in readers[name]:
                pending.append((name, source[0], -1 - i, j, source[1], source[2], *self.read(structures[i], j)))

        needing = needs_copy(graph)
        for t in graph.tensors:
            if t.role is not Role.VALUE and t.name in needing:
                copy_vertex(t.name)
                reads(t.name)
        for op, structure in zip(graph.operators, structures, strict=True):
            operators[op.name] = len(vertices)
            costs.append(self.operator_costs(op, structure))
            vertices.append(Vertex(op.name, self.operator_costs(op, structure).times))
            decisions.append(Decision(DecisionKind.OPERATOR, op.name, orders[op.name], structure.tables.placements))
            if op.output.tensor in needing:
                copy_vertex(op.output.tensor)
            reads(op.output.tensor)
        edges: list[Edge] = []
        routes: list[Route] = []
        keys = {(p[4], p[6], graph.tensor(p[0]).element_bytes) for p in pending}
        for name, u, v, position, key_a, a, key_b, b in pending:
            target = operators[graph.operators[-1 - v].name] if v < 0 else v
            number = self.table(key_a, a, key_b, b, graph.tensor(name).element_bytes)
            edges.append(Edge(u, target, number, self.map_of(key_a, a), self.map_of(key_b, b)))
            routes.append(Route(name, u, target, position, (a, b)))
            if notify is not None:
                notify(len(self.tables), len(keys))
        usages: tuple[Usage, ...] = ()
        if memory_limit is not None:
            usages = memory.usages(graph, decisions_of=operators, copies=copies, written=[self.written(s)[1] for s in structures],
                                   read=[[self.read(s, j)[1] for j in range(len(s.inputs))] for s in structures],
                                   copied={n: s[1] for n, s in copy_sets.items()})
        problem = SelectionProblem(
            f"{graph.name} on {self.machine.name}", tuple(vertices), tuple(self.tables), tuple(edges), usages, memory_limit,
            scale=10**12, unit_name="s", space=self.where.name,
            assumptions=tuple(sorted({*self.where.flags, *cost.FLAGS, *(memory.FLAGS if memory_limit is not None else ())})),
        ).check()
        return Planning(graph, self.machine, self.where, problem, tuple(decisions), tuple(routes), operators, copies, tuple(costs))

    def tables_for(self, axes: tuple[Axis, ...]) -> AxisTables:
        key = tuple((a.extent, a.splittable) for a in axes)
        if key not in self.axis_cache:
            hierarchy = self.machine.hierarchy
            placements = matrices([a.extent for a in axes], [a.splittable for a in axes], hierarchy, self.where)
            self.axis_cache[key] = axis_tables(axes, placements, hierarchy)
        cached = self.axis_cache[key]
        return AxisTables(cached.hierarchy, axes, cached.placements, cached.tables, cached.codes)

    def structure(self, op: Operator, order: tuple[str, ...]) -> _Structure:
        axes = tuple(op.axis(n) for n in order)
        number = {n: i for i, n in enumerate(order)}
        skeleton = tuple((a.extent, a.splittable) for a in axes)

        def operand(a: Access, reduced: bool) -> tuple[StructureKey, Access, tuple[int, ...]]:
            shape = self.graph.tensor(a.tensor).shape
            index = tuple((tuple((number[n], c) for n, c in i.terms), i.offset, i.whole) for i in a.index)
            opened = tuple((number[r.name], r.combine) for r in op.reduced) if reduced else ()
            return ("layouts", skeleton, index, shape, opened), a, shape

        inputs = [operand(a, False) for a in op.inputs]
        output = operand(op.output, True)
        dtypes = tuple(self.graph.tensor(a.tensor).dtype for a in (*op.inputs, op.output))
        attributes = tuple((k, tuple(number.get(str(x), x) for x in v) if isinstance(v, tuple) else number.get(str(v), v)) for k, v in op.attributes)
        key = ("operator", op.function, attributes, tuple(k for k, _, _ in inputs), output[0], dtypes)
        return _Structure(key, self.tables_for(axes), inputs, output)

    def operator_costs(self, op: Operator, structure: _Structure) -> cost.OperatorCosts:
        if structure.key not in self.cost_cache:
            self.cost_cache[structure.key] = cost.operator_costs(op, self.graph, structure.tables, self.machine)
        return self.cost_cache[structure.key]

    def written(self, s: _Structure) -> tuple[StructureKey, LayoutSet]:
        key, a, shape = s.output
        if key not in self.layout_cache:
            self.layout_cache[key] = layout_set(a, shape, s.tables, [x.name for x in s.tables.axes if x.combine is not None])
        return key, self.layout_cache[key]

    def read(self, s: _Structure, position: int) -> tuple[StructureKey, LayoutSet]:
        key, a, shape = s.inputs[position]
        if key not in self.layout_cache:
            self.layout_cache[key] = layout_set(a, shape, s.tables)
        return key, self.layout_cache[key]

    def map_of(self, key: StructureKey, layouts: LayoutSet) -> Ints | None:
        if key not in self.maps:
            n = layouts.of_choice
            same = n.shape[0] == len(layouts) and bool((n == np.arange(n.shape[0])).all())
            self.maps[key] = None if same else n
        return self.maps[key]

    def table(self, key_a: StructureKey, a: LayoutSet, key_b: StructureKey, b: LayoutSet, element_bytes: int) -> int:
        key = (key_a, key_b, element_bytes)
        if key not in self.table_number:
            self.table_number[key] = len(self.tables)
            self.tables.append(cost.edge_times(pair_loads(a, b), element_bytes, self.machine))
        return self.table_number[key]


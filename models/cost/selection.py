"""From a graph and a machine to a selection problem.

    vertex  for every operator: its placements over the space, cost t_v                              ->
            operator_vertex()
    vertex  for every tensor with several readers (one operator that reads it twice is two), for every computed graph
            output, and for every parameter with a next value: the placements of its dimensions, all of which can be
            split, cost 0 (flag `one-copy-per-tensor`)
                                                                                                      -> copy_vertex()
    edge    writer -> copy, copy -> every reader, or writer -> its only reader: the time of the
            resharding between the two layouts                                                    -> route()

The next value of a parameter goes into the parameter's own vertex: what is stored at the end of the step has the layout
it starts with, and who reads the next value reads it there.  Any other input or parameter with one reader starts in the
layout that the reader wants and needs neither vertex nor edge.  Everything is built once per structure
(`models.cost.structures`): edges that agree in both layout sets and the element size share one table, so that repeated
layers cost once.

Source: Alpa (OSDI 2022), section 4.2, with a vertex per layout of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import TypeVar

import numpy as np

from ..communication.choices import Choices, needs_copy, resting_places
from ..layout.classes import axis_orders, copy_key, operator_key
from ..layout.layout import Layout, LayoutSet
from ..layout.placement import Placement, Space, SpaceError
from ..machine.machine import Machine
from ..problem.selection_problem import Edge, Ints, SelectionProblem, TooFine, Usage, Vertex
from ..problem.unit import coarser
from ..program.graph import Graph, Role
from ..program.operators import Operator
from . import cost, memory
from .assumptions import flags
from .structures import Keyed, Structures
from .vocabulary import Vocabulary, restrict_costs


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
    _known: dict[int, Placement] = field(default_factory=dict, repr=False)

    def placement(self, choice: int) -> Placement:
        """The placement behind a choice."""
        found = self._known.get(choice)
        if found is None:
            found = Placement(self.axes, tuple(map(tuple, self.placements[choice].tolist())))
            self._known[choice] = found
        return found

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
                f"{self.kind.value} {self.name!r}: {placement.words(levels)} is outside the space; nearest "
                f"inside: {nearest.words(levels)}"
            )
        raise SpaceError(
            f"{self.kind.value} {self.name!r}: the matrix must have shape {self.placements.shape[1:]}, not "
            f"{matrix.shape}"
        )


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
            tuple(
                (op.name, self.decisions[v].placement(x[v]))
                for op in self.graph.operators
                for v in (self.operators[op.name],)
            ),
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


T = TypeVar("T")

Notify = Callable[[int, int], None]
"""Progress: called with (entries of tables priced, entries to price), (0, 0) while that number is not known.  What
it raises ends the building.
"""


def build(
    graph: Graph,
    machine: Machine,
    where: Space,
    memory_limit: int | None = None,
    notify: Notify | None = None,
    *,
    unit: Fraction = cost.UNIT,
) -> Planning:
    """The selection problem of a graph on a machine over a space.  `memory_limit`: bytes per device, or None.

    Times are in the finest unit that fits, from `unit` on (`models.problem.unit`).  Raises `MachineError` if the
    machine has no peak for an element type, `ProblemError` if no unit fits.

    >>> from ..machine.machine import load_machine
    >>> from ..layout.placement import space
    >>> from ..sources.zoo import build as zoo
    >>> planning = build(zoo("mlp-unity"), load_machine("localhost:2"), space("complete"))
    >>> [d.name for d in planning.decisions]
    ['fc1', 'relu1', 'fc2', 'fc2']
    """
    while True:
        try:
            return _build(graph, machine, where, memory_limit, notify, unit)
        except TooFine as error:
            unit = coarser(unit, error.total)


def _build(
    graph: Graph, machine: Machine, where: Space, memory_limit: int | None, notify: Notify | None, unit: Fraction
) -> Planning:
    structures = Structures(graph, machine, where, axis_orders(graph), unit)
    copied = needs_copy(graph)
    decisions = tuple(_noted(_decisions(graph, structures, copied), notify))
    operators = {d.name: v for v, d in enumerate(decisions) if d.kind is DecisionKind.OPERATOR}
    copies = {d.name: v for v, d in enumerate(decisions) if d.kind is DecisionKind.COPY}
    costs = tuple(
        structures.costs(graph.operator(d.name)) if d.kind is DecisionKind.OPERATOR else None
        for d in _noted(decisions, notify)
    )
    vertices = tuple(
        Vertex("copy of " + d.name, structures.zeros(d.placements.shape[0])) if c is None else Vertex(d.name, c.times)
        for d, c in zip(decisions, costs, strict=True)
    )
    if where.vocabulary:
        vertices = tuple(_restricted(vertices, decisions, Vocabulary(graph, structures, where.vocabulary)))
    links = list(_noted(_links(graph, structures, operators, copies), notify))
    sizes = [structures.entries(link.source, link.target, graph.tensor(link.tensor).element_bytes) for link in links]
    new = dict(sizes)
    entries, priced = sum(new.values()), 0
    edges: list[Edge] = []
    routes: list[Route] = []
    for link, (key, _) in zip(links, sizes, strict=True):
        number = structures.table(link.source, link.target, graph.tensor(link.tensor).element_bytes)
        edges.append(
            Edge(link.u, link.v, number, structures.choice_map(link.source), structures.choice_map(link.target))
        )
        routes.append(
            Route(link.tensor, link.u, link.v, link.input_position, (link.source.layouts, link.target.layouts))
        )
        priced += new.pop(key, 0)
        if notify is not None:
            notify(priced, entries)
    usages = () if memory_limit is None else _usages(graph, structures, operators, copies)
    problem = SelectionProblem(
        f"{graph.name} on {machine.name}",
        vertices,
        tuple(structures.tables),
        tuple(edges),
        usages,
        memory_limit,
        scale=int(1 / unit),
        unit_name="s",
        space=where.name,
        assumptions=flags(graph, machine, where, memory_limit, bool(edges)),
    ).check()
    return Planning(graph, machine, where, problem, decisions, tuple(routes), operators, copies, costs)


def _restricted(vertices: tuple[Vertex, ...], decisions: tuple[Decision, ...], said: Vocabulary) -> Iterator[Vertex]:
    """Vertices in which choices outside the vocabulary are forbidden; equal costs stay one array."""
    known: dict[tuple[int, bytes], Ints] = {}
    for vertex, decision in zip(vertices, decisions, strict=True):
        operator = decision.kind is DecisionKind.OPERATOR
        mask = said.of_operator(said.graph.operator(decision.name)) if operator else said.of_copy(decision.name)
        key = (id(vertex.cost), mask.tobytes())
        if key not in known:
            known[key] = restrict_costs(vertex.cost, mask)
        yield Vertex(vertex.name, known[key])


def _noted(items: Iterable[T], notify: Notify | None) -> Iterator[T]:
    """`items`, with a word to `notify` after each."""
    for item in items:
        yield item
        if notify is not None:
            notify(0, 0)


def _decisions(graph: Graph, structures: Structures, copied: set[str]) -> Iterator[Decision]:
    """Copies of inputs and parameters, then every operator, followed by the copy of its output if that has one."""

    def copy_vertex(name: str) -> Decision:
        return Decision(DecisionKind.COPY, name, structures.orders[copy_key(name)], structures.of_copy(name))

    def operator_vertex(op: Operator) -> Decision:
        return Decision(
            DecisionKind.OPERATOR, op.name, structures.orders[operator_key(op.name)], structures.of_operator(op)
        )

    for t in graph.tensors:
        if t.role is not Role.VALUE and t.name in copied:
            yield copy_vertex(t.name)
    for op in graph.operators:
        yield operator_vertex(op)
        if op.output.tensor in copied:
            yield copy_vertex(op.output.tensor)


@dataclass(frozen=True, eq=False)
class _Link:
    """An edge before its table is known; `input_position` None: into the copy."""

    tensor: str
    u: int
    v: int
    input_position: int | None
    source: Keyed
    target: Keyed


def _links(graph: Graph, structures: Structures, operators: dict[str, int], copies: dict[str, int]) -> Iterator[_Link]:
    """Edges in the order of `choices.movements`: when a tensor is written, first into its copy, then to its readers."""
    readers, places = graph.readers(), resting_places(graph)

    def route(tensor: str, u: int, source: Keyed) -> Iterator[_Link]:
        for i, position in readers[tensor]:
            op = graph.operators[i]
            yield _Link(tensor, u, operators[op.name], position, source, structures.read(op, position))

    for t in graph.tensors:
        if t.role is not Role.VALUE and t.name in copies:
            yield from route(t.name, copies[t.name], structures.copy_layouts(t.name))
    for op in graph.operators:
        tensor, v, written = op.output.tensor, operators[op.name], structures.output_layouts(op)
        if tensor in places:
            home = places[tensor]
            copy = structures.copy_layouts(home)
            yield _Link(tensor, v, copies[home], None, written, copy)
            yield from route(tensor, copies[home], copy)
        else:
            yield from route(tensor, v, written)


def _usages(
    graph: Graph, structures: Structures, operators: dict[str, int], copies: dict[str, int]
) -> tuple[Usage, ...]:
    return memory.usages(
        graph,
        operators,
        copies,
        [structures.output_layouts(op).layouts for op in graph.operators],
        [[structures.read(op, j).layouts for j in range(len(op.inputs))] for op in graph.operators],
        {name: structures.copy_layouts(name).layouts for name in copies},
    )

"""The whole selection problem of a program on a machine over a space: vertices, edges and memory rows, by content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .axis_classes import class_orders
from .description import Axis, Index, Machine, Operand, Operator, Program
from .measured_time import units
from .memory_rows import copied, held
from .operator_time import operator_units
from .placements import Matrix, matrices
from .reduction_time import Moved
from .resharding_time import redistribution, rounded, transfer_time
from .tilings import Tiling, operand_tiling

FORBIDDEN = 1 << 60
"""What no solution costs."""

Vertex = tuple[str, str]
"""`("operator", name)` or `("copy", tensor)`."""


@dataclass(frozen=True)
class Choices:
    """The choices of a vertex: placement matrices, their rows being `axes` and then replication."""

    axes: tuple[str, ...]
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Edge:
    """`tensor` goes from one vertex to another: into its copy, or into the input `position` of an operator."""

    tensor: str
    source: Vertex
    target: Vertex
    position: int | None


@dataclass(frozen=True)
class Row:
    """Bytes per choice of `vertex`, in use at steps `start` <= t < `end`."""

    vertex: Vertex
    start: int
    end: int
    amounts: tuple[int, ...]


class Tables:
    """All entries of the problem of `program` on `machine` over `space`; times in units of 1/`scale` seconds."""

    def __init__(self, program: Program, machine: Machine, space: str, scale: int) -> None:
        self.program, self.machine, self.space, self.scale = program, machine, space, scale
        self.orders, self.dimension_orders = class_orders(program)
        self.operators = {op.name: op for op in program.operators}
        self.copies = copied(program)
        self.writers = {op.output.tensor: op for op in program.operators}
        self.prices: dict[tuple[Moved, int], int] = {}
        self.known_costs: dict[Vertex, list[int]] = {}
        self.known_edges: dict[Edge, list[list[int]]] = {}

    @cached_property
    def choices(self) -> dict[Vertex, Choices]:
        """Every vertex with its choices."""
        out: dict[Vertex, Choices] = {}
        for op in self.program.operators:
            axes = self.orders[op.name]
            found = matrices(
                [op.axes[a].extent for a in axes], [op.axes[a].splittable for a in axes], self.machine.sizes, self.space
            )
            out["operator", op.name] = Choices(axes, tuple(found))
        for tensor in {*self.copies.values()}:
            shape, dims = self.program.tensors[tensor].shape, self.dimension_orders[tensor]
            found = matrices([shape[k] for k in dims], [True] * len(dims), self.machine.sizes, self.space)
            out["copy", tensor] = Choices(tuple(str(k) for k in dims), tuple(found))
        return out

    def costs(self, vertex: Vertex) -> list[int]:
        """Time per choice of a vertex."""
        if vertex not in self.known_costs:
            self.known_costs[vertex] = self._costs(*vertex)
        return self.known_costs[vertex]

    def _costs(self, kind: str, name: str) -> list[int]:
        chosen = self.choices[kind, name]
        if kind == "copy":
            return [0] * len(chosen.matrices)
        op = self.operators[name]
        return [operator_units(op, self.program, chosen.axes, m, self.machine, self.scale) for m in chosen.matrices]

    @cached_property
    def edges(self) -> list[Edge]:
        """Writer to copy, copy to readers, or writer to its only reader."""
        out = []
        for tensor in self.program.tensors:
            writer: Vertex | None = ("operator", self.writers[tensor].name) if tensor in self.writers else None
            source = writer
            if tensor in self.copies:
                source = ("copy", self.copies[tensor])
                if writer is not None:
                    out.append(Edge(tensor, writer, source, None))
            if source is not None:
                out += [
                    Edge(tensor, source, ("operator", op.name), position)
                    for op in self.program.operators
                    for position, operand in enumerate(op.inputs)
                    if operand.tensor == tensor
                ]
        return out

    def edge_costs(self, edge: Edge) -> list[list[int]]:
        """Time per choice of the source and choice of the target."""
        if edge not in self.known_edges:
            self.known_edges[edge] = self._edge_costs(edge)
        return self.known_edges[edge]

    def _edge_costs(self, edge: Edge) -> list[list[int]]:
        size = self.program.tensors[edge.tensor].size
        sources = self.leaves(edge.source)
        targets = self.wants(edge.target, edge.position)
        columns = {*targets}
        known = {
            a: {b: self._price(redistribution(a, b, self.machine.sizes), size) for b in columns} for a in {*sources}
        }
        return [[known[a][b] for b in targets] for a in sources]

    def _price(self, moved: Moved, element_bytes: int) -> int:
        if not element_bytes:  # it lies on hosts, and stays there
            return FORBIDDEN if any(map(any, moved[:2])) else 0
        if (moved, element_bytes) not in self.prices:
            on_links = rounded(transfer_time(moved, element_bytes, self.machine), self.scale)
            self.prices[moved, element_bytes] = on_links + units(moved[2], element_bytes, self.machine, self.scale)
        return self.prices[moved, element_bytes]

    @cached_property
    def rows(self) -> list[Row]:
        """Memory per device."""
        out = []
        for use in held(self.program):
            if use.writer is not None:
                vertex: Vertex = ("operator", use.writer)
                tilings = self.leaves(vertex)
            elif use.reader is not None:
                vertex = ("operator", use.reader[0])
                tilings = self.wants(vertex, use.reader[1])
            else:
                vertex = ("copy", use.tensor)
                tilings = self.leaves(vertex)
            size = self.program.tensors[use.tensor].size
            out.append(Row(vertex, use.start, use.end, tuple(size * t.largest for t in tilings)))
        return out

    def leaves(self, vertex: Vertex) -> list[Tiling]:
        """Per choice where a vertex leaves its tensor: the result of an operator, or a copy."""
        kind, name = vertex
        if kind == "operator":
            return self._operand(self.operators[name], self.operators[name].output)
        shape = self.program.tensors[name].shape
        identity = Operand(name, tuple(Index(((str(k), 1),)) for k in range(len(shape))))
        copy = _copy_operator(name, shape, identity)
        return self._tilings(copy, copy.inputs[0], vertex)

    def wants(self, vertex: Vertex, position: int | None) -> list[Tiling]:
        """Per choice where a vertex wants what it is given: a copy, or the input `position` of an operator."""
        kind, name = vertex
        if kind == "copy" or position is None:
            return self.leaves(vertex)
        return self._operand(self.operators[name], self.operators[name].inputs[position])

    def _operand(self, op: Operator, operand: Operand) -> list[Tiling]:
        return self._tilings(op, operand, ("operator", op.name))

    def _tilings(self, op: Operator, operand: Operand, vertex: Vertex) -> list[Tiling]:
        chosen, shape = self.choices[vertex], self.program.tensors[operand.tensor].shape
        return [operand_tiling(op, operand, shape, chosen.axes, m, self.machine.sizes) for m in chosen.matrices]


def _copy_operator(name: str, shape: tuple[int, ...], identity: Operand) -> Operator:
    axes = {str(k): Axis(n, None, True) for k, n in enumerate(shape)}
    return Operator(name, "copy", "layout", 0, 0, axes, (identity,), Operand(name, identity.index), {})

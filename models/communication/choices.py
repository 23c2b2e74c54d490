"""The choices of a plan: one placement per operator, one per copied tensor, and what follows from
them.

`communications` lists every resharding the choices cause, in execution order, with its steps derived.  The cost model
prices these, the plan stores their totals, the backend executes them, the checker tests them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from ..layout.classes import axis_orders, copy_key, operator_key
from ..layout.layout import AxisTables, Layout, axis_tables, operand_layout
from ..layout.placement import Placement
from ..machine.machine import Machine
from ..program.graph import Graph, Role
from ..program.index import Access, Affine, Axis
from ..program.operators import Operator
from .reduction_programs import Chooser, chooser_of
from .resharding import CommunicationPlan, derive


class ChoicesError(ValueError):
    """Choices that do not belong to the graph; `place` names the operator or tensor."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass(frozen=True)
class Choices:
    """`operators`: (name, placement) in graph order; `copies`: (tensor, placement) for tensors with a copy."""

    operators: tuple[tuple[str, Placement], ...]
    copies: tuple[tuple[str, Placement], ...]

    def of_operator(self, name: str) -> Placement:
        """Placement of an operator; KeyError if there is none."""
        return dict(self.operators)[name]


@dataclass(frozen=True, eq=False)
class Communication:
    """One resharding: `tensor` goes to the copy (`reader` None) or to input `position` of operator `reader`.

    `writer` is the operator whose output layout it starts from, or None if it starts from the copy.  The copy of a
    parameter's next value is the parameter's: it is stored in its place.
    """

    tensor: str
    writer: str | None
    reader: str | None
    position: int
    plan: CommunicationPlan


def needs_copy(graph: Graph) -> set[str]:
    """Tensors with a layout of their own: several readers, computed and wanted by the user, or a parameter with a
    next value.
    """
    readers, writer = graph.readers(), graph.writer()
    stored, following = {p for p, _ in graph.state}, {v for _, v in graph.state}
    own = {t.name for t in graph.tensors if len(readers[t.name]) > 1 or (t.name in graph.outputs and t.name in writer)}
    return (own | stored) - following


def resting_places(graph: Graph) -> dict[str, str]:
    """Tensor -> the tensor whose copy it rests in, for tensors that rest in one: itself, or the parameter whose
    next value it is.
    """
    copied, parameter = needs_copy(graph), {value: name for name, value in graph.state}
    return {t.name: parameter.get(t.name, t.name) for t in graph.tensors if t.name in copied or t.name in parameter}


def check_choices(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> None:
    """Raise `ChoicesError` unless every operator and copy has exactly one placement that fits graph and hierarchy."""
    orders = axis_orders(graph)
    if [n for n, _ in choices.operators] != [op.name for op in graph.operators]:
        raise ChoicesError("choices", "operators differ from the graph's, or stand in another order")
    copied = needs_copy(graph)
    wanted = [t.name for t in graph.tensors if t.name in copied]
    if sorted(n for n, _ in choices.copies) != sorted(wanted):
        raise ChoicesError(
            "choices", "copied tensors differ from those with several readers, wanted by the user, or with a next value"
        )
    for kind, items in (("operator", choices.operators), ("copy", choices.copies)):
        for name, placement in items:
            place = f"{kind} {name!r}"
            if placement.axes != orders[operator_key(name) if kind == "operator" else copy_key(name)]:
                raise ChoicesError(place, f"axes {list(placement.axes)} are not the graph's in class order")
            matrix = placement.matrix
            if len(matrix) != len(placement.axes) + 1 or any(len(row) != len(hierarchy) for row in matrix):
                raise ChoicesError(
                    place, "matrix must have one row per axis, a replication row, and one column per level"
                )
            if any(x < 1 for row in matrix for x in row):
                raise ChoicesError(place, "matrix entries must be positive")
            if placement.view is not None and not placement.view.fits(hierarchy):
                raise ChoicesError(place, f"its submesh is no box of a machine of {'x'.join(map(str, hierarchy))}")
            for j, size in enumerate(hierarchy if placement.view is None else placement.view.counts):
                if prod(row[j] for row in matrix) != size:
                    raise ChoicesError(place, f"column {j} must multiply to {size}")


def single(axes: tuple[Axis, ...], placement: Placement, hierarchy: tuple[int, ...]) -> AxisTables:
    """Axis tables of one placement."""
    return axis_tables(axes, np.array([placement.matrix], dtype=np.int64), hierarchy)


@lru_cache(maxsize=65536)
def _operand(
    axes: tuple[Axis, ...],
    placement: Placement,
    access: Access,
    shape: tuple[int, ...],
    hierarchy: tuple[int, ...],
    opened: tuple[str, ...],
) -> Layout:
    view = placement.view
    if view is None:
        return operand_layout(access, shape, axes, placement.matrix, hierarchy, opened)
    inside = operand_layout(access, shape, axes, placement.matrix, view.counts, opened)
    return replace(inside, hierarchy=hierarchy, boxes=view.embed_boxes(inside.boxes, hierarchy))


def input_layout(op: Operator, position: int, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Layout:
    """Layout in which the operator reads its input `position`."""
    a = op.inputs[position]
    return _operand(
        tuple(op.axis(n) for n in placement.axes), placement, a, graph.tensor(a.tensor).shape, hierarchy, ()
    )


def output_layout(op: Operator, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Layout:
    """Layout in which the operator leaves its output, open in its split reduction axes."""
    opened = tuple(a.name for a in op.reduction_axes)
    return _operand(
        tuple(op.axis(n) for n in placement.axes),
        placement,
        op.output,
        graph.tensor(op.output.tensor).shape,
        hierarchy,
        opened,
    )


def copy_layout(tensor: str, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Layout:
    """Layout of a tensor's copy."""
    shape = graph.tensor(tensor).shape
    axes = tuple(Axis(k, shape[int(k)]) for k in placement.axes)
    return _operand(
        axes, placement, Access(tensor, tuple(Affine.axis(str(k)) for k in range(len(shape)))), shape, hierarchy, ()
    )


def iteration_box(
    op: Operator, placement: Placement, hierarchy: tuple[int, ...], device: int
) -> dict[str, tuple[int, int]]:
    """Device's box of the operator's iteration space; empty where the device is outside of the placement's view."""
    if placement.view is not None:
        inside = placement.view.devices(hierarchy)
        if device not in inside:
            return {name: (0, 0) for name in placement.axes}
        hierarchy, device = placement.view.counts, inside.index(device)
    tables = single(tuple(op.axis(n) for n in placement.axes), placement, hierarchy)
    return {
        a.name: (int(t[0, device, 0]), int(t[0, device, 1])) for a, t in zip(tables.axes, tables.tables, strict=True)
    }


class _Derivations:
    """Equal pairs of layouts share one derivation: repeated layers cost once."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], CommunicationPlan] = {}

    def derive(self, a: Layout, b: Layout, chooser: Chooser | None) -> CommunicationPlan:
        key = (chooser, *((x.hierarchy, x.shape, x.boxes.tobytes(), x.open, x.combine, x.coupled) for x in (a, b)))
        if key not in self.known:
            self.known[key] = derive(a, b, chooser)
        return self.known[key]


def communications(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices, machine: Machine | None = None
) -> Iterator[Communication]:
    """Every resharding, in execution order: when a tensor is written, first to its copy, then to its readers.
    `machine`: whose programs reductions take; None: level by level.
    """
    check_choices(graph, hierarchy, choices)
    placements, copies = dict(choices.operators), dict(choices.copies)
    readers, places = graph.readers(), resting_places(graph)
    shared = _Derivations()

    def chooser(tensor: str) -> Chooser | None:
        return chooser_of(machine, graph.tensor(tensor).element_bytes)

    def deliver(tensor: str, writer: str | None, source: Layout) -> Iterator[Communication]:
        for i, j in readers[tensor]:
            op = graph.operators[i]
            target = input_layout(op, j, graph, placements[op.name], hierarchy)
            yield Communication(tensor, writer, op.name, j, shared.derive(source, target, chooser(tensor)))

    for t in graph.tensors:
        if t.role is not Role.VALUE and t.name in copies:
            yield from deliver(t.name, None, copy_layout(t.name, graph, copies[t.name], hierarchy))
    for op in graph.operators:
        name = op.output.tensor
        source = output_layout(op, graph, placements[op.name], hierarchy)
        if name in places:
            target = copy_layout(name, graph, copies[places[name]], hierarchy)
            yield Communication(name, op.name, None, 0, shared.derive(source, target, chooser(name)))
            yield from deliver(name, None, target)
        else:
            yield from deliver(name, op.name, source)

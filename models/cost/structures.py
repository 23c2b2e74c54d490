"""What operators and tensors have in common up to names, computed once: placements, layout sets,
costs, tables.

Every cache is keyed by a *form* (`models.cost.forms`), or by the number or identity of one, and what it holds is
computed from that form alone (and from machine, space and unit, which are the same for all), so two operators share
exactly what cannot differ.  Repeated layers therefore cost once, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..communication.pricing import pair_blocks
from ..communication.reduction_programs import chooser_of
from ..layout.classes import copy_key, operator_key
from ..layout.layout import AxisTables, LayoutSet, axis_tables, layout_set
from ..layout.placement import Space, matrices
from ..machine.machine import Machine
from ..problem.selection_problem import Ints, TooFine
from ..program.graph import Graph
from ..program.index import Axis
from ..program.operators import Operator
from . import cost
from .collectives import measured_levels
from .forms import LayoutForm, copy_form, layout_form, operator_forms

Extents = tuple[tuple[int, bool], ...]
"""Extent of every axis and whether it may be split."""


@dataclass(frozen=True, eq=False)
class Keyed:
    """A layout set and the form that it follows from: equal forms, equal sets.  `number`: of the form, by which tables
    are looked up, since every edge asks for its own.
    """

    key: LayoutForm
    layouts: LayoutSet
    number: int


class Structures:
    """Caches for one graph on one machine over one space, times in one unit.  `orders`: see `classes.axis_orders`."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        where: Space,
        orders: Mapping[str, tuple[str, ...]],
        unit: Fraction = cost.UNIT,
    ) -> None:
        self.graph, self.machine, self.where, self.orders, self.unit = graph, machine, where, orders, unit
        self._measured = measured_levels(machine)
        self._forms = operator_forms(graph, orders)
        self._axes: dict[Extents, AxisTables] = {}
        self._layouts: dict[LayoutForm, Keyed] = {}
        self._costs: dict[int, cost.OperatorCosts] = {}  # by the identity of forms, equal ones are one object
        self._maps: dict[int, Ints | None] = {}
        self._zeros: dict[int, Ints] = {}
        self._keys: dict[tuple[int, int | None], Keyed] = {}
        self._copies: dict[tuple[tuple[int, ...], tuple[str, ...]], Keyed] = {}
        self._number: dict[tuple[int, int, int], int] = {}
        self.tables: list[Ints] = []

    def of_operator(self, op: Operator) -> Ints:
        """Placements of an operator: rows in class order, then replication."""
        return self._axis_tables(self._forms[op.name].axes).placements

    def order(self, op: Operator) -> tuple[str, ...]:
        """Axes of an operator in the order of its placements' rows."""
        return self.orders[operator_key(op.name)]

    def of_copy(self, tensor: str) -> Ints:
        """Placements of a tensor's copy: its dimensions are the axes."""
        return self._axis_tables(self.copy_layouts(tensor).key.axes).placements

    def read(self, op: Operator, position: int) -> Keyed:
        """Layouts in which the operator reads an input."""
        return self._touched(op, position)

    def output_layouts(self, op: Operator) -> Keyed:
        """Layouts in which the operator leaves its output, open in split reduction axes."""
        return self._touched(op, None)

    def copy_layouts(self, tensor: str) -> Keyed:
        """Layouts of a tensor's copy."""
        key = self.graph.tensor(tensor).shape, self.orders[copy_key(tensor)]
        if key not in self._copies:
            self._copies[key] = self._keyed(copy_form(*key))
        return self._copies[key]

    def costs(self, op: Operator) -> cost.OperatorCosts:
        """Times of the operator under every placement."""
        form = self._forms[op.name]
        if id(form) not in self._costs:
            self._costs[id(form)] = cost.operator_costs(form, self._axis_tables(form.axes), self.machine, self.unit)
        return self._costs[id(form)]

    def zeros(self, count: int) -> Ints:
        """The costs of a copy's `count` choices."""
        return self._zeros.setdefault(count, np.zeros(count, dtype=np.int64))

    def choice_map(self, layouts: Keyed) -> Ints | None:
        """Choice -> distinct layout; None for the identity."""
        if layouts.number not in self._maps:
            of = layouts.layouts.of_choice
            same = of.shape[0] == len(layouts.layouts) and bool((of == np.arange(of.shape[0])).all())
            self._maps[layouts.number] = None if same else of
        return self._maps[layouts.number]

    def table(self, source: Keyed, target: Keyed, element_bytes: int) -> int:
        """Number of the table of resharding times between two layout sets."""
        key, _ = self.entries(source, target, element_bytes)
        if key not in self._number:
            self._number[key] = len(self.tables)
            self.tables.append(self._priced(source.layouts, target.layouts, element_bytes))
        return self._number[key]

    def _priced(self, a: LayoutSet, b: LayoutSet, element_bytes: int) -> Ints:
        times = np.empty((len(a), len(b)), dtype=np.int64)
        most = 0
        chooser = chooser_of(self.machine, element_bytes) if element_bytes else None
        for rows, loads in pair_blocks(a, b, self._measured, chooser=chooser):
            try:
                times[rows] = cost.edge_times(loads, element_bytes, self.machine, self.unit)
            except TooFine as error:  # the unit follows from the largest time of all
                most = max(most, error.total)
        if most:
            raise TooFine(most)
        return times

    def entries(self, source: Keyed, target: Keyed, element_bytes: int) -> tuple[tuple[int, int, int], int]:
        """The key of that table, and how many entries it has."""
        return (source.number, target.number, element_bytes), len(source.layouts) * len(target.layouts)

    def _axis_tables(self, axes: tuple[Axis, ...]) -> AxisTables:
        """Placements of the axes (in class order) and their blocks."""
        key = tuple((a.extent, a.splittable) for a in axes)
        if key not in self._axes:
            self._axes[key] = self._tables_of(key)
        known = self._axes[key]
        return AxisTables(known.hierarchy, axes, known.placements, known.tables, known.codes)

    def _tables_of(self, extents: Extents) -> AxisTables:
        hierarchy = self.machine.hierarchy
        placements = matrices([n for n, _ in extents], [free for _, free in extents], hierarchy, self.where)
        return axis_tables(
            tuple(Axis(str(i), n, None, free) for i, (n, free) in enumerate(extents)), placements, hierarchy
        )

    def _touched(self, op: Operator, position: int | None) -> Keyed:
        form = self._forms[op.name]
        if (id(form), position) not in self._keys:
            self._keys[id(form), position] = self._keyed(layout_form(form, position))
        return self._keys[id(form), position]

    def _keyed(self, form: LayoutForm) -> Keyed:
        if form not in self._layouts:
            found = layout_set(form.access, form.shape, self._axis_tables(form.axes), form.reduced)
            self._layouts[form] = Keyed(form, found, len(self._layouts))
        return self._layouts[form]

"""What operators and tensors have in common up to names, computed once: placements, layout sets, costs, tables.

Two operators have the same *structure* if they agree in function, extents, accesses (axes by number in class order), shapes and
element types.  Repeated layers therefore cost once, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from . import cost
from .graph import Graph
from .index import Access, Affine, Axis
from .layout import AxisTables, LayoutSet, axis_tables, layout_set
from .machine import Machine
from .operators import Operator
from .placement import Space, matrices
from .pricing import pair_loads
from .problems import Ints

Key = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Keyed:
    """A layout set and the key of the structure it belongs to: equal keys, equal sets."""

    key: Key
    layouts: LayoutSet


class Structures:
    """Caches for one graph on one machine over one space, times in one unit.  `orders`: see `classes.axis_orders`."""

    def __init__(self, graph: Graph, machine: Machine, where: Space, orders: Mapping[str, tuple[str, ...]], unit: Fraction = cost.UNIT) -> None:
        self.graph, self.machine, self.where, self.orders, self.unit = graph, machine, where, orders, unit
        self._axes: dict[Key, AxisTables] = {}
        self._layouts: dict[Key, LayoutSet] = {}
        self._costs: dict[Key, cost.OperatorCosts] = {}
        self._maps: dict[Key, Ints | None] = {}
        self._zeros: dict[int, Ints] = {}
        self._keys: dict[tuple[str, int], Keyed] = {}
        self._number: dict[Key, int] = {}
        self.tables: list[Ints] = []

    def axis_tables(self, axes: tuple[Axis, ...]) -> AxisTables:
        """Placements of the axes (in class order) and their blocks."""
        key = tuple((a.extent, a.splittable) for a in axes)
        if key not in self._axes:
            hierarchy = self.machine.hierarchy
            placements = matrices([a.extent for a in axes], [a.splittable for a in axes], hierarchy, self.where)
            self._axes[key] = axis_tables(axes, placements, hierarchy)
        known = self._axes[key]
        return AxisTables(known.hierarchy, axes, known.placements, known.tables, known.codes)

    def of_operator(self, op: Operator) -> AxisTables:
        """Placements of an operator."""
        return self.axis_tables(tuple(op.axis(n) for n in self.orders[op.name]))

    def of_copy(self, tensor: str) -> AxisTables:
        """Placements of a tensor's copy: its dimensions are the axes."""
        shape = self.graph.tensor(tensor).shape
        return self.axis_tables(tuple(Axis(k, shape[int(k)]) for k in self.orders["tensor:" + tensor]))

    def read(self, op: Operator, position: int) -> Keyed:
        """Layouts in which the operator reads an input."""
        return self._keyed(op, position, op.inputs[position], ())

    def written(self, op: Operator) -> Keyed:
        """Layouts in which the operator leaves its output, open in split reduction axes."""
        return self._keyed(op, -1, op.output, op.reduced)

    def copied(self, tensor: str) -> Keyed:
        """Layouts of a tensor's copy."""
        shape, order = self.graph.tensor(tensor).shape, self.orders["tensor:" + tensor]
        key = ("copy", shape, order)
        if key not in self._layouts:
            index = tuple(Affine.axis(str(k)) for k in range(len(shape)))
            self._layouts[key] = layout_set(Access(tensor, index), shape, self.of_copy(tensor))
        return Keyed(key, self._layouts[key])

    def costs(self, op: Operator) -> cost.OperatorCosts:
        """Times of the operator under every placement.  Only the attributes that name axes matter for the cost."""
        number = self._numbers(op)
        tensors = tuple(self.graph.tensor(a.tensor).dtype for a in (*op.inputs, op.output))
        named = tuple(sorted(number[a] for a in op.over if a in number)), number.get(str(op.attribute("rows", "")))
        accesses = (*(self.read(op, j).key for j in range(len(op.inputs))), self.written(op).key)
        key = ("costs", op.function, named, tensors, *accesses)
        if key not in self._costs:
            self._costs[key] = cost.operator_costs(op, self.graph, self.of_operator(op), self.machine, self.unit)
        return self._costs[key]

    def zeros(self, count: int) -> Ints:
        """The costs of a copy's `count` choices."""
        return self._zeros.setdefault(count, np.zeros(count, dtype=np.int64))

    def choice_map(self, layouts: Keyed) -> Ints | None:
        """Choice -> distinct layout; None for the identity."""
        if layouts.key not in self._maps:
            of = layouts.layouts.of_choice
            same = of.shape[0] == len(layouts.layouts) and bool((of == np.arange(of.shape[0])).all())
            self._maps[layouts.key] = None if same else of
        return self._maps[layouts.key]

    def table(self, source: Keyed, target: Keyed, element_bytes: int) -> int:
        """Number of the table of redistribution times between two layout sets."""
        key = (source.key, target.key, element_bytes)
        if key not in self._number:
            self._number[key] = len(self.tables)
            self.tables.append(cost.edge_times(pair_loads(source.layouts, target.layouts), element_bytes, self.machine, self.unit))
        return self._number[key]

    def _numbers(self, op: Operator) -> dict[str, int]:
        return {n: i for i, n in enumerate(self.orders[op.name])}

    def _access_key(self, op: Operator, access: Access, reduced: tuple[Axis, ...]) -> Key:
        number = self._numbers(op)
        skeleton = tuple((op.axis(n).extent, op.axis(n).splittable) for n in self.orders[op.name])
        index = tuple((tuple((number[n], c) for n, c in i.terms), i.offset, i.whole) for i in access.index)
        return ("layouts", skeleton, index, self.graph.tensor(access.tensor).shape, tuple((number[a.name], a.combine) for a in reduced))

    def _keyed(self, op: Operator, position: int, access: Access, reduced: tuple[Axis, ...]) -> Keyed:
        at = (op.name, position)
        if at not in self._keys:
            key = self._access_key(op, access, reduced)
            if key not in self._layouts:
                shape = self.graph.tensor(access.tensor).shape
                self._layouts[key] = layout_set(access, shape, self.of_operator(op), [a.name for a in reduced])
            self._keys[at] = Keyed(key, self._layouts[key])
        return self._keys[at]

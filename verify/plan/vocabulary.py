"""Rebuilds a problem restricted to what a framework can say, drawn again from boxes: no code of
`models/cost/vocabulary.py`.

A framework lays a tensor out over a mesh.  The mesh here: a level of h devices has one dimension per prime factor of h,
the smallest varies fastest.  Device d has coordinate c_m(d) along dimension m.

    DTensor   applies the mesh dimensions one after another: a dimension of the tensor that m cuts is cut into as many
              equal parts as m has devices, and d keeps part c_m(d) of what it had
    JAX       lists the mesh dimensions of a tensor's dimension in any order; parts are equal

A choice is said if there is such a list for what every operand touches; a dimension that is touched alike on all
devices is not cut.  Inputs and parameters are said in the shape in which they are stored: positions are numbered row by
row through the digits of a dimension, and the numbers that a device holds must be one such part.  Of a convolution
DTensor cuts batch and channels only.  What is not said costs `FORBIDDEN`; a certificate is about the problem that comes
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from math import factorial, prod

import numpy as np

from ...models.cost.selection import Decision, DecisionKind, Planning
from ...models.layout.placement import Space
from ...models.problem.selection_problem import FORBIDDEN, Ints, Vertex
from ...models.program.graph import Graph, Role
from ...models.program.operators import Operator
from ..budget import Budget
from .assumptions import all_assumptions
from .box_tables import Operand, copy_operand, layouts, shape_of
from .effort import ALONE, BOX, EACH

Cut = tuple[int, ...] | None
"""Mesh dimensions along which a dimension is cut; None where it is not cut into equal parts."""

MOST_ORDERS = 6
"""Mesh dimensions of which all orders are tried for one dimension of a stored array."""


def restrict(planning: Planning, where: Space, memory_limit: int | None, budget: Budget | None = None) -> Planning:
    """The planning over `where`, of which the problem over the same space without a vocabulary is given."""
    said = _Said(planning, where.vocabulary, Budget.with_large() if budget is None else budget)
    known: dict[tuple[int, bytes], Ints] = {}
    vertices = []
    for vertex, decision in zip(planning.problem.vertices, planning.decisions, strict=True):
        kept = said.choices(decision)
        key = (id(vertex.cost), kept.tobytes())
        if key not in known:
            known[key] = np.array([c if k else FORBIDDEN for c, k in zip(vertex.cost.tolist(), kept, strict=True)])
        vertices.append(Vertex(vertex.name, known[key]))
    flags = tuple(sorted(all_assumptions(planning.graph, planning.machine, where, memory_limit)))
    problem = replace(planning.problem, vertices=tuple(vertices), space=where.name, assumptions=flags).check()
    return replace(planning, space=where, problem=problem)


class _Said:
    """Which choices of a vertex a framework says."""

    def __init__(self, planning: Planning, framework: str, budget: Budget) -> None:
        self.budget = budget
        self.graph: Graph = planning.graph
        self.framework = framework
        self.hierarchy = planning.machine.hierarchy
        self.operators = {op.name: op for op in planning.graph.operators}
        self.mesh = [(j, step, p) for j, size in enumerate(self.hierarchy) for step, p in _factors(size)]
        self.at = self._coordinates()
        self.cuts: dict[tuple[bytes, int], Cut] = {}
        self.known: dict[tuple[object, ...], Ints] = {}

    def choices(self, decision: Decision) -> Ints:
        """1 for every choice that is said, else 0."""
        key = (id(decision.placements),)
        if key not in self.known:
            self.known[key] = self._on_mesh(decision.placements)
        kept = self.known[key]
        if decision.kind is DecisionKind.COPY:
            shape = self.graph.tensor(decision.name).shape
            extents = tuple(shape[int(k)] for k in decision.axes)
            return kept * self._operand(copy_operand(shape, decision.axes), extents, decision.name, decision.placements)
        op = self.operators[decision.name]
        shape_ = shape_of(op, self.graph, decision.axes)
        for operand, a in zip((*shape_.inputs, shape_.output), (*op.inputs, op.output), strict=True):
            kept = kept * self._operand(operand, shape_.extents, a.tensor, decision.placements)
        if self.framework == "dtensor":
            for row in _uncut(op, decision.axes):
                kept = kept * (decision.placements[:, row, :] == 1).all(axis=1)
        return kept

    def _operand(self, operand: Operand, extents: tuple[int, ...], tensor: str, placements: Ints) -> Ints:
        t = self.graph.tensor(tensor)
        stored = t.shape if t.role is Role.VALUE or t.source_shape is None else t.source_shape
        plain = replace(operand, open=())  # open sums do not move boxes
        key = (plain, extents, stored, id(placements))
        if key not in self.known:
            devices, dimensions = prod(self.hierarchy), len(extents) + len(t.shape)
            self.budget.charge(BOX * placements.shape[0] * devices * dimensions, "boxes of a vocabulary")
            found = layouts(plain, extents, placements, self.hierarchy)
            orders = factorial(min(MOST_ORDERS, len(self.mesh))) if self.framework == "jax" and t.shape != stored else 1
            self.budget.charge(found.boxes.shape[0] * orders * (ALONE + EACH * devices), "layouts of a vocabulary")
            each = np.array([self._sayable(boxes, t.shape, stored) for boxes in found.boxes], dtype=np.int64)
            self.known[key] = each[found.of]
        return self.known[key]

    def _sayable(self, boxes: Ints, digits: tuple[int, ...], stored: tuple[int, ...]) -> bool:
        """`boxes`: of every device, (devices, digits, 2)."""
        cuts = [self._cut(np.ascontiguousarray(boxes[:, k]), n) for k, n in enumerate(digits)]
        if any(c is None for c in cuts):
            return False
        if digits == stored:
            return True
        runs = list(_runs(digits, stored))
        if not runs:
            return not any(cuts)
        return all(self._one_part(boxes, digits, cuts, run) for run in runs)

    def _one_part(self, boxes: Ints, digits: tuple[int, ...], cuts: Sequence[Cut], run: range) -> bool:
        """Do the digits `run`, one dimension of the stored array, leave one of its equal parts on every device?"""
        used = [m for k in run for m in cuts[k] or ()]
        if not used:
            return True
        low, high = np.zeros(len(boxes), dtype=np.int64), np.ones(len(boxes), dtype=np.int64)
        held = np.ones(len(boxes), dtype=np.int64)
        for k in run:  # first and last number, and how many; one part is as many as lie between
            whole = boxes[:, k] if cuts[k] else np.broadcast_to(np.array([0, digits[k]]), boxes[:, k].shape)
            low = low * digits[k] + whole[:, 0]
            high = (high - 1) * digits[k] + whole[:, 1]
            held = held * (whole[:, 1] - whole[:, 0])
        if not np.array_equal(high - low, held):
            return False
        part = np.stack([low, high], axis=1)
        extent = prod(digits[k] for k in run)
        orders = permutations(used) if self.framework == "jax" and len(used) <= MOST_ORDERS else iter([sorted(used)])
        return any(np.array_equal(self._parts(order, extent), part) for order in orders)

    def _cut(self, ends: Ints, extent: int) -> Cut:
        key = (ends.tobytes(), extent)
        if key not in self.cuts:
            moved = tuple(m for m in range(len(self.mesh)) if self._changes(ends, m))
            fits = bool((ends[:, 1] > ends[:, 0]).all()) and extent % prod(self.mesh[m][2] for m in moved) == 0
            if moved and fits:
                fits = np.array_equal(self._parts(moved, extent), ends)
            self.cuts[key] = moved if fits else None
        return self.cuts[key]

    def _changes(self, ends: Ints, m: int) -> bool:
        """Does what a device holds depend on its coordinate along mesh dimension m?"""
        j, step, _ = self.mesh[m]
        below = prod(self.hierarchy[j + 1 :])
        device = np.arange(len(ends))
        return bool((ends != ends[device - self.at[:, m] * step * below]).any())

    def _parts(self, order: Sequence[int], extent: int) -> Ints:
        """What is left on every device when the mesh dimensions in this order each cut what the ones before left."""
        low = np.zeros(len(self.at), dtype=np.int64)
        size = extent
        for m in order:
            if size % self.mesh[m][2]:
                return np.zeros((0, 2), dtype=np.int64)
            size //= self.mesh[m][2]
            low = low + self.at[:, m] * size
        return np.stack([low, low + size], axis=1)

    def _coordinates(self) -> Ints:
        device = np.arange(prod(self.hierarchy))
        rows = []
        for j, step, p in self.mesh:
            inside = device // prod(self.hierarchy[j + 1 :]) % self.hierarchy[j]
            rows.append(inside // step % p)
        return np.stack(rows, axis=1) if rows else np.zeros((len(device), 0), dtype=np.int64)

    def _on_mesh(self, placements: Ints) -> Ints:
        """Does every row of a placement consist of whole mesh dimensions?"""
        starts = [{1, *(step * p for step, p in _factors(size))} for size in self.hierarchy]
        return np.array(
            [
                all(_on(list(column), at) for column, at in zip(zip(*m, strict=True), starts, strict=True))
                for m in placements.tolist()
            ],
            dtype=np.int64,
        )


def _on(column: list[int], starts: set[int]) -> bool:
    stride = column[-1]  # the row of replication varies fastest
    for degree in reversed(column[:-1]):
        if degree > 1 and (stride not in starts or stride * degree not in starts):
            return False
        stride *= degree
    return True


def _factors(size: int) -> list[tuple[int, int]]:
    """(step, prime) of every mesh dimension of a level, the slowest first.

    >>> _factors(12), _factors(1)
    ([(4, 3), (2, 2), (1, 2)], [])
    """
    out, step = [], 1
    while step < size:
        p = next(q for q in range(2, size + 1) if size // step % q == 0)
        out.append((step, p))
        step *= p
    return out[::-1]


def _runs(digits: Sequence[int], stored: Sequence[int]) -> Iterator[range]:
    """The digits of every dimension of the stored array; nothing if it has other dimensions."""
    out, start = [], 0
    for extent in stored:
        stop, size = start, 1
        while stop < len(digits) and size < extent:
            size *= digits[stop]
            stop += 1
        while stop < len(digits) and digits[stop] == 1:
            stop += 1
        if size != extent:
            return
        out.append(range(start, stop))
        start = stop
    if start == len(digits):
        yield from out


def _uncut(op: Operator, axes: Sequence[str]) -> list[int]:
    """Rows of a convolution that are neither batch nor channels: those of its windows, and those of groups, which
    every operand has.
    """
    if op.function != "product":
        return []
    window: set[str] = set()
    for a in op.inputs:
        for index in a.index:
            if len(index.terms) >= 2:
                window.update(name for name, _ in index.terms)
    if not window:
        return []
    seen = [{name for index in a.index for name, _ in index.terms} for a in (*op.inputs, op.output)]
    return [row for row, name in enumerate(axes) if name in window or all(name in names for names in seen)]

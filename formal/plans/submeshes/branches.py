"""What a branch takes on a view, for every way in which it may hold the tensors that it shares with
others.

    ends        vertices of the branch with a movement from or to the outside; a *class* of an end are the choices that
                agree in the layouts of all these movements, in order of their first choice
    label       one class per end, in lexicographic order of the classes
    t(label)    least sum of the branch's operators and of the movements of its own tensors, over all choices of the
                label: one number with one phase, else every vector that no other one is nowhere above (`fronts`)

Variables are eliminated one at a time, the one with the smallest table first; every elimination keeps what was chosen.
Decisions have local numbers, in the order of the vertices, so that branches that are equal up to names (those of
repeated layers) share one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....models.cost.limits import TooLarge
from ....models.cost.selection import DecisionKind, Planning, Route
from ....models.cost.structures import Keyed, Structures
from ....models.problem.selection_problem import Ints
from ....models.program.operators import Operator
from ...selection.model.clock import Clock
from .fronts import MOST_DIMENSIONS, Fronts, front_tables

MOST_ENTRIES = 1 << 26
"""Of all reshardings inside a branch, which are written out at once: half a gigabyte."""
MOST_CELLS = 1 << 23
"""Cells of a table of an elimination."""


@dataclass(frozen=True, eq=False)
class BranchParts:
    """The vertices of a branch, and which of its movements stay inside: numbers of vertices and edges of the planning
    problem.  `phase`: of every vertex (copies: 0, they take no time); `edge_phase`: of every inner edge.
    """

    vertices: tuple[int, ...]
    phase: dict[int, int]
    inner: tuple[int, ...]
    edge_phase: dict[int, int]
    crossing: tuple[int, ...]
    phases: int


@dataclass(frozen=True, eq=False)
class Labels:
    """`ends`: local numbers; `classes[k]`: class of every choice of end k.  `labels`, `times`: what is not dominated,
    in order: a label with several phases may occur several times, with ascending times.
    """

    ends: tuple[int, ...]
    classes: tuple[Ints, ...]
    labels: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]
    tables: Tables | Fronts

    def solve(self, point: int) -> dict[int, int]:
        """Local number -> choice of the cheapest way to be in this label."""
        return self.tables.solve(self.labels[point], self.classes, self.times[point])


@dataclass(frozen=True, eq=False)
class Labelled:
    """A branch and its labels, which equal branches share."""

    own: BranchParts
    form: Labels

    @property
    def labels(self) -> tuple[tuple[int, ...], ...]:
        """See `Labels`."""
        return self.form.labels

    @property
    def times(self) -> tuple[tuple[int, ...], ...]:
        """See `Labels`."""
        return self.form.times

    def classes(self, vertex: int) -> tuple[int, Ints]:
        """The number of an end, and the class of every choice of it."""
        k = self.form.ends.index(self.own.vertices.index(vertex))
        return k, self.form.classes[k]

    def solve(self, point: int) -> dict[int, int]:
        """Vertex -> choice of the cheapest way to be in this label."""
        return {self.own.vertices[v]: choice for v, choice in self.form.solve(point).items()}


@dataclass(frozen=True, eq=False)
class BranchForm:
    """What the labels of a branch follow from.  `key`: equal keys, equal arrays, as long as the structures of
    `branch_form` are alive (they hand out one array for all that is equal up to names).
    """

    key: tuple[object, ...]
    phases: int
    costs: dict[int, Ints]
    phase: dict[int, int]
    pairs: tuple[tuple[int, int, int, Ints, Ints, Ints], ...]
    signature: dict[int, list[Ints]]


def sides(planning: Planning, structures: Structures, route: Route) -> tuple[Keyed, Keyed]:
    """Layouts at both ends of a movement, on the machine of `structures`."""

    def operator(v: int) -> Operator | None:
        d = planning.decisions[v]
        return planning.graph.operator(d.name) if d.kind is DecisionKind.OPERATOR else None

    writer, reader = operator(route.source), operator(route.target)
    source = (
        structures.copy_layouts(planning.decisions[route.source].name)
        if writer is None
        else structures.output_layouts(writer)
    )
    if reader is None:
        return source, structures.copy_layouts(planning.decisions[route.target].name)
    assert route.input_position is not None
    return source, structures.read(reader, route.input_position)


def branch_form(planning: Planning, structures: Structures, own: BranchParts) -> BranchForm:
    """What a branch is on the machine of `structures`, but for names."""
    local = {v: k for k, v in enumerate(own.vertices)}
    costs: dict[int, Ints] = {}
    for v, k in local.items():
        d = planning.decisions[v]
        if d.kind is DecisionKind.OPERATOR:
            costs[k] = structures.costs(planning.graph.operator(d.name)).times
        else:
            costs[k] = structures.zeros(structures.of_copy(d.name).shape[0])
    pairs: list[tuple[int, int, int, Ints, Ints, Ints]] = []
    for e in own.inner:
        route = planning.routes[e]
        a, b = sides(planning, structures, route)
        table = structures.tables[structures.table(a, b, planning.graph.tensor(route.tensor).element_bytes)]
        ends = local[route.source], local[route.target]
        pairs.append((*ends, own.edge_phase[e], table, a.layouts.of_choice, b.layouts.of_choice))
    signature: dict[int, list[Ints]] = {}
    for e in own.crossing:
        route = planning.routes[e]
        for v, side in zip((route.source, route.target), sides(planning, structures, route), strict=True):
            if v in local:
                signature.setdefault(local[v], []).append(side.layouts.of_choice)
    phase = {local[v]: p for v, p in own.phase.items()}
    key = (
        own.phases,
        tuple((id(costs[k]), phase[k]) for k in sorted(costs)),
        tuple((u, v, p, *map(id, arrays)) for u, v, p, *arrays in pairs),
        tuple((k, *map(id, signature[k])) for k in sorted(signature)),
    )
    return BranchForm(key, own.phases, costs, phase, tuple(pairs), signature)


def branch_labels(form: BranchForm, clock: Clock) -> Labels:
    """Labels of a branch.  Raises `TooLarge` where its tables do not fit."""
    vertices = range(len(form.costs))
    entries = sum(rows.size * columns.size for *_, rows, columns in form.pairs)
    if entries > MOST_ENTRIES:
        raise TooLarge(f"the reshardings inside a branch have {entries} entries, more than {MOST_ENTRIES}")
    clock.read(entries)
    pairs = [(u, v, p, table[rows][:, columns]) for u, v, p, table, rows, columns in form.pairs]
    ends = sorted(form.signature)
    classes = tuple(first_seen(np.stack(form.signature[k], axis=1)) for k in ends)
    if form.phases > 1:
        tables: Tables | Fronts = front_tables(vertices, ends, form.costs, form.phase, pairs, clock)
    else:
        tables = Tables(vertices, ends, form.costs, pairs, clock)
    labels, times = tables.labels(classes)
    return Labels(tuple(ends), classes, labels, times, tables)


def first_seen(rows: Ints) -> Ints:
    """Number of every row among the distinct ones, in order of first appearance.

    >>> first_seen(np.array([[5], [3], [5], [4]])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[inverse.reshape(-1)], dtype=np.int64)


Scope = tuple[int, ...]


class Tables:
    """Least sums over all choices of the ends; one phase."""

    def __init__(
        self,
        vertices: Sequence[int],
        ends: Sequence[int],
        costs: dict[int, Ints],
        pairs: Sequence[tuple[int, int, int, Ints]],
        clock: Clock,
    ) -> None:
        self.ends = tuple(ends)
        factors: list[tuple[Scope, Ints]] = [((v,), costs[v]) for v in vertices]
        factors += [((u, v), t) if u < v else ((v, u), t.T) for u, v, _, t in pairs]
        self.decided: list[tuple[int, Scope, NDArray[np.int32]]] = []
        left = [v for v in vertices if v not in self.ends]
        size = {v: costs[v].size for v in vertices}

        def joint_scope(v: int) -> Scope:
            return tuple(sorted({w for scope, _ in factors if v in scope for w in scope}))

        while left:
            v = min(left, key=lambda x: (prod(size[w] for w in joint_scope(x)), x))
            scope = joint_scope(v)
            if len(scope) > MOST_DIMENSIONS or prod(size[w] for w in scope) > MOST_CELLS:
                raise TooLarge(f"a branch of {len(vertices)} decisions has tables of more than {MOST_CELLS} cells")
            clock.read(prod(size[w] for w in scope))
            table = _sum([f for f in factors if v in f[0]], scope, size)
            factors = [f for f in factors if v not in f[0]]
            at, rest = scope.index(v), tuple(w for w in scope if w != v)
            self.decided.append((v, rest, np.asarray(table.argmin(axis=at), dtype=np.int32)))
            factors.append((rest, table.min(axis=at)))
            left.remove(v)
        if len(self.ends) > MOST_DIMENSIONS or prod(size[v] for v in self.ends) > MOST_CELLS:
            raise TooLarge(f"a branch shares {len(self.ends)} decisions with others: more than {MOST_CELLS} cells")
        self.table = _sum(factors, self.ends, size)

    def labels(self, classes: Sequence[Ints]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Labels in order, and the time of each."""
        table = self.table
        for axis, of in enumerate(classes):
            of_class = [table.compress(of == k, axis=axis).min(axis=axis) for k in range(int(of.max()) + 1)]
            table = np.stack(of_class, axis=axis)
        return tuple(np.ndindex(*table.shape)), tuple((int(t),) for t in table.reshape(-1))

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self.table.nbytes + sum(best.nbytes for _, _, best in self.decided)

    def solve(self, label: tuple[int, ...], classes: Sequence[Ints], time: tuple[int, ...]) -> dict[int, int]:
        """The cheapest choices of a label."""
        members = [np.flatnonzero(of == k) for of, k in zip(classes, label, strict=True)]
        part = self.table[np.ix_(*members)] if members else self.table
        at = np.unravel_index(int(part.argmin()), part.shape)
        x = {v: int(m[i]) for v, m, i in zip(self.ends, members, at, strict=True)}
        for v, rest, best in reversed(self.decided):
            x[v] = int(best[tuple(x[w] for w in rest)])
        return x


def _sum(factors: Sequence[tuple[Scope, Ints]], scope: Scope, size: dict[int, int]) -> Ints:
    """The sum of factors as a table over `scope` (ascending)."""
    total = np.zeros(tuple(size[v] for v in scope), dtype=np.int64)
    for mine, table in factors:
        total = total + table.reshape([size[v] if v in mine else 1 for v in scope])
    return total

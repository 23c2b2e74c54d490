"""Builds the selection problem of a graph whose regions may run on views: an ordinary one, solved and
certified as any other.

    vertices   those of the plan without views, in order; a vertex that belongs to a branch has one more choice, the
               last one: *elsewhere*, cost 0
               per region and phase: 0 whole machine, then per division the levels theta that a view may reach, in
               order; cost theta
               per region, division and view: 0 not in use, then the labels of the view (`branches`): per branch of the
               view one of its labels, in lexicographic order; cost 0
    edges      those of the plan without views: between two vertices of a branch both are elsewhere or none; towards the
               outside, elsewhere costs 0
               phase 0 of a region with its other phases: the same division; with the first vertex of every branch:
               whole machine or elsewhere; phase p with a view: in use under its division only, t_p(label) <= theta
               view with outside: the movement between the view and the whole machine

    rows       under a memory limit those of the plan without views; elsewhere uses nothing, so that they are of what
               lies on the whole machine

so the cost of a solution is the time of everything outside + what crosses + sum over phases of the largest over views.
Tables are numbered in the order of their first edge, equal ones once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np

from ....models.communication.choices import Choices
from ....models.communication.pricing import pair_loads
from ....models.cost import cost
from ....models.cost.collectives import measured_levels
from ....models.cost.limits import TooLarge
from ....models.cost.selection import DecisionKind, Planning
from ....models.cost.structures import Structures
from ....models.layout.classes import axis_orders
from ....models.layout.layout import LayoutSet
from ....models.layout.placement import Placement
from ....models.layout.submesh import Submesh
from ....models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Usage, Vertex
from ....models.text import bytes_text
from ....models.views.machine import submesh_machine
from ....models.views.regions import Region, submesh_flags
from ...selection.model.clock import Clock
from .branches import BranchForm, BranchParts, Labelled, Labels, branch_form, branch_labels, first_seen, sides

MOST_BYTES = 1 << 31
"""Of the tables of all branches together, beyond which no further one is made."""
MOST_LABELS = 1 << 12
MOST_LEVELS = (1 << 13) - 1
"""Labels of one view."""


@dataclass(frozen=True, eq=False)
class Group:
    """The branches of a region on one view of a division: what each of its labels stands for."""

    view: Submesh
    branches: tuple[int, ...]
    labelled: tuple[Labelled, ...]
    points: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class SubmeshPlanning:
    """The problem and what its numbers mean.  `phases[r]`: vertex of every phase; `levels[r][m][p]`: what a phase may
    take under a division; `groups[r][m][g]`: (vertex, group).
    """

    planning: Planning
    regions: tuple[Region, ...]
    problem: SelectionProblem
    own: tuple[tuple[BranchParts, ...], ...]
    phases: tuple[tuple[int, ...], ...]
    levels: tuple[tuple[tuple[Ints, ...], ...], ...]
    groups: tuple[tuple[tuple[tuple[int, Group], ...], ...], ...]

    def division(self, region: int, x: tuple[int, ...]) -> int | None:
        """The division that a solution gives a region; None: the whole machine."""
        choice = x[self.phases[region][0]] - 1
        if choice < 0:
            return None
        for m, by_phase in enumerate(self.levels[region]):
            if choice < by_phase[0].size:
                return m
            choice -= by_phase[0].size
        raise AssertionError("the choice is one of a division's levels")

    def choices(self, x: tuple[int, ...]) -> Choices:
        """A solution as placements, those of branches on views with their view."""
        chosen: dict[int, tuple[int, Submesh | None]] = {v: (x[v], None) for v in range(len(self.planning.decisions))}
        for r in range(len(self.regions)):
            m = self.division(r, x)
            for vertex, group in self.groups[r][m] if m is not None else ():
                for one, point in zip(group.labelled, group.points[x[vertex] - 1], strict=True):
                    chosen |= {v: (choice, group.view) for v, choice in one.solve(point).items()}
        found: dict[int, Placement] = {}
        views = Submeshes(self.planning)
        for v, (choice, view) in chosen.items():
            d = self.planning.decisions[v]
            if view is None:
                found[v] = d.placement(choice)
            else:
                matrices = views.placements(view, d.kind, d.name)
                found[v] = Placement(d.axes, tuple(tuple(int(n) for n in row) for row in matrices[choice]), view)
        return Choices(
            tuple((name, found[v]) for name, v in self.planning.operators.items()),
            tuple((name, found[v]) for name, v in self.planning.copies.items()),
        )


class Submeshes:
    """Prices on views: equal sizes are computed once."""

    def __init__(self, planning: Planning, clock: Clock | None = None) -> None:
        self.planning, self.orders = planning, axis_orders(planning.graph)
        self.clock = Clock() if clock is None else clock
        self.unit = Fraction(1, planning.problem.scale)
        self.known: dict[tuple[int, ...], Structures] = {}
        self.branches: dict[tuple[tuple[int, ...], ...], Labelled] = {}
        self.forms: dict[tuple[object, ...], Labels | TooLarge] = {}
        self.points: dict[tuple[int, ...], tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]] = {}
        self.nbytes = 0

    def of(self, view: Submesh) -> Structures:
        """Prices of what runs on a view."""
        if view.counts not in self.known:
            machine = submesh_machine(self.planning.machine, view)
            p = self.planning
            self.known[view.counts] = Structures(p.graph, machine, p.space, self.orders, self.unit)
        return self.known[view.counts]

    def placements(self, view: Submesh, kind: DecisionKind, name: str) -> Ints:
        """Placements of an operator or a copy on a view."""
        here = self.of(view)
        return (
            here.of_operator(self.planning.graph.operator(name))
            if kind is DecisionKind.OPERATOR
            else here.of_copy(name)
        )

    def branch_labels(self, view: Submesh, own: BranchParts) -> Labelled:
        """Labels of a branch on a view; equal branches share them.  Raises `TooLarge`."""
        key = view.counts, own.vertices, own.inner, own.crossing, (own.phases,)
        if key not in self.branches:
            form = branch_form(self.planning, self.of(view), own)
            name = view.counts, form.key
            if name not in self.forms:
                self.forms[name] = self._made(form)
            found = self.forms[name]
            if isinstance(found, TooLarge):
                raise found
            self.branches[key] = Labelled(own, found)
        return self.branches[key]

    def _made(self, form: BranchForm) -> Labels | TooLarge:
        if self.nbytes > MOST_BYTES:
            return TooLarge(f"the tables of branches take more than {bytes_text(MOST_BYTES)}")
        try:
            made = branch_labels(form, self.clock)
        except TooLarge as error:
            return error
        self.nbytes += made.tables.nbytes
        return made

    def group(self, view: Submesh, members: tuple[int, ...], own: tuple[BranchParts, ...]) -> Group:
        """Labels of branches that share a view.  Raises `TooLarge` beyond `MOST_LABELS`."""
        parts = tuple(self.branch_labels(view, own[i]) for i in members)
        count = 1
        for part in parts:
            count *= len(part.labels)
            if count > MOST_LABELS:
                raise TooLarge(f"the branches of one submesh can end in more than {MOST_LABELS} ways")
        key = tuple(id(part.form) for part in parts)  # kept alive by `forms`
        if key not in self.points:
            points = tuple(product(*(range(len(part.labels)) for part in parts)))
            self.points[key] = (
                points,
                tuple(
                    tuple(map(sum, zip(*(part.times[k] for part, k in zip(parts, at, strict=True)), strict=True)))
                    for at in points
                ),
            )
        return Group(view, members, parts, *self.points[key])

    def crossing(self, view: Submesh, edge: int, inside_first: bool) -> tuple[LayoutSet, LayoutSet, Ints]:
        """Layouts inside and outside of the view, and times from (inside_first) or to the inside, one row per layout
        inside.
        """
        p = self.planning
        route = p.routes[edge]
        mine = sides(p, self.of(view), route)[0 if inside_first else 1].layouts
        other = route.layouts[1 if inside_first else 0]
        whole = replace(
            mine,
            hierarchy=p.machine.hierarchy,
            dims=tuple(
                np.ascontiguousarray(np.moveaxis(view.embed_boxes(np.moveaxis(d, 1, 0), p.machine.hierarchy), 0, 1))
                for d in mine.dims
            ),
        )
        ends = (whole, other) if inside_first else (other, whole)
        size = p.graph.tensor(route.tensor).element_bytes
        times = cost.edge_times(pair_loads(*ends, measured_levels(p.machine)), size, p.machine, self.unit)
        return mine, other, times if inside_first else times.T


def own_of(planning: Planning, regions: tuple[Region, ...]) -> tuple[tuple[BranchParts, ...], ...]:
    """The vertices and movements of every branch."""
    owner: dict[int, tuple[int, int]] = {}
    phase: dict[int, int] = {}
    for r, region in enumerate(regions):
        for i, branch in enumerate(region.branches):
            for p, names in enumerate(branch):
                for name in names:
                    owner[planning.operators[name]] = r, i
                    phase[planning.operators[name]] = p
    touching: dict[int, list[int]] = {}
    kept = set[int]()
    for e, edge in enumerate(planning.problem.edges):
        for v in (edge.u, edge.v):
            touching.setdefault(v, []).append(e)
        if planning.routes[e].tensor in planning.graph.outputs:
            kept |= {edge.u, edge.v}
    for name, v in planning.copies.items():
        near = {w for e in touching.get(v, []) for w in (planning.problem.edges[e].u, planning.problem.edges[e].v)} - {
            v
        }
        found = {owner.get(w) for w in near}
        if len(found) == 1 and None not in found and v not in kept and name not in planning.graph.outputs:
            owner[v], phase[v] = next(iter(found)), 0  # type: ignore[assignment]
    out = []
    for r, region in enumerate(regions):
        row = []
        for i in range(len(region.branches)):
            vertices = tuple(v for v in range(len(planning.decisions)) if owner.get(v) == (r, i))
            inner, crossing, edge_phase = [], [], {}
            for e, edge in enumerate(planning.problem.edges):
                inside = owner.get(edge.u) == (r, i), owner.get(edge.v) == (r, i)
                if all(inside):
                    inner.append(e)
                    timed = edge.u if planning.routes[e].input_position is None else edge.v
                    edge_phase[e] = phase[timed]
                elif any(inside):
                    crossing.append(e)
            mine = {v: phase[v] for v in vertices}
            row.append(BranchParts(vertices, mine, tuple(inner), edge_phase, tuple(crossing), region.phases))
        out.append(tuple(row))
    return tuple(out)


class _Tables:
    """Tables by number; equal ones once."""

    def __init__(self) -> None:
        self.tables: list[Ints] = []
        self.known: dict[tuple[tuple[int, ...], bytes], int] = {}

    def add(self, table: Ints) -> int:
        """The number of a table."""
        table = np.ascontiguousarray(table, dtype=np.int64)
        key = table.shape, table.tobytes()
        if key not in self.known:
            self.known[key] = len(self.tables)
            self.tables.append(table)
        return self.known[key]


def build_submesh_problem(
    planning: Planning, regions: tuple[Region, ...], views: Submeshes | None = None
) -> SubmeshPlanning:
    """The problem of a plan with submeshes; `views`: prices of the planning that are known.  Raises `TooLarge` where
    the labels of a branch are too many, `ValueError` for machines that have no views.
    """
    base, views, tables = planning.problem, views or Submeshes(planning), _Tables()
    own = own_of(planning, regions)
    owner = {v: (r, i) for r, row in enumerate(own) for i, one in enumerate(row) for v in one.vertices}
    vertices = [Vertex(x.name, np.append(x.cost, 0) if v in owner else x.cost) for v, x in enumerate(base.vertices)]
    edges = list(_base_edges(planning, owner, tables))
    phases: list[tuple[int, ...]] = []
    levels: list[tuple[tuple[Ints, ...], ...]] = []
    groups: list[tuple[tuple[tuple[int, Group], ...], ...]] = []
    for r, region in enumerate(regions):
        found = [
            [views.group(view, members, own[r]) for view, members in region.groups(m)]
            for m in range(len(region.divisions))
        ]
        reach = [
            tuple(
                np.unique(np.array([t[p] for g in row for t in g.times], dtype=np.int64)) for p in range(region.phases)
            )
            for row in found
        ]
        if any(times.size > MOST_LEVELS for by_phase in reach for times in by_phase):
            raise TooLarge(f"the submeshes of one division take more than {MOST_LEVELS} times")
        at = tuple(range(len(vertices), len(vertices) + region.phases))
        for p in range(region.phases):
            cost_of = np.concatenate([np.zeros(1, dtype=np.int64), *(by_phase[p] for by_phase in reach)])
            vertices.append(Vertex(f"region {r}, phase {p}", cost_of))
        numbered = []
        for m, row in enumerate(found):
            numbered.append(tuple((len(vertices) + g, group) for g, group in enumerate(row)))
            vertices += [
                Vertex(f"region {r}, division {m}, view {g}", np.zeros(1 + len(group.points), dtype=np.int64))
                for g, group in enumerate(row)
            ]
        phases.append(at)
        levels.append(tuple(reach))
        groups.append(tuple(numbered))
        edges += _region_edges(views, own[r], at, reach, numbered, vertices, tables)
    problem = SelectionProblem(
        f"{base.name}, with views",
        tuple(vertices),
        tuple(tables.tables),
        tuple(edges),
        tuple(_widened(u, vertices[u.vertex]) for u in base.usages),
        base.limit,
        scale=base.scale,
        unit_name=base.unit_name,
        space=base.space,
        assumptions=submesh_flags(base.assumptions, regions, planning.machine.hierarchy),
    ).check()
    return SubmeshPlanning(planning, regions, problem, own, tuple(phases), tuple(levels), tuple(groups))


def _widened(u: Usage, vertex: Vertex) -> Usage:
    more = vertex.cost.size - u.amount.size
    return replace(u, amount=np.append(u.amount, np.zeros(more, dtype=np.int64))) if more else u


def _base_edges(planning: Planning, owner: dict[int, tuple[int, int]], tables: _Tables) -> Iterator[Edge]:
    base = planning.problem
    for edge in base.edges:
        table, rows, cols = base.tables[edge.table], edge.rows, edge.cols
        inside = edge.u in owner, edge.v in owner
        if all(inside):
            wide = np.full((table.shape[0] + 1, table.shape[1] + 1), FORBIDDEN, dtype=np.int64)
            wide[:-1, :-1], wide[-1, -1] = table, 0
        else:
            wide = np.pad(table, ((0, int(inside[0])), (0, int(inside[1]))))
        if inside[0] and rows is not None:
            rows = np.append(rows, table.shape[0])
        if inside[1] and cols is not None:
            cols = np.append(cols, table.shape[1])
        yield Edge(edge.u, edge.v, tables.add(wide), rows, cols)


def _region_edges(
    views: Submeshes,
    own: tuple[BranchParts, ...],
    phases: tuple[int, ...],
    reach: list[tuple[Ints, ...]],
    groups: list[tuple[tuple[int, Group], ...]],
    vertices: list[Vertex],
    tables: _Tables,
) -> Iterator[Edge]:
    def division_of(p: int) -> Ints:
        return np.repeat(np.arange(len(reach) + 1), [1, *(by_phase[p].size for by_phase in reach)])

    same = np.full((len(reach) + 1, len(reach) + 1), FORBIDDEN, dtype=np.int64)
    np.fill_diagonal(same, 0)
    for p in range(1, len(phases)):
        yield Edge(phases[0], phases[p], tables.add(same), division_of(0), division_of(p))
    either = np.array([[0, FORBIDDEN], [FORBIDDEN, 0]], dtype=np.int64)
    for one in own:
        first = one.vertices[0]
        elsewhere = np.zeros(vertices[first].cost.size, dtype=np.int64)
        elsewhere[-1] = 1
        yield Edge(phases[0], first, tables.add(either), np.minimum(division_of(0), 1), elsewhere)
    for m, row in enumerate(groups):
        for vertex, group in row:
            for p, region_vertex in enumerate(phases):
                levels = reach[m][p]
                size = levels.size + 1
                table = np.where(np.arange(size)[None, :] <= np.arange(size)[:, None], 0, FORBIDDEN)
                table[1:, 0] = FORBIDDEN
                level = np.zeros(vertices[region_vertex].cost.size, dtype=np.int64)
                level[division_of(p) == m + 1] = np.arange(1, size)
                needed = np.searchsorted(levels, np.array([t[p] for t in group.times], dtype=np.int64)) + 1
                yield Edge(region_vertex, vertex, tables.add(table), level, np.append(0, needed))
            yield from _crossing_edges(views, own, vertex, group, tables)


def _crossing_edges(
    views: Submeshes, own: tuple[BranchParts, ...], vertex: int, group: Group, tables: _Tables
) -> Iterator[Edge]:
    problem = views.planning.problem
    for number, (i, one) in enumerate(zip(group.branches, group.labelled, strict=True)):
        for e in own[i].crossing:
            edge = problem.edges[e]
            inside_first = edge.u in own[i].vertices
            end, outer = (edge.u, edge.v) if inside_first else (edge.v, edge.u)
            mine, other, times = views.crossing(group.view, e, inside_first)
            k, of_choice = one.classes(end)
            first = np.unique(of_choice, return_index=True)[1]  # classes are numbered by their first choice
            of_outer = first_seen(other.of_choice[:, None])
            column = other.of_choice[np.unique(of_outer, return_index=True)[1]]
            table = np.pad(times[np.ix_(mine.of_choice[first], column)], ((1, 0), (0, 0)))
            classes = np.array([one.labels[point[number]][k] for point in group.points], dtype=np.int64)
            yield Edge(vertex, outer, tables.add(table), np.append(0, classes + 1), of_outer)

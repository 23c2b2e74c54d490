"""Rebuilds the selection problem of a plan with submeshes a second time; docs/certificate-format.md, section
15, has the
order of its parts.  Nothing is shared with the search: a certificate about another problem has another hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ...models.layout.submesh import Submesh
from ...models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Usage, Vertex
from ...models.views.regions import Region
from ...proofs.container.canonical import ContainerError
from ..plan.assumptions import all_assumptions
from ..plan.effort import AGAIN, BOX
from ..plan.used_entries import Entries
from .prices import MOST_LABELS, Branch, Prices, row_numbers
from .structure import Parts, shares_links


def assumptions(entries: Entries, regions: Sequence[Region], limit: int | None = None) -> tuple[str, ...]:
    """What a plan with submeshes, that keeps a limit, assumes, sorted."""
    space = entries.planning.space
    found = all_assumptions(entries.graph, entries.machine, space, limit) - {"no-overlap"}
    said = [
        {
            "branches": [[list(names) for names in branch] for branch in region.branches],
            "divisions": [[[list(v.starts), list(v.counts)] for v in views] for views in region.divisions],
        }
        for region in regions
    ]
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    count = sum(len(region.divisions) for region in regions)
    found |= {"branches-beside-each-other", f"views({len(regions)} regions, {count} divisions, {digest[:12]})"}
    found |= {"tied-backward"} if any(len(b) > 1 for region in regions for b in region.branches) else set()
    found |= {"shared-links-divided"} if shares_links(regions, entries.machine.hierarchy) else set()
    return tuple(sorted(found))


MOST_LEVELS = 1 << 13
"""Times of a region under one division; every view has a table of as many rows and columns."""


@dataclass(frozen=True)
class _Use:
    """A view of a division: the branches on it by number, the ways in which they may end together (a label
    of each), and the time of every way in every phase.
    """

    view: Submesh
    members: list[int]
    branches: list[Branch]
    ways: list[tuple[int, ...]]
    times: list[tuple[int, ...]]


class _Problem:
    def __init__(self, entries: Entries, regions: Sequence[Region], parts: Parts) -> None:
        self.entries, self.regions, self.parts = entries, regions, parts
        self.prices = Prices(entries, parts)
        self.budget, self.entries_held = entries.budget, 0
        self.vertices: list[Vertex] = []
        self.edges: list[Edge] = []
        self.tables: dict[tuple[tuple[int, ...], bytes], Ints] = {}
        self.number: dict[tuple[tuple[int, ...], bytes], int] = {}

    def edge(self, u: int, v: int, table: Ints, rows: Ints | None, cols: Ints | None) -> None:
        """An edge; equal tables are one."""
        self.budget.charge(AGAIN + BOX * table.size, "tables of a plan with submeshes")
        table = np.ascontiguousarray(table, dtype=np.int64)
        key = table.shape, table.tobytes()
        if key not in self.number:
            self.entries_held += 2 * table.size  # the bytes are a key
            self.budget.hold(self.entries_held, "tables of a plan with submeshes")
            self.number[key] = len(self.number)
            self.tables[key] = table
        self.edges.append(Edge(u, v, self.number[key], rows, cols))

    def plain(self) -> None:
        """Decisions and movements of the plan without views; a decision of a branch may be elsewhere."""
        base, place = self.entries.problem, self.parts.place
        for v, x in enumerate(base.vertices):
            cost = np.concatenate([x.cost, np.zeros(1, dtype=np.int64)]) if v in place else x.cost
            self.vertices.append(Vertex(x.name, cost))
        for e in base.edges:
            table, maps = base.tables[e.table], [e.rows, e.cols]
            ends = [e.u in place, e.v in place]
            height, width = table.shape
            if ends == [True, True]:
                lid = np.full((height, 1), FORBIDDEN, dtype=np.int64)
                foot = np.full((1, width + 1), FORBIDDEN, dtype=np.int64)
                foot[0, width] = 0
                table = np.vstack([np.hstack([table, lid]), foot])
            elif ends[0]:
                table = np.vstack([table, np.zeros((1, width), dtype=np.int64)])
            elif ends[1]:
                table = np.hstack([table, np.zeros((height, 1), dtype=np.int64)])
            for k, size in enumerate((height, width)):
                map_ = maps[k]
                if ends[k] and map_ is not None:
                    maps[k] = np.concatenate([map_, np.array([size], dtype=np.int64)])
            self.edge(e.u, e.v, table, maps[0], maps[1])

    def region(self, r: int) -> None:
        """Levels of the phases, views of every division, and what links them."""
        region = self.regions[r]
        groups = [self._uses(r, views) for views in region.divisions]
        reach = [[sorted({t[p] for use in row for t in use.times}) for p in range(region.phases)] for row in groups]
        first = len(self.vertices)
        divisions: list[Ints] = []
        for p in range(region.phases):
            cost = [0, *(level for by_phase in reach for level in by_phase[p])]
            of = [0, *(m + 1 for m, by_phase in enumerate(reach) for _ in by_phase[p])]
            self.vertices.append(Vertex(f"region {r}, phase {p}", np.array(cost, dtype=np.int64)))
            divisions.append(np.array(of, dtype=np.int64))
        vertex = len(self.vertices)
        for m, row in enumerate(groups):
            for g, use in enumerate(row):
                zeros = np.zeros(len(use.ways) + 1, dtype=np.int64)
                self.vertices.append(Vertex(f"region {r}, division {m}, view {g}", zeros))
        self._one_division(r, first, len(groups) + 1, divisions)
        for m, row in enumerate(groups):
            for use in row:
                for p in range(region.phases):
                    self._levels(first + p, vertex, divisions[p] == m + 1, reach[m][p], [t[p] for t in use.times])
                self._crossings(r, vertex, use)
                vertex += 1

    def _uses(self, r: int, views: Sequence[Submesh]) -> list[_Use]:
        """Every view of a division of region r, with the branches that are on it."""
        region, out = self.regions[r], []
        for view in dict.fromkeys(views):
            members = [b for b, other in enumerate(views) if other == view]
            found = [self.prices.branch((r, b), view, region.phases) for b in members]
            if prod(len(b.labels) for b in found) > MOST_LABELS:
                raise ContainerError("views", f"region {r}: the branches of a submesh can end in too many ways")
            self.budget.charge(AGAIN * prod(len(b.labels) for b in found), f"region {r}")
            ways = [*product(*(range(len(b.labels)) for b in found))]
            times = [
                tuple(sum(b.times[k][p] for b, k in zip(found, way, strict=True)) for p in range(region.phases))
                for way in ways
            ]
            out.append(_Use(view, members, found, ways, times))
        return out

    def _one_division(self, r: int, first: int, kinds: int, divisions: Sequence[Ints]) -> None:
        """All phases of a region are under one division, and its branches elsewhere exactly where there is one."""
        region = self.regions[r]
        agree = np.array([[0 if a == b else FORBIDDEN for b in range(kinds)] for a in range(kinds)], dtype=np.int64)
        for p in range(1, region.phases):
            self.edge(first, first + p, agree, divisions[0], divisions[p])
        for b in range(len(region.branches)):
            v = self.parts.members((r, b))[0]
            away = np.array([0] * (self.vertices[v].cost.size - 1) + [1], dtype=np.int64)
            self.edge(first, v, agree[:2, :2], (divisions[0] > 0).astype(np.int64), away)

    def _crossings(self, r: int, vertex: int, use: _Use) -> None:
        """Movements between the branches on a view and what is outside of them."""
        for k, (b, branch) in enumerate(zip(use.members, use.branches, strict=True)):
            for number in self.parts.crossing[r, b]:
                inside, outside, mine, there, prices = self.prices.crossing(number, (r, b), use.view)
                at = branch.border.index(inside)
                classes = int(branch.classes[at].max()) + 1
                self.budget.charge((classes + len(there.boxes)) * (AGAIN + mine.of.size + there.of.size), f"region {r}")
                rows = [mine.of[int(np.argmax(branch.classes[at] == c))] for c in range(classes)]
                columns = row_numbers([(x,) for x in there.of.tolist()])
                shown = [there.of[int(np.argmax(columns == c))] for c in range(int(columns.max()) + 1)]
                table = np.vstack([np.zeros((1, len(shown)), dtype=np.int64), prices[np.ix_(rows, shown)]])
                labels = [0, *(branch.labels[way[k]][at] + 1 for way in use.ways)]
                self.edge(vertex, outside, table, np.array(labels, dtype=np.int64), columns)

    def _levels(self, phase: int, view: int, mine: Ints, reach: list[int], times: list[int]) -> None:
        """A view is in use under its division alone, and within the level of the phase."""
        size = len(reach) + 1
        if size > MOST_LEVELS:
            raise ContainerError("views", f"the submeshes of a division take {size - 1} times: too many to be checked")
        self.budget.charge(BOX * size * size, "times of a division")
        table = np.full((size, size), FORBIDDEN, dtype=np.int64)
        table[0, 0] = 0
        for level in range(1, size):
            table[level, 1 : level + 1] = 0
        level_of = np.zeros(mine.shape, dtype=np.int64)
        level_of[mine] = 1 + np.arange(len(reach))
        place = {t: k + 1 for k, t in enumerate(reach)}
        self.edge(phase, view, table, level_of, np.array([0, *(place[t] for t in times)], dtype=np.int64))


def rebuilt(entries: Entries, regions: Sequence[Region], parts: Parts) -> SelectionProblem:
    """The problem that a certificate has to be about; with memory rows, of what lies on the whole machine, where that
    of the plan without views has some.
    """
    made, base = _Problem(entries, regions, parts), entries.problem
    made.plain()
    rows = []
    for row in base.usages:
        amount = row.amount
        if row.vertex in parts.place:  # elsewhere uses nothing of the whole machine
            amount = np.concatenate([amount, np.zeros(1, dtype=np.int64)])
        rows.append(Usage(row.vertex, row.start, row.end, amount, row.name))
    for r in range(len(regions)):
        made.region(r)
    return SelectionProblem(
        f"{base.name}, with views",
        tuple(made.vertices),
        tuple(made.tables.values()),
        tuple(made.edges),
        tuple(rows),
        base.limit,
        scale=base.scale,
        unit_name=base.unit_name,
        space=base.space,
        assumptions=assumptions(entries, regions, base.limit),
    ).check()

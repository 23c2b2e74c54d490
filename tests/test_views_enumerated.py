"""Plans with submeshes of several regions, against every choice priced by the second builder, all at once; copies of a
branch's own are on its view.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from budgets import work
from second_builder.tables import Vertex
from test_views import Enumerated, certificate, machine_of, reasons

from shardproof.formal.plans.submeshes.search import SubmeshAnswer, plan_submeshes, whole_machine
from shardproof.models.layout.placement import space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.views.regions import Region
from shardproof.verify.plan.used_entries import Entries
from shardproof.verify.views.problem import rebuilt
from shardproof.verify.views.structure import parts_of

Ways = tuple[tuple[Submesh, ...] | None, ...]
"""Of every region, a division, or None: the whole machine."""
Slot = tuple[int, int, Submesh]
"""Region, phase and view."""


class Every(Enumerated):
    """The least time over all choices of any number of regions, as one array with an axis per decision."""

    def __init__(self, graph: Graph, machine: Machine, regions: tuple[Region, ...], scale: int) -> None:
        super().__init__(graph, machine, regions[0], scale)
        self.regions = regions
        self.place: dict[Vertex, tuple[int, int]] = {}
        for r, region in enumerate(regions):
            for b, branch in enumerate(region.branches):
                for n in itertools.chain(*branch):
                    self.place["operator", n] = r, b
        self.phase = {
            n: p for region in regions for branch in region.branches for p, names in enumerate(branch) for n in names
        }
        touched: dict[Vertex, set[tuple[int, int] | None]] = {}
        for e in self.on(None).edges:
            for a, b in ((e.source, e.target), (e.target, e.source)):
                if a[0] == "copy":
                    touched.setdefault(a, set()).add(self.place.get(b))
        for copy, places in touched.items():
            (only, *others) = places
            if not others and only is not None and copy[1] not in graph.outputs:
                self.place[copy] = only

    def every(self) -> dict[Ways, int]:
        """The least time under every division of every region."""
        return {ways: self.under(ways) for ways in itertools.product(*((None, *r.divisions) for r in self.regions))}

    def views(self, ways: Ways) -> list[Submesh | None]:
        """The view of every vertex."""
        found: list[Submesh | None] = []
        for v in self.on(None).choices:
            r, b = self.place.get(v, (-1, -1))
            division = None if r < 0 else ways[r]
            found.append(None if division is None else division[b])
        return found

    def terms(self, ways: Ways) -> Iterator[tuple[tuple[int, ...], np.ndarray, Slot | None]]:
        """What adds up: the vertices that it depends on, the time of all their choices, and where it is spent (None:
        outside of all views).
        """
        whole, view = self.on(None), self.views(ways)
        vertices = list(whole.choices)
        for i, (v, w) in enumerate(zip(vertices, view, strict=True)):
            slot = None if w is None else (self.place[v][0], self.phase.get(v[1], 0), w)
            yield (i,), np.array(self.on(w).costs(v)), slot
        for e in whole.edges:
            i, j = vertices.index(e.source), vertices.index(e.target)
            if view[i] is not None and self.place.get(e.source) == self.place.get(e.target):
                timed = e.target if e.target[0] == "operator" else e.source
                w = view[i]
                assert w is not None
                slot = self.place[e.source][0], self.phase[timed[1]], w
                yield (i, j), np.array(self.on(w).edge_costs(e)), slot
            else:
                yield (i, j), np.array(self.crossing(e, view[i], view[j])), None

    def under(self, ways: Ways) -> int:
        sizes = [len(self.on(w).costs(v)) for v, w in zip(self.on(None).choices, self.views(ways), strict=True)]
        zeros = np.zeros([1] * len(sizes), dtype=np.int64)
        spent: dict[Slot | None, np.ndarray] = {}
        for of, times, slot in self.terms(ways):
            shape = [1] * len(sizes)
            for i, size in zip(of, times.shape, strict=True):
                shape[i] = size
            spent[slot] = spent.get(slot, zeros) + (times if of == tuple(sorted(of)) else times.T).reshape(shape)
        return int(_together(spent, np.maximum, zeros).min())

    def total(self, ways: Ways, x: Sequence[int]) -> int:
        """What one choice of every vertex takes."""
        spent: dict[Slot | None, int] = {}
        for of, times, slot in self.terms(ways):
            spent[slot] = spent.get(slot, 0) + int(times[tuple(x[i] for i in of)])
        return int(_together(spent, max, 0))


def _together(spent: dict[Slot | None, Any], largest: Callable[[Any, Any], Any], nothing: Any) -> Any:
    """What is spent outside, and the slowest view of every phase of every region."""
    slowest: dict[tuple[int, int], Any] = {}
    for slot, time in spent.items():
        if slot is not None:
            slowest[slot[:2]] = largest(slowest[slot[:2]], time) if slot[:2] in slowest else time
    return sum(slowest.values(), spent.get(None, nothing))


HALVES = Submesh((0, 0), (1, 2)), Submesh((0, 2), (1, 2))
ONES = tuple(Submesh((0, k), (1, 1)) for k in range(4))
ACROSS = Submesh((0, 0), (2, 1)), Submesh((0, 1), (2, 1))
NODES = Submesh((0, 0), (1, 2)), Submesh((1, 0), (1, 2))


Branches = tuple[tuple[tuple[tuple[str, ...], ...], ...], ...]
"""Per region, its branches."""


def step(extents: tuple[int, int]) -> tuple[Graph, Branches]:
    """Forward operators, a join, backward operators that read the inputs again."""
    g, x = Builder("step", "float32"), []
    for name, extent in zip(("left", "right"), extents, strict=True):
        x.append(g.input(f"{name}.x", (extent,)))
    ends = [g.map(f"{n}.f", "relu", t, text="b -> b") for n, t in zip(("left", "right"), x, strict=True)]
    if extents[0] == extents[1]:
        loss = g.map("join", "add", *ends, text="b, b -> b")
        back = [
            g.map(f"{n}.b", "multiply", loss, t, text="b, b -> b") for n, t in zip(("left", "right"), x, strict=True)
        ]
        out = g.map("end", "add", *back, text="b, b -> b")
    else:
        loss = g.map("join", "multiply", *ends, text="b, c -> b c")
        back = [
            g.map("left.b", "multiply", x[0], loss, text="b, b c -> b c"),
            g.map("right.b", "multiply", x[1], loss, text="c, b c -> b c"),
        ]
        out = g.map("end", "add", *back, text="b c, b c -> b c")
    return g.build(out), tuple(tuple(((f"{n}.{p}",),) for n in ("left", "right")) for p in "fb")


def row() -> tuple[Graph, Branches]:
    """Two regions, one behind the other, with an operator between them."""
    g, ends = Builder("row", "float32"), []
    for n in ("a", "b"):
        ends.append(g.map(f"{n}.0", "relu", g.input(f"{n}.x", (1024,)), text="b -> b"))
    mid = g.map("mid", "add", *ends, text="b, b -> b")
    more = [g.map(f"{n}.0", "relu", mid, text="b -> b") for n in ("c", "d")]
    out = g.map("end", "add", *more, text="b, b -> b")
    return g.build(out), tuple(tuple(((f"{n}.0",),) for n in names) for names in (("a", "b"), ("c", "d")))


def planned(graph: Graph, machine: Machine, regions: tuple[Region, ...]) -> SubmeshAnswer:
    return plan_submeshes(whole_machine(graph, machine, space("complete")), clock=work(60.0), regions=regions)


def compared(graph: Graph, machine: Machine, regions: tuple[Region, ...]) -> Ways:
    """The way that is best; builder and checker agree with the second builder."""
    plan = planned(graph, machine, regions)
    made = plan.planning
    entries = Entries(made.planning)
    assert rebuilt(entries, regions, parts_of(entries, regions)).sha256() == made.problem.sha256()
    by_way = Every(graph, machine, regions, made.problem.scale).every()
    assert plan.answer.cost == plan.answer.lower_bound == min(by_way.values())
    assert reasons(certificate(plan)) == ""
    return min(by_way, key=lambda w: by_way[w])


SPEEDS = [("1e-6", "1e11"), ("1e-4", "1e11"), ("0", "1e9"), ("0", "1e8")]


@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_forward_and_backward_of_equal_branches(launch: str, memory: str) -> None:
    graph, branches = step((1024, 1024))
    compared(
        graph,
        machine_of((1, 4), launch, memory),
        (Region(branches[0], (HALVES, ONES[1:3])), Region(branches[1], (HALVES, (HALVES[1],) * 2))),
    )


@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_forward_and_backward_across_nodes(launch: str, memory: str) -> None:
    graph, branches = step((1024, 1024))
    compared(
        graph,
        machine_of((2, 2), launch, memory),
        (Region(branches[0], (ACROSS,)), Region(branches[1], (ACROSS, NODES))),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_forward_and_backward_of_unequal_branches_across_nodes(launch: str, memory: str) -> None:
    graph, branches = step((1024, 4))
    compared(
        graph,
        machine_of((2, 2), launch, memory),
        (Region(branches[0], (ACROSS,)), Region(branches[1], (ACROSS, NODES))),
    )


@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_two_regions_one_behind_the_other(launch: str, memory: str) -> None:
    graph, branches = row()
    regions = Region(branches[0], (HALVES,)), Region(branches[1], (ONES[:2], HALVES[::-1]))
    compared(graph, machine_of((1, 4), launch, memory), regions)


@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_copies_that_are_a_branchs_own(launch: str, memory: str) -> None:
    """An input that is read twice in its branch, and what is computed and read twice in it, are copied on the view."""
    g, ends = Builder("own", "float32"), []
    for n in ("left", "right"):
        x = g.input(f"{n}.x", (1024,))
        y = g.map(f"{n}.0", "multiply", x, x, text="b, b -> b")
        ends.append(g.map(f"{n}.1", "add", y, y, text="b, b -> b"))
    graph = g.build(g.map("end", "add", *ends, text="b, b -> b"))
    region = Region(tuple(((f"{n}.0", f"{n}.1"),) for n in ("left", "right")), (HALVES, ONES[2:]))
    compared(graph, machine_of((1, 4), launch, memory), (region,))


def test_cases_are_won_on_views_and_on_the_machine() -> None:
    graph, branches = row()
    regions = Region(branches[0], (HALVES,)), Region(branches[1], (ONES[:2],))
    slow, fast = (compared(graph, machine_of((1, 4), *s), regions) for s in (("1e-4", "1e11"), ("0", "1e8")))
    assert None not in slow
    assert fast != slow


def test_a_chosen_plan_takes_the_slowest_view_of_every_region() -> None:
    """With a branch on each half of the machine both regions count once, not the sum of both branches."""
    graph, branches = step((1024, 1024))
    machine = machine_of((1, 4), "1e-4", "1e11")
    plan = planned(graph, machine, tuple(Region(b, (HALVES,)) for b in branches))
    assert plan.plain.cost is not None
    assert plan.answer.cost is not None
    assert plan.plain.cost - plan.answer.cost > 1.9e-4 * plan.planning.problem.scale
    c = certificate(plan)
    joined = replace(c, regions=(replace(c.regions[0], divisions=((HALVES[0],) * 2,)), c.regions[1]))
    assert "none of its divisions" in reasons(joined)

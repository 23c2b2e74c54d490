"""`plan --submeshes`: branches beside each other on parts of the machine, against every choice of a second pricing, on ranks,
and ways to break what is claimed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np
import pytest
from budgets import work
from conformance.viewed import by_hand
from every_field import changed
from second_builder.description import Machine as Described
from second_builder.description import read_machine, read_program
from second_builder.resharding_time import redistribution, rounded, transfer_time
from second_builder.tables import Edge, Tables
from second_builder.tilings import Tiling

from shardproof.__main__ import run
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import mpi_available, run_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.plans.submeshes import problem as submesh_problem
from shardproof.formal.plans.submeshes.memory import held_bytes
from shardproof.formal.plans.submeshes.problem import Submeshes, SubmeshPlanning, build_submesh_problem
from shardproof.formal.plans.submeshes.regions import branches_of, grids, regions_of
from shardproof.formal.plans.submeshes.search import SubmeshAnswer, plan_submeshes, whole_machine
from shardproof.formal.selection.solve import solve
from shardproof.models.communication.choices import Choices, copy_layout, needs_copy, output_layout
from shardproof.models.cost.limits import TooLarge
from shardproof.models.cost.selection import DecisionKind
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import Placement, space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN, Vertex
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.attention import attention
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import build
from shardproof.models.text import NoAnswer
from shardproof.models.views.regions import Region
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.views.certificate import SubmeshCertificate
from shardproof.proofs.views.file import decode_submesh_plan, encode_submesh_plan, write_submesh_plan
from shardproof.verify.budget import CELLS, Budget
from shardproof.verify.plan.used_entries import Entries
from shardproof.verify.views import memory as counted
from shardproof.verify.views.certificate import _Chosen, check_members, check_submesh_plan
from shardproof.verify.views.prices import Prices
from shardproof.verify.views.problem import rebuilt
from shardproof.verify.views.structure import devices, parts_of


def fork(shared: bool, deep: int = 1, batch: int = 4, width: int = 64) -> Graph:
    """Two branches of products, from one input or two, added up."""
    g = Builder("fork", "float32")
    x = g.input("x", (batch, width))
    start = g.map("start", "relu", x, text="b n -> b n") if shared else x
    other = start if shared else g.input("y", (batch, width))
    ends = []
    for name, at in (("left", start), ("right", other)):
        for k in range(deep):
            w = g.parameter(f"{name}{k}.w", (width, width))
            at = g.contract(f"{name}{k}", "b k, k n -> b n", at, w)
        ends.append(at)
    return g.build(g.map("join", "add", *ends, text="b n, b n -> b n"))


def forks(count: int) -> Graph:
    """So many forks of two products each, one after another."""
    g = Builder("forks", "float32")
    at = g.input("x", (4, 64))
    for n in range(count):
        ends = []
        for side in ("left", "right"):
            w = g.parameter(f"{side}{n}.w", (64, 64))
            ends.append(g.contract(f"{side}{n}", "b k, k n -> b n", at, w))
        at = g.map(f"join{n}", "add", *ends, text="b n, b n -> b n")
    return g.build(at)


def machine_of(sizes: tuple[int, int], launch: str, memory: str) -> Machine:
    """A slow machine of two levels; `launch` in seconds, `memory` in bytes/s."""
    base = load_machine("cloud-a100:2x2")
    links = ((10**9, Fraction(1, 10**6)), (8 * 10**9, Fraction(3, 10**7)))
    levels = tuple(
        replace(level, size=n, bandwidth=Fraction(b), latency=t)
        for level, n, (b, t) in zip(base.levels, sizes, links, strict=True)
    )
    device = replace(base.device, launch=Fraction(launch), bandwidth=Fraction(memory))
    return replace(base, levels=levels, device=device)


def found(graph: Graph, machine: Machine, regions: tuple[Region, ...] | None = None) -> SubmeshAnswer:
    return plan_submeshes(whole_machine(graph, machine, space("complete")), clock=work(60.0), regions=regions)


def part(machine: Described, view: Submesh) -> Described:
    """The machine of a view, for the second pricing."""
    shares = [
        prod((Fraction(c, h) for c, h in zip(view.counts[j + 1 :], machine.sizes[j + 1 :], strict=True)))
        for j in range(len(machine.sizes))
    ]
    return replace(
        machine,
        sizes=view.counts,
        bandwidths=tuple(b * s for b, s in zip(machine.bandwidths, shares, strict=True)),
        devices=machine.devices[: prod(view.counts)],
    )


class Enumerated:
    """Every choice of a small graph of one region, priced by the second builder."""

    def __init__(self, graph: Graph, machine: Machine, region: Region, scale: int) -> None:
        self.region, self.scale = region, scale
        self.program, self.machine = read_program(graph.to_json()), read_machine(machine.to_json())
        self.whole = machine
        self.tables: dict[Submesh | None, Tables] = {None: Tables(self.program, self.machine, "complete", scale)}
        self.branch = {n: b for b, branch in enumerate(region.branches) for phase in branch for n in phase}

    def on(self, view: Submesh | None) -> Tables:
        if view not in self.tables:
            assert view is not None
            self.tables[view] = Tables(self.program, part(self.machine, view), "complete", self.scale)
        return self.tables[view]

    def view_of(self, kind: str, name: str, views: tuple[Submesh, ...] | None) -> Submesh | None:
        return views[self.branch[name]] if views is not None and kind == "operator" and name in self.branch else None

    def embedded(self, tiling: Tiling, view: Submesh | None) -> Tiling:
        if view is None:
            return tiling
        empty = tuple((0, 0) for _ in tiling.boxes[0])
        boxes = [empty] * self.whole.devices
        for k, device in enumerate(devices(view, self.whole)):
            boxes[device] = tiling.boxes[k]
        return Tiling(tuple(boxes), tiling.open)

    def crossing(self, edge: Edge, u: Submesh | None, v: Submesh | None) -> list[list[int]]:
        size = 4
        a = [self.embedded(t, u) for t in self.on(u).leaves(edge.source)]
        b = [self.embedded(t, v) for t in self.on(v).wants(edge.target, edge.position)]
        moved = {(x, y): redistribution(x, y, self.machine.sizes) for x in {*a} for y in {*b}}
        price = {k: rounded(transfer_time(m, size, self.machine), self.scale) for k, m in moved.items()}
        return [[price[x, y] for y in b] for x in a]

    def least(self) -> int:
        return min(self._least(views) for views in (None, *self.region.divisions))

    def _least(self, views: tuple[Submesh, ...] | None) -> int:
        costs, total = self.priced(views)
        return min(total(x) for x in itertools.product(*(range(len(c)) for c in costs)))

    def priced(self, views: tuple[Submesh, ...] | None) -> tuple[list[list[int]], Callable[[tuple[int, ...]], int]]:
        """Costs of the choices of every vertex, and what one choice of each takes together."""
        whole = self.on(None)
        vertices = list(whole.choices)
        view = [self.view_of(*v, views) for v in vertices]
        costs = [self.on(w).costs(v) for v, w in zip(vertices, view, strict=True)]
        edges = []
        for e in whole.edges:
            i, j = vertices.index(e.source), vertices.index(e.target)
            inner = view[i] is not None and view[i] == view[j] and self.same(vertices[i], vertices[j])
            table = self.on(view[i]).edge_costs(e) if inner else self.crossing(e, view[i], view[j])
            edges.append((i, j, view[i] if inner else None, table))

        def total(x: tuple[int, ...]) -> int:
            outside, busy = 0, dict[Submesh, int]()
            for c, k, w in zip(costs, x, view, strict=True):
                if w is None:
                    outside += c[k]
                else:
                    busy[w] = busy.get(w, 0) + c[k]
            for i, j, w, table in edges:
                if w is None:
                    outside += table[x[i]][x[j]]
                else:
                    busy[w] = busy.get(w, 0) + table[x[i]][x[j]]
            return outside + max(busy.values(), default=0)

        return costs, total

    def same(self, a: tuple[str, str], b: tuple[str, str]) -> bool:
        return self.branch.get(a[1], -1) == self.branch.get(b[1], -2)


CASES = {
    "two inputs": (False, 1, (2, 1), "1e-6", "1e11"),
    "a fork": (True, 1, (1, 2), "1e-6", "1e11"),
    "chains": (False, 2, (1, 2), "2e-6", "1e11"),
    "nodes": (False, 1, (2, 2), "1e-6", "1e10"),
    "no launch": (False, 1, (1, 2), "0", "1e9"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_that_of_all_choices(name: str) -> None:
    shared, deep, sizes, launch, memory = CASES[name]
    graph, machine = fork(shared, deep), machine_of(sizes, launch, memory)
    plan = found(graph, machine)
    (region,) = plan.planning.regions
    assert len(region.branches) == 2
    assert region.divisions
    least = Enumerated(graph, machine, region, plan.planning.problem.scale).least()
    assert plan.answer.cost == least
    assert plan.answer.lower_bound == least


def test_cases_are_won_by_views_and_by_the_whole_machine() -> None:
    won = set()
    for shared, deep, sizes, launch, memory in CASES.values():
        plan = found(fork(shared, deep), machine_of(sizes, launch, memory))
        assert plan.answer.solution is not None
        won.add(plan.planning.division(0, plan.answer.solution) is not None)
    assert won == {True, False}


@cache
def uno() -> SubmeshAnswer:
    return found(build("candle-uno", batch=16, tower=2, layers=1, width=512), load_machine("cloud-a100:2x2"))


@cache
def dlrm() -> SubmeshAnswer:
    g = build("dlrm", batch=8, tables=3, rows=20, width=4, bag=2, dense=6, bottom="8-4", top="16-8-1")
    return found(g, load_machine("cloud-a100:2x2"))


def certificate(plan: SubmeshAnswer) -> SubmeshCertificate:
    made = plan.certificate()
    assert made is not None
    return made


@pytest.mark.parametrize("plan", [uno, dlrm])
def test_builder_and_checker_make_the_same_problem(plan: Callable[[], SubmeshAnswer]) -> None:
    made = plan().planning
    entries = Entries(made.planning)
    again = rebuilt(entries, made.regions, parts_of(entries, made.regions))
    assert again.sha256() == made.problem.sha256()


def reasons(c: SubmeshCertificate) -> str:
    return " ".join(r.reason for r in check_submesh_plan(c, "seed", 100, CELLS) if r.verdict is not Verdict.PROVED)


def test_towers_win_by_proof_and_the_checker_agrees() -> None:
    plan = uno()
    c = certificate(plan)
    assert plan.plain.status.value == "optimal"
    assert plan.answer.cost < plan.plain.lower_bound  # type: ignore[operator]
    _, results = check_members(read_container(write_submesh_plan(None, c)), 100, CELLS)
    assert [r.kind for r in results] == ["Views", "Optimal", "Space", "Entries", "Delivers"]
    assert {r.verdict for r in results} == {Verdict.PROVED}
    assert any(a.startswith("views(1 regions") for a in results[0].assumptions)
    assert "no-overlap" not in results[0].assumptions


def test_files_are_read_as_they_were_written() -> None:
    c = certificate(uno())
    again = decode_submesh_plan(read_container(write_submesh_plan(None, c)))
    assert (again.regions, again.choices, again.space) == (c.regions, c.choices, c.space)
    assert write_submesh_plan(None, again) == write_submesh_plan(None, c)


def on_views(planning: SubmeshPlanning, seed: int) -> Choices:
    """Choices at random with every region on views."""
    rng = np.random.default_rng(seed)
    vertices = []
    for v in planning.problem.vertices:
        cost = np.where(v.cost < FORBIDDEN, rng.integers(0, 10**6, v.cost.shape), v.cost)
        if v.name.startswith("region") and "phase" in v.name:
            cost[0] = FORBIDDEN
        vertices.append(Vertex(v.name, cost.astype(np.int64)))
    x = solve(replace(planning.problem, vertices=tuple(vertices))).solution
    assert x is not None
    return planning.choices(x)


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
@pytest.mark.parametrize("plan", [uno, dlrm])
def test_ranks_outside_of_a_view_hold_nothing_and_the_numbers_are_right(
    plan: Callable[[], SubmeshAnswer], seed: int
) -> None:
    made = plan().planning
    graph, hierarchy = made.planning.graph, made.planning.machine.hierarchy
    choices = on_views(made, seed)
    assert any(p.view is not None for _, p in choices.operators)
    inputs = random_inputs(graph, seed, "float64")
    wanted = run_graph(graph, inputs)
    for options in (Options(), Options(fuse=False, overlap=False)):
        program = build_program(graph, hierarchy, choices, options)
        result = run_virtual(program, inputs, np, 60.0)
        for name in graph.results:
            np.testing.assert_allclose(result.outputs[name], wanted[name], rtol=1e-12, atol=1e-12)
        assert all(t.fits for t in result.traffic)


def soft() -> Graph:
    """Two branches with a softmax each."""
    g = Builder("normalised", "float32")
    ends = []
    for name in ("left", "right"):
        w = g.parameter(f"{name}.w", (8, 8))
        product = g.contract(f"{name}.product", "b k, k n -> b n", g.input(f"{name}.x", (4, 8)), w)
        ends.append(g.normalise(f"{name}.softmax", "softmax", "b n -> b n", product, over=("n",)))
    return g.build(g.map("join", "add", *ends, text="b n, b n -> b n"))


def attentive() -> Graph:
    """Two branches with attention each."""
    g = Builder("attentive", "float32")
    ends = []
    for name in ("left", "right"):
        x = g.input(f"{name}.x", (2, 4, 8))
        q, k, v = (
            g.contract(f"{name}.{one}", "b s i, i j -> b s j", x, g.parameter(f"{name}.w{one}", (8, 8)))
            for one in "qkv"
        )
        ends.append(attention(g, f"{name}.y", "b s d, b t d, b t e -> b s e", q, k, v, query="s"))
    return g.build(g.map("join", "add", *ends, text="b s e, b s e -> b s e"))


def pooled() -> Graph:
    """Two branches with a pool each."""
    g = Builder("pooled", "float32")
    ends = []
    for name, function in (("left", "max_pool"), ("right", "average_pool")):
        x = g.input(f"{name}.x", (2, 8, 8, 8))
        w = g.parameter(f"{name}.w", (8, 8, 1, 1))
        ends.append(g.pool(f"{name}.pool", function, g.convolution(f"{name}.wide", x, w), (2, 2), (2, 2)))
    return g.build(g.map("join", "add", *ends, text="b c y x, b c y x -> b c y x"))


@pytest.mark.parametrize("build_graph", [soft, attentive, pooled])
def test_ranks_outside_of_a_view_run_what_looks_at_whole_axes(build_graph: Callable[[], Graph]) -> None:
    """A softmax, attention or a pool in a branch: its box is empty on ranks outside, which is no part of an axis."""
    graph = build_graph()
    made = found(graph, machine_of((2, 2), "1e-6", "1e11")).planning
    inputs = random_inputs(graph, 0, "float64")
    wanted = run_graph(graph, inputs)
    for seed in range(3):
        for options in (Options(), Options(fuse=False, overlap=False)):
            choices = on_views(made, seed)
            result = run_virtual(build_program(graph, (2, 2), choices, options), inputs, np, 60.0)
            np.testing.assert_allclose(result.outputs["join"], wanted["join"], rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not mpi_available(), reason="MPI is not installed")
def test_four_mpi_ranks_run_a_plan_with_views() -> None:
    c = certificate(uno())
    assert len({p.view for _, p in c.choices.operators}) > 2
    inputs = random_inputs(c.graph, 0, "float64")
    outputs = run_job(c.graph, c.machine.hierarchy, c.choices, inputs, Options(), 120.0).outputs
    wanted = run_graph(c.graph, inputs)
    for name in c.graph.results:
        np.testing.assert_allclose(outputs[name], wanted[name], rtol=1e-12, atol=1e-12)


def test_equal_branches_share_their_tables() -> None:
    """Of six forks in a row as many tables are made as of three: but for the ends all are equal up to names."""
    made = []
    for count in (3, 6):
        graph = forks(count)
        planning = build_problem(graph, machine_of((2, 2), "1e-6", "1e10"), space("complete"), None)
        views = Submeshes(planning)
        assert len(regions_of(planning, branches_of(graph), views)) == count
        made.append((len(views.forms), views.nbytes))
    assert made[0] == made[1] and made[0][0] > 0


def test_tables_of_branches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divisions whose tables come when too much is kept are left out, and so not in the claim."""
    graph = forks(3)
    planning = build_problem(graph, machine_of((2, 2), "1e-6", "1e10"), space("complete"), None)
    monkeypatch.setattr(submesh_problem, "MOST_BYTES", 0)
    views = Submeshes(planning)
    assert all(len(r.divisions) < 2 for r in regions_of(planning, branches_of(graph), views))
    assert any(isinstance(found, TooLarge) for found in views.forms.values())


def test_prices_of_views_are_those_of_the_second_builder() -> None:
    """Every branch of the region on every view: t(label) >= what any choice takes, and some choice takes it."""
    graph, machine = fork(True, 2), machine_of((2, 2), "1e-6", "1e10")
    planning = build_problem(graph, machine, space("complete"), None)
    regions = regions_of(planning, branches_of(graph))
    made = build_submesh_problem(planning, regions)
    second = Enumerated(graph, machine, regions[0], planning.problem.scale)
    for row in made.groups[0]:
        for _, group in row:
            tables = second.on(group.view)
            for one in group.labelled:
                for k, times in enumerate(one.times):
                    x = one.solve(k)
                    names = {v: made.planning.decisions[v].name for v in x}
                    total = sum(tables.costs(("operator", names[v]))[c] for v, c in x.items())
                    at = {("operator", names[v]): c for v, c in x.items()}
                    for e in tables.edges:
                        if e.source in at and e.target in at:
                            total += tables.edge_costs(e)[at[e.source]][at[e.target]]
                    assert (total,) == times


@pytest.mark.parametrize(
    "views", [(Submesh((0, 0), (1, 2)), Submesh((1, 0), (1, 2))), (Submesh((0, 0), (2, 1)), Submesh((0, 1), (2, 1)))]
)
def test_the_time_of_any_choices_is_that_of_the_second_builder(views: tuple[Submesh, Submesh]) -> None:
    """Chains on views of several devices, placed at random: what moves inside of a view, too."""
    graph, machine = fork(True, 2), machine_of((2, 2), "1e-6", "1e10")
    region = Region(((("left0", "left1"),), (("right0", "right1"),)), (views,))
    plan = found(graph, machine, (region,))
    c, entries, rng = certificate(plan), Entries(plan.planning.planning), np.random.default_rng(0)
    parts = parts_of(entries, (region,))
    second = Enumerated(graph, machine, region, entries.problem.scale)
    costs, total = second.priced(views)
    numbers, prices = {v: k for k, v in enumerate(second.on(None).choices)}, Prices(entries, parts)
    seen = set()
    for _ in range(20):
        x = tuple(int(rng.integers(len(cost))) for cost in costs)
        items: dict[DecisionKind, list[tuple[str, Placement]]] = {DecisionKind.OPERATOR: [], DecisionKind.COPY: []}
        for v, d in enumerate(entries.planning.decisions):
            kind = "operator" if d.kind is DecisionKind.OPERATOR else "copy"
            view = second.view_of(kind, d.name, views)
            listed = prices.placements(v, machine.hierarchy if view is None else view.counts)
            matrix = tuple(tuple(int(n) for n in row) for row in listed[x[numbers[kind, d.name]]])
            items[d.kind].append((d.name, Placement(d.axes, matrix, view)))
        choices = replace(
            c.choices, operators=tuple(items[DecisionKind.OPERATOR]), copies=tuple(items[DecisionKind.COPY])
        )
        chosen = _Chosen(replace(c, choices=choices), entries, parts)
        assert chosen.wrong_choices() == "" and chosen.time() == total(x)
        seen.add(total(x))
    assert len(seen) > 10


def test_divisions_are_disjoint_and_aligned() -> None:
    for hierarchy in ((4, 8), (2, 2), (1, 6), (3, 2)):
        seen = set()
        for boxes in grids(hierarchy, 5):
            assert boxes not in seen
            seen.add(boxes)
            assert all(v.fits(hierarchy) for v in boxes)
            assert not any(a.meets(b) for a, b in itertools.combinations(boxes, 2))
            every = [d for v in boxes for d in v.devices(hierarchy)]
            assert len(every) == len(set(every))


def _sibling(view: Submesh | None) -> Submesh:
    """A view of the same size on 2x2."""
    assert view is not None
    starts = tuple((s + c) % 2 if c == 1 else s for s, c in zip(view.starts, view.counts, strict=True))
    return Submesh(starts, view.counts)


Change = Callable[[SubmeshCertificate], SubmeshCertificate]


def _choice(c: SubmeshCertificate, k: int, **fields: object) -> SubmeshCertificate:
    name, p = c.choices.operators[k]
    items = list(c.choices.operators)
    items[k] = name, replace(p, **fields)  # type: ignore[arg-type]
    return replace(c, choices=replace(c.choices, operators=tuple(items)))


def _region(c: SubmeshCertificate, **fields: object) -> SubmeshCertificate:
    return replace(c, regions=(replace(c.regions[0], **fields), *c.regions[1:]))  # type: ignore[arg-type]


def _branches(c: SubmeshCertificate) -> tuple[tuple[tuple[str, ...], ...], ...]:
    return c.regions[0].branches


MUTANTS: dict[str, tuple[str, Change]] = {
    "an operator of a branch on the whole machine": ("outside the space", lambda c: _choice(c, 0, view=None)),
    "another view": ("is on two submeshes", lambda c: _choice(c, 0, view=_sibling(c.choices.operators[0][1].view))),
    "a view of nothing": ("no aligned part", lambda c: _choice(c, 0, view=Submesh((0, 0), (1, 3)))),
    "a view outside": ("belongs to no branch", lambda c: _choice(c, -1, view=Submesh((0, 0), (2, 2)))),
    "a matrix that is none": ("outside the space", lambda c: _choice(c, 0, matrix=((3, 1),) * 4)),
    "a cheaper claim": (
        "the claim says",
        lambda c: replace(c, least=replace(c.least, claim=replace(c.least.claim, cost=c.least.claim.cost - 1))),  # type: ignore[union-attr, call-arg]
    ),
    "a division less": (
        "problem",
        lambda c: _region(
            c, divisions=tuple(d for d in c.regions[0].divisions if c.choices.operators[0][1].view in d)[:1]
        ),
    ),
    "views that meet": (
        "share devices",
        lambda c: _region(c, divisions=((Submesh((0, 0), (2, 2)), *c.regions[0].divisions[0][1:]),)),
    ),
    "a view that is not aligned": (
        "no aligned part",
        lambda c: _region(c, divisions=((Submesh((1, 0), (2, 2)), *c.regions[0].divisions[0][1:]),)),
    ),
    "a branch torn apart": (
        "moves from one branch",
        lambda c: _region(
            c,
            branches=((_branches(c)[0][0][:1],), (_branches(c)[0][0][1:],), *_branches(c)[1:]),
            divisions=tuple((d[0], *d) for d in c.regions[0].divisions),
        ),
    ),
    "two branches as one": (
        "does not hang together",
        lambda c: _region(
            c,
            branches=((_branches(c)[0][0] + _branches(c)[1][0],), *_branches(c)[2:]),
            divisions=tuple(d[1:] for d in c.regions[0].divisions),
        ),
    ),
    "an operator twice": (
        "belongs to two branches",
        lambda c: _region(c, branches=(_branches(c)[1], *_branches(c)[1:])),
    ),
    "an operator that is none": (
        "is no operator",
        lambda c: _region(c, branches=((("nobody",),), *_branches(c)[1:])),
    ),
    "a branch that ends early": (
        "problem",
        lambda c: _region(c, branches=((_branches(c)[0][0][:-1],), *_branches(c)[1:])),
    ),
    "no regions": ("there are no regions", lambda c: replace(c, regions=())),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_changed_is_refuted(name: str) -> None:
    expected, change = MUTANTS[name]
    mutant = change(certificate(uno()))
    said = reasons(mutant)
    assert said
    assert expected in said or name in ("a division less", "a branch that ends early")


def test_a_join_inside_a_branch_would_wait_for_itself() -> None:
    """left0 -> left1 and right0 read x; a branch {left0}, a branch {join}: the phase waits for itself."""
    graph, machine = fork(False, 1), machine_of((1, 2), "1e-6", "1e11")
    plan = found(graph, machine)
    (region,) = plan.planning.regions
    turned = Region(((("left0",),), (("join",),)), region.divisions)
    assert "moves from one branch to another" in reasons(replace(certificate(plan), regions=(turned,)))


@pytest.mark.parametrize(
    "field", ["format", "regions", "space", "operators", "graph_sha256", "machine_sha256", "copies"]
)
def test_every_field_is_looked_at(field: str) -> None:
    members = encode_submesh_plan(certificate(uno()))
    head = json.loads(members["views.json"])
    head[field] = {"format": "x", "space": "x"}.get(field, [] if isinstance(head[field], list) else "0" * 64)
    data = write_container(None, {**members, "views.json": canonical(head)})
    if field == "copies":
        assert head["copies"] == json.loads(members["views.json"])["copies"] or "copy" in reasons_of(data)
    else:
        assert reasons_of(data)


@pytest.mark.parametrize("launch", ["1/10000", "0"])
def test_every_field_of_regions_and_choices(launch: str) -> None:
    """Whatever is changed in them is written, and is not proved."""
    c = by_hand(launch)
    mutants = [(f"regions{place}", replace(c, regions=other)) for place, other in changed(c.regions)]
    mutants += [(f"choices{place}", replace(c, choices=other)) for place, other in changed(c.choices)]
    assert len(mutants) > 60
    for place, mutant in mutants:
        data = write_submesh_plan(None, mutant)
        assert data != write_submesh_plan(None, c), place
        assert reasons_of(data), place


def reasons_of(data: bytes) -> str:
    try:
        _, results = check_members(read_container(data), 100, CELLS)
    except ContainerError as error:
        return str(error)
    return " ".join(r.reason for r in results if r.verdict is not Verdict.PROVED)


def test_machines_without_views_are_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    target = str(tmp_path / "v.spz")
    model = "dlrm:batch=8,tables=3,rows=20,width=4,bag=2,dense=6,bottom=8-4,top=16-8-1"
    assert run(["plan", "mlp-unity", "--machine", "cloud-a100:2x2", "--submeshes", "-o", target]) == 3
    assert "no branches" in capsys.readouterr().err
    assert run(["plan", model, "--machine", "cloud-a100:2x2", "--submeshes", "--memory", "1GiB", "-o", target]) == 0
    capsys.readouterr()
    assert run(["check", target, "--json"]) == 0
    assert "1073741824" in capsys.readouterr().out
    tight = ["--memory", "2KiB", "-o", target, "--json"]
    assert run(["plan", model, "--machine", "cloud-a100:2x2", "--submeshes", *tight]) == 5  # one that fits, with a gap
    found = json.loads(capsys.readouterr().out)
    assert found["lower_bound"] <= found["cost"] < 1 << 60 and found["verdict"] == "proved"


def in_order(graph: Graph, machine: Machine, choices: Choices) -> int:
    """Bytes of the fullest device, steps in the graph's order: what it has at least."""
    placements, copies = dict(choices.operators), dict(choices.copies)
    total = np.zeros((len(graph.operators), machine.devices), dtype=np.int64)
    writer, readers, copied = graph.writer(), graph.readers(), needs_copy(graph)
    for t in graph.tensors:
        uses, at = [i for i, _ in readers[t.name]], writer.get(t.name)
        if t.name in copied:
            layout = copy_layout(t.name, graph, copies[t.name], machine.hierarchy)
        elif at is not None:
            op = graph.operators[at]
            layout = output_layout(op, graph, placements[op.name], machine.hierarchy)
        else:
            continue
        for step in range(at or 0, 1 + max([at or 0, *uses])):
            total[step] += layout.volumes() * t.element_bytes
    return int(total.max())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plan", [uno, dlrm])
def test_memory_is_counted_twice_alike_and_nothing_is_left_out(plan: Callable[[], SubmeshAnswer], seed: int) -> None:
    planning = plan().planning
    choices, p = on_views(planning, seed), planning.planning
    held = held_bytes(p.graph, p.machine, planning.regions, choices)
    placements = [*dict(choices.operators).values(), *dict(choices.copies).values()]
    of = dict(zip([*p.operators.values(), *p.copies.values()], placements, strict=True))
    entries = Entries(p, Budget.with_large())
    assert held == counted.peak_memory(entries, planning.regions, [of[v] for v in range(len(p.decisions))])
    assert held >= in_order(p.graph, p.machine, choices) > 0


def test_a_limit_is_kept_to_the_byte() -> None:
    c = certificate(uno())
    held = held_bytes(c.graph, c.machine, c.regions, c.choices)
    assert uno().certificate(held) is not None
    with pytest.raises(NoAnswer, match="the fastest plan on submeshes holds"):
        uno().certificate(held - 1)
    exact = replace(c, memory=held)
    assert reasons(exact) == "" and reasons_of(write_submesh_plan(None, exact)) == ""
    assert f"the plan holds {held} bytes on a device" in reasons(replace(c, memory=held - 1))
    flags = check_submesh_plan(exact, "seed", 100, CELLS)[0].assumptions
    assert "no-memory-limit" not in flags and "every-operand-received" in flags


def test_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    target = str(tmp_path / "v.spz")
    model = "candle-uno:batch=16,tower=2,layers=1,width=512"
    assert run(["plan", model, "--machine", "cloud-a100:2x2", "--submeshes", "-o", target, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["status"] == "optimal"
    assert data["cost"] / data["scale"] < data["whole_machine_lower_bound"]
    assert len(data["branches"]) == 5
    assert all(b["view"] is not None for b in data["branches"])
    assert run(["check", target, "--model", model, "--machine", "cloud-a100:2x2"]) == 0
    assert "Delivers     proved" in capsys.readouterr().out
    assert run(["explain", target]) == 0
    assert "beside each other" in capsys.readouterr().out
    assert run(["explain", target, "--cost"]) == 3
    assert "as a whole" in capsys.readouterr().err
    assert run(["run", target, "-n", "4", "--virtual"]) == 0
    assert "equal" in capsys.readouterr().out
    assert run(["sensitivity", target]) == 3
    assert "has 2 submeshes in use" in capsys.readouterr().err


def test_measured_collectives_are_priced_alike_and_never_divided() -> None:
    """dgx-h100 measures collectives inside a node: views are whole nodes or parts of one; both builders agree."""
    graph = build("dlrm", batch=8, tables=3, rows=20, width=4, bag=2, dense=6, bottom="8-4", top="16-8-1")
    for sizes in ("1x4", "2x2"):
        plan = found(graph, load_machine(f"dgx-h100:{sizes}"))
        hierarchy = plan.planning.planning.machine.hierarchy
        views = [v for r in plan.planning.regions for d in r.divisions for v in d]
        assert views
        assert not any(v.divides_links(hierarchy) for v in views)
        assert not reasons(certificate(plan))

"""Plans with submeshes of training steps: forward and backward pass of a branch on one view, two phases of one region."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from test_views import certificate, fork, found, machine_of, on_views, reasons
from test_views_enumerated import ACROSS, HALVES, ONES, SPEEDS, Every, compared, planned, step

from shardproof.__main__ import run
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import mpi_available, run_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.plans.submeshes import fronts as searched
from shardproof.formal.plans.submeshes.backward import runs, tied
from shardproof.formal.plans.submeshes.regions import branches_of, regions_of
from shardproof.formal.plans.submeshes.search import SubmeshAnswer
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.limits import TooLarge
from shardproof.models.cost.selection import DecisionKind
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import Placement, space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.views.regions import Region
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.views.certificate import SubmeshCertificate
from shardproof.verify.plan.used_entries import Entries
from shardproof.verify.views import trades
from shardproof.verify.views.certificate import _Chosen
from shardproof.verify.views.prices import Prices
from shardproof.verify.views.problem import rebuilt
from shardproof.verify.views.structure import parts_of

Names = tuple[str, ...]


def both(graph_of: tuple[int, int], divisions: tuple[tuple[Submesh, ...], ...]) -> tuple[Graph, Region]:
    """A step by hand, whose branches have a forward and a backward operator."""
    graph, (ahead, back) = step(graph_of)
    return graph, Region(tuple((a[0], b[0]) for a, b in zip(ahead, back, strict=True)), divisions)


@pytest.mark.parametrize("divisions", [(HALVES, ONES[1:3]), ((HALVES[1],) * 2, HALVES)])
@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_the_optimum_is_that_of_all_choices(
    divisions: tuple[tuple[Submesh, ...], ...], launch: str, memory: str
) -> None:
    graph, region = both((1024, 1024), divisions)
    compared(graph, machine_of((1, 4), launch, memory), (region,))


@pytest.mark.parametrize(("launch", "memory"), SPEEDS)
def test_the_optimum_across_nodes(launch: str, memory: str) -> None:
    graph, region = both((1024, 1024), (ACROSS,))
    compared(graph, machine_of((2, 2), launch, memory), (region,))


def test_a_second_pass_may_wait_for_the_first_of_another_branch() -> None:
    """`right.b` reads what `left.f` wrote, by a copy outside of both branches; all of the first pass is over by then."""
    g, x = Builder("waits", "float32"), {}
    for name in ("left", "right"):
        x[name] = g.input(f"{name}.x", (1024,))
    ends = {n: g.map(f"{n}.f", "relu", x[n], text="b -> b") for n in x}
    loss = g.map("join", "add", *ends.values(), text="b, b -> b")
    back = [
        g.map("left.b", "multiply", loss, x["left"], text="b, b -> b"),
        g.map("right.b", "multiply", ends["left"], x["right"], text="b, b -> b"),
    ]
    graph = g.build(g.map("end", "add", *back, text="b, b -> b"))
    region = Region(tuple(((f"{n}.f",), (f"{n}.b",)) for n in x), (HALVES,))
    assert compared(graph, machine_of((1, 4), "1e-4", "1e11"), (region,)) == (HALVES,)


def test_views_and_the_whole_machine_win_somewhere() -> None:
    graph, region = both((1024, 1024), (HALVES,))
    slow, fast = (compared(graph, machine_of((1, 4), *s), (region,)) for s in (("1e-4", "1e11"), ("0", "1e8")))
    assert (slow, fast) == ((HALVES,), (None,))


def test_both_phases_count_once_and_share_their_views() -> None:
    """Two launches are saved, one per pass, and one view alone for both branches saves none."""
    graph, region = both((1024, 1024), (HALVES,))
    plan = planned(graph, machine_of((1, 4), "1e-4", "1e11"), (region,))
    assert plan.plain.cost is not None and plan.answer.cost is not None
    saved = (plan.plain.cost - plan.answer.cost) / plan.planning.problem.scale
    assert 1.9e-4 < saved < 2.1e-4
    assert "tied-backward" in plan.planning.problem.assumptions
    c = certificate(plan)
    placed = dict(c.choices.operators)
    assert [placed[n].view for n in ("left.f", "left.b", "right.f", "right.b")] == [*HALVES[:1] * 2, *HALVES[1:] * 2]
    moved = tuple(
        (n, replace(p, view=HALVES[1] if n == "left.b" else HALVES[0] if n == "right.b" else p.view))
        for n, p in c.choices.operators
    )
    assert "is on two submeshes" in reasons(replace(c, choices=replace(c.choices, operators=moved)))


@cache
def towers() -> SubmeshAnswer:
    forward = build("candle-uno", batch=16, tower=2, layers=1, width=64, features_percent=2)
    return found(build_step(forward, "sgd").graph, machine_of((2, 2), "1e-5", "1e11"))


@cache
def tables() -> SubmeshAnswer:
    g = build("dlrm", batch=8, tables=3, rows=20, width=4, bag=2, dense=6, bottom="8-4", top="16-8-1")
    return found(build_step(g, "sgd").graph, machine_of((2, 2), "1e-5", "1e11"))


@cache
def forked() -> SubmeshAnswer:
    """Two branches of two products each, from one input."""
    return found(build_step(fork(True, 2), "adam").graph, machine_of((2, 2), "1e-5", "1e11"))


STEPS = [towers, tables, forked]


@pytest.mark.parametrize("plan", STEPS)
def test_builder_and_checker_make_the_same_problem(plan: Callable[[], SubmeshAnswer]) -> None:
    made = plan().planning
    assert all(region.phases == 2 for region in made.regions)
    entries = Entries(made.planning)
    assert rebuilt(entries, made.regions, parts_of(entries, made.regions)).sha256() == made.problem.sha256()
    assert reasons(certificate(plan())) == ""


@pytest.mark.parametrize("plan", [towers, forked])
def test_steps_win_by_proof(plan: Callable[[], SubmeshAnswer]) -> None:
    assert plan().answer.cost == plan().answer.lower_bound
    assert plan().answer.cost < plan().plain.lower_bound  # type: ignore[operator]


@pytest.mark.parametrize("plan", [tables, forked])
def test_the_time_of_any_choices_is_that_of_the_second_builder(plan: Callable[[], SubmeshAnswer]) -> None:
    c = certificate(plan())
    made = plan().planning.planning
    entries, rng = Entries(made), np.random.default_rng(0)
    parts = parts_of(entries, c.regions)
    second, prices = Every(c.graph, c.machine, c.regions, made.problem.scale), Prices(entries, parts)
    order = list(second.on(None).choices)
    seen = set()
    for _ in range(5):
        ways = tuple(region.divisions[rng.integers(len(region.divisions))] for region in c.regions)
        views = dict(zip(order, second.views(ways), strict=True))
        x = []
        items: dict[DecisionKind, list[tuple[str, Placement]]] = {DecisionKind.OPERATOR: [], DecisionKind.COPY: []}
        chosen: dict[tuple[str, str], int] = {}
        for v, d in enumerate(made.decisions):
            vertex = ("operator" if d.kind is DecisionKind.OPERATOR else "copy"), d.name
            view = views[vertex]
            listed = prices.placements(v, c.machine.hierarchy if view is None else view.counts)
            chosen[vertex] = k = int(rng.integers(len(listed)))
            items[d.kind].append((d.name, Placement(d.axes, tuple(map(tuple, listed[k].tolist())), view)))
        x = [chosen[v] for v in order]
        choices = replace(
            c.choices, operators=tuple(items[DecisionKind.OPERATOR]), copies=tuple(items[DecisionKind.COPY])
        )
        priced = _Chosen(replace(c, choices=choices), entries, parts)
        assert priced.wrong_choices() == ""
        assert priced.time() == second.total(ways, x)
        seen.add(priced.time())
    assert len(seen) == 5


def chain(n: int, rng: np.random.Generator) -> tuple[list[int], list[int], dict[int, np.ndarray], dict[int, int], list]:
    """A branch made up: decisions in a row, some of them linked twice, in two phases."""
    sizes = [int(rng.integers(1, 4)) for _ in range(n)]
    costs = {v: rng.integers(0, 9, size) for v, size in enumerate(sizes)}
    pairs = [(v - 1, v) for v in range(1, n)] + [(int(rng.integers(v)), v) for v in range(2, n, 2)]
    links = [(a, b, int(rng.integers(2)), rng.integers(0, 9, (sizes[a], sizes[b]))) for a, b in pairs]
    ends = sorted(int(v) for v in rng.choice(n, min(n, int(rng.integers(0, 3))), replace=False))
    return list(range(n)), ends, costs, {v: int(rng.integers(2)) for v in range(n)}, links


def listed(ends: list[int], classes: list[np.ndarray], costs: dict, phase: dict, links: list) -> dict[Names, list]:
    """Label -> pairs that no other one dominates, by all choices."""
    every: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for x in itertools.product(*(range(c.size) for c in costs.values())):
        time = [0, 0]
        for v, k in enumerate(x):
            time[phase[v]] += int(costs[v][k])
        for a, b, p, table in links:
            time[p] += int(table[x[a], x[b]])
        label = tuple(int(of[x[v]]) for v, of in zip(ends, classes, strict=True))
        every.setdefault(label, set()).add((time[0], time[1]))
    return {
        label: sorted(p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs))
        for label, pairs in sorted(every.items())
    }


def test_search_and_checker_keep_all_trades_and_no_other() -> None:
    """Made-up branches: both find the pairs that all choices give, and the choices that the search names take them."""
    rng, several = np.random.default_rng(5), 0
    for _ in range(60):
        vertices, ends, costs, phase, links = chain(int(rng.integers(1, 7)), rng)
        classes = [np.minimum(np.arange(costs[v].size), 1) for v in ends]
        wanted = [
            (label, pair) for label, pairs in listed(ends, classes, costs, phase, links).items() for pair in pairs
        ]
        mine = searched.front_tables(vertices, ends, costs, phase, links, Clock())
        for labels, times in (
            mine.labels(classes),
            trades.tradeoff_labels(vertices, ends, classes, costs, phase, links),
        ):
            assert list(zip(labels, times, strict=True)) == wanted
        several += len(wanted) > len({label for label, _ in wanted})
        for label, pair in wanted:
            x = mine.solve(label, classes, pair)
            assert sorted(x) == vertices
            assert tuple(int(of[x[v]]) for v, of in zip(ends, classes, strict=True)) == label
            fixed = {v: costs[v][[x[v]]] for v in vertices}
            only = [(a, b, p, table[[x[a]]][:, [x[b]]]) for a, b, p, table in links]
            assert listed([], [], fixed, phase, only) == {(): [pair]}
    assert several > 20


def test_too_many_trades_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    vertices, _, costs, phase, links = chain(6, np.random.default_rng(5))
    with monkeypatch.context() as m:
        m.setattr(searched, "MOST_POINTS", 4)
        with pytest.raises(TooLarge, match="trades to be kept"):
            searched.front_tables(vertices, [], costs, phase, links, Clock())
    for limit, said in (("MOST_ROWS", "too many trades"), ("MOST_KEYS", "too many choices|too long")):
        with monkeypatch.context() as m:
            m.setattr(trades, limit, 4)
            with pytest.raises(ContainerError, match=said):
                trades.tradeoff_labels(
                    vertices, [0, 5], [np.arange(costs[v].size) for v in (0, 5)], costs, phase, links
                )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plan", STEPS)
def test_ranks_train_on_their_views(plan: Callable[[], SubmeshAnswer], seed: int) -> None:
    """Loss and next values of all weights and moments are those of one process; ranks outside of a view hold nothing."""
    made = plan().planning
    graph, hierarchy = made.planning.graph, made.planning.machine.hierarchy
    choices = on_views(made, seed)
    kept = {p for p, _ in graph.state}
    assert any(p.view is not None for name, p in choices.copies if name in kept)
    inputs = random_inputs(graph, seed, "float64")
    wanted = run_graph(graph, inputs)
    for options in (Options(), Options(fuse=False, overlap=False)):
        result = run_virtual(build_program(graph, hierarchy, choices, options), inputs, np, 60.0)
        for name in graph.results:
            np.testing.assert_allclose(result.outputs[name], wanted[name], rtol=1e-10, atol=1e-12)
        assert all(t.fits for t in result.traffic)


@pytest.mark.skipif(not mpi_available(), reason="MPI is not installed")
def test_four_mpi_ranks_train_on_views() -> None:
    c = certificate(towers())
    assert len({p.view for _, p in c.choices.operators}) > 2
    inputs = random_inputs(c.graph, 0, "float64")
    outputs = run_job(c.graph, c.machine.hierarchy, c.choices, inputs, Options(), 120.0).outputs
    wanted = run_graph(c.graph, inputs)
    for name in c.graph.results:
        np.testing.assert_allclose(outputs[name], wanted[name], rtol=1e-10, atol=1e-12)


def test_divisions_that_come_too_late_are_not_in_the_claim() -> None:
    graph, machine = build_step(fork(True, 2), "sgd").graph, machine_of((2, 2), "1e-5", "1e11")
    planning = build_problem(graph, machine, space("complete"), None)
    every, first = (regions_of(planning, branches_of(graph), over=lambda late=late: late) for late in (False, True))
    assert [len(r.divisions) for r in first] == [1] and len(every[0].divisions) > 1
    assert first[0].divisions == every[0].divisions[:1]


def owned(graph: Graph) -> list[list[tuple[Names, ...]]]:
    return [list(branches) for branches in tied(graph, branches_of(graph))]


def test_gradients_and_updates_belong_to_their_branch() -> None:
    graph = build_step(fork(False, 1), "sgd").graph
    ((left, right),) = owned(graph)
    assert left == (("left0",), ("grad:left0.w", "left0.w.next"))
    assert right == (("right0",), ("grad:right0.w", "right0.w.next"))


def test_what_reads_all_gradients_belongs_to_none() -> None:
    """Behind the norm of all gradients nothing comes back into a branch."""
    graph = build_step(fork(False, 1), "adamw:rate=0.01,clip=1").graph
    ((left, right),) = owned(graph)
    names = {*left[1], *right[1]}
    assert any("grad:left0.w" in n for n in left[1])
    assert not any(n.endswith(".next") for n in names)
    assert runs(graph, [(left, right)])


def test_a_weight_of_both_branches_belongs_to_none() -> None:
    g = Builder("shared", "float32")
    w = g.parameter("w", (64, 64))
    ends = [g.contract(n, "b k, k n -> b n", g.input(f"{n}.x", (4, 64)), w) for n in ("left", "right")]
    graph = build_step(g.build(g.map("join", "add", *ends, text="b n, b n -> b n")), "sgd").graph
    (branches,) = owned(graph)
    assert not any("w.next" in n for branch in branches for phase in branch for n in phase)
    plan = found(graph, machine_of((1, 2), "1e-4", "1e11"))
    assert reasons(certificate(plan)) == ""


def test_a_phase_that_would_wait_for_itself_is_none() -> None:
    graph, _ = step((1024, 1024))
    branches = ((("left.f",), ("left.b",)), (("right.f",), ("right.b",)))
    assert runs(graph, [branches])
    assert not runs(graph, [((("left.f", "left.b"),), (("right.f", "right.b"),))])


PHASES: dict[str, tuple[tuple[tuple[Names, ...], ...], str]] = {
    "both passes in one phase": (((("left.f", "left.b"),), (("right.f", "right.b"),)), "would have to wait for itself"),
    "passes exchanged in one branch": (
        ((("left.b",), ("left.f",)), (("right.f",), ("right.b",))),
        "would have to wait for itself",
    ),
    "no operators": (((("left.f",), ("left.b",)), ((), ())), "a branch has no operators"),
    "an operator in both phases": (
        ((("left.f",), ("left.f",)), (("right.f",), ("right.b",))),
        "is no operator, or belongs to two branches",
    ),
    "passes that share nothing": (
        ((("left.f",), ("right.b",)), (("right.f",), ("left.b",))),
        "does not hang together",
    ),
    "a pass less": (
        ((("left.f",), ()), (("right.f",), ("right.b",))),
        "'left.x' belongs to no branch and has a submesh",
    ),
}


@cache
def by_hand() -> SubmeshCertificate:
    graph, region = both((1024, 1024), (HALVES,))
    return certificate(planned(graph, machine_of((1, 4), "1e-4", "1e11"), (region,)))


@pytest.mark.parametrize("name", PHASES)
def test_phases_that_are_none(name: str) -> None:
    branches, said = PHASES[name]
    c = by_hand()
    refuted = reasons(replace(c, regions=(replace(c.regions[0], branches=branches),)))
    assert said in refuted, refuted


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "step.spz")
    model = [
        "candle-uno:batch=16,tower=1,layers=1,width=512,features_percent=50",
        "--train",
        "sgd",
        "--machine",
        "cloud-a100:1x3",
    ]
    assert run(["plan", *model, "--submeshes", "--json", "-o", target]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["trained"] > 0 and "tied-backward" in said["assumptions"]
    assert said["cost"] / said["scale"] < said["whole_machine_lower_bound"]
    assert run(["check", target]) == 0
    assert run(["explain", target]) == 0
    assert "forward and backward" in capsys.readouterr().out
    assert run(["run", target, "-n", "3", "--virtual"]) == 0
    assert "equal" in capsys.readouterr().out

"""Scatters, grouped products and orders by definition, whole and in parts; what a graph file may say of them; prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path

import indexed_cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_builder_comparison import compare, tables_of
from test_kernels import check_split, single, tight, whole

from shardproof.__main__ import run
from shardproof.backends.execution.reference import run_graph
from shardproof.backends.kernels import execute, full_box
from shardproof.formal.plans.pipelines.parts import StageWork
from shardproof.formal.plans.pipelines.stage_work import stage_work
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost import cost
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.loads import read_counts, with_counts
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo_build
from shardproof.models.text import InputError
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.assumptions import wrong_assumptions
from shardproof.verify.plan.box_tables import shape_of
from shardproof.verify.plan.entries import operator_entry
from shardproof.verify.plan.entry_tables import operator_times
from shardproof.verify.plan.plan import check_plan

START = {"scatter_max": -np.inf, "scatter_min": np.inf}
COMBINE = {"scatter_max": max, "scatter_min": min}


def interpret(op: Operator, box: dict[str, tuple[int, int]], arrays: list[np.ndarray]) -> np.ndarray:
    """One point of the iteration box after another."""
    out = np.full([box[a][1] - box[a][0] for a in op.output.axes], START.get(op.function, 0.0))
    names = [a.name for a in op.axes]
    for values in product(*(range(*box[n]) for n in names)):
        point = dict(zip(names, values))
        read = [float(x[tuple(point[i.single] for i in a.index)]) for x, a in zip(arrays, op.inputs)]
        at = tuple(point[a] - box[a][0] for a in op.output.axes)
        if read[-1] == point[op.rows]:
            out[at] = COMBINE.get(op.function, lambda a, b: a + b)(out[at], np.prod(read[:-1]))
    return out


@pytest.mark.parametrize("name", sorted(indexed_cases.CASES))
@pytest.mark.parametrize("seed", range(8))
def test_any_box_by_definition(name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    graph = indexed_cases.CASES[name](rng)
    graph = replace(
        graph, operators=graph.operators[:1], outputs=("y",), tensors=tuple(t for t in graph.tensors if t.name != "z")
    )
    op, graph, arrays = single(graph, seed)
    for _ in range(4):
        box = {a.name: tuple(sorted(int(n) for n in rng.integers(0, a.extent + 1, 2))) for a in op.axes}
        got = execute(np, op, graph, box, tight(op, graph, box, arrays))
        np.testing.assert_allclose(got, interpret(op, box, arrays), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(whole(op, graph, arrays), interpret(op, full_box(op.axes), arrays), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*sorted(indexed_cases.CASES), "order"]), st.integers(0, 10**6), st.data())
def test_blocks_of_one_axis_add_up(name: str, seed: int, data: st.DataObject) -> None:
    graph = {**indexed_cases.CASES, "order": indexed_cases.order}[name](np.random.default_rng(seed))
    graph = replace(
        graph, operators=graph.operators[:1], outputs=("y",), tensors=tuple(t for t in graph.tensors if t.name != "z")
    )
    op, graph, arrays = single(graph, seed)
    axis = data.draw(st.sampled_from([a for a in op.axes if a.splittable]))
    check_split(op, graph, arrays, axis, data.draw(st.lists(st.integers(0, axis.extent), max_size=3)))


@pytest.mark.parametrize("seed", range(6))
def test_order_is_stable_in_both_directions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = indexed_cases.order(rng)
    (op,) = graph.operators
    x = rng.integers(0, 3, graph.tensor("x").shape).astype(float)
    got = run_graph(graph, {"x": x})["y"].T
    down = op.attribute("descending", 0)
    for row, order in zip(x, got):
        assert [int(p) for p in order] == sorted(range(len(row)), key=lambda p: (-row[p] if down else row[p], p))


def test_ids_outside_the_rows_go_nowhere() -> None:
    g = Builder("g", "float64")
    x, ids = g.input("x", (4,)), g.input("ids", (4,), "int64")
    reads = [access(x, "b"), access(ids, "b")]
    made = [
        g.operator(f"y{how.value}", f"scatter_{name}", [Axis("v", 2), Axis("b", 4, how)], reads, ["v"], {"rows": "v"})
        for name, how in (("add", Combine.SUM), ("max", Combine.MAX), ("min", Combine.MIN))
    ]
    found = run_graph(g.build(*made), {"x": np.array([1.0, 2.0, 3.0, 4.0]), "ids": np.array([-1, 1, 2, 1])})
    assert [found[y].tolist() for y in made] == [[0.0, 6.0], [-np.inf, 4.0], [np.inf, 2.0]]


def moe(load: str | tuple[int, ...] = "even") -> Graph:
    g = Builder("moe")
    x, w = g.input("x", (8, 6)), g.parameter("w", (4, 6, 5))
    ids = g.input("ids", (8, 2), "int64")
    axes = [
        *(Axis(a, n) for a, n in (("t", 8), ("j", 2), ("n", 5))),
        *(Axis(a, n, Combine.SUM) for a, n in (("e", 4), ("k", 6))),
    ]
    reads = [access(x, "t", "k"), access(w, "e", "k", "n"), access(ids, "t", "j")]
    attributes = {"rows": "e", "load": load}
    y = g.operator("y", "grouped_product", axes, reads, ["t", "j", "n"], attributes)
    back = g.operator(
        "back",
        "scatter_add",
        [Axis("v", 4), Axis("n", 5), *(Axis(a, n, Combine.SUM) for a, n in (("t", 8), ("j", 2)))],
        [access(y, "t", "j", "n"), access(ids, "t", "j")],
        ["v", "n"],
        {"rows": "v"},
    )
    return g.build(back)


LOADS = ["even", "any", (5, 1, 0, 2), (0, 0, 0, 1), (1, 1 << 30, 7, (1 << 30) - 11)]


@pytest.mark.parametrize("load", LOADS)
def test_prices_are_those_of_the_second_builder_and_of_the_checker(load: str | tuple[int, ...]) -> None:
    """Every entry by the tables, by plain fractions, and device by device."""
    machine = load_machine("cloud-a100:2x2")
    planning = build(moe(load), machine, space("complete,uneven"), 1 << 20)
    assert compare(planning, tables_of(planning)).differences == []
    for op in planning.graph.operators:
        v = planning.operators[op.name]
        decision, cost = planning.decisions[v], planning.problem.vertices[v].cost.tolist()
        placements = [decision.placement(k) for k in range(len(cost))]
        assert cost == [operator_entry(op, planning.graph, p, machine, planning.problem.scale) for p in placements]
        shape = shape_of(op, planning.graph, placements[0].axes)
        matrices = np.array([p.matrix for p in placements], dtype=np.int64)
        assert cost == operator_times(shape, matrices, machine, planning.problem.scale).tolist()
    assert wrong_assumptions(planning.problem, planning.graph, machine, planning.space, 1 << 20) == ""
    assert ("even-groups" in planning.problem.assumptions) is (load == "even")
    assert ("counted-groups(1: y)" in planning.problem.assumptions) is (not isinstance(load, str))


def test_groups_on_every_device_cost_a_share_or_everything() -> None:
    """Four experts on four devices: a quarter of the points each where they are even, all of them where one may have
    them."""
    flops = {}
    for load in ("even", "any", (5, 1, 0, 2), (3, 3, 1, 1)):
        planning = build(moe(load), load_machine("cloud-a100:1x4"), space("complete"))
        v = planning.operators["y"]
        of = planning.costs[v]
        assert of is not None
        for k in range(len(of.times)):
            placement = planning.decisions[v].placement(k)
            if placement.matrix[placement.axes.index("e")] == (1, 4):
                flops[load] = int(of.flops[k])
    whole = 2 * 8 * 2 * 5 * 6
    assert flops == {"even": whole // 4, "any": whole, (5, 1, 0, 2): whole * 5 // 8, (3, 3, 1, 1): whole * 3 // 8}


@given(
    st.lists(st.integers(0, 1 << 20), min_size=8, max_size=8).filter(any),
    st.integers(1, 1 << 40),
    st.sampled_from([1, 2, 4, 8]),
)
def test_the_slowest_block_of_experts_decides_exactly(counts: list[int], width: int, ways: int) -> None:
    """Points beyond 64 bits times counts: the shares are whole numbers, rounded up, of the tables and of the checker."""
    g = Builder("wide")
    x, w = g.input("x", (2, 1)), g.parameter("w", (8, 1, width))
    axes = [Axis("t", 2), Axis("n", width), Axis("e", 8, Combine.SUM), Axis("k", 1, Combine.SUM)]
    reads = [access(x, "t", "k"), access(w, "e", "k", "n"), access(g.input("ids", (2,), "int64"), "t")]
    y = g.operator("y", "grouped_product", axes, reads, ["t", "n"], {"rows": "e", "load": tuple(counts)})
    machine = load_machine(f"cloud-a100:1x{ways}")
    planning = build(g.build(y), machine, space("complete"))
    v = planning.operators["y"]
    costs = planning.costs[v]
    assert costs is not None
    for k in range(len(costs.times)):
        placement = planning.decisions[v].placement(k)
        parts = dict(zip(placement.axes, (prod(row) for row in placement.matrix), strict=False))
        block = 8 // parts["e"]
        most = max(sum(counts[i : i + block]) for i in range(0, 8, block))
        points = -(-2 // parts["t"]) * -(-width // parts["n"])
        assert int(costs.flops[k]) == 2 * -(-points * most // sum(counts))
        assert operator_entry(g_op(planning), planning.graph, placement, machine) == int(costs.times[k])


def g_op(planning: Planning) -> Operator:
    return next(op for op in planning.graph.operators if op.name == "y")


def test_counts_are_read_by_layer_and_by_name(tmp_path: Path) -> None:
    graph = zoo_build("moe", layers=2, experts=4, capacity_percent=0)
    names = [op.name for op in graph.operators if op.even]
    assert len(names) == 6
    one, other = [4, 0, 1, 2], [1, 1, 1, 5]
    same = with_counts(graph, one, "x.json")
    layers = with_counts(graph, [one, other], "x.json")
    named = with_counts(graph, {"layer1.*": other, "*": one}, "x.json")
    assert layers == named and {op.loads for op in same.operators if op.loads} == {tuple(one)}
    assert [op.loads[0] for op in layers.operators if op.loads] == [4, 4, 4, 1, 1, 1]
    assert Graph.from_json(layers.to_json()) == layers and layers.sha256() != graph.sha256()
    half = with_counts(graph, {"layer1.*": other}, "x.json")
    assert [op.even for op in half.operators if op.name in names] == [True] * 3 + [False] * 3
    step = build_step(layers, "sgd").graph
    assert not any(op.even for op in step.operators) and sum(bool(op.loads) for op in step.operators) > 6
    for wrong, message in (
        ([1, 2], "2 counts for layer0.ffn.gate, which has 4 experts"),
        ([one], "1 lists of counts; 2 layers have experts"),
        ({"layer2.*": one}, "fits no grouped product"),
        ({"*": one, "layer0.*": one}, "fits no grouped product first"),
        ([0, 0, 0, 0], "0 points in all"),
        ([1 << 31, 0, 0, 0], "divide the counts"),
        ([1, 2, 3, True], "no list of whole numbers"),
        ([1, 2, 3, -1], "no list of whole numbers"),
        ([], "is no list of counts"),
        ("even", "is no list of counts"),
    ):
        with pytest.raises(InputError, match=message):
            with_counts(graph, wrong, "x.json")
    with pytest.raises(InputError, match="all of a kind"):
        with_counts(same, one, "x.json")
    with pytest.raises(InputError, match="none"):
        with_counts(zoo_build("mlp-unity"), one, "x.json")
    for text, message in (("[1.5, 2]", "1.5 is not an integer"), ("[1,", "x.json"), ('{"a": 1, "a": 2}', "twice")):
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_counts(tmp_path / "x.json")
    with pytest.raises(InputError, match="none.json"):
        read_counts(tmp_path / "none.json")


@pytest.mark.parametrize(
    "lie",
    [
        lambda points, form, tables: points // len(form.loads),
        lambda points, form, tables: points * 0 + 1,
        lambda points, form, tables: points,
    ],
    ids=["even", "nothing", "everything"],
)
def test_a_builder_that_prices_counted_groups_otherwise_is_refuted(
    lie: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker multiplies for itself: devices one by one, and every entry that the plan uses."""
    graph, machine = moe((60, 1, 1, 2)), load_machine("cloud-a100:1x4")
    peaks = tuple((d, Fraction(10**6) if d == "float32" else v) for d, v in machine.device.peaks)
    slow = replace(machine, device=replace(machine.device, peaks=peaks))
    honest = plan_graph(graph, slow, None, None).plan
    assert honest is not None and check_plan(write_plan(None, honest)).verdict is Verdict.PROVED
    monkeypatch.setattr(cost, "_of_groups", lie)
    plan = plan_graph(graph, slow, None, None).plan
    assert plan is not None
    assert check_plan(write_plan(None, plan)).verdict is Verdict.REFUTED


def test_a_configuration_is_as_slow_as_its_fullest_experts() -> None:
    """Expert parallelism over two: rows come and go, and are multiplied, in proportion to the fuller half."""
    graph = zoo_build("moe", layers=1, batch=8, experts=4, capacity_percent=0, sequence=256, width=512, hidden=1024)
    box, flags = load_machine("dgx-h100:1x8"), Flags("Megatron", ep=2)

    def priced(counts: list[int] | None) -> StageWork:
        counted = graph if counts is None else with_counts(graph, counts, "x")
        return stage_work(build_step(counted, "adam", precision="bf16-master"), box, flags, 1)

    even, same, skewed = (priced(c) for c in (None, [1, 1, 1, 1], [3, 3, 1, 1]))
    assert even.parts == same.parts
    (layer,) = even.layers
    assert skewed.parts[layer].rows == even.parts[layer].rows * 3 // 2
    assert skewed.parts[layer].passes["F"].products > even.parts[layer].passes["F"].products


def test_a_plan_and_an_audit_take_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "counts.json").write_text("[5, 1, 1, 1]", encoding="utf-8")
    (tmp_path / "split.json").write_text('{"layer0.ffn.[gud]*": {"e": {"ranks": 4}}}', encoding="utf-8")
    model = "moe:layers=1,experts=4,capacity_percent=0,sequence=64,width=64,heads=4,kv_heads=2,hidden=128,vocabulary=64"
    ask = [model, "--machine", "localhost:4", "--batch", "4"]
    costs = []
    for more in ([], ["--expert-loads", str(tmp_path / "counts.json")]):
        out = tmp_path / f"{len(more)}.spz"
        assert run(["plan", *ask, *more, "-o", str(out), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["check", str(out)]) == 0
        assert ("counted-groups" in capsys.readouterr().out) is bool(more)
        run(["audit", *ask, *more, "--strategy", str(tmp_path / "split.json"), "--json"])
        costs.append(json.loads(capsys.readouterr().out)["strategy_cost"])
        assert found["status"] == "optimal"
    assert costs[1] > 1.5 * costs[0]


def test_what_a_file_may_not_say() -> None:
    graph = moe()
    (first, *rest) = graph.operators
    for wrong, message in (
        (replace(first, attributes=(("rows", "e"), ("load", "most"))), "attribute load: one of"),
        (replace(first, attributes=(("rows", "e"), ("load", (1, 2, 3)))), "a count for every group"),
        (replace(first, attributes=(("rows", "e"), ("load", (1, 2, 3, -1)))), "a count for every group"),
        (replace(first, attributes=(("rows", "e"), ("load", (0, 0, 0, 0)))), "a count for every group"),
        (replace(first, attributes=(("rows", "e"), ("load", ("a", "b", "c", "d")))), "a count for every group"),
        (replace(first, attributes=(("rows", "e"), ("load", (1 << 31, 0, 0, 0)))), "a count for every group"),
        (replace(first, attributes=(("rows", "q"),)), "needs attribute rows"),
        (replace(first, attributes=(("rows", "t"),)), "ids that do not depend on axis 't'"),
    ):
        with pytest.raises(GraphError, match=message):
            replace(graph, operators=(wrong, *rest)).check()
    assert Graph.from_json(graph.to_json()) == graph

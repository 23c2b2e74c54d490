"""Scatters, grouped products and orders by definition, whole and in parts; what a graph file may say of them; prices."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import indexed_cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_builder_comparison import compare, tables_of
from test_kernels import check_split, single, tight, whole

from shardproof.backends.execution.reference import run_graph
from shardproof.backends.kernels import execute, full_box
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.verify.plan.assumptions import wrong_assumptions
from shardproof.verify.plan.box_tables import shape_of
from shardproof.verify.plan.entries import operator_entry
from shardproof.verify.plan.entry_tables import operator_times

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


def moe(load: str = "even") -> Graph:
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


@pytest.mark.parametrize("load", ["even", "any"])
def test_prices_are_those_of_the_second_builder_and_of_the_checker(load: str) -> None:
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


def test_groups_on_every_device_cost_a_share_or_everything() -> None:
    """Four experts on four devices: a quarter of the points each where they are even, all of them where one may have
    them."""
    flops = {}
    for load in ("even", "any"):
        planning = build(moe(load), load_machine("cloud-a100:1x4"), space("complete"))
        v = planning.operators["y"]
        of = planning.costs[v]
        assert of is not None
        for k in range(len(of.times)):
            placement = planning.decisions[v].placement(k)
            if placement.matrix[placement.axes.index("e")] == (1, 4):
                flops[load] = int(of.flops[k])
    assert flops == {"even": 2 * 8 * 2 * 5 * 6 // 4, "any": 2 * 8 * 2 * 5 * 6}


def test_what_a_file_may_not_say() -> None:
    graph = moe()
    (first, *rest) = graph.operators
    for wrong, message in (
        (replace(first, attributes=(("rows", "e"), ("load", "most"))), "attribute load: one of"),
        (replace(first, attributes=(("rows", "q"),)), "needs attribute rows"),
        (replace(first, attributes=(("rows", "t"),)), "ids that do not depend on axis 't'"),
    ):
        with pytest.raises(GraphError, match=message):
            replace(graph, operators=(wrong, *rest)).check()
    assert Graph.from_json(graph.to_json()) == graph

"""Loops: what they compute on one process and on ranks, what they cost, which rows may be split, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import loop_cases
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_run import draw_choices

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.machine.parts import Profile
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.program.scan import bytes_moved, launches, operations, traffic
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.scan import Loop, scan
from shardproof.models.sources.training import build_step
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.box_tables import shape_of
from shardproof.verify.plan.entries import operator_entry
from shardproof.verify.plan.entry_tables import operator_times
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.turns import turns_of

GRAPHS: dict[str, Callable[[], Graph]] = {"lstm": loop_cases.lstm, "selective": loop_cases.selective}


def loop_of(graph: Graph) -> Operator:
    """The loop."""
    return next(op for op in graph.operators if op.function == "scan")


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_computes_what_its_body_says(reverse: bool) -> None:
    graph = loop_cases.lstm(reverse=reverse)
    values = random_inputs(graph, 1)
    found, wanted = run_graph(graph, values), loop_cases.expected(values, reverse)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-13, atol=1e-14)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(GRAPHS)), st.sampled_from([(2,), (4,), (3,), (2, 2)]), st.integers(0, 10**6))
def test_any_choices_give_the_reference(name: str, hierarchy: tuple[int, ...], seed: int) -> None:
    graph = GRAPHS[name]()
    values = random_inputs(graph, seed)
    found = run_virtual(lower(graph, hierarchy, draw_choices(graph, hierarchy, np.random.default_rng(seed))), values)
    for tensor, array in run_graph(graph, values).items():
        np.testing.assert_allclose(found.outputs[tensor], array, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_plan_of_a_loop_is_proved(name: str) -> None:
    result = plan_graph(GRAPHS[name](), load_machine("cloud-a100:2x2"))
    assert check_plan(write_plan(None, result.plan)).verdict is Verdict.PROVED


def test_a_loop_costs_its_body_as_often_as_it_turns() -> None:
    """Counted by hand: z (add and product), three gates of 8, tanh twice, three products, a sum."""
    turns, batch, n = 5, 4, 3
    op = loop_of(graph := loop_cases.lstm(turns, batch, n))
    body = graph.body(op)
    per_row = 2 * 4 * n * n + 4 * n + 5 * 8 * n + 4 * n
    assert operations(op, body) == turns * per_row and launches(op, body) == turns * 11
    assert graph.work(op) == batch * turns * per_row
    own = 8 * (2 * n + 3 * 4 * n + 4 * 2 * n + 12 * n + 2 * n)  # h; z, its parts; gates; four maps of two, one of one
    gates = 8 * (n + 4 * n) + 8 * 3 * 4 * n + 8 * 4 * 2 * n + 8 * (3 * 3 * n + 2 * n) + 8 * 3 * n
    assert own and bytes_moved(op, body) == turns * (batch * gates + 8 * 4 * n * n)
    once = turns_of(op)
    assert once is not None and once.flops == turns * per_row and once.launches == turns * 11
    assert dict(once.moved) == {("b",): turns * gates, (): turns * 8 * 4 * n * n}


def test_a_loop_survives_its_file() -> None:
    graph = loop_cases.selective()
    assert Graph.from_json(graph.to_json()) == graph


def changed(op: Operator, **attributes: object) -> Operator:
    return replace(op, attributes=tuple(sorted({**dict(op.attributes), **attributes}.items())))  # type: ignore[arg-type]


def with_body(op: Operator, edit: Callable[[dict], None]) -> Operator:
    """The loop with another body, in canonical text."""
    data = json.loads(str(op.attribute("body", "")))
    edit(data)
    return changed(op, body=json.dumps(data, sort_keys=True, separators=(",", ":")))


def step(data: dict, name: str) -> dict:
    return next(o for o in data["operators"] if o["name"] == name)


def with_axis(op: Operator, name: str, **fields: object) -> Operator:
    return replace(op, axes=tuple(replace(a, **fields) if a.name == name else a for a in op.axes))  # type: ignore[arg-type]


def mixes_rows(data: dict) -> None:
    """A state of as many units as rows, read along its rows where its units are wanted, and the other way round."""
    step(data, "hw")["inputs"][0][1] = [{"offset": 0, "terms": [["b", 1], ["k", 1]]}, "k"]


def shifts_rows(data: dict) -> None:
    """c of the next row."""
    step(data, "kept")["inputs"][1][1] = [{"offset": 1, "terms": [["i0", 1]]}, "i1"]


def shortens_rows(data: dict) -> None:
    """Only the first rows are worked on."""
    step(data, "bounded")["axes"][0][1] = 2
    next(t for t in data["tensors"] if t["name"] == "bounded")["shape"][0] = 2


def normalises_rows(data: dict) -> None:
    step(data, "bounded").update(function="softmax", attributes={"over": ["i0"]})


def sums_rows(data: dict) -> None:
    """c' becomes its sum over rows."""
    one = step(data, "bounded")
    one.update(function="sum", axes=[["i1", 3, None, True], ["i0", 4, "sum", True]], output=["bounded", ["i1"]])
    next(t for t in data["tensors"] if t["name"] == "bounded")["shape"] = [3]
    step(data, "next.h")["inputs"][1][1] = ["i1"]


def forgets_rows(data: dict) -> None:
    """An operator of weights alone belongs before the loop."""
    one = step(data, "hw")
    data["tensors"].append({"dtype": "float64", "name": "w2", "role": "value", "shape": [4, 3, 3]})
    axes = [[a, n, None, True] for a, n in (("g", 4), ("n", 3), ("k", 3))]
    own = {"attributes": {}, "axes": axes, "function": "relu", "inputs": [["w", ["g", "n", "k"]]], "name": "w2"}
    data["operators"].insert(0, {**own, "output": ["w2", ["g", "n", "k"]]})
    one["inputs"][1][0] = "w2"


def positions(data: dict) -> None:
    step(data, "bounded").update(function="iota", inputs=[], attributes={"along": "i1", "start": 0, "step": 1})


def picks(data: dict) -> None:
    one = step(data, "bounded")
    one.update(function="embedding", attributes={"rows": "v"}, axes=[*one["axes"], ["v", 4, "sum", True]])
    one["inputs"] = [["next.c", ["v", "i1"]], ["ids", ["i0"]]]
    data["tensors"].append({"dtype": "int64", "name": "ids", "role": "input", "shape": [4]})


def entering(data: dict, number: int) -> dict:
    return [t for t in data["tensors"] if t["role"] == "input"][number]


def narrows(data: dict) -> None:
    next(t for t in data["tensors"] if t["name"] == "kept")["dtype"] = "float32"


def swaps(data: dict) -> None:
    """All gates are the next h."""
    data["outputs"][0] = "z"


def stands_still(data: dict) -> None:
    data["operators"], data["outputs"] = [], ["h", "c"]
    data["tensors"] = [t for t in data["tensors"] if t["role"] == "input"]


def haunts(data: dict) -> None:
    """A tensor that nobody writes."""
    data["tensors"].append({"dtype": "float64", "name": "ghost", "role": "value", "shape": [4, 3]})


def places(data: dict) -> None:
    """An adjoint that puts every row at one place."""
    at = {"at": [0], "from": [], "offset": [0], "terms": []}
    step(data, "bounded").update(function="copy_gradient", attributes=at)


WRONG: dict[str, Callable[[Operator], Operator]] = {
    "attribute reads must be a tuple of texts": lambda op: changed(op, reads=""),
    "attribute results must be a tuple of texts": lambda op: changed(op, results=()),
    "attribute reverse is 0 or 1": lambda op: changed(op, reverse=2),
    "attribute turn names 'b'": lambda op: changed(op, turn="b"),
    "attribute turn names 'q'": lambda op: changed(op, turn="q"),
    "is carried, or is no row, so it must not be splittable": lambda op: with_axis(op, "h", splittable=True),
    "attribute body: graph file: is not our JSON": lambda op: changed(op, body="x"),
    "is not the canonical text": lambda op: changed(op, body=str(op.attribute("body", "")) + " "),
    "parameters, constants or a state": lambda op: with_body(op, lambda d: d["tensors"][3].update(role="parameter")),
    "input 0 is read along a diagonal": lambda op: replace(op, inputs=(access("h0", "b", "b"), *op.inputs[1:])),
    "must be read axis by axis, along 't b g n'": lambda op: replace(
        op, inputs=(*op.inputs[:2], Access("x", (Affine.everything(), *op.inputs[2].index[1:])), op.inputs[3])
    ),
    "input 3 is float64, the body reads int64": lambda op: with_body(
        op, lambda d: entering(d, 3).update(dtype="int64")
    ),
    "the body computes in float32, the result is float64": lambda op: with_body(op, narrows),
    "carry 'h' has another shape, type or other rows than 'z'": lambda op: with_body(op, swaps),
    "the body has 0 operators": lambda op: with_body(op, stands_still),
    "result 'each w' lacks a row": lambda op: changed(op, results=("each w", "last h", "last c")),
    "reads rows at positions": lambda op: with_body(op, places),
    "no iota in a loop": lambda op: with_body(op, positions),
    "no embedding in a loop": lambda op: with_body(op, picks),
    "lacks row 'b'": lambda op: with_body(op, forgets_rows),
    "does not read 'next.c' along 'b' row by row": lambda op: with_body(op, shortens_rows),
    "reads 'x' at a row, and it has none there": lambda op: replace(
        changed(op, reads=("b h", "b n", "t r g n", "g n h")),
        axes=(*op.axes, Axis("r", 4, Combine.SUM, False)),
        inputs=(*op.inputs[:2], access("x", "t", "r", "g", "n"), op.inputs[3]),
    ),
    "3 carries, and 2 outputs": lambda op: changed(op, carries=3),
    "0 carries, and 2 outputs": lambda op: changed(op, carries=0),
    "attribute reads has 3": lambda op: changed(op, reads=("b h", "b n", "t b g n")),
    "axes of the operator, each once, none packed": lambda op: changed(op, reads=("b b", "b n", "t b g n", "g n h")),
    "must be read axis by axis, along 'b h'": lambda op: replace(
        op, inputs=(access("h0", "b", Affine.axis("h").shift(1)), *op.inputs[1:])
    ),
    "must be read axis by axis, along 'b n'": lambda op: replace(
        op, inputs=(op.inputs[0], access("c0", "b", "h"), *op.inputs[2:])
    ),
    "has not the shape": lambda op: changed(op, reads=("b h", "b n", "t b g n", "n g h")),
    "is carried, so it has no axis of iterations": lambda op: changed(op, reads=("b h t", "b n", "t b g n", "g n h")),
    "does not read 'h' along 'b' row by row": lambda op: with_body(op, mixes_rows),
    "does not read 'c' along 'b' row by row": lambda op: with_body(op, shifts_rows),
    "operator 'bounded' of the body joins rows along 'b'": lambda op: with_body(op, normalises_rows),
    "joins rows along 'b'": lambda op: with_body(op, sums_rows),
    "is neither 'each' nor 'last'": lambda op: changed(op, results=("some h", "last h", "last c")),
    "result 'each ghost' is neither 'each' nor 'last'": lambda op: changed(
        with_body(op, haunts), results=("each ghost", "last h", "last c")
    ),
    "no carry": lambda op: changed(op, results=("each next.h", "last z", "last c")),
    "the results take 33 elements per row": lambda op: changed(op, results=("each next.h", "each next.h", "last c")),
}


@pytest.mark.parametrize("message", sorted(WRONG))
def test_what_is_no_loop_is_refused(message: str) -> None:
    graph = loop_cases.lstm()
    with pytest.raises(GraphError) as error:
        replace(graph, operators=(WRONG[message](loop_of(graph)), *graph.operators[1:])).check()
    assert message in str(error.value)


@pytest.mark.parametrize("seed", range(12))
def test_two_ways_of_pricing_agree(seed: int) -> None:
    """The builder's and the checker's, for loops of all kinds and their derivatives."""
    graph = build_step(loop_cases.trained(np.random.default_rng(seed)), "sgd").graph
    loops = [op for op in graph.operators if op.function == "scan"]
    assert len(loops) == 2
    for op in (*loops, loop_of(odd())):
        body, found = graph.body(op), turns_of(op)
        assert found is not None and (found.flops, found.launches) == (operations(op, body), launches(op, body))
        assert dict(found.moved) == {t.rows: t.bytes for t in traffic(op, body)}


def odd() -> Graph:
    """Truth values, sums of products, and what is read beside the end of a tensor, or at one place of it."""
    b = Builder("body", "float64")
    s, w, v = b.input("s", (2, 4)), b.input("w", (4, 4)), b.input("v", (4,))
    axes = [Axis("r", 2), Axis("i", 4), Axis("k", 4, Combine.SUM)]
    reads = [access(s, "r", "k"), access(w, "i", "k"), access(s, "r", "i"), access(w, "k", "i")]
    pairs = b.operator("pairs", "product_sum", axes, reads, ("r", "i"))
    wide = [Axis("r", 2), Axis("i", 4)]
    beside = [Access(pairs, (Affine.axis("r"), Affine.axis("i").shift(-2))), Access(v, (Affine(offset=3),))]
    moved = b.operator("moved", "add", wide, beside, ("r", "i"))
    larger = b.map("larger", "greater", moved, s)
    body = b.build(b.map("next", "where", larger, moved, s))
    g = Builder("odd", "float64")
    given = [g.input("s0", (2, 4)), g.input("w", (4, 4)), g.input("v", (4,))]
    loop = Loop(body, 1, ("r i", "i k", "i"), ("r",), "t", 3, ("last s", "each moved"))
    return g.build(*scan(g, "loop", loop, given, {0: "last", 1: "each"}))


def test_what_an_odd_loop_costs() -> None:
    """By hand: two products of four terms, an addition, a choice (comparisons are no float); reads of two elements."""
    found = turns_of(loop_of(odd()))
    assert found is not None and found.launches == 3 * 4
    assert found.flops == 3 * (2 * 2 * 4 * 4 + 4 + 2 * 4)
    rows = 8 * (4 + 4 + 4) + (8 * 2 + 8 * 4) + (8 * 4 + 8 * 4 + 4) + (4 + 8 * 4 + 8 * 4 + 8 * 4)
    assert dict(found.moved) == {("r",): 3 * rows, (): 3 * 8 * (16 + 16 + 1)}
    graph = odd()
    result = plan_graph(graph, load_machine("cloud-a100:1x2"))
    assert check_plan(write_plan(None, result.plan)).verdict is Verdict.PROVED


def test_uneven_rows_are_run() -> None:
    """Three ranks and four rows, of which one rank has none: every rank gets its part."""
    graph = loop_cases.lstm(batch=4)
    values = random_inputs(graph, 3)
    for parts in (3, 4):
        found = run_virtual(lower(graph, (parts,), draw_choices(graph, (parts,), np.random.default_rng(7))), values)
        np.testing.assert_allclose(found.outputs["h"], loop_cases.expected(values)["h"], rtol=1e-12)


def test_results_are_of_one_type() -> None:
    graph = odd()
    op = changed(loop_of(graph), results=("last s", "each larger"))
    with pytest.raises(GraphError, match="result 'each larger' is bool, the others are float64"):
        replace(graph, operators=(op, *graph.operators[1:])).check()


def test_launches_count_and_profiles_do_not() -> None:
    """A launch of a second outweighs all else; a measured time of a scan of these extents is one of another body."""
    graph = loop_cases.lstm()
    op, machine = loop_of(graph), load_machine("localhost:4")
    extents = tuple(op.axis(a).extent for a in (*op.output.axes, *(a.name for a in op.reduction_axes)))
    measured = (Profile("scan", "float64", extents, Fraction(1, 10**6)),)
    machine = replace(machine, device=replace(machine.device, launch=Fraction(1)), profiles=measured)
    planning = build(graph, machine, space("complete"))
    decision, costs = planning.decisions[planning.operators[op.name]], planning.costs[planning.operators[op.name]]
    assert costs is not None
    scale = planning.problem.scale
    many, placements = decision.placements.shape[0], decision.placements
    times = [operator_entry(op, graph, decision.placement(i), machine, scale) for i in range(many)]
    assert times == costs.times.tolist()
    assert times == operator_times(shape_of(op, graph, decision.axes), placements, machine, scale).tolist()
    assert all(5 * 11 <= Fraction(t, scale) < 5 * 11 + 1 for t in times)


def doubled(transposed: bool) -> Graph:
    """s' = 2 s, or 2 s of the other row: rows [r, q] of two each, and as many units as results."""
    b = Builder("body", "float64")
    b.input("s", (2, 2, 4))
    axes = [Axis(n, e) for n, e in (("q", 2), ("r", 2), ("i", 4))]
    read = access("s", "r", "q", "i") if transposed else access("s", "q", "r", "i")
    body = b.build(b.operator("next", "scale", axes, [read], ("q", "r", "i"), {"scale": 2.0}, "float64"))
    g = Builder("doubled", "float64")
    given = g.input("s0", (2, 2, 4))
    loop = Loop(body, 1, ("r q i",), ("r", "q"), "t", 3, ("last s",))
    return g.build(*scan(g, "loop", loop, [given], {0: "last"}))


def test_a_carry_keeps_its_rows_where_they_are() -> None:
    doubled(False)
    with pytest.raises(GraphError, match="carry 's' has another shape, type or other rows than 'next'"):
        doubled(True)


def test_what_is_packed_is_no_axis_of_the_body() -> None:
    graph = doubled(False)
    op = changed(loop_of(graph), reads=("r q packed",))
    op = replace(op, inputs=(access("s0", "r", "q", "packed"),), axes=tuple(a for a in op.axes if a.name != "i"))
    with pytest.raises(GraphError, match="each once, none packed"):
        replace(graph, operators=(op, *graph.operators[1:])).check()

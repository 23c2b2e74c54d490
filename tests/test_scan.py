"""Loops: what they compute on one process and on ranks, what they cost, which rows may be split, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import loop_cases
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_run import draw_choices

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.planning.plan import plan_graph
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.program.scan import launches, moved, operations
from shardproof.proofs.plan.bundle import write_plan
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
    assert own and moved(op, body) == turns * (batch * gates + 8 * 4 * n * n)
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
    "is carried, so it has no axis of turns": lambda op: changed(op, reads=("b h t", "b n", "t b g n", "g n h")),
    "does not read 'h' along 'b' row by row": lambda op: with_body(op, mixes_rows),
    "does not read 'c' along 'b' row by row": lambda op: with_body(op, shifts_rows),
    "operator 'bounded' of the body joins rows along 'b'": lambda op: with_body(op, normalises_rows),
    "joins rows along 'b'": lambda op: with_body(op, sums_rows),
    "is neither 'each' nor 'last'": lambda op: changed(op, results=("some h", "last h", "last c")),
    "no carry": lambda op: changed(op, results=("each next.h", "last z", "last c")),
    "the results take 33 elements per row": lambda op: changed(op, results=("each next.h", "each next.h", "last c")),
}


@pytest.mark.parametrize("message", sorted(WRONG))
def test_what_is_no_loop_is_refused(message: str) -> None:
    graph = loop_cases.lstm()
    with pytest.raises(GraphError) as error:
        replace(graph, operators=(WRONG[message](loop_of(graph)), *graph.operators[1:])).check()
    assert message in str(error.value)

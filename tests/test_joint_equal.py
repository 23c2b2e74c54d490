"""Congruence: equal operators of equal operands become one, upwards; the steps are proved, plans run, forged ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

import shardproof
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.rewriting.joint.saturate import RULES, saturate
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.rules import EQUAL
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Axis, access
from shardproof.models.sources.building.builder import Builder
from shardproof.proofs.joint.derivation import Derivation
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.twins import wrong_twins

N = 512


@shardproof.program(x=(N, N), w1=shardproof.parameter(N, N), w2=shardproof.parameter(N, N))
def exps(x: np.ndarray, w1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    return cast(np.ndarray, np.exp(x) @ w1 + np.exp(x) @ w2)


@shardproof.program(
    x=(N, N), w1=shardproof.parameter(N, N, dtype="float32"), w2=shardproof.parameter(N, N, dtype="float32")
)
def casts(x: np.ndarray, w1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    return cast(np.ndarray, x.astype(np.float32) @ w1 + x.astype(np.float32) @ w2)


@shardproof.program(
    x=(N, N), w=shardproof.parameter(N, N), v1=shardproof.parameter(N, N), v2=shardproof.parameter(N, N)
)
def deep(x: np.ndarray, w: np.ndarray, v1: np.ndarray, v2: np.ndarray) -> np.ndarray:
    """Equal only after what they read is: a product of an exponential, twice."""
    return cast(np.ndarray, np.tanh(np.exp(x) @ w) @ v1 + np.tanh(np.exp(x) @ w) @ v2)


@pytest.mark.parametrize(("function", "once", "products"), [(exps, "exp", 1), (casts, "cast", 1), (deep, "exp", 2)])
def test_what_was_written_twice_is_computed_once(function: Callable[..., object], once: str, products: int) -> None:
    plan = shardproof.plan(function, "cloud-a100:1x2", joint=True, work_limit=60_000_000)
    joint, program = plan.bundle.joint, plan.bundle.graph
    assert joint is not None
    base = joint.egraph.base
    assert EQUAL in {s.rule for s in joint.derivation.steps}
    found = [op.function for op in program.operators]
    assert found.count(once) == 1 and sum(f in ("product", "fused_product") for f in found) == products
    assert "product_sum" not in found
    arrays = random_inputs(base, 1)
    expected = run_graph(base, arrays)
    made = build_program(program, plan.bundle.machine.hierarchy, plan.bundle.choices, Options())
    outputs = run_virtual(made, arrays).outputs
    assert all(np.allclose(outputs[t], expected[t], rtol=1e-4, atol=1e-4) for t in base.results)


def twice(function: str = "exp", **more: str | int) -> Graph:
    b = Builder("twice")
    x = b.input("x", (16, 8))
    e = [b.map(f"e{i}", function, x, dtype="float32", **more) for i in range(3)]
    p = [b.contract(f"p{i}", "b k, k n -> b n", t, b.parameter(f"w{i}", (8, 8))) for i, t in enumerate(e)]
    return b.build(b.map("y", "add", b.map("s", "add", p[0], p[1]), p[2]))


def grown() -> tuple[EGraph, Derivation, int]:
    egraph, derivation = saturate(twice(), {EQUAL: RULES[EQUAL]})
    assert wrong_derivation(egraph, derivation) == "" and [s.node for s in derivation.steps] == ["p1~1", "p2~1"]
    return egraph, derivation, 0


def test_the_second_of_three_is_no_stand_in() -> None:
    """All read the first: three equal operators leave one."""
    egraph, derivation, _ = grown()
    assert [s.place for s in derivation.steps] == [("p1", "e1", "e0"), ("p2", "e2", "e0")]
    program = egraph.graph(egraph.close_modes({"p1": "p1~1", "p2": "p2~1"}))
    assert [op.name for op in program.operators if op.function == "exp"] == ["e0"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (("p1", "e0", "e1"), "nothing reads"),
        (("p1", "e1", "p0"), "not the same"),
        (("p1", "e1", "e1"), "not the same"),
        (("p1", "e1", "e2"), "with equal operands"),
        (("p1", "e1"), "pairs"),
        (("p1",), "pairs"),
        (("p2", "e1", "e0"), "begins with"),
        (("p1", "e1", "p2~1"), "not proved yet"),
    ],
)
def test_forged_places_are_refused(place: tuple[str, ...], reason: str) -> None:
    egraph, derivation, k = grown()
    steps = list(derivation.steps)
    steps[k] = replace(steps[k], place=place)
    assert reason in wrong_derivation(egraph, replace(derivation, steps=tuple(steps)))


def test_opaque_operators_and_other_element_types_are_not_the_same() -> None:
    """What a user's own function does may change from call to call; a tensor of another type holds other numbers."""
    graph = grown()[0].union
    by = {op.name: op for op in graph.operators}
    place = [by[n] for n in ("p1", "e1", "e0")]
    assert wrong_twins(by["p1~1"], place, graph) == ""
    opaque = [place[0], *(replace(op, function="opaque") for op in place[1:])]
    assert "not the same" in wrong_twins(by["p1~1"], opaque, graph)
    for change in ({"dtype": "float16"}, {"shape": (8, 16)}):
        tensors = tuple(replace(t, **change) if t.name == "e0" else t for t in graph.tensors)  # type: ignore[arg-type]
        assert "not the same" in wrong_twins(by["p1~1"], place, replace(graph, tensors=tensors))


def test_other_operators_are_not_the_same() -> None:
    """Another attribute, another function, another axis of the same size: nothing is joined, and no step says so."""
    b = Builder("others")
    x = b.input("x", (8, 8))
    maps = [
        b.map("a", "scale", x, scale=2),
        b.map("b", "scale", x, scale=3),
        b.map("c", "tanh", x),
        b.map("d", "exp", x),
    ]
    axes = [Axis("i", 8), Axis("j", 8)]
    maps += [b.operator(f"t{i}", "copy", axes, [access(x, *at)], ["i", "j"]) for i, at in enumerate(("ij", "ji"))]
    graph = b.build(*(b.map(f"y{t}", "relu", t) for t in maps))
    egraph, derivation = saturate(graph, {EQUAL: RULES[EQUAL]})
    assert derivation.steps == ()
    relu = next(op for op in egraph.operators if op.name == "yb")
    node = replace(relu, name="yb~1", inputs=(replace(relu.inputs[0], tensor="a"),))
    forged = replace(egraph, operators=(*egraph.operators, node))
    step = replace(grown()[1].steps[0], node="yb~1", place=("yb", "b", "a"), facts=(("axis a", 8), ("axis b", 8)))
    assert "not the same" in wrong_derivation(forged, replace(derivation, steps=(step,)))


def test_names_of_axes_count_only_where_an_attribute_may_speak_of_them() -> None:
    """exp is one whatever its axes are called; softmax over `l` is another one where `l` is the other dimension."""
    b = Builder("names")
    x = b.input("x", (8, 8))
    names = (("k", "l"), ("l", "k"), ("k", "l"))
    made = [
        b.operator(f"e{i}", "exp", [Axis(m, 8), Axis(n, 8)], [access(x, m, n)], [m, n])
        for i, (m, n) in enumerate(names)
    ]
    made += [
        b.operator(f"s{i}", "softmax", [Axis(m, 8), Axis(n, 8)], [access(x, m, n)], [m, n], {"over": ("l",)})
        for i, (m, n) in enumerate(names)
    ]
    graph = b.build(*(b.map(f"y{t}", "relu", t) for t in made))
    egraph, derivation = saturate(graph, {EQUAL: RULES[EQUAL]})
    assert wrong_derivation(egraph, derivation) == ""
    assert [s.place for s in derivation.steps] == [("ye1", "e1", "e0"), ("ye2", "e2", "e0"), ("ys2", "s2", "s0")]
    arrays = random_inputs(graph, 0, "float64")
    values = run_graph(graph, arrays)
    assert not np.allclose(values["ys0"], values["ys1"])
    node = next(op for op in egraph.operators if op.name == "ys2~1")
    wrong = replace(node, name="ys1~1", output=replace(node.output, tensor="ys1"))
    forged = replace(egraph, operators=(*egraph.operators, wrong))
    step = replace(derivation.steps[2], node="ys1~1", place=("ys1", "s1", "s0"))
    assert "not the same" in wrong_derivation(forged, replace(derivation, steps=(*derivation.steps, step)))

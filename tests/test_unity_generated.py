"""Figures 4b, 5, 9, 10, 11 and 16 of Unity (OSDI 2022) from generated rules alone: what `rules generate` keeps finds each, the
checker sees every step, and it is executed on virtual ranks.

    algebra     4b, 5, 16b, 16c: the e-graph has no rule but those of a generated library
    placements  9, 10, 11, 16a: a derivation from generated rules says that the parallel graph is equal; `plan --rules` with
                that library finds its degrees
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.rewriting.derive import Deriver
from shardproof.formal.rewriting.joint import saturate as saturation
from shardproof.formal.rewriting.joint.job import Joint
from shardproof.formal.rewriting.joint.rules.library import rules_of
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.communication.choices import Choices
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine, Axis, Combine
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.rules.parallel import parallel_rules, way_points
from shardproof.proofs.joint.books import Book, read_book
from shardproof.proofs.joint.derivation import Derivation
from shardproof.proofs.plan.bundle import Plan, read_plan, write_plan
from shardproof.proofs.rewrites.judgement import Proved
from shardproof.proofs.rewrites.library import SHIPPED, read_library
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.rewrites.derivation import check_derivation
from tests.test_unity_figures import best_with

NETWORKS, MATRICES = SHIPPED / "networks.spz", SHIPPED / "generated-3.spz"
WHERE = space("complete")


@cache
def book(path: object = NETWORKS) -> Book:
    found, _ = read_library(cast(type(NETWORKS), path))
    assert found.origin == "rules generate" and all(isinstance(j, Proved) for j in found.judgements)
    return read_book(path.read_bytes())  # type: ignore[attr-defined]


def depthwise(b: Builder, name: str, x: str, w: str) -> str:
    """A kernel for every channel, padded so that the image keeps its size."""
    (n, c, h, v), (_, _, kernel, _) = b.tensors[x].shape, b.tensors[w].shape
    axes = [Axis("b", n), Axis("c", c), Axis("y", h), Axis("x", v)]
    rows, columns, taps = Affine.axis("y"), Affine.axis("x"), [Affine(), Affine()]
    if kernel > 1:
        axes += [Axis(k, kernel, Combine.SUM, False) for k in ("ky", "kx")]
        rows, columns = rows.plus("ky").shift(-(kernel // 2)), columns.plus("kx").shift(-(kernel // 2))
        taps = [Affine.axis("ky"), Affine.axis("kx")]
    reads = Access(x, (Affine.axis("b"), Affine.axis("c"), rows, columns))
    return b.operator(
        name, "product", axes, [reads, Access(w, (Affine.axis("c"), Affine(), *taps))], ["b", "c", "y", "x"]
    )


def two_kernels(first: int) -> Graph:
    """The sum of two depthwise convolutions of one image, the second three by three."""
    b = Builder("kernels")
    x, w, v = b.input("x", (8, 32, 16, 16)), b.parameter("w", (32, 1, first, first)), b.parameter("v", (32, 1, 3, 3))
    return b.build(b.map("s", "add", depthwise(b, "p", x, w), depthwise(b, "q", x, v)))


def side_by_side() -> Graph:
    """A product with two tensors side by side."""
    b = Builder("beside")
    x, y, w = b.input("x", (512, 256)), b.input("y", (512, 256)), b.parameter("w", (512, 16))
    m, k = Affine.axis("m"), Affine.axis("k")
    both = b.operator(
        "c", "copy", [Axis("m", 512), Axis("k", 512)], [Access(x, (m, k)), Access(y, (m, k.shift(-256)))], ["m", "k"]
    )
    return b.build(b.contract("p", "m k, k n -> m n", both, w))


def rows_and_sum() -> Graph:
    """The rows of a bag, added up."""
    b = Builder("bag")
    table, ids = b.parameter("t", (64, 16)), b.input("ids", (32, 8), "int64")
    return b.build(b.reduce("s", "b q m -> b m", b.embedding("e", "v m, b q -> b q m", table, ids)))


def bag() -> Graph:
    b = Builder("bag")
    table, ids = b.parameter("t", (64, 16)), b.input("ids", (32, 8), "int64")
    return b.build(b.embedding("s", "v m, b q -> b m", table, ids))


def executed(graph: Graph, program: Graph, machine: Machine, choices: Choices) -> None:
    """On virtual ranks a program gives what the graph gives in one process."""
    arrays = random_inputs(graph, 1, "float64")
    expected = run_graph(graph, arrays)
    outputs = run_virtual(build_program(program, machine.hierarchy, choices, Options()), arrays).outputs
    assert all(np.allclose(outputs[t], expected[t], atol=1e-9) for t in graph.results)


def jointly(graph: Graph, machine: Machine) -> tuple[Joint, Plan, Derivation]:
    """The best plan with generated rules alone, checked and executed."""
    found = plan_jointly(graph, machine, WHERE, clock=Clock(), rules={"library": rules_of(book())})
    plan = joint_plan(found)
    assert plan is not None and plan.joint is not None
    checked = check_any_plan(write_plan(None, plan))
    assert checked.verdict.value == "proved"
    assert [b.identity for b in found.derivation.books] == [book().identity]
    assert all(s.book or s.rule == "define" for s in found.derivation.steps)
    executed(graph, plan.graph, machine, plan.choices)
    return found, plan, found.derivation


@pytest.mark.parametrize("first", [3, 1], ids=["figure 4b", "figure 5"])
def test_two_depthwise_convolutions_become_one(first: int) -> None:
    """4b adds the kernels.  In 5 the kernel of one place is padded to three by three before: the graph with two such
    convolutions costs more than the user's, the one behind it less.
    """
    graph, machine = two_kernels(first), load_machine("cloud-a100:1x2")
    found, plan, derivation = jointly(graph, machine)
    assert [op.function for op in plan.graph.operators].count("product") == 1
    egraph = found.planning.egraph
    as_it_is, _, _ = best_with(graph, machine, {})
    best, _, _ = best_with(plan.graph, machine, {})
    assert best < as_it_is
    if first == 1:
        (worse,) = (s for s in derivation.steps if s.book and s.node.startswith("p~"))
        between = egraph.graph(egraph.close_modes({"p": worse.node}))
        cost, _, _ = best_with(between, machine, {})
        assert best < as_it_is < cost
        assert worse.node in next(s for s in derivation.steps if s.book and s.node.startswith("s~")).place


def test_figure_16_b() -> None:
    """The concatenation goes: products with each part of the weight are added."""
    graph, machine = side_by_side(), load_machine("cloud-a100:1x2")
    _, plan, _ = jointly(graph, machine)
    functions = [op.function for op in plan.graph.operators]
    assert functions.count("product") == 2 and functions.count("add") == 1
    assert not any(len(op.inputs) == 2 for op in plan.graph.operators if op.function == "copy")


def test_figure_16_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bag is its rows, added up.  Here that never pays, since the bag of one operator can be split; so read forwards
    the rule makes one operator of two, and backwards it is found and left out again.
    """
    machine = load_machine("cloud-a100:1x2")
    _, plan, _ = jointly(rows_and_sum(), machine)
    assert [op.function for op in plan.graph.operators] == ["embedding"]
    assert saturate(bag(), {"library": rules_of(book())})[1].steps == ()
    monkeypatch.setattr(saturation, "glean", lambda g, first, rounds, most: (g.egraph(), g.derivation(rounds)))
    egraph, derivation = saturate(bag(), {"library": rules_of(book())}, rounds=1)
    assert wrong_derivation(egraph, derivation) == ""
    rows = next(s for s in derivation.steps if s.book)
    program = egraph.graph(egraph.close_modes({"s": rows.node}))
    assert sorted(op.function for op in program.operators) == ["embedding", "sum"]
    _, planning, x = best_with(program, machine, {})
    executed(bag(), program, machine, planning.choices(x))


# ---- placements ----


def batched(h: int = 3, s: int = 7, i: int = 5, o: int = 9) -> Graph:
    b = Builder("batched")
    return b.build(b.contract("z", "h s i, h i o -> h s o", b.input("x", (h, s, i)), b.parameter("y", (h, i, o))))


def perceptron() -> Graph:
    b = Builder("perceptron")
    x, y, z = b.input("x", (7, 5)), b.parameter("y", (4096, 5)), b.parameter("z", (9, 4096))
    inner = b.map("r", "relu", b.contract("u", "b i, f i -> b f", x, y))
    return b.build(b.contract("d", "b f, o f -> b o", inner, z))


def products() -> Graph:
    b = Builder("products")
    x, y, z = b.input("x", (4096, 3, 15)), b.input("y", (4096, 15, 3)), b.input("z", (4096, 3, 15))
    scores = b.contract("u", "h s i, h i t -> h s t", x, y)
    return b.build(b.contract("d", "h s t, h t o -> h s o", scores, z))


def rectified(*sizes: int) -> Graph:
    b = Builder("rectified")
    return b.build(b.map("r", "relu", b.input("x", sizes)))


def added() -> Graph:
    b = Builder("added")
    return b.build(b.map("s", "add", b.input("x", (7, 5)), b.input("y", (7, 5))))


def reduced() -> Graph:
    b = Builder("reduced")
    return b.build(
        b.map(
            "r", "relu", b.contract("u", "b i, f i -> b f", b.input("x", (7, 1 << 16)), b.parameter("y", (9, 1 << 16)))
        )
    )


Degrees = Mapping[str, Mapping[str, int]]

FIGURES: Mapping[str, tuple[Graph, Degrees]] = {
    "figure-9-data": (batched(s=4096), {"z": {"s": 2}}),
    "figure-9-model": (batched(o=4096), {"z": {"o": 2}}),
    "figure-9-reduction": (batched(i=1 << 16), {"z": {"i": 2}}),
    "figure-9-heads": (batched(h=4096), {"z": {"h": 2}}),
    "figure-10-mlp": (perceptron(), {"r": {"f": 2}, "d": {"f": 2}}),  # relu with the product before it
    "figure-10-products": (products(), {"u": {"h": 2}, "d": {"h": 2}}),
    "figure-11a-0": (rectified(4096, 7, 9), {"r": {"i0": 2}}),
    "figure-11a-1": (rectified(3, 4096, 9), {"r": {"i1": 2}}),
    "figure-11a-2": (rectified(3, 7, 4096), {"r": {"i2": 2}}),
    "figure-11b": (added(), {"s": {}}),
    "figure-16a": (reduced(), {"u": {"i": 2}, "r": {}}),
}
"""Figure -> a graph, and the degrees of its operators in the parallel graph of the figure.  Other axes have odd sizes, so
that its strategy is the best: the search has to find it.
"""


@cache
def deriver() -> Deriver:
    found, _ = read_library(MATRICES)
    assert "from generated rules" in found.title and all(j.rule.name[0] == "g" for j in found.judgements)
    return Deriver([j.rule for j in found.judgements if isinstance(j, Proved)])


EVERY_TIME = ("figure-9-data", "figure-16a")
"""A split without and one with sums of ranks; the others take two minutes together."""
DEAR = [pytest.param(name, marks=() if name in EVERY_TIME else pytest.mark.slow) for name in FIGURES]


@pytest.mark.parametrize("name", DEAR)
def test_strategies_are_derived_from_generated_rules_and_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan --rules` finds the placement that the figure says, and generated rules derive that it is equal; it is checked,
    and on virtual ranks it gives what one process gives.
    """
    (rule,) = (j.rule for j in read_library(SHIPPED / "parallel.spz")[0].judgements if j.rule.name == name)
    derivation = deriver().derive(rule, through=way_points(name))
    assert derivation is not None
    known = {r.name: r for r in deriver().pruner.rules.rules}
    used = {step.rule for steps in derivation.steps for step in steps}
    assert used <= known.keys() and not used & {r.name for r in parallel_rules()}
    check_derivation(derivation, known)
    graph, split = FIGURES[name]
    monkeypatch.chdir(tmp_path)
    Path("figure.json").write_text(graph.to_json())
    line = ["plan", "figure.json", "--machine", "localhost:2", "--joint", "--rules", str(MATRICES), "-o", "plan.spz"]
    assert run(line) == 0
    plan, _ = read_plan(Path("plan.spz"))
    found = {
        name: dict(zip(p.axes, np.prod(p.matrix, axis=1).tolist(), strict=False)) for name, p in plan.choices.operators
    }
    degrees = {name.partition("~")[0]: {a: n for a, n in own.items() if n > 1} for name, own in found.items()}
    assert degrees == split
    assert run(["check", "plan.spz"]) == 0
    capsys.readouterr()
    assert run(["run", "plan.spz", "-n", "2", "--virtual", "--dtype", "float64"]) == 0
    assert "largest difference from one process" in capsys.readouterr().out

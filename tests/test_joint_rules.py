"""Every rule: where it applies, that its steps are proved, that the plans that use it run and give the user's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.rewriting.joint.growth import safe
from shardproof.formal.rewriting.joint.saturate import RULES, same_order, saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.selection import build
from shardproof.models.joint.problem import JointSubject, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.program.fused import epilogue
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, Axis, access
from shardproof.models.program.operators import Value
from shardproof.models.sources.building.attention import attention
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.proofs.plan.bundle import read_plan, write_plan
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.plan import check_any_plan
from tests.joint_cases import step


def chain() -> Graph:
    """A wide product of two factors, then a narrow one."""
    b = Builder("chain")
    p = b.contract("p", "b k, k n -> b n", b.input("a", (16, 8)), b.parameter("w", (8, 64)))
    return b.build(b.contract("y", "b n, n m -> b m", p, b.parameter("v", (64, 2))))


def trained_chain() -> Graph:
    """A training step of it."""
    b = Builder("trained")
    p = b.contract("p", "b k, k n -> b n", b.input("a", (16, 8)), b.parameter("w", (8, 4)))
    y = b.contract("y", "b n, n m -> b m", p, b.parameter("v", (4, 2)))
    return build_step(b.build(b.reduce("loss", "b m -> ", y)), "sgd").graph


def terms() -> Graph:
    """Four terms, added one after another."""
    b = Builder("terms")
    x = [b.input(f"x{i}", (8, 8)) for i in range(4)]
    total = x[0]
    for i in range(3):
        total = b.map(f"s{i}", "add", total, x[i + 1])
    return b.build(total)


def pairs(common: bool) -> Graph:
    """A sum of two products, with or without a factor in common."""
    b = Builder("pairs")
    x = b.input("x", (8, 4))
    p = b.contract("p", "b k, k n -> b n", x, b.parameter("w", (4, 8)))
    q = b.contract("q", "b k, k n -> b n", x if common else b.input("z", (8, 4)), b.parameter("v", (4, 8)))
    return b.build(b.map("y", "add", p, q))


def projections() -> Graph:
    """Query, key and value of one input."""
    b = Builder("projections")
    x = b.input("x", (8, 4))
    p = [b.contract(f"p{i}", "b k, k n -> b n", x, b.parameter(f"w{i}", (4, n))) for i, n in enumerate((8, 8, 4))]
    return b.build(*(b.map(f"y{i}", "tanh", t) for i, t in enumerate(p)))


def beside() -> Graph:
    """A map of two tensors side by side."""
    b = Builder("beside")
    x, y = b.input("x", (8, 6)), b.input("y", (8, 2))
    read = [access(x, "i", "j"), access(y, "i", Affine.axis("j").shift(-6))]
    c = b.operator("c", "copy", [Axis("i", 8), Axis("j", 8)], read, ["i", "j"])
    return b.build(b.map("z", "gelu", c))


def concatenated() -> Graph:
    """A product with embeddings and features side by side, as in recommendation models."""
    b = Builder("concatenated")
    x = [b.map(f"e{i}", "tanh", b.input(f"x{i}", (16, n))) for i, n in enumerate((8, 4, 4))]
    read = [access(t, "i", Affine.axis("j").shift(-at)) for t, at in zip(x, (0, 8, 12), strict=True)]
    c = b.operator("c", "copy", [Axis("i", 16), Axis("j", 16)], read, ["i", "j"])
    return b.build(b.contract("y", "i j, j n -> i n", c, b.parameter("w", (16, 8))))


def equal_parts() -> Graph:
    """The same with parts of one size, which can be summed in one operator."""
    b = Builder("equal")
    x = [b.map(f"e{i}", "tanh", b.input(f"x{i}", (64, 8))) for i in range(2)]
    read = [access(t, "i", Affine.axis("j").shift(-8 * k)) for k, t in enumerate(x)]
    c = b.operator("c", "copy", [Axis("i", 64), Axis("j", 16)], read, ["i", "j"])
    return b.build(b.contract("y", "i j, j n -> i n", c, b.parameter("w", (16, 2))))


def part() -> Graph:
    """A part of a map, turned, before a product."""
    b = Builder("part")
    m = b.map("m", "exp", b.input("x", (4, 8)))
    read = [access(m, Affine.axis("j"), Affine.axis("i").shift(2))]
    c = b.operator("c", "copy", [Axis("i", 6), Axis("j", 4)], read, ["i", "j"])
    return b.build(b.contract("y", "i j, j n -> i n", c, b.parameter("w", (4, 8))))


def convolution(normalised: bool) -> Graph:
    """A padded, strided convolution with bias or batch norm, and relu, then another one."""
    b = Builder("convolution")
    x = b.input("x", (4, 2, 9, 9))
    y = b.convolution("c", x, b.parameter("w", (4, 2, 3, 3)), (2, 2), (1, 1))
    channels = [b.parameter(n, (4,)) for n in (("gamma", "beta", "mean", "variance") if normalised else ("bias",))]
    text = ", ".join(["b o y x", *["o"] * len(channels)]) + " -> b o y x"
    y = b.map("n", "batch_norm" if normalised else "add", y, *channels, text=text)
    y = b.map("r", "relu", y)
    return b.build(b.convolution("d", y, b.parameter("v", (2, 4, 1, 1))))


def scaled() -> Graph:
    """A map with an attribute, and one that reads none of that name."""
    b = Builder("scaled")
    p = b.contract("p", "b k, k n -> b n", b.input("a", (8, 8)), b.parameter("w", (8, 4)))
    return b.build(b.map("y", "gelu", b.map("s", "scale", p, scale=0.5)))


def scores() -> Graph:
    """Scaled, masked scores, their softmax, and values; the projections of queries, keys and values are siblings."""
    b = Builder("scores")
    x = b.input("x", (2, 8, 8))
    q, k, v = (
        b.map(
            f"{n}.bias", "add",
            b.contract(n, "b s m, m h d -> b s h d", x, b.parameter(f"{n}.w", (8, 2, 4))),
            b.parameter(f"{n}.c", (2, 4)), text="b s h d, h d -> b s h d",
        )
        for n in "qkv"
    )  # fmt: skip
    s = b.map("scaled", "scale", b.contract("s", "b s h d, b t h d -> b h s t", q, k), scale=0.5)
    s = b.map("masked", "add", s, b.input("mask", (2, 8)), text="b h s t, b t -> b h s t")
    return b.build(
        b.contract(
            "y", "b h s t, b t h d -> b s h d", b.normalise("p", "softmax", "b h s t -> b h s t", s, over=["t"]), v
        )
    )


def token() -> Graph:
    """A norm of every position, of which the first is used, turned."""
    b = Builder("token")
    x = b.contract("x", "b s k, k m -> b s m", b.input("a", (4, 6, 2)), b.parameter("w", (2, 4)))
    more = [b.parameter(t, (4,)) for t in ("gamma", "beta")]
    n = b.normalise("n", "layer_norm", "b s m, m, m -> b s m", x, *more, over=["m"], epsilon=1e-5)
    read = [access(n, Affine.axis("b"), Affine((), 2), Affine.axis("m"))]
    c = b.operator("c", "copy", [Axis("m", 4), Axis("b", 4)], read, ["m", "b"])
    return b.build(b.map("y", "tanh", c))


def affine() -> Graph:
    """A norm whose factor and summand are operators of their own."""
    b = Builder("affine")
    n = b.normalise("n", "layer_norm", "b m -> b m", b.input("x", (8, 4)), over=["m"], epsilon=1e-5)
    n = b.map("g", "multiply", n, b.parameter("gamma", (4,)), text="b m, m -> b m")
    return b.build(b.map("y", "add", n, b.parameter("beta", (4,)), text="b m, m -> b m"))


def pooled() -> Graph:
    """The greatest relu of padded windows."""
    b = Builder("pooled")
    x = b.convolution("x", b.input("a", (2, 2, 8, 8)), b.parameter("w", (4, 2, 3, 3)), (1, 1), (1, 1))
    return b.build(b.pool("y", "max_pool", b.map("r", "relu", x), (3, 3), (2, 2), (1, 1)))


def averaged(inside: bool = False) -> Graph:
    """A convolution of one element of averages over padded windows."""
    b = Builder("averaged")
    x = b.input("a", (2, 8, 6, 6))
    counted: dict[str, Value] = {} if inside else {"count_include_pad": 1}
    x = b.pool("p", "average_pool", x, (3, 3), (1, 1), (1, 1), None, **counted)
    return b.build(b.convolution("y", x, b.parameter("w", (2, 8, 1, 1))))


def looked_up() -> Graph:
    """A product with rows of a small table."""
    b = Builder("looked_up")
    x = b.embedding("e", "v m, b s -> b s m", b.parameter("table", (4, 8)), b.input("ids", (8, 4), "int32"))
    return b.build(b.contract("y", "b s m, m n -> b s n", x, b.parameter("w", (8, 4))))


def twice(function: str = "exp", dtype: str = "float32", **attributes: Value) -> Graph:
    """Two products with the same map of one input, written twice."""
    b = Builder("twice")
    x = b.input("x", (16, 8))
    once, again = (b.map(f"e{i}", function, x, text=None, dtype=dtype, **attributes) for i in range(2))
    p, q = (
        b.contract(f"p{i}", "b k, k n -> b n", e, b.parameter(f"w{i}", (8, 8), dtype))
        for i, e in enumerate((once, again))
    )
    return b.build(b.map("y", "add", p, q))


FUSED: dict[str, tuple[Callable[[], Graph], tuple[str, ...]]] = {
    "bias": (lambda: convolution(False), ("add", "relu")),
    "batch norm": (lambda: convolution(True), ("batch_norm", "relu")),
    "scale": (scaled, ("scale", "gelu")),
}

PLACES: dict[str, Callable[[], Graph]] = {
    "equal-operators": twice,
    "fuse-epilogue": step,
    "relu-from-output": step,
    "add-many": terms,
    "add-products": lambda: pairs(False),
    "distribute": lambda: pairs(True),
    "reassociate": chain,
    "read-through-copy": part,
    "merge-siblings": projections,
    "product-of-parts": concatenated,
    "map-of-parts": beside,
    "map-of-a-part": part,
    "fuse-attention": scores,
    "normal-of-a-part": token,
    "into-norm": affine,
    "greatest-of-map": pooled,
    "product-of-average": averaged,
    "product-of-rows": looked_up,
}


def turned_attention(mask: str | None = None, **form: float) -> Graph:
    """Attention of queries, keys and values that were copied in another order of dimensions."""
    b = Builder("turned")
    q, k, v = (
        b.map(n, "copy", b.map(f"{n}.x", "exp", b.input(f"{n}.in", (6, 2, 4))), text="s b d -> b s d") for n in "pqr"
    )
    masks = [] if mask is None else [b.input("mask", (6, 6), mask)]
    text = "b s d, b t d, b t e" + (", s t" if masks else "") + " -> b s e"
    return b.build(attention(b, "a", text, q, k, v, *masks, query="s", **form))  # type: ignore[arg-type]


FORMS: tuple[dict[str, float], ...] = (
    {"ahead": 0},
    {"ahead": 1, "behind": 2},
    {"block": 2},
    {"softcap": 3.0},
    {"ahead": 0, "softcap": 3.0},
    {},
)
"""Of the scores that attention sees."""


@pytest.mark.parametrize("form", FORMS)
def test_attention_in_a_band_reads_through_copies(form: dict[str, float]) -> None:
    """And the checker compares it as a whole: another band, scale or order of operands is another functional."""
    for mask in (None, "float32"):
        graph = turned_attention(mask, **form)
        egraph, derivation = saturate(graph, {"read-through-copy": RULES["read-through-copy"]})
        assert wrong_derivation(egraph, derivation) == ""
        new = [op for op in egraph.nodes["a"] if op.name != "a"]
        assert new and {a.tensor for op in new for a in op.inputs} >= {"p.x", "q.x", "r.x"}
        last = max(new, key=lambda op: sum(a.tensor.endswith(".x") for a in op.inputs))
        one, two, *more = last.inputs
        exchanged = replace(one, tensor=two.tensor), replace(two, tensor=one.tensor), *more
        attributes = dict(last.attributes)
        for other, why in (
            (replace(last, inputs=exchanged), "compute different values"),
            (replace(last, inputs=(exchanged[0], two, *more)), "compute different values"),
            (replace(last, attributes=tuple(sorted({**attributes, "scale": 2.0}.items()))), "form of this rule"),
            (replace(last, attributes=tuple(sorted({**attributes, "ahead": 3}.items()))), "form of this rule"),
        ):
            forged = replace(egraph, operators=tuple(other if op.name == last.name else op for op in egraph.operators))
            assert why in wrong_derivation(forged, derivation)


def test_attention_under_truth_values_is_left_as_it_is() -> None:
    egraph, derivation = saturate(turned_attention("bool"), {"read-through-copy": RULES["read-through-copy"]})
    assert [op.name for op in egraph.nodes["a"]] == ["a"] and wrong_derivation(egraph, derivation) == ""


def test_every_rule_has_a_place_here() -> None:
    assert set(PLACES) == set(RULES)


@pytest.mark.parametrize("name", PLACES)
def test_a_rule_applies_and_is_proved(name: str) -> None:
    """All programs that it gives compute the same numbers as the user's, and the checker accepts every step."""
    graph = PLACES[name]()
    egraph, derivation = saturate(graph, {name: RULES[name]} if name != "relu-from-output" else RULES)
    assert name in {s.rule for s in derivation.steps} and wrong_derivation(egraph, derivation) == ""
    arrays = random_inputs(graph, 0, "float64")
    expected = run_graph(graph, arrays)
    for t, nodes in egraph.nodes.items():
        for n in nodes:
            program = egraph.graph(egraph.close_modes({t: n.name}))
            found = run_graph(program, arrays)
            assert all(np.allclose(found[r], expected[r], atol=1e-12) for r in graph.results), n.name


@pytest.mark.parametrize("name", FUSED)
def test_epilogues_of_several_operands(name: str) -> None:
    """All maps behind a product or a convolution in one operator, proved; every program gives the same numbers."""
    make, maps = FUSED[name]
    graph = make()
    egraph, derivation = saturate(graph)
    assert wrong_derivation(egraph, derivation) == ""
    assert maps in {epilogue(op) for op in egraph.operators}
    arrays = {t: abs(a) + 0.5 for t, a in random_inputs(graph, 0, "float64").items()}
    expected = run_graph(graph, arrays)
    for t, nodes in egraph.nodes.items():
        for n in nodes:
            found = run_graph(egraph.graph(egraph.close_modes({t: n.name})), arrays)
            assert all(np.allclose(found[r], expected[r], atol=1e-12) for r in graph.results), n.name


@pytest.mark.parametrize("make", [*PLACES.values(), trained_chain, FUSED["batch norm"][0]])
def test_plans_with_all_rules(make: Callable[[], Graph]) -> None:
    """The optimum over all programs is never above any of them, its file is accepted, read again, and runs."""
    graph, machine, where = make(), load_machine("cloud-a100:2x2"), space("complete")
    found = plan_jointly(graph, machine, where, clock=Clock())
    assert found.answer.status is Status.OPTIMAL and found.plain.cost is not None
    assert found.answer.cost is not None and found.answer.cost <= found.plain.cost
    plan = joint_plan(found)
    assert plan is not None
    data = write_plan(None, plan)
    assert [(r.kind, r.reason) for r in check_any_plan(data).results if r.verdict is not Verdict.PROVED] == []
    assert write_plan(None, read_plan(data)[0]) == data
    arrays = random_inputs(graph, 1, "float64")
    expected = run_graph(graph, arrays)
    outputs = run_virtual(build_program(plan.graph, machine.hierarchy, plan.choices, Options()), arrays).outputs
    assert all(np.allclose(outputs[t], expected[t], atol=1e-12) for t in graph.results)


@pytest.mark.parametrize("make", [*PLACES.values(), trained_chain])
def test_programs_cost_alone_what_they_cost_jointly(make: Callable[[], Graph]) -> None:
    """New tensors and another order of axes included: every program keeps the order of the e-graph."""
    graph, machine, where = make(), load_machine("cloud-a100:2x2"), space("complete")
    egraph, derivation = safe(graph)
    assert same_order(egraph)
    joint = build_joint(JointSubject(egraph, derivation.rounds, machine, where, level=2))
    rng = np.random.default_rng(1)
    for _ in range(12):
        modes = egraph.close_modes({t: str(rng.choice([n.name for n in nodes])) for t, nodes in egraph.nodes.items()})
        program = egraph.graph(modes)
        alone = build(program, machine, where)
        x = tuple(int(rng.integers(v.cost.size)) for v in alone.problem.vertices)
        y = joint.solution(modes, alone.choices(x))
        assert joint.problem.cost_of(y) == alone.problem.cost_of(x) and not joint.executable(y)


def test_association_pays() -> None:
    """(a w) v takes 16 times the operations of a (w v)."""
    found = plan_jointly(chain(), load_machine("cloud-a100:2x2"), space("complete"), clock=Clock())
    plan = joint_plan(found)
    assert plan is not None and "p" not in {op.output.tensor for op in plan.graph.operators}


def test_the_copy_side_by_side_is_not_made() -> None:
    """Figure 16b of Unity: no concatenation; with parts of one size one sum of products reads them where they lie."""
    graph = equal_parts()
    found = plan_jointly(graph, load_machine("cloud-a100:2x2"), space("complete"), clock=Clock())
    plan = joint_plan(found)
    assert plan is not None and found.answer.status is Status.OPTIMAL
    assert [op.function for op in plan.graph.operators] == ["tanh", "tanh", "product_sum"]
    assert found.answer.cost is not None and found.plain.cost is not None and found.answer.cost < found.plain.cost
    assert check_any_plan(write_plan(None, plan)).verdict is Verdict.PROVED
    arrays = random_inputs(graph, 1, "float64")
    outputs = run_virtual(build_program(plan.graph, (2, 2), plan.choices, Options()), arrays).outputs
    assert np.allclose(outputs["y"], run_graph(graph, arrays)["y"], atol=1e-12)


def test_residuals_are_no_chain_of_epilogues() -> None:
    """Layer after layer adds to the same stream: no epilogue runs through more than one of them, every step is proved, and
    no tensor has more readers to choose from the deeper the program is.
    """
    sizes = []
    for layers in (6, 12):
        b = Builder("residual")
        x = b.input("x", (8, 8))
        for k in range(layers):
            y = b.contract(f"p{k}", "b k, k n -> b n", x, b.parameter(f"w{k}", (8, 8)))
            x = b.map(f"s{k}", "add", x, b.map(f"b{k}", "add", y, b.parameter(f"c{k}", (8,)), text="b n, n -> b n"))
        egraph, derivation = safe(b.build(x))
        assert {s.rule for s in derivation.steps} and wrong_derivation(egraph, derivation) == ""
        assert all(epilogue(op).count("add") <= 2 for op in egraph.operators)
        sizes.append((len(egraph.operators) - 3 * layers) / layers)
    assert sizes[1] < 1.2 * sizes[0]

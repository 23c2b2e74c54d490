"""Rules of attention, norms, pools, tables and siblings: what is no equal is refused, where they do not apply, what
they gain in whole models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from shardproof.formal.rewriting.joint.rules.worth import worth
from shardproof.formal.rewriting.joint.saturate import RULES, saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.joint.egraph import EGraph
from shardproof.models.layout.classes import axis_orders, leading_of
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.joint.derivation import Derivation
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.plan import check_any_plan
from tests.test_joint_rules import affine, averaged, looked_up, pooled, scores, token


def forged(graph: Graph, rule: str, change: Callable[[Operator], Operator], which: str = "node") -> str:
    """What the checker says where the operator of a rule (or the last that it defines) is another one."""
    egraph, derivation = saturate(graph, {n: r for n, r in RULES.items() if n in (rule, "fuse-epilogue")})
    step = next(s for s in derivation.steps if s.rule == rule)
    assert wrong_derivation(egraph, derivation) == ""
    name = step.node if which == "node" else step.place[-1]
    every = {op.name: op for op in egraph.operators}
    new = change(every[name])
    assert new != every[name]
    operators = tuple(new if op.name == name else op for op in egraph.operators)
    facts = tuple(
        (f"{'sum over' if a.combine else 'axis'} {a.name}{'' if a.splittable else ', never split'}", a.extent)
        for a in new.axes
    )
    steps = tuple(replace(s, facts=facts) if s.node == name else s for s in derivation.steps)
    return wrong_derivation(EGraph(graph, egraph.tensors, operators), Derivation(derivation.library, 2, steps))


def attribute(name: str, value: object) -> Callable[[Operator], Operator]:
    return lambda op: replace(op, attributes=tuple(sorted({**dict(op.attributes), name: value}.items())))  # type: ignore[arg-type]


def shifted(op: Operator) -> Operator:
    """The first operand read one element further."""
    first = op.inputs[0]
    at = tuple(i.shift(1) if k == len(first.index) - 1 else i for k, i in enumerate(first.index))
    return replace(op, inputs=(replace(first, index=at), *op.inputs[1:]))


def swapped(a: int, b: int) -> Callable[[Operator], Operator]:
    def change(op: Operator) -> Operator:
        inputs = list(op.inputs)
        inputs[a], inputs[b] = (
            replace(op.inputs[a], tensor=op.inputs[b].tensor),
            replace(op.inputs[b], tensor=op.inputs[a].tensor),
        )
        return replace(op, inputs=tuple(inputs))

    return change


FORGERIES: dict[str, tuple[Callable[[], Graph], str, Callable[[Operator], Operator], str]] = {
    "attention, another scale": (scores, "fuse-attention", attribute("scale", 0.25), "node"),
    "attention, keys and values": (scores, "fuse-attention", swapped(1, 2), "node"),
    "attention, queries and keys": (scores, "fuse-attention", swapped(0, 1), "node"),
    "attention, a band": (scores, "fuse-attention", attribute("ahead", 0), "node"),
    "attention, no mask": (scores, "fuse-attention", lambda op: replace(op, inputs=op.inputs[:3]), "node"),
    "norm over another axis": (token, "normal-of-a-part", attribute("over", ("b",)), "node"),
    "norm, another epsilon": (token, "normal-of-a-part", attribute("epsilon", 1e-3), "node"),
    "norm, gamma for beta": (token, "normal-of-a-part", swapped(1, 2), "node"),
    "norm of another part": (
        token,
        "normal-of-a-part",
        lambda op: replace(
            op,
            inputs=(
                replace(op.inputs[0], index=(op.inputs[0].index[0], Affine((), 3), op.inputs[0].index[2])),
                *op.inputs[1:],
            ),
        ),
        "node",
    ),
    "into norm, another epsilon": (affine, "into-norm", attribute("epsilon", 1e-3), "node"),
    "pool of another map": (pooled, "greatest-of-map", lambda op: replace(op, function="tanh"), "node"),
    "pool, other windows": (pooled, "greatest-of-map", shifted, "defined"),
    "averages, padding not counted": (
        averaged,
        "product-of-average",
        lambda op: replace(op, attributes=(("count_include_pad", 0),)),
        "node",
    ),
    "averages, other windows": (averaged, "product-of-average", shifted, "node"),
    "product at other elements": (averaged, "product-of-average", shifted, "defined"),
    "rows of another axis": (looked_up, "product-of-rows", attribute("rows", "n"), "node"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_no_equal_is_refused(name: str) -> None:
    make, rule, change, which = FORGERIES[name]
    assert forged(make(), rule, change, which) != ""


def windows(function: str, pad: int, kernel: int) -> Graph:
    """The extremes of a map's values, over windows that hang over."""
    b = Builder("windows")
    x = b.convolution("x", b.input("a", (2, 2, 8, 8)), b.parameter("w", (2, 2, 1, 1)))
    y = b.pool("y", "max_pool", b.map("r", function, x), (kernel, kernel), (2, 2), (pad, pad))
    return b.build(y)


def test_a_window_that_may_be_empty_is_refused() -> None:
    """Of no elements the greatest is no number: relu of it is 0."""
    names = {"greatest-of-map": RULES["greatest-of-map"]}
    assert wrong_derivation(*saturate(windows("relu", 1, 3), names)) == ""
    egraph, derivation = saturate(windows("relu", 3, 2), names)
    assert "different values" in wrong_derivation(egraph, derivation)


def test_a_map_that_falls_is_refused() -> None:
    """max(-x) is no -max(x), whatever the builder says."""
    egraph, derivation = saturate(windows("tanh", 1, 3), {"greatest-of-map": RULES["greatest-of-map"]})
    assert wrong_derivation(egraph, derivation) == ""
    base = replace(egraph.base, operators=tuple(_negated(op) for op in egraph.base.operators))
    operators = tuple(_negated(op) for op in egraph.operators)
    assert "different values" in wrong_derivation(EGraph(base, egraph.tensors, operators), derivation)


def _negated(op: Operator) -> Operator:
    return replace(op, function="negate") if op.function == "tanh" else op


def test_padding_that_does_not_count_is_divided_by_what_does() -> None:
    egraph, derivation = saturate(averaged(inside=True))
    assert "product-of-average" in {s.rule for s in derivation.steps} and wrong_derivation(egraph, derivation) == ""


def test_what_gradients_read_stays() -> None:
    """Weights of attention and averages are computed all the same in a training step: nothing is added."""
    for make, rule in ((scores, "fuse-attention"), (averaged, "product-of-average"), (pooled, "greatest-of-map")):
        graph = make()
        assert rule in {s.rule for s in saturate(graph)[1].steps}
        between = next(op.output.tensor for op in graph.operators if op.function in ("softmax", "average_pool", "relu"))
        wanted = replace(graph, outputs=(*graph.outputs, between))
        assert rule not in {s.rule for s in saturate(wanted)[1].steps}
    step = build_step(zoo("bert-large", batch=2, layers=1), "sgd").graph
    assert "fuse-attention" not in {s.rule for s in saturate(step)[1].steps}


def test_siblings_are_made_once_with_their_epilogue() -> None:
    """The projections of queries, keys and values with bias: one product, not one without and one with."""
    egraph, derivation = saturate(scores(), {n: RULES[n] for n in ("fuse-epilogue", "merge-siblings")})
    steps = [s for s in derivation.steps if s.rule == "merge-siblings"]
    made = {op.name: op for op in egraph.operators}
    assert len(steps) == 3 and {s.place[1] for s in steps} == {steps[0].place[1]}
    assert made[steps[0].place[1]].function == "fused_product" and wrong_derivation(egraph, derivation) == ""


def test_siblings_of_a_convolution() -> None:
    """Three convolutions of one image become one, of their kernels side by side."""
    b = Builder("branches")
    x = b.input("x", (2, 4, 6, 6))
    y = [b.convolution(f"c{k}", x, b.parameter(f"w{k}", (k, 4, 3, 3)), (1, 1), (1, 1)) for k in (2, 4, 6)]
    egraph, derivation = saturate(b.build(*(b.map(f"y{k}", "tanh", t) for k, t in enumerate(y))))
    count = Counter(s.rule for s in derivation.steps)
    assert count["merge-siblings"] == 3 and wrong_derivation(egraph, derivation) == ""
    merged = next(op for op in egraph.operators if op.function == "fused_product" and op.axis("o").extent == 12)
    assert egraph.union.tensor(merged.output.tensor).shape == (2, 12, 6, 6)


def test_siblings_where_they_can_pay() -> None:
    """A kernel takes time to start: fewer are better.  Where it takes none and operations decide, they are left out."""
    graph = zoo("bert-large", batch=16, layers=1)
    found = {m: {s.rule for s in saturate(graph, pays=worth(load_machine(m)))[1].steps} for m in ("dgx-a100", "summit")}
    assert "merge-siblings" in found["dgx-a100"] and "merge-siblings" not in found["summit"]


def test_bert_attends_without_storing_scores() -> None:
    """A layer of BERT-Large on four devices: attention, and all projections at once, proved and checked."""
    graph, machine = zoo("bert-large", batch=16, layers=1), load_machine("dgx-a100:1x4")
    found = plan_jointly(graph, machine, space("complete"), clock=Clock())
    assert found.answer.status is Status.OPTIMAL and found.answer.cost is not None and found.plain.cost is not None
    assert found.answer.cost < 0.64 * found.plain.cost
    plan = joint_plan(found)
    assert plan is not None
    functions = [op.function for op in plan.graph.operators]
    assert "softmax" not in functions and "attention" in functions
    rules = {s.node: s.rule for s in found.derivation.steps}
    assert "merge-siblings" in {rules.get(op.name) for op in plan.graph.operators} and functions.count("copy") <= 3
    assert check_any_plan(write_plan(None, plan)).verdict is Verdict.PROVED


def test_axes_of_one_class_in_the_e_graph_and_of_two_in_the_program() -> None:
    """Features of queries and of values are one class where their weights lie side by side; the program without that
    still has its axes in the e-graph's order.
    """
    egraph, _ = saturate(scores())
    modes = egraph.close_modes(
        {t: n.name for t, nodes in egraph.nodes.items() for n in nodes if n.function == "attention"}
    )
    program = egraph.graph(modes)
    assert all(egraph.orders[key] == order for key, order in axis_orders(program).items())
    assert leading_of(program, {}) != ()

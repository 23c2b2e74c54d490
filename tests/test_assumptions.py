"""Every assumption that is made is said: two lists of them, written apart, agree; a plan whose claim leaves one out
is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost import assumptions, selection
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.loads import with_counts
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.assumptions import all_assumptions
from shardproof.verify.plan.plan import check_plan

LIMIT = 1 << 30
MACHINE = load_machine("p2-v100:1x2")  # it has a resource that no plan is priced with


def network() -> Graph:
    """Convolution and pooling: four tap axes that are never split."""
    g = Builder("small")
    x, w = g.input("x", (2, 2, 8, 8)), g.parameter("w", (2, 2, 3, 3))
    return g.build(g.pool("pool", "max_pool", g.convolution("conv", x, w, pad=(1, 1)), (2, 2), (2, 2)))


def training() -> Graph:
    return build_step(zoo("mlp-unity", batch=4), "sgd", None).graph


def mixture() -> Graph:
    """Experts whose tokens were counted."""
    sizes = {"layers": 1, "sequence": 4, "width": 8, "heads": 2, "kv_heads": 1, "hidden": 8, "vocabulary": 8}
    graph = zoo("moe", batch=2, experts=4, capacity_percent=0, dtype="float32", **sizes)
    return with_counts(graph, [5, 1, 1, 1], "counts")


def test_what_is_said() -> None:
    without = build(network(), MACHINE, space("complete")).problem.assumptions
    assert {"no-memory-limit", "one-step-redistribution", "unpriced-resources(pcie-switch)"} <= set(without)
    assert "unsplit-axes(4: conv.ky conv.kx pool.ky and 1 more)" in without
    limited = build(network(), MACHINE, space("complete"), LIMIT).problem.assumptions
    assert "no-memory-limit" not in limited and "every-operand-received" in limited
    plain = build(zoo("mlp-unity"), load_machine("localhost:2"), space("complete")).problem.assumptions
    assert not any(flag.startswith(("unsplit-axes", "unpriced-resources")) for flag in plain)


def test_nothing_moves_nothing_is_assumed_of_it() -> None:
    g = Builder("unread")
    g.map("y", "relu", g.input("x", (4,)))
    graph = g.build()
    assert "one-step-redistribution" not in build(graph, MACHINE, space("complete")).problem.assumptions
    assert "one-step-redistribution" not in all_assumptions(graph, MACHINE, space("complete"), None)


def test_an_axis_of_one_is_not_listed() -> None:
    graph = network()
    conv = graph.operators[0]
    thin = replace(conv, axes=tuple(replace(a, extent=1) if a.name == "ky" else a for a in conv.axes))
    assert "unsplit-axes(3: conv.kx pool.ky pool.kx)" in assumptions.flags(
        replace(graph, operators=(thin, *graph.operators[1:])), MACHINE, space("complete"), None, True
    )


@pytest.mark.parametrize(
    "graph", [network(), training(), mixture(), zoo("mlp-unity"), zoo("bert-tiny")], ids=lambda g: g.name
)
def test_two_lists_agree(graph: Graph) -> None:
    for machine, where, limit in product(
        ("localhost:2", "p2-v100:1x2"), ("complete", "one-per-level,uneven"), (None, LIMIT)
    ):
        target, named = load_machine(machine), space(where)
        assert set(assumptions.flags(graph, target, named, limit, True)) == all_assumptions(graph, target, named, limit)


def _cases() -> list[tuple[str, int | None, str]]:
    return [
        (name, limit, flag)
        for name, make in (("network", network), ("training", training), ("mixture", mixture))
        for limit in (None, LIMIT)
        for flag in sorted(all_assumptions(make(), MACHINE, space("complete"), limit))
    ]


@pytest.mark.parametrize(("name", "limit", "flag"), _cases())
def test_a_plan_that_leaves_one_out_is_refused(
    name: str, limit: int | None, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Callable[..., tuple[str, ...]] = assumptions.flags
    graph = {"network": network, "training": training, "mixture": mixture}[name]()
    with monkeypatch.context() as lying:
        lying.setattr(selection, "flags", lambda *a: tuple(f for f in honest(*a) if f != flag))
        plan = plan_graph(graph, MACHINE, None, limit).plan
        assert plan is not None
        data = write_plan(None, plan)
        said = check_plan(data).results[0]
        assert (said.verdict, f"assumption {flag} is made" in said.reason) == (Verdict.REFUTED, True)
    parts = check_plan(data).results[
        0
    ]  # and by a checker that builds the honest problem: another one than the certificate's
    assert parts.verdict is Verdict.REFUTED and "certificate" in parts.reason


def test_an_assumption_that_is_not_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., tuple[str, ...]] = assumptions.flags
    monkeypatch.setattr(selection, "flags", lambda *a: (*honest(*a), "weather-permitting"))
    plan = plan_graph(network(), MACHINE, None, None).plan
    assert plan is not None
    parts = check_plan(write_plan(None, plan)).results[0]
    assert parts.verdict is Verdict.REFUTED and "weather-permitting is stated and not made" in parts.reason

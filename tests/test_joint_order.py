"""What changes the order of the user's axes is left out step by step: the other rules stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.formal.rewriting.joint import growth
from shardproof.formal.rewriting.joint.growth import safe
from shardproof.formal.rewriting.joint.saturate import RULES, saturate
from shardproof.models.joint.egraph import EGraph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.verify.joint.derivation import wrong_derivation


def chain() -> Graph:
    b = Builder("chain")
    p = b.contract("p", "b k, k n -> b n", b.input("x", (16, 8)), b.parameter("w", (8, 8)))
    y = b.map("y", "relu", p)
    q = b.contract("q", "b k, k n -> b n", y, b.parameter("v", (8, 8)))
    return b.build(b.map("s", "add", b.map("z", "relu", q), b.map("t", "tanh", q)))


def test_only_the_rules_to_blame_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain()
    whole, proof = saturate(graph, RULES)
    blamed = next(s for s in proof.steps if s.place[0] == "z")

    def unless_blamed(egraph: EGraph) -> bool:
        return all(op.name != blamed.node for op in egraph.operators)

    monkeypatch.setattr(growth, "same_order", unless_blamed)
    egraph, derivation = safe(graph)
    assert unless_blamed(egraph) and wrong_derivation(egraph, derivation) == ""
    assert {s.rule for s in derivation.steps} == {s.rule for s in proof.steps} - {blamed.rule}
    assert len(egraph.operators) < len(whole.operators)


def test_nothing_that_rests_on_what_is_left_out_stays() -> None:
    graph = chain()
    whole, proof = saturate(graph, RULES)
    for k in range(len(proof.steps) + 1):
        egraph, derivation = growth._by_steps(whole, proof, proof.steps[:k])
        assert wrong_derivation(egraph, derivation) == ""
        egraph.graph(egraph.close_modes({})).check()
    for step in proof.steps:
        egraph, derivation = growth._by_steps(whole, proof, [s for s in proof.steps if s is not step])
        assert wrong_derivation(egraph, derivation) == ""
        assert all(s.node != step.node for s in derivation.steps)
    assert growth._by_steps(whole, proof, ())[0] == replace(whole, tensors=(), operators=graph.operators)

"""What is computed anyway becomes part of another operator only where that takes less than reading it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.formal.rewriting.joint.rules.worth import worth
from shardproof.formal.rewriting.joint.saturate import RULES, saturate
from shardproof.formal.rewriting.joint.solve import plan_jointly
from shardproof.formal.verbs.joint import _plain_lines
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from tests.budgets import work

MACHINE = load_machine("cloud-a100:1x2")


def residual() -> Graph:
    """y = u w + x is read by a product, which is no map, and by the sum behind it."""
    b = Builder("residual")
    u, x = b.input("u", (256, 256)), b.input("x", (256, 256))
    p = b.contract("p", "b k, k n -> b n", u, b.parameter("w", (256, 256)))
    y = b.map("y", "add", p, x)
    q = b.contract("q", "b k, k n -> b n", y, b.parameter("v", (256, 256)))
    return b.build(b.map("z", "add", y, q))


def ways(graph: Graph, tensor: str, everywhere: bool = False) -> list[tuple[str, ...]]:
    """What the operators of a tensor read."""
    egraph, _ = saturate(graph, RULES, pays=None if everywhere else worth(MACHINE))
    return [tuple(a.tensor for a in op.inputs) for op in egraph.nodes[tensor]]


def test_a_residual_is_read_and_not_computed_twice() -> None:
    assert ways(residual(), "z") == [("y", "q"), ("y", "v", "y")]
    assert any("w" in read for read in ways(residual(), "z", everywhere=True))
    assert ("p", "x", "q") in ways(residual(), "z", everywhere=True)


@pytest.mark.parametrize(("inner", "pays"), [(1024, False), (1, True)])
def test_a_short_sum_may_run_twice(inner: int, pays: bool) -> None:
    """Reading y takes longer than its product where that sums over little."""
    b = Builder("short")
    y = b.contract("y", "b k, k n -> b n", b.input("u", (1024, inner)), b.parameter("w", (inner, 1024)))
    assert any("w" in read for read in ways(b.build(y, b.map("z", "relu", y)), "z")) == pays


def test_what_is_more_is_counted_from_what_it_is_more_than() -> None:
    found = plan_jointly(residual(), MACHINE, space("complete"), clock=work(4))
    assert found.plain.cost is not None and found.answer.cost is not None
    plain = Fraction(found.plain.cost, found.plain_scale)
    assert "100.000% more than jointly" in _plain_lines(found, plain, plain / 2, True)[0]

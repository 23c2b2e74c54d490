"""What every order keeps in memory past an operator, by hand: a tensor that is read later, and what does not count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from test_overlap_memory import limited

from shardproof.formal.plans.overlap.memory import kept_past
from shardproof.models.cost.selection import Planning
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.verify.overlap.memory import unavoidable
from shardproof.verify.plan.used_entries import Entries


def kept(planning: Planning) -> dict[str, int]:
    """Operator -> bytes that are kept past it, of which builder and checker say the same."""
    found, own = kept_past(planning), unavoidable(Entries(planning))
    assert [(u.vertex, u.start, u.end, u.amount.tolist(), u.name) for u in found] == [
        (u.vertex, u.start, u.end, u.amount.tolist(), u.name) for u in own
    ]
    assert all(u.end == u.start + 1 and len(set(u.amount.tolist())) == 1 for u in own)
    return {planning.graph.operators[u.start].name: int(u.amount[0]) for u in own}


def on(graph: Graph) -> Planning:
    return limited(graph, "localhost:2", 1 << 40)


def later(reads: str) -> Graph:
    """`b` runs between the writer of `a` and a reader of it."""
    g = Builder("later", "float32")
    a = g.map("a", "relu", g.input("x", (63, 63)), text="i j -> i j")
    b = g.map("b", "relu", a, text="i j -> i j")
    return g.build(g.map("c", "add", b, a, text=reads)).check()


def test_half_of_a_tensor_that_is_read_later_is_kept_on_each_of_two_devices() -> None:
    assert kept(on(later("i j, i j -> i j"))) == {"b": -(-63 * 63 // 2) * 4}
    assert kept(on(later("i j, j i -> i j"))) == {"b": -(-63 * 63 // 2) * 4}


def test_a_diagonal_that_is_read_later_keeps_nothing_for_certain() -> None:
    assert kept(on(later("i i, i i -> i"))) == {}


def test_a_next_value_lies_where_its_parameter_does() -> None:
    g = Builder("state", "float32")
    w = g.parameter("w", (64,))
    new = g.map("next", "relu", w, text="b -> b")
    b = g.map("b", "relu", new, text="b -> b")
    graph = g.build(g.map("c", "add", b, new, text="b, b -> b"))
    assert kept(on(graph.check())) == {"b": 64 * 2}
    assert kept(on(replace(graph, state=((w, new),)).check())) == {}


def test_nothing_is_kept_past_what_takes_no_time() -> None:
    planning = on(later("i j, i j -> i j"))
    instant = planning.operators["b"]
    vertex = planning.problem.vertices[instant]
    free = replace(vertex, cost=np.concatenate([[0], vertex.cost[1:]]).astype(np.int64))
    vertices = tuple(free if v == instant else old for v, old in enumerate(planning.problem.vertices))
    assert kept(replace(planning, problem=replace(planning.problem, vertices=vertices))) == {}

"""Loops that somebody unrolled become one operator, with the same values and gradients, where every turn fits; all else
stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.scan import Loop, scan
from shardproof.models.sources.loops.reroll import reroll_loops
from shardproof.models.sources.training import build_step

BATCH, WIDTH = 3, 4
Turn = Callable[[Builder, int, str], str]


def at(tensor: str, k: int, *names: str) -> Access:
    """Slice k of a tensor."""
    return Access(tensor, (Affine(offset=k), *access(tensor, *names).index))


def cell(g: Builder, k: int, h: str, place: int | None = None, w: str = "w", scale: float = 0.5) -> str:
    """tanh(scale (h w + x[place]))."""
    z = g.contract(f"z{k}", "b k, k n -> b n", h, w)
    axes = [Axis("b", BATCH), Axis("n", WIDTH)]
    reads = [access(z, "b", "n"), at("x", k if place is None else place, "b", "n")]
    s = g.operator(f"s{k}", "add", axes, reads, ("b", "n"))
    return g.map(f"h{k}", "tanh", g.map(f"m{k}", "scale", s, scale=scale))


def program(turns: int, turn: Turn, outs: Callable[[Builder, Sequence[str]], Sequence[str]] | None = None) -> Graph:
    """States of a recurrence, the sum of squares of all of them unless `outs` says something else."""
    g = Builder("loop", "float64")
    g.input("x", (2 * turns, BATCH, WIDTH))
    for name in ("w", "v"):
        g.parameter(name, (WIDTH, WIDTH))
    states = [g.parameter("h", (BATCH, WIDTH))]
    for k in range(turns):
        states.append(turn(g, k, states[-1]))
    if outs is not None:
        return g.build(*outs(g, states[1:]))
    count = len(states) - 1
    flat = [Axis("t", count * BATCH), Axis("n", WIDTH)]
    reads = [Access(h, (Affine.axis("t").shift(-k * BATCH), Affine.axis("n"))) for k, h in enumerate(states[1:])]
    seen = g.operator("seen", "copy", flat, reads, ("t", "n"))
    return g.build(g.reduce("loss", "t n -> ", g.map("squares", "multiply", seen, seen)))


def same(graph: Graph) -> Graph:
    """The graph rolled up, after a comparison of values and of a training step."""
    found = reroll_loops(graph)
    pairs = [(graph, found)]
    if len(graph.outputs) == 1 and not graph.tensor(graph.outputs[0]).shape:
        pairs.append((build_step(graph, "sgd:rate=1").graph, build_step(found, "sgd:rate=1").graph))
    for before, after in pairs:
        values = random_inputs(before, 3)
        wanted, got = run_graph(before, values), run_graph(after, values)
        names = {o: o for o in before.outputs}
        for (weight, old), new in zip(before.state, dict(after.state).values(), strict=True):
            names[old] = new
            assert dict(after.state)[weight] == new
        for old, new in names.items():
            np.testing.assert_allclose(got[new], wanted[old], rtol=1e-11, atol=1e-12)
    return found


def functions(graph: Graph) -> list[str]:
    return [op.function for op in graph.operators]


def test_equal_turns_are_a_loop() -> None:
    found = same(program(8, cell))
    assert functions(found) == ["scan", "copy", "copy", "multiply", "sum"]
    assert functions(found) == functions(same(program(20, cell)))
    (loop,) = (op for op in found.operators if op.function == "scan")
    assert loop.attribute("turn", "") == "turn" and [a.splittable for a in loop.axes][:1] == [True]


def test_from_the_last_to_the_first_and_by_steps() -> None:
    for place in (lambda k: 7 - k, lambda k: 2 * k + 1, lambda k: 15 - 2 * k):
        found = same(program(8, lambda g, k, h, place=place: cell(g, k, h, place(k))))
        assert functions(found).count("scan") == 1 and "tanh" not in functions(found)


def test_every_state_may_be_wanted() -> None:
    found = same(program(6, cell, lambda g, states: states))
    assert found.outputs == tuple(f"h{k}" for k in range(6)) and functions(found).count("scan") == 1


def test_slices_are_seen_through_copies() -> None:
    """`unbind` before the loop."""

    def unbound(g: Builder, k: int, h: str) -> str:
        if k == 0:
            for j in range(8):
                axes = [Axis("b", BATCH), Axis("n", WIDTH)]
                g.operator(f"x{j}", "copy", axes, [at("x", j, "b", "n")], ("b", "n"))
        return g.map(f"h{k}", "tanh", g.map(f"s{k}", "add", g.contract(f"z{k}", "b k, k n -> b n", h, "w"), f"x{k}"))

    assert functions(same(program(8, unbound))).count("scan") == 1


def test_a_total_is_summed_outside() -> None:
    def adding(g: Builder, k: int, h: str) -> str:
        now = cell(g, k, h)
        part = g.reduce(f"part{k}", "b n -> ", g.map(f"square{k}", "multiply", now, now))
        g.map(f"total{k}", "add", part if k == 0 else f"total{k - 1}", part)
        return now

    found = same(program(8, adding, lambda g, states: ["total7"]))
    (loop,) = (op for op in found.operators if op.function == "scan")
    assert loop.output.axes[0] == "r0"  # the total would take the rows from the loop
    assert any(a.combine is Combine.SUM and a.name == "turn" for op in found.operators for a in op.axes)


WRONG: dict[str, Turn] = {
    "a number differs in one turn": lambda g, k, h: cell(g, k, h, scale=0.25 if k == 5 else 0.5),
    "another weight in one turn": lambda g, k, h: cell(g, k, h, w="v" if k == 5 else "w"),
    "weights that alternate": lambda g, k, h: cell(g, k, h, w="v" if k % 2 else "w"),
    "a slice out of order": lambda g, k, h: cell(g, k, h, {4: 5, 5: 4}.get(k, k)),
    "the state before the last": lambda g, k, h: cell(g, k, f"h{k - 2}" if k == 5 else h),
    "steps that grow": lambda g, k, h: cell(g, k, h, k * (k + 1) // 4),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_does_not_fit_stays(name: str) -> None:
    """Eight turns that differ in the sixth: too few that fit are left."""
    graph = program(8, WRONG[name])
    found = same(graph)
    whole = [op for op in found.operators if op.function == "scan" and op.axis("turn").extent > 6]
    assert not whole
    if name in ("weights that alternate", "steps that grow"):
        pairs = [op for op in found.operators if op.function == "scan"]
        assert all(op.axis("turn").extent == 4 for op in pairs)


def test_few_turns_and_layers_that_share_weights_stay() -> None:
    def layer(g: Builder, k: int, h: str) -> str:
        return g.map(f"h{k}", "tanh", g.contract(f"z{k}", "b k, k n -> b n", h, "w"))

    assert reroll_loops(program(3, cell)) == program(3, cell)
    assert reroll_loops(program(12, layer)) == program(12, layer)
    assert functions(same(program(16, layer))).count("scan") == 1


def test_what_a_loop_cannot_hold_stays() -> None:
    """A state of whole numbers, and rows that are picked by it."""

    def picks(g: Builder, k: int, h: str) -> str:
        axes = [Axis("b", BATCH), Axis("n", WIDTH), Axis("v", BATCH, Combine.SUM)]
        ids = g.operator(
            f"i{k}",
            "cast",
            [Axis("b", BATCH)],
            [Access(h, (Affine.axis("b"), Affine()))],
            ("b",),
            {"dtype": "int64"},
            "int64",
        )
        taken = g.operator(
            f"p{k}", "embedding", axes, [access("v", "v", "n"), access(ids, "b")], ("b", "n"), {"rows": "v"}
        )
        return g.map(f"h{k}", "add", taken, cell(g, 100 + k, h, k))

    graph = program(8, picks)
    assert reroll_loops(graph) == graph


def test_results_with_a_dimension_of_one_keep_their_order_in_the_gradient() -> None:
    """As many turns as elements of a result: only the coefficients tell which axis is which."""
    turns = 3
    b = Builder("body", "float64")
    h, x = b.input("h", (2, 5)), b.input("x", (2, 5))
    now = b.map("next", "tanh", b.map("sum", "add", h, x))
    axes = [Axis("b", 2), Axis("o", 1), Axis("n", turns)]
    b.operator("row", "copy", axes, [access(now, "b", "n")], ("b", "o", "n"))
    loop = Loop(b.build(now), 1, ("b n", "t b n"), ("b",), "t", turns, ("each row",))
    g = Builder("rows", "float64")
    given = [g.parameter("h0", (2, 5)), g.input("x", (turns, 2, 5))]
    (rows,) = scan(g, "loop", loop, given, {0: "rows"})
    weights = g.input("weights", (turns, 2, 1, turns))
    graph = g.build(g.reduce("loss", "t b o n -> ", g.map("scaled", "multiply", rows, weights)))
    step = build_step(graph, "sgd:rate=1").graph
    v = random_inputs(step, 0)
    gradient, after = np.zeros((2, 5)), np.ones((2, 5))  # h_t = tanh(h_(t-1) + x_t), summed up backwards
    states = [v["h0"]]
    for t in range(turns):
        states.append(np.tanh(states[-1] + v["x"][t]))
    for t in reversed(range(turns)):
        gradient[:, :turns] += v["weights"][t, :, 0]
        gradient = gradient * (after - states[t + 1] ** 2)
    (new,) = dict(step.state).values()
    np.testing.assert_allclose(v["h0"] - run_graph(step, v)[new], gradient, rtol=1e-12)


def test_a_narrower_gradient_is_widened_for_a_loop() -> None:
    """What is read of a loop is rounded to bfloat16, so that its gradient arrives in bfloat16."""
    b = Builder("body", "float32")
    now = b.map("next", "tanh", b.map("sum", "add", b.input("h", (2, 4)), b.input("x", (2, 4))))
    loop = Loop(b.build(now), 1, ("b n", "t b n"), ("b",), "t", 3, ("each next",))
    g = Builder("rounded", "float32")
    given = [g.input("h0", (2, 4)), g.parameter("x", (3, 2, 4))]
    (states,) = scan(g, "loop", loop, given, {0: "states"})
    names, axes = ("t", "b", "n"), [Axis("t", 3), Axis("b", 2), Axis("n", 4)]
    half = g.operator("half", "cast", axes, [access(states, *names)], names, {"dtype": "bfloat16"}, "bfloat16")
    graph = g.build(g.reduce("loss", "t b n -> ", g.map("squares", "multiply", half, half)))
    step = build_step(graph, "sgd:rate=1", precision="bf16-master").graph
    assert [op.function for op in step.operators].count("scan") == 2

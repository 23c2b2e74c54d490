"""Means and deviations of a step are computed once, and chains forget and repeat nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_run import choose, draw_choices

from shardproof.backends.execution import fused, interpreter
from shardproof.backends.execution.fused import execute_fused
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.execution.steps import carry
from shardproof.backends.kernels.library import OURS, Library
from shardproof.backends.lowering.collectives import count
from shardproof.backends.lowering.fusion import fuse
from shardproof.backends.lowering.moments import share_moments
from shardproof.backends.lowering.program import Compute, Fused, Program, lower
from shardproof.backends.transport.requests import AllGather, AllReduce, ReduceScatter, apart, as_one
from shardproof.backends.transport.virtual import VirtualTransport
from shardproof.models.communication.choices import Choices
from shardproof.models.layout.placement import Placement
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Combine
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step


def trained(over: tuple[str, ...] = ("b", "y"), function: str = "layer_norm", dtype: str = "float64") -> Graph:
    """A step of a norm with weights of channels: over all but c it is batch norm's."""
    g = Builder("normed", dtype)
    x = g.contract("h", "b y k, k c -> b c y", g.input("x", (6, 5, 3)), g.parameter("w", (3, 4)))
    gains = [g.parameter(n, (4,)) for n in ("gain", "bias")][: 2 - (function == "rms_norm")]
    text = f"b c y, {', '.join('c' * len(gains))} -> b c y"
    y = g.normalise("n", function, text, x, *gains, over=over)
    z = g.map("z", "multiply", y, y, text="b c y, b c y -> b c y")
    return build_step(g.build(g.reduce("loss", "b c y -> ", z)), "sgd").graph


def sharing(program: Program) -> list[tuple[str, str, int]]:
    """(operator, whose moments, all-reduces) of those that share."""
    steps = [i for i in program.ranks[0] if isinstance(i, (Compute, Fused))]
    each = [m for s in steps for m in (s.members if isinstance(s, Fused) else (s,))]
    return [
        (program.graph.operators[m.operator].name, m.moments, len(m.statistics)) for m in each if m.moments is not None
    ]


def split(graph: Graph, hierarchy: tuple[int, ...], axis: str = "b") -> Choices:
    table = {op.name: {axis: hierarchy} for op in graph.operators if axis in {a.name for a in op.axes}}
    return choose(graph, hierarchy, table)


def check(program: Program, values: dict[str, np.ndarray]) -> None:
    expected, result = run_graph(program.graph, values), run_virtual(program, values)
    for name in program.graph.outputs:
        np.testing.assert_allclose(result.outputs[name], expected[name], rtol=1e-10, atol=1e-10)
    assert all(t.fits for t in result.traffic)


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("function", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("over", [("b", "y"), ("c",), ("y",), ("b", "c", "y")])
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_three_operators_share_one_pair(ranks: int, over: tuple[str, ...], function: str, library: str) -> None:
    """The norm, its normal values and its gradient; on seven ranks one has no share of the batch."""
    if library == "torch":
        pytest.importorskip("torch")
    graph = trained(over, function)
    plain = replace(lower(graph, (ranks,), split(graph, (ranks,))), library=library)
    program = share_moments(plain)
    found = sharing(program)
    names = [name for name, _, _ in found]
    assert names[0] == "n" and len(names) == 3 and {m for _, m, _ in found} == {"n"}
    many = (2 if function == "layer_norm" else 1) * ("b" in over and ranks > 1)
    assert [n for _, _, n in found] == [many, 0, many]
    for one in (program, fuse(program)):
        check(one, random_inputs(graph, ranks))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([("b", "y"), ("c",), ("b", "c", "y")]), st.integers(0, 10**6))
def test_any_placements_give_the_reference(over: tuple[str, ...], seed: int) -> None:
    graph = trained(over)
    choices = draw_choices(graph, (2, 2), np.random.default_rng(seed))
    check(fuse(share_moments(lower(graph, (2, 2), choices))), random_inputs(graph, seed))


def two(**second: object) -> Graph:
    g = Builder("two", "float64")
    x = g.input("x", (4, 8))
    names = [
        g.normalise("a", "layer_norm", "i j -> i j", x, over=("j",)),
        g.normalise("b", str(second.pop("function", "layer_norm")), "i j -> i j", x, **{"over": ("j",), **second}),
    ]
    return g.build(*names)


@pytest.mark.parametrize(
    ("second", "shared"),
    [({}, True), ({"epsilon": 1e-3}, False), ({"over": ("i",)}, False), ({"function": "rms_norm"}, False)],
)
def test_what_differs_is_not_shared(second: dict[str, object], shared: bool) -> None:
    graph = two(**second)
    program = share_moments(lower(graph, (2,), split(graph, (2,), "j")))
    assert bool(sharing(program)) is shared
    check(program, random_inputs(graph, 0))


def test_other_boxes_are_not_shared() -> None:
    """The same tensor, placed otherwise for the second operator."""
    graph = two()
    columns, rows = Placement(("i", "j"), ((1,), (2,), (1,))), Placement(("i", "j"), ((2,), (1,), (1,)))
    rest = dict(split(graph, (2,), "j").copies)
    choices = Choices((("a", columns), ("b", rows)), tuple(rest.items()))
    program = share_moments(lower(graph, (2,), choices))
    assert sharing(program) == []
    check(program, random_inputs(graph, 0))


def test_stored_blocks_share_nothing() -> None:
    """A reader may have what is not rounded yet."""
    graph = two()
    program = replace(lower(graph, (1,), split(graph, (1,))), stored=True)
    assert sharing(share_moments(program)) == []


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hierarchy", [(2,), (4,), (2, 2)])
def test_the_two_sums_of_a_gradient_are_one_message(
    hierarchy: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many calls as the program says, with the same bits as one after another."""
    graph = trained()
    program = share_moments(lower(graph, hierarchy, split(graph, hierarchy)))
    values, calls = random_inputs(graph, 1), []
    kinds = {"all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter"}

    def noted(name: str):
        own = getattr(VirtualTransport, name)

        def called(self, *a, **more):
            if self.rank == 0:
                calls.append(kinds[name])
            return own(self, *a, **more)

        return called

    for name in kinds:
        monkeypatch.setattr(VirtualTransport, name, noted(name))
    together = run_virtual(program, values)
    said = {k: n for k, n in count(program).items() if k in kinds.values()}
    assert said == {k: calls.count(k) for k in said} and calls
    monkeypatch.setattr(interpreter, "carry_together", lambda xp, t, several: [carry(t, s) for s in several])
    apart_ = run_virtual(program, values)
    assert together.traffic == apart_.traffic
    for name in graph.outputs:
        assert together.outputs[name].tobytes() == apart_.outputs[name].tobytes()


def test_what_differs_is_asked_for_one_by_one() -> None:
    a, b = np.arange(4.0), np.arange(2.0)
    one = AllReduce((0, 1), a, Combine.SUM)
    assert as_one(np, [one, AllReduce((0, 1), b, Combine.SUM)]).array.tolist() == [0, 1, 2, 3, 0, 1]
    odd = AllReduce((0, 1), np.arange(3.0), Combine.SUM)
    assert as_one(np, [one, odd]) is None  # other portions than apart
    for other in (
        AllReduce((0, 2), b, Combine.SUM),
        AllReduce((0, 1), b, Combine.MAX),
        AllReduce((0, 1), b.astype("float32"), Combine.SUM),
        AllGather((0, 1), b),
        ReduceScatter((0, 1), np.zeros((2, 1)), Combine.SUM),
    ):
        assert as_one(np, [one, other]) is None
    assert as_one(np, [AllGather((0, 1), a, (4, 4)), AllGather((0, 1), b, (2, 2))]) is None
    parts = [ReduceScatter((0, 1), np.zeros((2, n)), Combine.SUM) for n in (1, 2)]
    assert as_one(np, parts).parts.shape == (2, 3)
    assert [p.tolist() for p in apart(np.arange(3.0), parts)] == [[0], [1, 2]]
    gathered = apart(np.arange(12.0).reshape(2, 6), [AllGather((0, 1), a), AllGather((0, 1), b)])
    assert [p.tolist() for p in gathered] == [[[0, 1, 2, 3], [6, 7, 8, 9]], [[4, 5], [10, 11]]]


# --- chains -----------------------------------------------------------------------------------------------------------


def counted(passes: bool) -> tuple[Library, list[str]]:
    calls: list[str] = []

    def of(name: str):
        def function(xp, a: Sequence[np.ndarray], op):
            calls.append(op.name)
            return OURS.functions[name](xp, a, op)

        return function

    return Library(OURS.execute, MappingProxyType({n: of(n) for n in OURS.functions}), passes), calls


@pytest.mark.parametrize("passes", [True, False])
def test_a_value_is_computed_once_and_memory_that_is_reused_is_another_value(
    passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """y * y has its factor's gradient twice; two negations are two though their operands may lie in one place."""
    monkeypatch.setattr(fused, "CHUNK", 1 << 10)
    g = Builder("chain", "float64")
    x, y = g.input("x", (64, 64)), g.input("y", (64, 64))
    z = g.map("z", "negate", x)
    value = g.map("p", "add", g.map("m1", "multiply", z, y), g.map("m2", "multiply", z, y))
    n0 = g.map("n0", "negate", g.map("s0", "scale", value, scale=2.0))
    n1 = g.map("n1", "negate", g.map("s1", "scale", n0, scale=2.0))  # s1 may lie where s0 was, and n0 is still needed
    value = g.map("sum", "add", n0, n1)
    graph = g.build(value)
    program = fuse(lower(graph, (1,), choose(graph, (1,), {})))
    (step,) = [i for i in program.ranks[0] if isinstance(i, Fused)]
    values = random_inputs(graph, 0)
    reads = [(slot, m.operator, j) for m in step.members for j, (slot, _) in enumerate(m.operands)]
    tensors = {slot: graph.operators[n].inputs[j].tensor for slot, n, j in reads}
    slots = {slot: values[name] for slot, name in tensors.items() if name in values}
    library, calls = counted(passes)
    (found,) = execute_fused(np, graph, step, slots, library).values()
    np.testing.assert_array_equal(found, values["x"] * values["y"] * -4.0)
    assert "m1" in calls and "m2" not in calls
    assert {"n0", "n1"} <= {*calls}


def test_results_of_one_value_have_memory_of_their_own() -> None:
    """Twins, a value that is its operand, and one that is spread from a row."""
    g = Builder("chain", "float64")
    x, r = g.input("x", (8, 8)), g.input("r", (8,))
    a, b = g.map("a", "negate", x), g.map("b", "negate", x)
    c = g.map("c", "identity", a)
    d = g.map("d", "add", g.map("e", "fill", c, value=1.0), r, text="i j, j -> i j")
    graph = g.build(a, b, c, d)
    program = fuse(lower(graph, (1,), choose(graph, (1,), {})))
    values = random_inputs(graph, 0)
    library, _ = counted(True)
    for step in program.ranks[0]:
        if isinstance(step, Fused):
            given = {s: values["x"].copy() for m in step.members for s, _ in m.operands} | {"d[1]": values["r"]}
            out = [*execute_fused(np, graph, step, given, library).values()]
            arrays = {id(o): o for o in out}
            own = [*arrays.values(), *given.values()]
            assert not any(np.shares_memory(p, q) for i, p in enumerate(own) for q in own[:i] if p is not q)
    check(program, values)

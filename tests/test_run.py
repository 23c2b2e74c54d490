"""Programs on virtual ranks: the same numbers as one process, and the bytes that were priced."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import RunResult, assemble, run_virtual
from shardproof.backends.kernels.library import OURS
from shardproof.backends.lowering.program import Compute, Free, Load, Move, lower
from shardproof.models.communication.choices import Choices, needs_copy, single
from shardproof.models.communication.pricing import pair_loads
from shardproof.models.cost.cost import statistics_terms
from shardproof.models.layout.classes import axis_orders
from shardproof.models.layout.layout import AxisTables, LayoutSet, layout_set
from shardproof.models.layout.placement import Placement, matrices, space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Axis, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import build

SMALL = {
    "mlp": lambda: build("mlp-unity", batch=8, inputs=24, hidden=16, classes=8, dtype="float64"),
    "training": lambda: build("mlp-unity-training", batch=8, inputs=12, hidden=16, classes=8, dtype="float64"),
    "uneven": lambda: build("mlp-uneven", batch=5, dtype="float64"),
    "conv": lambda: build("conv-stack", batch=2, size=13, channels=4, dtype="float64"),
    "attention": lambda: build("attention", batch=2, tokens=6, width=16, heads=4, dtype="float64"),
    "bert": lambda: build("bert-tiny", batch=2, layers=1, sequence=8),
}


def placement(axes: tuple[str, ...], hierarchy: tuple[int, ...], **degrees: tuple[int, ...]) -> Placement:
    """Degrees per level of the named axes; what is left is replicated."""
    rows = [degrees.get(a, (1,) * len(hierarchy)) for a in axes]
    rest = tuple(h // prod(r[j] for r in rows) for j, h in enumerate(hierarchy))
    return Placement(axes, (*rows, rest))


def choose(graph: Graph, hierarchy: tuple[int, ...], table: dict[str, dict[str, tuple[int, ...]]]) -> Choices:
    """`table`: operator, or `tensor:` + name of a copied tensor, -> degrees; everything else is replicated."""
    orders = axis_orders(graph)
    copies = [t.name for t in graph.tensors if t.name in needs_copy(graph)]
    return Choices(
        tuple((op.name, placement(orders[op.name], hierarchy, **table.get(op.name, {}))) for op in graph.operators),
        tuple((t, placement(orders["tensor:" + t], hierarchy, **table.get("tensor:" + t, {}))) for t in copies),
    )


def draw_choices(graph: Graph, hierarchy: tuple[int, ...], rng: np.random.Generator) -> Choices:
    """A random placement for everything, uneven splits included."""
    orders, where = axis_orders(graph), space("complete,uneven")

    def one(axes: tuple[str, ...], extents: list[int], splittable: list[bool]) -> Placement:
        all_of_them = matrices(extents, splittable, hierarchy, where)
        chosen = all_of_them[rng.integers(len(all_of_them))]
        return Placement(axes, tuple(tuple(int(x) for x in row) for row in chosen))

    operators = []
    for op in graph.operators:
        axes = [op.axis(a) for a in orders[op.name]]
        operators.append((op.name, one(orders[op.name], [a.extent for a in axes], [a.splittable for a in axes])))
    copies = []
    for t in graph.tensors:
        if t.name in needs_copy(graph):
            order = orders["tensor:" + t.name]
            copies.append((t.name, one(order, [t.shape[int(k)] for k in order], [True] * len(order))))
    return Choices(tuple(operators), tuple(copies))


def check_run(graph: Graph, hierarchy: tuple[int, ...], choices: Choices, seed: int = 0) -> RunResult:
    """Equal to the reference at 1e-10, counted traffic equal to the priced one."""
    values = random_inputs(graph, seed)
    expected = run_graph(graph, values)
    result = run_virtual(lower(graph, hierarchy, choices), values)
    assert list(result.outputs) == list(graph.outputs)
    for name in graph.outputs:
        np.testing.assert_allclose(result.outputs[name], expected[name], rtol=1e-10, atol=1e-10)
    for t in result.traffic:
        assert t.fits, t
    return result


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SMALL)), st.sampled_from([(2, 4), (8,), (2, 2, 2), (3, 2), (4, 2)]), st.integers(0, 10**6)
)
def test_any_choices_give_the_reference(name: str, hierarchy: tuple[int, ...], seed: int) -> None:
    graph = SMALL[name]()
    check_run(graph, hierarchy, draw_choices(graph, hierarchy, np.random.default_rng(seed)), seed)


def test_split_summation_is_one_all_reduce_of_known_size() -> None:
    g = Builder("matmul", "float64")
    graph = g.build(g.contract("y", "b k, k n -> b n", g.input("x", (8, 24)), g.parameter("w", (24, 16))))
    result = check_run(graph, (8,), choose(graph, (8,), {"y": {"k": (8,)}}))
    (only,) = result.traffic
    assert (only.collective, only.counted, only.bytes) == ("all-reduce", (2 * 7 * 16,), (2 * 7 * 16 * 8,))
    result = check_run(graph, (8,), choose(graph, (8,), {"y": {"k": (8,)}, "tensor:y": {"1": (8,)}}))
    assert (result.traffic[0].collective, result.traffic[0].counted) == ("reduce-scatter", (7 * 16,))
    result = check_run(graph, (2, 4), choose(graph, (2, 4), {"y": {"k": (2, 4)}}))
    assert result.traffic[0].counted == (4 * 2 * 16, 2 * 3 * 32 + 2 * 16)


def test_perceptron_columns_then_rows_needs_one_all_reduce() -> None:
    graph = SMALL["mlp"]()
    table = {"fc1": {"n": (2, 4)}, "relu1": {"n": (2, 4)}, "fc2": {"k": (2, 4)}}
    moved = [t for t in check_run(graph, (2, 4), choose(graph, (2, 4), table)).traffic if any(t.counted)]
    assert [(t.place, t.collective) for t in moved] == [("fc2 to its copy", "all-reduce")]


def test_convolution_rows_exchange_a_halo() -> None:
    graph = build("conv-stack", batch=2, size=16, channels=4, dtype="float64")
    rows = {op.name: {"y": (2, 2)} for op in graph.operators if any(a.name == "y" for a in op.axes)}
    result = check_run(graph, (2, 2), choose(graph, (2, 2), rows))
    halo = next(t for t in result.traffic if t.place == "conv1.relu to input 0 of conv2")
    assert halo.counted == (
        2 * 4 * 16 * 1,
        2 * 4 * 16 * 1,
    )  # one row of 16 per image and channel comes from the upper neighbour


def test_attention_by_heads_sums_once() -> None:
    graph = build("attention", batch=2, tokens=6, width=32, heads=8, dtype="float64")
    heads = {op.name: {"h": (2, 4)} for op in graph.operators if any(a.name == "h" for a in op.axes)}
    moved = [t for t in check_run(graph, (2, 4), choose(graph, (2, 4), heads)).traffic if any(t.counted)]
    assert [t.collective for t in moved] == ["all-reduce"]


def test_softmax_split_over_its_own_axis_counts_its_statistics() -> None:
    graph = build("attention", batch=2, tokens=6, width=16, heads=4, dtype="float64")
    result = check_run(graph, (4, 2), choose(graph, (4, 2), {"attention.softmax": {"t": (4, 1), "h": (1, 2)}}))
    statistics = next(t for t in result.traffic if t.place == "statistics of attention.softmax")
    assert statistics.counted == (
        2 * 2 * 2 * 3 * 6,
        2 * 2 * 3 * 6,
    )  # two statistics of 24 elements, by 4, two ranks below each link


def test_ranks_without_work_are_legal() -> None:
    graph = build("mlp-uneven", batch=5, dtype="float64")
    split = {op.name: {"b": (8,)} for op in graph.operators}
    check_run(graph, (8,), choose(graph, (8,), split))
    lone = {op.name: {a.name: (8,)} for op in graph.operators for a in op.reduction_axes if a.extent == 57}
    check_run(graph, (8,), choose(graph, (8,), lone))


def test_inputs_may_be_outputs_and_source_shapes_work() -> None:
    graph = SMALL["attention"]()
    wanted = Graph(graph.name, graph.tensors, graph.operators, (*graph.outputs, "x")).check()
    values = random_inputs(wanted, 0)
    flat = {t.name: values[t.name].reshape(t.source_shape or t.shape) for t in wanted.tensors if t.name in values}
    result = run_virtual(lower(wanted, (2,), choose(wanted, (2,), {})), flat)
    np.testing.assert_array_equal(result.outputs["x"], values["x"])
    np.testing.assert_allclose(result.outputs[graph.outputs[0]], run_graph(graph, values)[graph.outputs[0]], rtol=1e-12)


def test_programs_load_and_free_what_they_use() -> None:
    graph = SMALL["training"]()
    program = lower(graph, (2, 4), draw_choices(graph, (2, 4), np.random.default_rng(1)))
    for instructions in program.ranks:
        live: set[str] = set()
        for i in instructions:
            match i:
                case Load(slot=slot):
                    live.add(slot)
                case Move(source=source, target=slot):
                    assert source in live
                    live.add(slot)
                case Compute(slot=slot, operands=operands):
                    assert {s for s, _ in operands} <= live
                    live.add(slot)
                case Free(slot=slot):
                    live.remove(slot)
        assert live == set(graph.outputs)


def test_a_failing_rank_is_named_and_the_others_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from shardproof.backends.execution import interpreter

    graph = SMALL["mlp"]()
    real = OURS.execute

    def broken(xp, op, *rest):  # type: ignore[no-untyped-def]
        if op.name == "relu1" and threading.current_thread().name == "rank 3":
            raise ValueError("out of luck")
        return real(xp, op, *rest)

    monkeypatch.setattr(interpreter, "library_of", lambda name: replace(OURS, execute=broken))
    choices = choose(graph, (8,), {"fc1": {"n": (8,)}, "relu1": {"n": (8,)}})
    with pytest.raises(
        RankError, match="rank 3, operator 'relu1', which writes tensor 'relu1': ValueError: out of luck"
    ) as caught:
        run_virtual(lower(graph, (8,), choices), random_inputs(graph, 0))
    assert (caught.value.rank, caught.value.place) == (3, "operator 'relu1', which writes tensor 'relu1'")


def test_assembly_refuses_gaps_and_replicas_that_differ() -> None:
    halves = (((0, 2),), ((2, 4),))
    a, b = np.zeros(2), np.ones(2)
    np.testing.assert_array_equal(assemble(np, "t", (4,), halves, [a, b]), [0, 0, 1, 1])
    with pytest.raises(GraphError, match="'t': some elements are held by no rank"):
        assemble(np, "t", (5,), halves, [a, b])
    with pytest.raises(GraphError, match="'t': rank 1 holds another value"):
        assemble(np, "t", (2,), (((0, 2),), ((0, 2),)), [a, b])


def priced_by_the_cost_model(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices
) -> dict[tuple[str, str | None, int], tuple[int, ...]]:
    """Loads of every movement from the closed form that fills the cost tables, not from the derived steps."""
    placements, copies = dict(choices.operators), dict(choices.copies)
    writer = {op.output.tensor: op for op in graph.operators}

    def tables(op: Operator) -> AxisTables:
        p = placements[op.name]
        return single(tuple(op.axis(a) for a in p.axes), p, hierarchy)

    def resting(tensor: str) -> LayoutSet:
        shape = graph.tensor(tensor).shape
        if tensor not in copies:
            op = writer[tensor]
            return layout_set(op.output, shape, tables(op), [a.name for a in op.reduction_axes])
        axes = tuple(Axis(k, shape[int(k)]) for k in copies[tensor].axes)
        return layout_set(
            access(tensor, *(str(k) for k in range(len(shape)))), shape, single(axes, copies[tensor], hierarchy)
        )

    def load(a: LayoutSet, b: LayoutSet) -> tuple[int, ...]:
        return tuple(int(x[0, 0]) for x in pair_loads(a, b).loads)

    out = {}
    for tensor in graph.tensors:
        t = tensor.name
        if t in writer and t in copies:
            op = writer[t]
            out[t, None, 0] = load(
                layout_set(op.output, tensor.shape, tables(op), [a.name for a in op.reduction_axes]), resting(t)
            )
        for i, j in graph.readers()[t]:
            if t in writer or t in copies:
                reader = graph.operators[i]
                out[t, reader.name, j] = load(resting(t), layout_set(reader.inputs[j], tensor.shape, tables(reader)))
    return out


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("seed", range(3))
def test_counted_traffic_is_what_the_cost_model_prices(name: str, seed: int) -> None:
    graph, hierarchy = SMALL[name](), [(2, 4), (3, 2), (2, 2, 2)][seed]
    choices = draw_choices(graph, hierarchy, np.random.default_rng(seed))
    program = lower(graph, hierarchy, choices)
    result = run_virtual(program, random_inputs(graph, 0))
    priced = priced_by_the_cost_model(graph, hierarchy, choices)
    assert {(m.tensor, m.reader, m.position) for m in program.movements} == set(priced)
    for m, t in zip(program.movements, result.traffic, strict=False):
        assert t.fits and t.priced == priced[m.tensor, m.reader, m.position], t
    machine = load_machine("localhost")
    machine = replace(
        machine, levels=tuple(replace(machine.levels[0], name=f"l{j}", size=n) for j, n in enumerate(hierarchy))
    )
    for op, placement in choices.operators:
        operator = graph.operator(op)
        terms = statistics_terms(
            operator.spec,
            operator.over,
            single(tuple(operator.axis(a) for a in placement.axes), placement, hierarchy),
            machine,
        )
        expected = tuple(len(operator.spec.statistics) * int(load[0]) for _, load in terms[::2])
        found = [t for t in result.traffic if t.place == f"statistics of {op}"]
        assert all(t.fits for t in found) and ([t.priced for t in found] == [expected] if any(expected) else not found)

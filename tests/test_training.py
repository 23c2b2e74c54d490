"""Training steps: state, loss, schedule, plans with a closed loop, memory, execution, and what the checker refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_run import check_run, draw_choices

from shardproof.__main__ import run
from shardproof.backends.execution.launch import run_mpi
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import Free, Load, Move, lower
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.communication import choices as models_choices
from shardproof.models.communication.choices import check_choices, communications, needs_copy, resting_places
from shardproof.models.cost import memory
from shardproof.models.cost.selection import DecisionKind, Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import Settings, build_step, training_step
from shardproof.models.sources.zoo import ZOO
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import Plan, read_plan, write_plan
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.structure import Received, copied_tensors, memory_rows, moves, wrong_state
from shardproof.verify.plan.used_entries import Entries

SMALL: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: training_step(zoo("mlp-unity", batch=8, inputs=12, hidden=16, classes=8, dtype="float64"), "adam"),
    "uneven": lambda: training_step(zoo("mlp-uneven", batch=5, dtype="float64"), "sgd"),
    "conv": lambda: training_step(zoo("conv-stack", batch=2, size=9, channels=2, dtype="float64"), "sgd"),
    "attention": lambda: training_step(zoo("attention", batch=2, tokens=4, width=16, heads=4, dtype="float64"), "adam"),
    "bert": lambda: training_step(zoo("bert-tiny", batch=2, layers=1, sequence=8), "adam"),
}
FEWER = {"layers": 1, "depth": 1, "steps": 3, "blocks": "1-1-1-1", "batch": 64}
"""Options of the zoo that make repeated models short."""


def stepped(name: str) -> Graph | None:
    """The training step of a zoo model; None for one that cannot have one."""
    known = signature(ZOO[name]).parameters
    try:
        return training_step(zoo(name, **{k: v for k, v in FEWER.items() if k in known}), "adam")
    except GraphError as error:
        assert "outputs; name the one" in str(error)
        return None


# --- state
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "machine", "limit", "graph", "problem"),
    [
        ("mlp-unity-training", {}, "cloud-a100:2x4", None, "034e2111c0abbff6", "a15be4f3bff48d3f"),
        ("bert-tiny", {"batch": 4}, "cloud-a100:2x2", 1 << 24, "b67ea502b1a1bb67", "4b4b3af0243c7297"),
        ("conv-stack", {}, "cloud-a100:2x2", 1 << 30, "2dd4966917038f36", "1df70d354d5852d2"),
    ],
)
def test_graphs_without_state_keep_their_identities(
    model: str, options: dict[str, int], machine: str, limit: int | None, graph: str, problem: str
) -> None:
    """Hashes of graphs before graphs had a state, and of their problems with the memory rows and the assumptions of
    today.
    """
    found = zoo(model, **options)
    assert '"state"' not in found.to_json() and found.sha256().startswith(graph)
    target = replace(load_machine(machine), name="dgx-a100")  # as the default machine was called then
    assert build(found, target, space("complete"), limit).problem.sha256().startswith(problem)


def weight_decay() -> Graph:
    """w := 2 w, read by one operator: the smallest graph with a state."""
    g = Builder("decay", "float64")
    x, w = g.input("x", (8, 4)), g.parameter("w", (4, 4))
    y = g.contract("y", "b k, k n -> b n", x, w)
    g.map("next", "scale", w, text="k n -> k n", scale=2.0)
    return replace(g.build(y), state=(("w", "next"),)).check()


def test_state_survives_json_and_is_a_result() -> None:
    graph = weight_decay()
    assert json.loads(graph.to_json())["state"] == [["w", "next"]]
    assert Graph.from_json(graph.to_json()) == graph
    assert graph.results == ("y", "next") and graph.outputs == ("y",)
    values = random_inputs(graph, 0)
    np.testing.assert_array_equal(run_graph(graph, values)["next"], 2 * values["w"])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((("x", "next"),), "'x': is not a parameter"),
        ((("q", "next"),), "'q': is not a parameter"),
        ((("w", "x"),), "next value 'x' is not computed"),
        ((("w", "q"),), "next value 'q' is not computed"),
        ((("w", "y"),), r"has shape \(4, 4\) of float64, its next value 'y' \(8, 4\)"),
        ((("w", "next"), ("w", "next")), "occurs in two pairs"),
        ((("w", "next"), ("u", "next")), "occurs in two pairs"),
    ],
)
def test_a_wrong_state_is_named(state: tuple[tuple[str, str], ...], message: str) -> None:
    graph = weight_decay()
    graph = replace(graph, tensors=(*graph.tensors, replace(graph.tensor("w"), name="u")))
    with pytest.raises(GraphError, match=message):
        replace(graph, state=state).check()
    assert state[0][0] not in {"w"} or wrong_state_or_missing(replace(graph, state=state))


def wrong_state_or_missing(graph: Graph) -> bool:
    try:
        return bool(wrong_state(graph))
    except KeyError:  # a tensor that does not exist
        return True


def test_reading_a_parameter_after_its_next_value_is_refused() -> None:
    graph = weight_decay()
    late = replace(graph, operators=graph.operators[::-1])
    with pytest.raises(GraphError, match="state of 'w': operator 'y' reads it after 'next' has taken its place"):
        late.check()
    assert wrong_state(late) == "'w' is read after 'next' has replaced it" and not wrong_state(graph)
    with pytest.raises(GraphError, match="graph file: ValueError: state is not a list of pairs"):
        Graph.from_json(graph.to_json().replace('[["w","next"]]', '[["w"]]'))


def test_the_next_value_goes_into_the_parameters_own_copy() -> None:
    graph = weight_decay()
    assert needs_copy(graph) == {"w", "y"} and resting_places(graph) == {"w": "w", "y": "y", "next": "w"}
    planning = build(graph, load_machine("cloud-a100:2x2"), space("complete"), 1 << 20)
    home = planning.copies["w"]
    into = [e for e, r in zip(planning.problem.edges, planning.routes, strict=True) if r.tensor == "next"]
    assert [(e.u, e.v) for e in into] == [(planning.operators["next"], home)]
    assert "donated-state" in planning.problem.assumptions
    kept = [(u.vertex, u.start, u.end) for u in planning.problem.usages if u.name.startswith(("w", "next"))]
    assert kept == [
        (home, 0, 2),
        (planning.operators["next"], 1, 2),
    ]  # one buffer for both, and the tensor as it is written
    forward = replace(
        graph, state=(), operators=graph.operators[:1], tensors=tuple(t for t in graph.tensors if t.name != "next")
    )
    assert (
        "donated-state"
        not in build(forward, load_machine("cloud-a100:2x2"), space("complete"), 1 << 20).problem.assumptions
    )


def test_readers_of_a_next_value_read_it_from_its_home() -> None:
    graph = SMALL["mlp"]()
    choices = draw_choices(graph, (2, 2), np.random.default_rng(0))
    places = [
        (m.writer, m.reader) for m in communications(graph, (2, 2), choices) if m.tensor == "fc1.weight.adam_m.next"
    ]
    assert places == [("fc1.weight.adam_m.next", None), (None, "fc1.weight.next")]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "inception-v3" else n for n in sorted(ZOO)]
)
def test_structure_of_the_zoos_training_steps(name: str) -> None:
    """Movements, copies and memory rows of the checker equal those of `models/`, in the same order."""
    graph = stepped(name)
    if graph is None:
        return
    assert Graph.from_json(graph.to_json()) == graph and not wrong_state(graph)
    planning = build(graph, load_machine("cloud-a100:2x2"), space("one-per-level"), 1 << 60)
    choices = planning.choices((0,) * len(planning.decisions))
    check_choices(graph, (2, 2), choices)
    if name in ("mlp-unity", "attention", "conv-stack"):
        assert [(m.tensor, m.writer, m.reader, m.position) for m in moves(graph)] == [
            (m.tensor, m.writer, m.reader, m.position) for m in communications(graph, (2, 2), choices)
        ]
    assert set(copied_tensors(graph)) == needs_copy(graph) == set(planning.copies)
    for row, usage in zip(memory_rows(graph), planning.problem.usages, strict=True):
        if isinstance(row, Received):
            vertex = planning.operators[row.reader]
        else:
            vertex = (
                planning.copies[row.tensor]
                if row.writer is row.reader is None
                else planning.operators[row.writer or row.reader or ""]
            )
        assert (vertex, row.start, row.end) == (usage.vertex, usage.start, usage.end)


# --- loss, schedule, naming
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mlp-unity", "the loss is the mean cross entropy of 'fc2' against the integer input 'labels'"),
        ("conv-stack", "the loss is the mean cross entropy of 'fc.bias_add' against the integer input 'labels'"),
        ("alexnet", "the loss is the mean cross entropy of 'fc8.bias_add' against the integer input 'labels'"),
        ("transformer", "the loss is the mean cross entropy of 'logits' against the integer input 'labels'"),
        ("bert-tiny", "the loss is the mean squared error of 'layer1.ffn.norm' against the input 'target'"),
        ("attention", "the loss is the mean squared error of 'attention.output.bias_add' against the input 'target'"),
    ],
)
def test_the_default_loss_is_said(model: str, words: str) -> None:
    made = build_step(zoo(model), "sgd")
    assert made.loss == words and made.graph.tensor(made.graph.outputs[0]).shape == ()
    functions = {op.function for op in made.graph.operators}
    assert ("log_softmax" in functions) == ("entropy" in words) and (model != "alexnet" or "softmax" not in functions)


def test_cross_entropy_equals_the_formula() -> None:
    graph = build_step(zoo("mlp-unity", batch=4, inputs=3, hidden=5, classes=6, dtype="float64"), "sgd").graph
    values = random_inputs(graph, 0)
    out = run_graph(graph, values, keep=["fc2"])
    p = np.exp(out["fc2"]) / np.exp(out["fc2"]).sum(1, keepdims=True)
    np.testing.assert_allclose(out["loss"], -np.log(p[np.arange(4), values["labels"]]).mean(), rtol=1e-12)


def test_a_loss_can_be_named_or_be_the_output() -> None:
    g = Builder("two", "float64")
    y = g.contract("y", "b k, k n -> b n", g.input("x", (2, 3)), g.parameter("w", (3, 4)))
    total = g.reduce("total", "b n -> ", g.map("square", "multiply", y, y))
    graph = g.build(y, total)
    made = build_step(graph, "sgd", loss="total")
    assert made.loss == "the loss is 'total'" and made.graph.outputs == ("total",)
    assert build_step(replace(graph, outputs=("total",)), "sgd").loss == "the loss is the output 'total'"
    assert build_step(graph, "sgd").loss == "the loss is the output 'total', one of 2"
    for wrong in ("y", "x", "nobody"):
        with pytest.raises(GraphError, match=f"loss '{wrong}': is not a computed scalar"):
            build_step(graph, "sgd", loss=wrong)


def test_names_that_are_taken_get_a_prime() -> None:
    g = Builder("taken", "float64")
    y = g.contract("loss", "b k, k n -> b n", g.input("labels", (2, 3)), g.parameter("w", (3, 4)))
    made = build_step(g.build(y), "sgd")
    assert made.graph.outputs == ("loss'",) and made.graph.tensor("labels'").dtype == "int32"


def test_nothing_to_train_and_training_twice_are_refused() -> None:
    g = Builder("plain", "float64")
    graph = g.build(g.map("y", "relu", g.input("x", (3,))))
    with pytest.raises(GraphError, match="nothing to train"):
        build_step(graph, "sgd")
    with pytest.raises(GraphError, match="is a training step already"):
        build_step(SMALL["mlp"](), "sgd")
    with pytest.raises(GraphError, match="'lamb' is not one of 'sgd', 'adam'"):
        build_step(zoo("mlp-unity"), "lamb")


def test_gradients_of_inputs_are_not_computed_and_dead_operators_are_dropped() -> None:
    graph = build_step(zoo("mlp-unity"), "sgd").graph
    names = {op.name for op in graph.operators}
    assert "grad:x" not in names and {"grad:relu1", "grad:fc1", "grad:fc1.weight"} <= names
    read = {a.tensor for op in graph.operators for a in op.inputs} | set(graph.results)
    assert {op.output.tensor for op in graph.operators} <= read


def test_batch_norm_with_constant_statistics_leaves_them_alone() -> None:
    g = Builder("bn", "float64")
    x = g.contract("h", "b k, k c -> b c", g.input("x", (4, 3)), g.parameter("w", (3, 2)))
    more = [g.parameter(n, (2,)) for n in ("gamma", "beta", "mean", "variance")]
    made = build_step(g.build(g.map("y", "batch_norm", x, *more, text="b c, c, c, c, c -> b c")), "sgd")
    assert made.constant == ("mean", "variance") and [n for n, _ in made.trained] == ["w", "gamma", "beta"]


def test_updates_stand_right_behind_gradient_and_last_reader() -> None:
    """A weight that two layers share is updated once, after the second gradient."""
    g = Builder("tied", "float64")
    w = g.parameter("w", (4, 4))
    h = g.contract("h", "b k, k n -> b n", g.input("x", (3, 4)), w)
    y = g.contract("y", "b k, n k -> b n", g.map("r", "tanh", h), w)
    graph = build_step(g.build(y), "sgd").graph
    order = [op.name for op in graph.operators]
    readers = [i for i, op in enumerate(graph.operators) if any(a.tensor == "w" for a in op.inputs)]
    assert readers[-1] == order.index("w.next") == order.index("grad:w") + 1
    assert (
        graph.operator("grad:w").function == "sum_inputs"
        and [op.function for op in graph.operators].count("sgd_update") == 1
    )


def test_adam_follows_the_paper() -> None:
    settings_ = Settings(rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-3, step=3)
    made = build_step(
        zoo("mlp-unity", batch=4, inputs=3, hidden=5, classes=6, dtype="float64"), "adam", settings=settings_
    )
    values = random_inputs(made.graph, 0)
    gradient = dict(made.trained)["fc1.weight"]
    out = run_graph(made.graph, values, keep=[gradient])
    g, m, v = out[gradient], values["fc1.weight.adam_m"], values["fc1.weight.adam_v"]
    m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
    np.testing.assert_allclose(out["fc1.weight.adam_m.next"], m, rtol=1e-13)
    np.testing.assert_allclose(out["fc1.weight.adam_v.next"], v, rtol=1e-13)
    expected = values["fc1.weight"] - 0.1 * (m / (1 - 0.8**3)) / (np.sqrt(v / (1 - 0.9**3)) + 1e-3)
    np.testing.assert_allclose(out["fc1.weight.next"], expected, rtol=1e-13)
    assert made.graph.tensor("fc1.weight.adam_m").dtype == "float64"
    assert (
        build_step(zoo("bert-large", layers=1), "adam").graph.tensor("layer0.ffn.up.weight.adam_v").dtype == "float32"
    )


def test_steps_of_sgd_and_adam_lower_the_loss() -> None:
    for optimizer in ("sgd", "adam"):
        made = build_step(zoo("bert-tiny", batch=2, layers=1, sequence=4), optimizer, settings=Settings(rate=0.005))
        values = random_inputs(made.graph, 0)
        values.update({n: np.zeros_like(v) for n, v in values.items() if ".adam_" in n})
        losses = []
        for _ in range(4):
            out = run_graph(made.graph, values)
            losses.append(float(out["loss"]))
            values.update({p: out[v] for p, v in made.graph.state})
        assert losses == sorted(losses, reverse=True) and losses[-1] < 0.999 * losses[0]


def test_repeated_layers_share_their_structures() -> None:
    problems = [
        build(
            training_step(zoo("bert-tiny", layers=n), "adam"), load_machine("cloud-a100:2x2"), space("one-per-level")
        ).problem
        for n in (2, 3, 4)
    ]
    assert len(problems[1].tables) == len(problems[2].tables) and len(problems[2].vertices) > len(problems[1].vertices)
    counts = [len(p.vertices) for p in problems]
    assert counts[2] - counts[1] == counts[1] - counts[0]


def test_projections_of_one_layer_share_one_sum() -> None:
    graph = training_step(zoo("bert-large", layers=2), "adam")
    sums = [op for op in graph.operators if op.function == "product_sum"]
    assert len(sums) == 2 and all(len(op.inputs) == 6 for op in sums)
    assert graph.flops_per_point(sums[0]) == 6 and sums[0].kind is NodeKind.CONTRACT


# --- plans
# --------------------------------------------------------------------------------------------------------------


def planned(graph: Graph, machine: str, limit: int | None = None) -> tuple[Planning, Plan]:
    found = plan_graph(graph, load_machine(machine), space("complete"), limit)
    assert found.plan is not None and found.answer.solution is not None
    return found.planning, found.plan


def eager() -> Machine:
    """8 slow devices on a fast network without latency: even small models are split."""
    m = load_machine("localhost:8")
    levels = tuple(replace(level, latency=Fraction(0), bandwidth=Fraction(10**12)) for level in m.levels)
    device = replace(
        m.device,
        launch=Fraction(0),
        bandwidth=Fraction(10**9),
        peaks=tuple((d, Fraction(10**9)) for d, _ in m.device.peaks),
    )
    return replace(m, levels=levels, device=device)


def small(name: str, **options: int | str) -> Callable[[], Graph]:
    return lambda: training_step(zoo(name, dtype="float64", **options), "adam")


RUN: dict[str, Callable[[], Graph]] = {
    **SMALL,
    "dlrm": small("dlrm", batch=16, tables=3, rows=16, width=8, bag=2, dense=8, bottom="8-8", top="8-1"),
    "xdl": small("xdl", batch=16, tables=3, rows=16, width=8, bag=2, top="8-2"),
    "candle-uno": small("candle-uno", batch=8, width=8, tower=2, layers=2, features_percent=1),
}
RUN_SLOWLY: dict[str, Callable[[], Graph]] = {
    "vit": small("vit", batch=8, size=16, patch=8, depth=2, width=16, heads=4, hidden=16, classes=8),
    "llama": small("llama", batch=4, layers=2, sequence=8, width=16, heads=4, kv_heads=2, hidden=16, vocabulary=16),
    "moe": small(
        "moe", batch=4, layers=1, sequence=8, width=16, heads=4, kv_heads=2, hidden=16, experts=4, vocabulary=16
    ),
    "rnnlm": small("rnnlm", batch=8, steps=3, width=8, layers=2, vocabulary=16),
    "resnet101": small("resnet101", batch=8, size=33, blocks="1-1-1-1", stem=4, classes=8),
    "resnext50": small("resnext50", batch=8, size=33, blocks="1-1-1-1", stem=4, groups=2, group_width=2, classes=8),
    "inception-v3": small("inception-v3", batch=8, size=75, width=2, classes=8),
}


@pytest.mark.parametrize("name", [*RUN, *(pytest.param(n, marks=pytest.mark.slow) for n in RUN_SLOWLY)])
def test_found_plans_are_proved_and_run_like_one_process(name: str) -> None:
    graph = {**RUN, **RUN_SLOWLY}[name]()
    found = plan_graph(graph, eager(), space("complete"), None)
    assert found.plan is not None
    checked = check_plan(write_plan(None, found.plan), samples=50)
    assert checked.verdict is Verdict.PROVED, [r.reason for r in checked.results]
    values = random_inputs(graph, 3)
    expected = run_graph(graph, values)
    result = run_virtual(lower(graph, (8,), found.plan.choices), values)
    assert list(result.outputs) == list(graph.results)
    for tensor in graph.results:
        np.testing.assert_allclose(result.outputs[tensor], expected[tensor], rtol=1e-10, atol=1e-10)
    assert all(t.fits for t in result.traffic)
    assert sum(any(t.counted) for t in result.traffic) >= 3


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(SMALL)), st.sampled_from([(2, 4), (8,), (3, 2)]), st.integers(0, 10**6))
def test_any_choices_give_the_reference(name: str, hierarchy: tuple[int, ...], seed: int) -> None:
    graph = SMALL[name]()
    whole = replace(graph, outputs=graph.results)  # `check_run` compares outputs
    check_run(whole, hierarchy, draw_choices(whole, hierarchy, np.random.default_rng(seed)), seed)


@pytest.mark.mpi
def test_a_step_runs_on_mpi_ranks() -> None:
    graph = SMALL["mlp"]()
    choices = draw_choices(graph, (2,), np.random.default_rng(5))
    values = random_inputs(graph, 1)
    found, expected = run_mpi(graph, (2,), choices, values), run_graph(graph, values)
    assert list(found) == list(graph.results)
    for tensor in graph.results:
        np.testing.assert_allclose(found[tensor], expected[tensor], rtol=1e-10, atol=1e-10)


def test_old_values_are_freed_before_the_next_ones_arrive() -> None:
    graph = SMALL["mlp"]()
    program = lower(graph, (2, 2), draw_choices(graph, (2, 2), np.random.default_rng(1)))
    steps = program.ranks[0]
    for parameter, value in graph.state:
        load = next(i for i, s in enumerate(steps) if isinstance(s, Load) and s.slot == parameter)
        gone = [i for i, s in enumerate(steps) if isinstance(s, Free) and s.slot == parameter]
        arrive = next(i for i, s in enumerate(steps) if isinstance(s, Move) and s.target == value)
        assert len(gone) == 1 and load < gone[0] < arrive
        assert not any(isinstance(s, Free) and s.slot == value for s in steps)


def test_a_tight_limit_shards_the_stored_weights_and_a_loose_one_is_data_parallel() -> None:
    """Wide batch, small weights.  With room: the batch is split, weights are replicated, gradients are reduce-scattered
    into sharded moments (ZeRO-1).  Just above the least limit: the stored weights are sharded too, and gathered when
    they are used (ZeRO-3)."""
    graph = training_step(zoo("mlp-8192", batch=8192, width=512, layers=4), "adam")
    layers = ("fc1", "fc2", "fc3", "fc4")
    _, loose = planned(graph, "cloud-a100:1x8")
    _, tight = planned(graph, "cloud-a100:1x8", 29_000_000)  # the least that works is 28.8 MB

    def degree(plan: Plan, tensor: str) -> int:
        return int(np.prod([x for row in dict(plan.choices.copies)[tensor].matrix[:-1] for x in row]))

    for plan in (loose, tight):
        assert {dict(plan.choices.operators)[n].degree("b") for n in layers} == {8}
        assert {degree(plan, f"{n}.weight.adam_{k}") for n in layers for k in "mv"} == {8}
        into = [
            m.collective
            for m in plan.communication
            if m.tensor in {f"grad:{n}.weight" for n in layers} and m.writer == m.tensor
        ]
        assert into == ["reduce-scatter"] * 4
        assert check_plan(write_plan(None, plan), samples=100).verdict is Verdict.PROVED
    assert {degree(loose, f"{n}.weight") for n in layers} == {1} and {degree(tight, f"{n}.weight") for n in layers} == {
        8
    }
    used = [
        m.collective for m in tight.communication if m.tensor in {f"{n}.weight" for n in layers} and m.reader in layers
    ]
    assert used == ["all-gather"] * 4


# --- what the checker refuses
# -------------------------------------------------------------------------------------------


def small_plan() -> tuple[Graph, Plan]:
    graph = training_step(zoo("mlp-unity", batch=8, inputs=8, hidden=8, classes=8), "sgd")
    return graph, planned(graph, "cloud-a100:2x2", 1 << 20)[1]


def mutants() -> list[tuple[str, Plan]]:
    graph, plan = small_plan()
    swapped = ((graph.state[0][0], graph.state[1][1]), (graph.state[1][0], graph.state[0][1]))
    out = [
        ("no state", replace(plan, graph=replace(graph, state=()))),
        ("one pair less", replace(plan, graph=replace(graph, state=graph.state[:1]))),
        ("pairs exchanged", replace(plan, graph=replace(graph, state=swapped))),
        ("next value of an input", replace(plan, graph=replace(graph, state=(("x", graph.state[0][1]),)))),
        (
            "sgd for adam",
            replace(plan, graph=training_step(zoo("mlp-unity", batch=8, inputs=8, hidden=8, classes=8), "adam")),
        ),
    ]
    home, value = graph.state[0]
    for title, change in (
        ("next value to a copy of its own", lambda m: replace(m, tensor=home) if m.tensor == value else m),
        ("next value stays where it is written", lambda m: None if m.tensor == value and m.reader is None else m),
        ("next value straight to a reader", lambda m: replace(m, reader="fc1") if m.tensor == value else m),
        ("next value from a copy", lambda m: replace(m, writer=None) if m.tensor == value else m),
    ):
        out.append(
            (title, replace(plan, communication=tuple(c for m in plan.communication if (c := change(m)) is not None)))
        )
    copies = plan.choices.copies
    out.append(
        (
            "no copy of the stored weight",
            replace(plan, choices=replace(plan.choices, copies=tuple(c for c in copies if c[0] != home))),
        )
    )
    out.append(
        (
            "a copy of the next value",
            replace(
                plan, choices=replace(plan.choices, copies=tuple((value if n == home else n, p) for n, p in copies))
            ),
        )
    )
    return out


def test_broken_loops_are_refused() -> None:
    _, plan = small_plan()
    assert check_plan(write_plan(None, plan), samples=50).verdict is Verdict.PROVED
    assert read_plan(write_plan(None, plan))[0].graph == plan.graph
    for title, mutant in mutants():
        try:
            assert check_plan(write_plan(None, mutant), samples=20).verdict is Verdict.REFUTED, title
        except ContainerError:
            continue


def test_a_model_that_forgets_the_loop_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planner and checker share `models/`: with the home of next values broken there, the checker's own structure
    notices.
    """
    graph = weight_decay()
    machine = load_machine("cloud-a100:2x2")

    def forgets(g: Graph) -> dict[str, str]:
        return {t: t for t in models_choices.needs_copy(g)}

    monkeypatch.setattr("shardproof.models.cost.selection.resting_places", forgets)
    found = plan_graph(graph, machine, space("complete"), None)
    assert found.plan is not None
    checked = check_plan(write_plan(None, found.plan), samples=10)
    assert [r.verdict for r in checked.results if r.kind == "Parts"] == [Verdict.REFUTED]


def test_a_model_that_counts_the_next_value_too_long_or_too_short_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory.usages
    for change in (-1, 1):

        def shifted(*arguments, by: int = change):
            return tuple(
                replace(u, start=u.start + min(by, 0), end=u.end + max(by, 0)) if u.name == "next as written" else u
                for u in real(*arguments)
            )

        monkeypatch.setattr(memory, "usages", shifted)
        try:
            found = plan_graph(weight_decay(), load_machine("cloud-a100:2x2"), space("complete"), 1 << 20)
        except ValueError:  # an interval beyond the last step is no problem at all
            continue
        assert found.plan is not None
        checked = check_plan(write_plan(None, found.plan), samples=10)
        assert "usages" in next(r.reason for r in checked.results if r.kind == "Parts")


def test_a_late_reader_is_refused_by_the_checker_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = weight_decay()
    late = replace(graph, operators=graph.operators[::-1])
    monkeypatch.setattr(Graph, "check", lambda self: self)
    found = plan_graph(late, load_machine("cloud-a100:2x2"), space("complete"), None)
    assert found.plan is not None
    checked = check_plan(write_plan(None, found.plan), samples=10)
    parts = next(r for r in checked.results if r.kind == "Parts")
    assert parts.verdict is Verdict.REFUTED and "is read after" in parts.reason


# --- command line
# -------------------------------------------------------------------------------------------------------


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    assert run(["import", "bert-tiny", "--batch", "2", "--train", "adam", "-o", str(out)]) == 0
    assert "mean squared error" in capsys.readouterr().out
    assert Graph.from_json(out.read_text()).state
    plan = tmp_path / "p.spz"
    assert (
        run(
            [
                "plan",
                "mlp-unity",
                "--batch",
                "8",
                "--train",
                "sgd",
                "--machine",
                "localhost:4",
                "--memory",
                "1GiB",
                "-o",
                str(plan),
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "optimal" and "cross entropy" in document["loss"] and document["trained"] == 2
    assert "donated-state" in document["assumptions"]
    assert run(["check", str(plan)]) == 0
    assert run(["run", str(plan), "-n", "4", "--virtual"]) == 0
    assert run(["explain", str(plan)]) == 0
    assert "fc1.weight" in capsys.readouterr().out
    assert run(["plan", str(out), "--train", "adam", "--machine", "localhost:2", "-o", str(plan)]) == 3
    assert "is a training step already" in capsys.readouterr().err


def test_kinds_of_decisions_of_a_step() -> None:
    """Per weight of Adam six vertices: three stored tensors and three operators."""
    planning = build(SMALL["mlp"](), load_machine("cloud-a100:2x2"), space("complete"))
    names = [
        d.name
        for d in planning.decisions
        if "fc1.weight" in d.name and d.kind is DecisionKind.COPY and not d.name.startswith("grad:")
    ]
    assert names == ["fc1.weight", "fc1.weight.adam_m", "fc1.weight.adam_v"]
    assert (
        sum(
            "fc1.weight" in d.name and d.kind is DecisionKind.OPERATOR and d.name.endswith(".next")
            for d in planning.decisions
        )
        == 3
    )


@pytest.mark.parametrize("name", ["bert", "conv", "mlp"])
def test_every_entry_of_a_step_is_recomputed_alike(name: str) -> None:
    """Among them the embedding's gradient, whose row axis costs no work."""
    planning = build(SMALL[name](), load_machine("cloud-a100:2x2"), space("complete"), 1 << 30)
    entries = Entries(planning)
    for v in range(len(planning.decisions)):
        for choice in range(0, planning.problem.domain_size(v), 5):
            assert not entries.wrong_time(v, choice)
    for n, u in enumerate(planning.problem.usages):
        assert not entries.wrong_usage(n, planning.problem.domain_size(u.vertex) - 1)


def test_the_gradient_of_a_bag_costs_what_it_reads() -> None:
    """Bags of 3: the gradient has a third of the points."""
    g = Builder("bag")
    axes = [Axis("b", 8), Axis("m", 4), Axis("v", 16, Combine.SUM), Axis("s", 3, Combine.SUM)]
    reads = [access(g.parameter("table", (16, 4)), "v", "m"), access(g.input("ids", (8, 3), "int32"), "b", "s")]
    graph = training_step(g.build(g.operator("y", "embedding", axes, reads, ["b", "m"], {"rows": "v"})), "sgd")
    planning = build(graph, load_machine("cloud-a100:2x2"), space("complete"))
    vertex = planning.operators["grad:table"]
    costs, entries = planning.costs[vertex], Entries(planning)
    assert costs is not None and all(
        not entries.wrong_time(vertex, c) for c in range(planning.problem.domain_size(vertex))
    )
    whole = planning.decisions[vertex].placements[:, :-1].prod(axis=(1, 2)).argmin()
    assert costs.flops[whole] == 8 * 3 * 4 and costs.bytes[whole] == 4 * (8 * 4 + 8 * 3 + 16 * 4)


def test_the_loss_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    assert run(["import", "mlp-unity", "--train", "sgd", "--loss", "nobody", "-o", str(out)]) == 3
    assert "'nobody': is not a computed scalar" in capsys.readouterr().err
    assert run(["import", "mlp-unity", "--loss", "fc2", "-o", str(out)]) == 2
    assert "--train" in capsys.readouterr().err
    g = Builder("two", "float32")
    y = g.contract("y", "b k, k n -> b n", g.input("x", (2, 3)), g.parameter("w", (3, 4)))
    (tmp_path / "two.json").write_text(g.build(y, g.reduce("total", "b n -> ", y)).to_json())
    assert run(["import", str(tmp_path / "two.json"), "--train", "sgd", "--loss", "total", "-o", str(out)]) == 0
    assert "the loss is 'total'" in capsys.readouterr().out and Graph.from_json(out.read_text()).outputs == ("total",)

"""Training steps in micro-batches: the numbers of the whole batch, less memory, plans of several counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_run import choose, draw_choices

from shardproof.__main__ import run
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.training.accumulation import accumulate, counts, parts_of
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.text import InputError

SMALL = {
    "mlp": lambda: zoo("mlp-unity", batch=8, inputs=12, hidden=16, classes=8, dtype="float64"),
    "conv": lambda: zoo("conv-stack", batch=4, size=9, channels=2, dtype="float64"),
    "bert": lambda: zoo("bert-tiny", batch=4, layers=1, sequence=8),
    "llama": lambda: zoo(
        "llama", layers=1, width=32, heads=4, kv_heads=2, hidden=32, vocabulary=64, batch=4, sequence=8, dtype="float64"
    ),
}


def shaped(graph: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.reshape(graph.tensor(name).shape) for name, value in values.items()}


@pytest.mark.parametrize(("count", "parts"), [(2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_numbers_are_those_of_the_whole_batch(name: str, count: int, parts: int) -> None:
    for optimizer, recompute in (("adamw:clip=0.5", "none"), ("sgd:momentum=0.9", "all")):
        if recompute == "all" and name in ("mlp", "conv"):
            continue
        step = build_step(SMALL[name](), optimizer, recompute=recompute)
        cut = accumulate(step, count, parts)
        values = random_inputs(step.graph, 0)
        expected, got = run_graph(step.graph, values), run_graph(cut.graph, shaped(cut.graph, values))
        assert set(got) == set(expected)
        for tensor, value in expected.items():
            np.testing.assert_allclose(got[tensor], value, rtol=1e-12, atol=1e-12, err_msg=tensor)
        assert [w for w, _ in cut.trained] == [w for w, _ in step.trained]
        assert {g for _, g in cut.trained} <= {t.name for t in cut.graph.tensors}


def test_inputs_are_given_as_the_whole_batch() -> None:
    """Their batch is two dimensions; the shape that the user knows stays."""
    cut = accumulate(build_step(SMALL["mlp"](), "sgd"), 4).graph
    assert cut.tensor("x").shape == (4, 2, 12) and cut.tensor("x").source_shape == (8, 12)
    draw = random_inputs(cut, 1)
    whole = {n: v.reshape(cut.tensor(n).source_shape or v.shape) for n, v in draw.items()}
    for name, value in run_graph(cut, draw).items():
        np.testing.assert_array_equal(run_graph(cut, whole)[name], value)


def test_what_needs_no_input_is_computed_once() -> None:
    """Rotary tables, masks, weights cast to 16 bits; the optimizer too."""
    step = build_step(zoo("llama", layers=1, batch=4, sequence=64), "adam", precision="bf16-master")
    cut = accumulate(step, 4)
    names = [op.name for op in cut.graph.operators]
    assert names.count("rotary.sine") == 1 and "rotary.sine@0" not in names
    casts = [n for n in names if n.endswith(".weight.bf16")]
    assert len(casts) == len(set(casts)) > 5
    updates = [op for op in cut.graph.operators if op.function == "adam_update"]
    assert len(updates) == len(step.trained) and len(cut.graph.operators) < 4 * len(step.graph.operators)
    for w, g in cut.trained:
        assert cut.graph.tensor(g).dtype == cut.graph.tensor(w).dtype == "float32"


def test_activations_of_one_micro_batch_are_alive() -> None:
    """On one device, besides inputs and weights: nearly a fourth with four micro-batches."""
    step = build_step(zoo("mlp-unity", batch=4096), "sgd")
    peaks = []
    for count in (1, 4):
        planning = build_problem(accumulate(step, count).graph, load_machine("localhost:1"), space("complete"), 1 << 40)
        peaks.append(planning.problem.peak_of((0,) * len(planning.problem.vertices))[0])
    inputs = sum(t.elements * t.element_bytes for t in step.graph.tensors if t.role is not Role.VALUE)
    assert peaks[1] - inputs < (peaks[0] - inputs) * 0.45


def test_gradients_brought_together_once() -> None:
    """Data parallel on two devices: with a part of the gradient per device one sum travels per weight, else four."""
    step = build_step(SMALL["mlp"](), "sgd")
    moved = []
    for parts in (1, 2):
        cut = accumulate(step, 4, parts).graph
        split = {op.name: {"b": (2,)} for op in cut.operators if any(a.name == "b" for a in op.axes)}
        split |= {op.name: {"part": (2,)} for op in cut.operators if any(a.name == "part" for a in op.axes)}
        program = lower(cut, (2,), choose(cut, (2,), split))
        reduced = [m for m in program.movements if "reduce" in m.plan.collective()]
        moved.append(sum("weight" in m.tensor or "bias" in m.tensor for m in reduced))
    weights = len(step.trained)
    assert moved == [4 * weights, weights]


@pytest.mark.parametrize(("seed", "parts"), [(0, 1), (1, 1), (2, 2), (3, 4)])
def test_any_placement_on_four_ranks_is_one_process(seed: int, parts: int) -> None:
    cut = accumulate(build_step(SMALL["mlp"](), "adam"), 2, parts).graph
    values = random_inputs(cut, seed)
    found = run_virtual(lower(cut, (2, 2), draw_choices(cut, (2, 2), np.random.default_rng(seed))), values)
    assert all(t.fits for t in found.traffic)
    for name, value in run_graph(cut, values).items():
        np.testing.assert_allclose(found.outputs[name], value, rtol=1e-10, atol=1e-10)


def normalised() -> TrainingStep:
    """A mean over the batch inside the model, which micro-batches would change."""
    g = Builder("m", "float64")
    x, w = g.input("x", (8, 4)), g.parameter("w", (4, 4))
    y = g.contract("y", "b k, k n -> b n", x, w)
    mean = g.reduce("mean", "b n -> n", y, scale=1 / 8)
    return build_step(g.build(g.map("z", "subtract", y, mean, text="b n, n -> b n")), "sgd")


def test_a_step_that_looks_at_the_whole_batch_is_refused() -> None:
    with pytest.raises(InputError, match="'z' .subtract. reads 'mean', which is summed over the whole batch"):
        accumulate(normalised(), 2)


def looking(how: str) -> TrainingStep:
    """A model that knows which example is which, pairs them, or counts them."""
    g = Builder(how, "float64")
    x, w = g.input("x", (4, 6)), g.parameter("w", (6, 4))
    y = g.contract("y", "b k, k n -> b n", x, w)
    if how == "place":
        y = g.map("z", "multiply", y, g.iota("at", (4,), 0), text="b n, b -> b n")
    elif how == "pairs":
        y = g.contract("z", "b n, c n -> b c", y, y)
    weighed = g.map("loss.squares", "multiply", y, y, text="b n, b n -> b n")
    if how == "counted":  # mean over the examples whose mark is not zero, as labels that are ignored
        mark = g.map("mark", "sign", g.map("size", "abs", g.input("t", (4,)), text="b -> b"), text="b -> b")
        total = g.reduce("total", "b n -> ", g.map("kept", "multiply", weighed, mark, text="b n, b -> b n"))
        return build_step(
            g.build(g.map("loss", "divide", total, g.reduce("n", "b -> ", mark), text=", -> ")), "adamw:clip=1"
        )
    return build_step(g.build(g.reduce("loss", "b n -> ", weighed)), "sgd")


@pytest.mark.parametrize(("how", "told"), [("place", "knows where in the batch"), ("pairs", "examples in pairs")])
def test_a_step_that_tells_examples_apart_is_refused(how: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        accumulate(looking(how), 2)


@pytest.mark.parametrize(("count", "parts"), [(2, 1), (4, 1), (2, 2)])
def test_a_mean_over_what_counts_has_the_whole_batch_s_count(count: int, parts: int) -> None:
    """One micro-batch has no example that counts; the count is computed before the first and is one for all."""
    step = looking("counted")
    values = {**random_inputs(step.graph, 0), "t": np.array([1.0, 0.0, 0.0, 0.0])}
    cut = accumulate(step, count, parts)
    got = run_graph(cut.graph, shaped(cut.graph, values))
    for tensor, value in run_graph(step.graph, values).items():
        np.testing.assert_allclose(got[tensor], value, rtol=1e-12, atol=1e-12, err_msg=tensor)
    names = [op.name for op in cut.graph.operators]
    assert names.index("n") < names.index("y@0") and names.count("n") == 1


def test_counts_divide_the_batch() -> None:
    step = build_step(SMALL["mlp"](), "sgd")
    assert list(counts(step.graph)) == [1, 2, 4, 8]
    with pytest.raises(InputError, match="a batch of 8 cannot be cut into 3 equal micro-batches"):
        accumulate(step, 3)
    assert accumulate(step, 1) is step
    assert [parts_of(step.graph, 2, n) for n in (1, 2, 3, 4, 8)] == [1, 2, 1, 4, 4]


@pytest.mark.slow
def test_plan_finds_how_many_pay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One does not fit; the cheapest count that does is planned, checked and run."""
    plan, model = str(tmp_path / "p.spz"), tmp_path / "model.json"
    model.write_text(zoo("mlp-unity", batch=512, inputs=16, hidden=256, classes=16).to_json())
    asked = [str(model), "--train", "sgd", "--machine", "localhost:2", "-o", plan]
    assert (
        run(["plan", *asked, "--micro-batch", "auto", "--memory", "600KiB", "--work-limit", "300M", "--gap", "5%"]) == 0
    )
    said = capsys.readouterr().out
    assert "1 micro-batch: proved not to fit" in said and "+micro(" in said and "brought together once" in said
    assert run(["run", plan, "-n", "2", "--virtual", "--dtype", "float32"]) == 0
    assert "equal" in capsys.readouterr().out
    assert run(["plan", "mlp-unity", "--machine", "localhost:2", "-o", plan, "--micro-batch", "2"]) == 2
    assert run(["plan", *asked, "--micro-batch", "auto"]) == 2
    assert run(["import", "mlp-unity", "--batch", "8", "--train", "sgd", "--micro-batch", "4", "--json"]) == 0

"""Mixed precision: exact rounding, the types of a rewritten model, its price, its execution, the loss scale."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from budgets import limited
from test_run import choose, draw_choices

from shardproof.__main__ import run
from shardproof.backends.execution.interpreter import Watching, run_rank
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import run_job
from shardproof.backends.execution.live import Meter
from shardproof.backends.execution.reference import as_stored, random_inputs, run_graph
from shardproof.backends.execution.run import copies, run_virtual
from shardproof.backends.kernels import combine_arrays, round_to, widen
from shardproof.backends.transport.virtual import Hub, VirtualTransport
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph, GraphError, Role
from shardproof.models.program.index import Combine
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.precision import mixed_precision, parse_precision
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.plan import check_plan

# --- rounding
# --------------------------------------------------------------------------------------------------------------


def nearest(x: np.ndarray) -> np.ndarray:
    """Every finite float32 as the nearest number of eight significant bits, ties to even: by exact arithmetic."""
    out = []
    for value in x.tolist():
        if value == 0:
            out.append(0.0)
            continue
        exact = Fraction(value)
        power = max(int(np.floor(np.log2(abs(value)))), -126)
        while abs(exact) >= Fraction(2) ** (power + 1):
            power += 1
        while power > -126 and abs(exact) < Fraction(2) ** power:
            power -= 1
        step = Fraction(2) ** (power - 7)
        out.append(float(round(exact / step) * step))  # Fraction rounds ties to even
    return np.array(out, dtype=np.float64)


def test_rounding_to_bfloat16_is_exact() -> None:
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 1 << 32, 4000, dtype=np.uint64).astype(np.uint32)
    ties = ((np.arange(600, dtype=np.uint32) + np.uint32(0x3F00)) << np.uint32(16)) | np.uint32(0x8000)
    tiny = np.arange(0, 1 << 20, 4099, dtype=np.uint32)
    x = np.concatenate([bits, ties, ties + 1, ties - 1, tiny]).view(np.float32)
    x = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        wanted = nearest(x).astype(np.float32)
    np.testing.assert_array_equal(widen(np, round_to(np, x, "bfloat16")), wanted)


def test_what_is_no_number_survives_rounding() -> None:
    odd = np.array([np.inf, -np.inf, np.nan, 3.4e38, -0.0], dtype=np.float32)
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    got = widen(np, round_to(np, odd, "bfloat16"))
    np.testing.assert_array_equal(got[[0, 1, 3]], [np.inf, -np.inf, np.inf])
    assert np.isnan(got[2]) and np.signbit(got[4])
    assert np.isnan(widen(np, round_to(np, bits, "bfloat16"))).all()
    assert widen(np, round_to(np, np.array([1e6, 1e-9]), "float16")).tolist() == [np.inf, 0.0]
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    back = round_to(np, widen(np, every), "bfloat16")
    number = ~np.isnan(widen(np, every))
    np.testing.assert_array_equal(back[number], every[number])


def test_parts_are_rounded_after_every_addition() -> None:
    one, small = (round_to(np, np.array([v]), "bfloat16") for v in (1.0, 2.0**-8))
    assert widen(np, combine_arrays(np, combine_arrays(np, one, small, Combine.SUM), small, Combine.SUM)) == 1.0
    assert widen(np, combine_arrays(np, one, small, Combine.MAX)) == 1.0


# --- types
# --------------------------------------------------------------------------------------------------------------


def attended() -> Graph:
    """A pre-norm layer with a residual, a scaled softmax and a bias, in float32."""
    return zoo("bert-tiny", batch=2, layers=1, sequence=4)


def types(graph: Graph) -> dict[str, str]:
    return {t.name: t.dtype for t in graph.tensors}


def test_autocast_types() -> None:
    found = types(mixed_precision(attended(), parse_precision("bf16-mixed")))
    half = {"layer0.attention.query", "layer0.attention.query.bias_add", "layer0.ffn.gelu", "layer0.attention.scores"}
    full = {"embedding.word", "embedding.norm", "layer0.attention.softmax", "layer0.attention.add", "layer0.ffn.norm"}
    assert {found[t] for t in half} == {"bfloat16"} and {found[t] for t in full} == {"float32"}
    assert found["layer0.ffn.up.weight"] == "float32" and found["layer0.ffn.up.weight.bf16"] == "bfloat16"


def test_master_types() -> None:
    step = build_step(attended(), "adam", precision="bf16-master").graph
    found = types(step)
    assert found["layer0.attention.add"] == found["embedding.norm"] == found["layer0.attention.softmax"] == "bfloat16"
    assert found["loss.squares"] == found["loss"] == "float32"
    parameters = {t.dtype for t in step.tensors if t.role is Role.PARAMETER}
    assert parameters == {"float32"}


def test_a_model_stored_in_half_gets_wide_weights() -> None:
    """The zoo's language models state bfloat16; what they state stays, but for weights and the loss."""
    graph = zoo("llama", layers=1, batch=1)
    step = build_step(graph, "adam", precision="bf16-master").graph
    weight = next(t for t in graph.tensors if t.role is Role.PARAMETER and len(t.shape) > 1)
    assert weight.dtype == "bfloat16" and step.tensor(weight.name).dtype == "float32"
    assert step.tensor(f"{weight.name}.bf16").dtype == "bfloat16"
    stated = {t.name: t.dtype for t in graph.tensors if t.role is Role.VALUE}
    changed = {n for n, d in stated.items() if step.tensor(n).dtype != d}
    assert not changed


@pytest.mark.parametrize("name", ["bf16-mixed", "bf16-master", "fp16-mixed"])
def test_every_narrowing_is_a_cast_or_a_result(name: str) -> None:
    """No product reads factors of two types, nothing is read in 16 bits that was not written so."""
    step = build_step(attended(), "adamw:clip=1", precision=name).graph
    for op in step.operators:
        if op.function == "product":
            assert len({step.tensor(a.tensor).dtype for a in op.inputs}) == 1, op.name
        if op.function == "cast":
            assert step.tensor(op.output.tensor).dtype == dict(op.attributes)["dtype"] != "float32"
    for w, following in step.state:
        assert step.tensor(w).dtype == step.tensor(following).dtype == "float32"


def test_graphs_without_the_option_keep_their_bytes() -> None:
    """Hashes of training steps before there was mixed precision."""
    assert build_step(zoo("mlp-unity"), "adam").graph.sha256().startswith("668c870c")
    assert build_step(zoo("llama", layers=1, batch=1), "adamw:clip=1").graph.sha256().startswith("aa4ccfc4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16", "is not one of 'bf16-mixed', 'fp16-mixed'"),
        ("bf16-mixed:reduce=float16", "summed in float32 or bfloat16"),
        ("fp16-mixed:growth=nan", "out of range"),
        ("fp16-mixed:interval=1.5", "out of range"),
        ("fp16-mixed:interval=x", "is not a number"),
        ("fp16-mixed:reduce", "give reduce=VALUE once"),
    ],
)
def test_bad_precisions_say_what_may_be_given(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_precision(text)
    with pytest.raises(GraphError, match="--precision: "):
        build_step(zoo("mlp-unity"), "sgd", precision=text)


def test_a_training_step_is_refused() -> None:
    with pytest.raises(GraphError, match="give --precision with --train"):
        mixed_precision(build_step(zoo("mlp-unity"), "sgd").graph, parse_precision("bf16-mixed"))


# --- prices
# --------------------------------------------------------------------------------------------------------------


def test_a_product_that_sums_in_float32_has_the_peak_of_its_factors() -> None:
    g = Builder("m", "bfloat16")
    y = g.contract("y", "m k, k n -> m n", g.input("a", (512, 512)), g.input("b", (512, 512)))
    half = g.build(y)
    op = half.operators[0]
    wide = replace(half, tensors=tuple(replace(t, dtype="float32") if t.name == "y" else t for t in half.tensors))
    stated = replace(wide, operators=(replace(op, attributes=(("arithmetic", "bfloat16"),)),)).check()
    machine = load_machine("cloud-a100:1x2")
    times = [int(build_problem(g, machine, space("complete")).problem.vertices[0].cost.max()) for g in (wide, stated)]
    flops = Fraction(2 * 512**3)
    launch = machine.device.launch
    assert times[0] == np.ceil((flops / machine.device.peak("float32") + launch) * 10**12)
    assert times[1] == np.ceil((flops / machine.device.peak("bfloat16") + launch) * 10**12)
    for wrong, message in ((("arithmetic", "float16"), "type of every factor"),):
        with pytest.raises(GraphError, match=message):
            replace(wide, operators=(replace(op, attributes=(wrong,)),)).check()
    with pytest.raises(GraphError, match="narrower"):
        replace(half, operators=(replace(op, attributes=(("arithmetic", "bfloat16"),)),)).check()


def test_a_plan_in_mixed_precision_is_checked() -> None:
    """And its memory rows count two bytes where there are two."""
    graph = build_step(zoo("mlp-unity", batch=16), "adam", precision="bf16-mixed").graph
    planned = plan_graph(graph, load_machine("localhost:4"), space("complete"), 1 << 30, limit=limited(60))
    assert planned.plan is not None
    assert check_plan(write_plan(None, planned.plan)).verdict.value == "proved"


# --- execution
# --------------------------------------------------------------------------------------------------------------


def rounded(x: np.ndarray) -> np.ndarray:
    return nearest(np.asarray(x, dtype=np.float32).reshape(-1)).astype(np.float32).reshape(np.shape(x))


def perceptron() -> tuple[Graph, dict[str, np.ndarray]]:
    """x W with numbers of few bits: every sum is exact in float32, in any order."""
    g = Builder("m", "float32")
    x, w = g.input("x", (4, 8)), g.parameter("w", (8, 4))
    y = g.contract("y", "b k, k n -> b n", x, w)
    draw = np.random.default_rng(2)
    values = {"x": draw.integers(-8, 9, (4, 8)) / 8, "w": draw.integers(-64, 65, (8, 4)) / 64 + 2.0**-9}
    return g.build(g.map("h", "relu", y, text="b n -> b n")), values | {"target": draw.integers(-8, 9, (4, 4)) / 4}


def test_a_step_is_bit_for_bit_what_its_formulas_say() -> None:
    """Against the same step written by hand, rounding by exact arithmetic: losses, gradients, weights."""
    graph, values = perceptron()
    step = build_step(graph, "sgd:rate=0.125", precision="bf16-mixed:reduce=bfloat16").graph
    got = run_graph(step, values, stored=True)
    x, w, t = (np.asarray(values[n], dtype=np.float32) for n in ("x", "w", "target"))
    h = np.maximum(rounded(rounded(x) @ rounded(w)), 0)
    loss = np.float32(np.sum((h - t) ** 2, dtype=np.float32) / np.float32(16))
    g = rounded(2 * np.float32(1 / 16) * (h - t)) * (h > 0)
    assert got["loss"] == loss
    np.testing.assert_array_equal(got["w.next"], w - np.float32(0.125) * rounded(rounded(x).T @ g))
    assert got["w.next"].dtype == np.float32 and (rounded(w) != w).any()


def test_gradients_summed_in_float32_are_not_rounded() -> None:
    graph, values = perceptron()
    narrow, wide = (
        build_step(graph, "sgd:rate=1", precision=f"bf16-mixed:reduce={kind}").graph for kind in ("bfloat16", "float32")
    )
    assert len(wide.operators) == len(narrow.operators)
    product = next(op for op in wide.operators if op.name.startswith("grad:w"))
    assert (
        dict(product.attributes) == {"arithmetic": "bfloat16"} and wide.tensor(product.output.tensor).dtype == "float32"
    )
    got = run_graph(wide, values, stored=True)["w.next"] - values["w"]
    other = run_graph(narrow, values, stored=True)["w.next"] - values["w"]
    assert np.abs(got - other).max() <= np.abs(got).max() * 2.0**-8 and (got != other).any()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-master:reduce=bfloat16", "fp16-mixed"])
def test_four_ranks_are_one_process(precision: str) -> None:
    graph = build_step(attended(), "adam", precision=precision).graph
    values = random_inputs(graph, 0, None)
    expected = run_graph(graph, values, stored=True)
    choices = draw_choices(graph, (2, 2), np.random.default_rng(5))
    program = build_program(graph, (2, 2), choices, Options(stored=True))
    found = run_virtual(program, values, measure=True)
    assert all(t.fits for t in found.traffic)
    for name in graph.results:
        np.testing.assert_allclose(found.outputs[name], expected[name], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("split", ["b", "n", "k"])
def test_a_bias_is_added_before_the_product_is_rounded_on_every_rank(split: str) -> None:
    """Numbers of few bits, so that sums are exact: once rounded where a device has the whole sum, and where parts are
    added up over devices every part, their sum and what the bias makes of it.
    """
    g = Builder("linear", "bfloat16")
    x, w, bias = g.input("x", (4, 8)), g.parameter("w", (8, 6)), g.parameter("bias", (6,))
    y = g.map("z", "add", g.contract("y", "b k, k n -> b n", x, w), bias, text="b n, n -> b n")
    graph = g.build(y)
    draw = np.random.default_rng(1)
    shapes = {"x": (4, 8), "w": (8, 6), "bias": (6,)}
    drawn = {k: draw.integers(-127, 128, v).astype(np.float32) for k, v in shapes.items()}
    values = {k: v / (32 if k == "bias" else 64) for k, v in drawn.items()}
    parts = (
        [values["x"] @ values["w"]]
        if split != "k"
        else [values["x"][:, k : k + 4] @ values["w"][k : k + 4] for k in (0, 4)]
    )
    once = rounded(sum(parts) + values["bias"])
    twice = rounded(rounded(rounded(parts[0]) + rounded(parts[-1]) if split == "k" else parts[0]) + values["bias"])
    assert (once != twice).any()
    np.testing.assert_array_equal(run_graph(graph, values, stored=True)["z"], once)
    placed = {"y": {split: (2,)}, "z": {"b" if split == "k" else split: (2,)}}
    program = build_program(graph, (2,), choose(graph, (2,), placed), Options(stored=True))
    np.testing.assert_array_equal(run_virtual(program, values).outputs["z"], twice if split == "k" else once)


def test_blocks_of_sixteen_bits_take_two_bytes() -> None:
    """What a rank keeps is what the memory rows count."""
    graph = build_step(zoo("mlp-unity", batch=8), "sgd", precision="bf16-mixed").graph
    program = build_program(graph, (1,), draw_choices(graph, (1,), np.random.default_rng(0)), Options(stored=True))
    values = as_stored(graph, random_inputs(graph, 0, None))
    seen: dict[str, str] = {}

    class Looking(Meter):
        def look(self, slots: dict[str, np.ndarray], number: int) -> None:
            super().look(slots, number)
            for slot, array in slots.items():
                if array.size:
                    seen[slot] = array.dtype.name
                    assert array.itemsize == self._size[slot], slot

    run_rank(program, 0, VirtualTransport(Hub(), 0, (1,), np), copies(values), np, Watching(meter=Looking(graph)))
    assert set(seen.values()) == {"float32", "uint16", "int32"}


@pytest.mark.slow
def test_four_processes_are_one() -> None:
    graph = build_step(attended(), "adam", precision="bf16-mixed:reduce=bfloat16").graph
    values = random_inputs(graph, 0, None)
    choices = draw_choices(graph, (2, 2), np.random.default_rng(6))
    found = run_job(graph, (2, 2), choices, values, Options(stored=True)).outputs
    program = build_program(graph, (2, 2), choices, Options(stored=True))
    virtual = run_virtual(program, values).outputs
    for name in graph.results:
        np.testing.assert_allclose(found[name], virtual[name], rtol=0.05, atol=0.05)


# --- loss scale
# --------------------------------------------------------------------------------------------------------------


def scaled(values: dict[str, np.ndarray], scale: float, steps: float, interval: int = 3) -> dict[str, np.ndarray]:
    graph, _ = perceptron()
    step = build_step(graph, "adam:rate=0.125", precision=f"fp16-mixed:interval={interval}").graph
    zero = {t.name: np.zeros(t.shape) for t in step.tensors if t.role is Role.PARAMETER}
    return run_graph(
        step, zero | values | {"loss_scale": np.array(scale), "loss_scale.steps": np.array(steps)}, stored=True
    )


def test_the_loss_scale_cancels_and_grows() -> None:
    _, values = perceptron()
    small, large = scaled(values, 1.0, 0), scaled(values, 1024.0, 2)
    np.testing.assert_array_equal(small["w.next"], large["w.next"])
    assert (small["w.next"] != values["w"]).any()
    assert [float(small[n]) for n in ("loss_scale.next", "loss_scale.steps.next")] == [1.0, 1.0]
    assert [float(large[n]) for n in ("loss_scale.next", "loss_scale.steps.next")] == [2048.0, 0.0]


def test_a_gradient_that_is_not_finite_changes_nothing_but_the_scale() -> None:
    _, values = perceptron()
    got = scaled(values, 2.0**20, 2)
    np.testing.assert_array_equal(got["w.next"], values["w"].astype(np.float32))
    assert not got["w.adam_m.next"].any() and not got["w.adam_v.next"].any()
    assert [float(got[n]) for n in ("loss_scale.next", "loss_scale.steps.next")] == [2.0**19, 0.0]


# --- command line
# --------------------------------------------------------------------------------------------------------------


def test_plan_and_run_in_mixed_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "p.spz")
    asked = ["mlp-unity", "--batch", "8", "--train", "sgd", "--precision", "bf16-mixed", "--machine", "localhost:2"]
    assert run(["plan", *asked, "-o", plan]) == 0
    assert run(["run", plan, "-n", "2", "--virtual"]) == 0
    said = capsys.readouterr().out
    assert "bytes counted = bytes priced" in said and "equal" in said and "computed in" not in said
    assert run(["run", plan, "-n", "2", "--virtual", "--dtype", "float32"]) == 0
    assert "computed in float32; the model states bfloat16, float32" in capsys.readouterr().out
    assert run(["import", "mlp-unity", "--precision", "fp16-mixed", "--json"]) == 0
    assert run(["import", "mlp-unity", "--precision", "int8"]) == 2

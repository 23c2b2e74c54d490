"""`--backend torch`: every kernel of PyTorch is the kernel of ours on the same box, and programs on ranks are those of one
process."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import convolution, tight
from test_run import choose, draw_choices

from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.libraries import library_of
from shardproof.backends.execution.live import owner
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.kernels import Block, execute, full_box
from shardproof.backends.kernels.library import OURS
from shardproof.backends.lowering.fusion import fuse
from shardproof.backends.lowering.program import lower
from shardproof.backends.torch import library, products
from shardproof.backends.torch.maps import FUNCTIONS, ROWS, WRITES
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Combine
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY, build

pytestmark = pytest.mark.torch

ARITY = {"fused_scale_shift": 3, "adam_update": 3, "adamw_update": 3, "batch_norm_gradient": 3, "sum_inputs": 3}
TWO = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "sgd_update", "adam_moment1", "adam_moment2"),
    *("momentum", "decayed_gradient", "squared_difference"),
}
ATTRIBUTES = {
    "scale": {"scale": 0.3},
    "shift": {"shift": -1.5},
    "momentum": {"momentum": 0.9},
    "sgd_update": {"rate": 0.1},
}
POSITIVE = {"adam_update": 2, "adamw_update": 2, "batch_norm_gradient": 2}
"""Operand that is a square or a variance."""
SPECIAL = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-30, -1e-30, 3.5, -20.0, 20.0]


def operator(name: str, **attributes: float) -> tuple[Operator, Graph]:
    many = ARITY.get(name, 2 if name in TWO or name.endswith("_gradient") else 1)
    g = Builder("map", "float64")
    graph = g.build(g.map("y", name, *(g.input(f"x{i}", (6, 24)) for i in range(many)), **attributes))
    return graph.operators[0], graph


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_the_rows_of_our_table(name: str, dtype: str) -> None:
    """Drawn numbers, and every pair of special ones: kinks, infinities, NaN, both zeros."""
    op, _ = operator(name, **ATTRIBUTES.get(name, {}))
    rng = np.random.default_rng(len(name))
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL])
    for special in (False, True):
        arrays = []
        for k in range(len(op.inputs)):
            x = pairs[:, k % 2].reshape(6, 24) if special else rng.standard_normal((6, 24))
            x = np.where(np.isinf(x) & (name == "gelu"), 20, x)  # at -inf it is what erf makes of it: 0 or NaN
            arrays.append((np.abs(x) if POSITIVE.get(name) == k else x).astype(dtype))
        kept = [x.copy() for x in arrays]
        with np.errstate(all="ignore"):
            expected, found = OURS.functions[name](np, arrays, op), FUNCTIONS[name](np, arrays, op)
        assert found.dtype == dtype and not any(np.shares_memory(found, x) for x in arrays)
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(arrays, kept))
        rtol = 2e-6 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6 if dtype == "float32" else 1e-14, err_msg=name)


def test_updates_under_a_condition_and_other_types_are_ours() -> None:
    op, _ = operator("sgd_update", rate=0.5)
    w, g = np.ones((6, 24)), np.full((6, 24), 2.0)
    assert (FUNCTIONS["sgd_update"](np, [w, g, np.array(False)], op) == 1).all()
    assert (FUNCTIONS["sgd_update"](np, [w, g], op) == 0).all()
    whole = FUNCTIONS["add"](np, [np.array([250], "uint8"), np.array([10], "uint8")], operator("add")[0])
    assert whole.dtype == np.uint8 and whole[0] == 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WRITES)
def test_what_writes_into_an_operand_has_the_same_bits(name: str, dtype: str) -> None:
    """Into the memory of each operand, beside a bias that is spread; special numbers as well."""
    op, _ = operator(name, **ATTRIBUTES.get(name, {}))
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL])
    for spread in (False, True):
        arrays = [pairs[:, k % 2].reshape(6, 24).astype(dtype) for k in range(len(op.inputs))]
        if spread and len(arrays) > 1:
            arrays[-1] = arrays[-1][:1].copy()
        for k in range(len(arrays) - (spread and len(arrays) > 1)):
            given = [x.copy() for x in arrays]
            with np.errstate(all="ignore"):
                expected = FUNCTIONS[name](np, given, op)
                WRITES[name](given, op, given[k])
            assert np.array_equal(given[k], expected, equal_nan=True)
            assert (np.signbit(given[k]) == np.signbit(expected)).all()
            assert all(np.array_equal(x, y, equal_nan=True) for j, (x, y) in enumerate(zip(arrays, given)) if j != k)


def chain(*kept: str) -> Graph:
    """y = relu(x + b), z = y y + y, v = 2 z; `kept`: what else is a result."""
    g = Builder("chain", "float32")
    x, b = g.input("x", (64, 33)), g.input("b", (33,))
    s = g.map("s", "add", x, b, text="i j, j -> i j")
    y = g.map("y", "relu", s)
    w = g.map("w", "multiply", y, y)
    z = g.map("z", "add", w, y)
    return g.build(*kept, g.map("v", "scale", z, scale=2.0))


@pytest.mark.parametrize("kept", [(), ("s",), ("y",), ("w",), ("z",), ("s", "w"), ("y", "z")])
def test_chains_write_where_nobody_reads(kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and values that somebody wants stay what they are; the rest is one array."""
    written: list[str] = []
    spied = {n: (lambda a, op, out, n=n: (written.append(n), WRITES[n](a, op, out))) for n in WRITES}
    real = library_of("torch")
    monkeypatch.setattr(
        "shardproof.backends.execution.interpreter.library_of", lambda name: replace(real, writes=spied)
    )
    graph = chain(*kept)
    program = replace(fuse(lower(graph, (1,), choose(graph, (1,), {}))), library="torch")
    values = {k: v.astype("float32") for k, v in random_inputs(graph, 0).items()}
    before = {k: v.copy() for k, v in values.items()}
    result = run_virtual(program, values)
    expected = run_graph(graph, values)
    for name in graph.outputs:
        np.testing.assert_allclose(result.outputs[name], expected[name], rtol=1e-6)
    assert all(np.array_equal(before[k], values[k]) for k in values)
    assert ("relu" in written) is ("s" not in kept) and ("scale" in written) is ("z" not in kept)
    assert ("add" in written) is (not {"y", "w"} <= {*kept})


# --- operators of whole models ----------------------------------------------------------------------------------------


STEPS = {
    "resnet101": "sgd:momentum=0.9",
    "resnext50": "sgd",
    "inception-v3": "sgd",
    "bert-tiny": "adam",
    "llama": "adamw",
    "vit": "sgd",
    "moe": "sgd",
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", STEPS)
def test_operators_of_training_steps_are_ours(model: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator on its whole box and on a drawn part of it, with blocks cut to what the box touches."""
    graph = build_step(build(model, **{**TINY[model], "dtype": dtype}), STEPS[model]).graph
    inputs = random_inputs(graph, 1, dtype)
    values = {**inputs, **run_graph(graph, inputs, keep=[op.output.tensor for op in graph.operators])}
    ours: list[str] = []
    real = library.execute_ours
    monkeypatch.setattr(
        library, "execute_ours", lambda xp, op, *rest: (ours.append(op.function), real(xp, op, *rest))[1]
    )
    rng = np.random.default_rng(3)
    theirs = 0
    for op in graph.operators:
        arrays = [values[a.tensor] for a in op.inputs]
        whole = full_box(op.axes)
        part = dict(whole)
        for a in op.axes:
            if a.extent > 1 and a.name not in op.over and a.splittable and rng.random() < 0.5:
                low = int(rng.integers(0, a.extent - 1))
                part[a.name] = (low, int(rng.integers(low + 1, a.extent + 1)))
        for box in (whole, part):
            blocks = tight(op, graph, box, arrays)
            before = len(ours)
            found, expected = library.execute(np, op, graph, box, blocks), execute(np, op, graph, box, blocks)
            theirs += len(ours) == before
            assert found.dtype == expected.dtype and found.shape == expected.shape and found.flags.c_contiguous, op.name
            assert not any(np.shares_memory(found, b.array) for b in blocks)
            scale = max(1.0, float(np.abs(expected).max())) if expected.dtype.kind == "f" and expected.size else 1.0
            tolerance = (3e-5 if dtype == "float32" else 1e-11) * scale
            np.testing.assert_allclose(
                found, expected, rtol=tolerance, atol=tolerance, err_msg=f"{op.name} {op.function}"
            )
    assert theirs > 2 * len(graph.operators) * 0.6, sorted(set(ours))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([0, 1, 2, 3]), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2), st.integers(1, 3),
    st.integers(4, 9),
)  # fmt: skip
def test_convolutions_and_their_gradients(
    groups: int, stride: int, pad: int, dilation: int, kernel: int, size: int
) -> None:
    if size + 2 * pad < dilation * (kernel - 1) + 1:
        return
    forward = convolution(groups, size, stride, pad, dilation, kernel)
    g = build_step(_with_loss(groups, size, stride, pad, dilation, kernel), "sgd").graph
    inputs = random_inputs(g, 2)
    expected = run_graph(g, inputs)
    for graph in (forward, g):
        values = random_inputs(graph, 2)
        values.update(run_graph(graph, values, keep=[op.output.tensor for op in graph.operators]))
        for op in graph.operators:
            box = full_box(op.axes)
            blocks = tight(op, graph, box, [values[a.tensor] for a in op.inputs])
            found = library.execute(np, op, graph, box, blocks)
            np.testing.assert_allclose(found, execute(np, op, graph, box, blocks), rtol=1e-10, atol=1e-10)
    assert expected


def _with_loss(groups: int, size: int, stride: int, pad: int, dilation: int, kernel: int) -> Graph:
    g = Builder("conv", "float64")
    lead = [groups] if groups else []
    x = g.map("x2", "tanh", g.parameter("x", (2, *lead, 3, size, size + 1)))
    w = g.parameter("w", (*lead, 4, 3, kernel, 2))
    y = g.convolution("y", x, w, (stride, 1), (pad, 0), (dilation, 1))
    names = "b c y x" if not groups else "b g c y x"
    return g.build(g.reduce("loss", f"{names} -> ", g.map("z", "tanh", y), Combine.SUM))


def test_convolutions_are_found_in_all_their_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = products._convolution

    def look(t):  # type: ignore[no-untyped-def]
        found = real(t)
        seen.append((t.op.name, None if found is None else found.of_weights))
        return found

    monkeypatch.setattr(products, "_convolution", look)
    graph = build_step(_with_loss(2, 8, 1, 1, 1, 3), "sgd").graph
    values = random_inputs(graph, 0)
    program = replace(lower(graph, (1,), choose(graph, (1,), {})), library="torch")
    run_virtual(program, values)
    assert dict(seen)["y"] is False and dict(seen)["grad:w"] is True and False in [v for k, v in seen if k == "grad:x2"]


@pytest.mark.parametrize("intels", [True, False])
def test_products_of_matrices_are_those_of_either_library(intels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed, one per example, with a sum over examples, of one row: as NumPy's, whose library is taken."""
    asked = []
    monkeypatch.setattr(products, "is_intels", lambda: intels)
    real = products._matmul
    monkeypatch.setattr(products, "_matmul", lambda a, b: asked.append(1) or real(a, b))
    for formula in ("ik,kj->ij", "ki,jk->ij", "bik,kj->bij", "bik,bkj->bij", "bik,bjk->ij", "k,kj->j", "bxk,ok->box"):
        sizes = dict(zip("bijkox", (3, 4, 5, 6, 2, 7), strict=True))
        operands, out = formula.split("->")
        left, right = operands.split(",")
        a, b = (np.random.default_rng(7).standard_normal([sizes[x] for x in axes]) for axes in (left, right))
        for reversed_ in (a, a[::-1]):
            axes, found = products._pair(np, (tuple(left), reversed_), (tuple(right), b), {*out}, tuple(out))
            expected = np.einsum(f"{operands}->{''.join(axes)}", reversed_, b)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert bool(asked) is intels


def test_the_processor_is_known_by_its_maker(tmp_path: Path) -> None:
    here = tmp_path / "cpuinfo"
    for maker, expected in (("GenuineIntel", torch.backends.mkl.is_available()), ("AuthenticAMD", False)):
        here.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
        products.is_intels.cache_clear()
        assert products.is_intels(here) is expected
    products.is_intels.cache_clear()
    assert not products.is_intels(tmp_path / "nothing")
    products.is_intels.cache_clear()


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["resnet101", "bert-tiny"])
@pytest.mark.parametrize("fused", [False, True])
def test_programs_of_drawn_placements(model: str, fused: bool) -> None:
    """Split statistics, uneven and empty blocks among them: ranks with nothing to do meet ranks that compute."""
    graph = build_step(build(model, **TINY[model]), "sgd").graph
    values = random_inputs(graph, 4)
    expected = run_graph(graph, values)
    for seed in range(3):
        program = replace(
            lower(graph, (2, 2), draw_choices(graph, (2, 2), np.random.default_rng(seed))), library="torch"
        )
        found = run_virtual(fuse(program) if fused else program, values)
        assert all(t.fits for t in found.traffic)
        for name, value in expected.items():
            np.testing.assert_allclose(found.outputs[name], value, rtol=1e-8, atol=1e-8 * max(1, np.abs(value).max()))


def test_a_view_of_a_tensors_memory_knows_its_owner() -> None:
    """What a rank holds is counted, and cut out of larger blocks, also where the memory is PyTorch's."""
    whole = torch.zeros(100).numpy()
    assert owner(whole) is whole and owner(whole[3:5]).size == 100


def test_what_pytorch_refuses_is_named_by_rank_and_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(t):  # type: ignore[no-untyped-def]
        raise RuntimeError("could not create a primitive")

    graph = build("mlp-unity", batch=4, inputs=6, hidden=8, classes=4)
    monkeypatch.setattr(library, "KERNELS", {**library.KERNELS, "product": broken})
    program = replace(lower(graph, (1,), choose(graph, (1,), {})), library="torch")
    with pytest.raises(RankError, match="rank 0, operator 'fc1'.*could not create a primitive"):
        run_virtual(program, random_inputs(graph, 0))


def test_16_bits_are_rounded_as_by_our_kernels() -> None:
    graph = build_step(build("mlp-unity", batch=4, inputs=6, hidden=8, classes=4, dtype="bfloat16"), "sgd").graph
    values = random_inputs(graph, 0, None)
    program = replace(lower(graph, (2,), choose(graph, (2,), {})), stored=True)
    ours, theirs = run_virtual(program, values), run_virtual(replace(program, library="torch"), values)
    for name, value in ours.outputs.items():
        np.testing.assert_allclose(theirs.outputs[name], value, rtol=2**-6, atol=1e-2)


def test_the_library_is_found_by_name() -> None:
    assert library_of("torch") is library.TORCH and library_of("numpy") is OURS
    assert isinstance(library.execute(np, *_small()), np.ndarray)


def _small() -> tuple[Operator, Graph, dict[str, tuple[int, int]], list[Block]]:
    op, graph = operator("relu")
    return op, graph, full_box(op.axes), [Block(np.zeros((6, 24)), (0, 0))]

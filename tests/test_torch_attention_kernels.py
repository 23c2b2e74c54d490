"""`--backend torch`: attention and its gradients are those of our kernels on every box, and log sums are taken once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from test_attention import case
from test_kernels import tight
from test_run import choose

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.kernels import full_box
from shardproof.backends.kernels.dispatch import execute
from shardproof.backends.lowering.moments import share_moments
from shardproof.backends.lowering.program import Compute, Program, lower
from shardproof.backends.torch import library
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources.building.attention import attention, with_fused_gradients
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step

pytestmark = pytest.mark.torch


def step_of(graph: Graph) -> Graph:
    """A step that trains q, k and v."""
    trained = [replace(t, role=Role.PARAMETER) if t.name in ("q", "k", "v") else t for t in graph.tensors]
    return build_step(with_fused_gradients(replace(graph, tensors=tuple(trained))), "sgd").graph


def layer(
    rows: str = "b h", groups: int = 1, n: int = 24, m: int = 24, dtype: str = "float64", **more: object
) -> Graph:
    """Attention over rows of 2, with `groups` heads per head of k."""
    g, sizes = Builder("layer", dtype), (2,) * len(rows.split())
    q = g.input("q", (*sizes, groups, n, 8))
    k, v = (g.input(name, (*sizes, m, 8)) for name in "kv")
    text = f"{rows} g s d, {rows} t d, {rows} t e -> {rows} g s e"
    return g.build(attention(g, "y", text, q, k, v, query="s", scale=0.4, **more))


def taken(graph: Graph, monkeypatch: pytest.MonkeyPatch, seed: int = 0, dtype: str = "float64") -> list[str]:
    """Every operator on its whole box and on parts of it, as ours; functions that ours were asked for."""
    ours: list[str] = []
    real = library.execute_ours
    monkeypatch.setattr(
        library, "execute_ours", lambda xp, op, *rest: (ours.append(op.function), real(xp, op, *rest))[1]
    )
    values = random_inputs(graph, seed, dtype)
    values = {**values, **run_graph(graph, values, keep=[op.output.tensor for op in graph.operators])}
    rng = np.random.default_rng(seed)
    for op in graph.operators:
        arrays = [values[a.tensor] for a in op.inputs]
        for whole in (True, False, False):
            box = full_box(op.axes)
            for a in op.axes:
                if not whole and a.splittable and a.extent > 1 and (a.name != "t" or "gradients" in op.function):
                    low = int(rng.integers(0, a.extent - 1))
                    box[a.name] = (low, int(rng.integers(low + 1, a.extent + 1)))
            blocks = tight(op, graph, box, arrays)
            found, expected = library.execute(np, op, graph, box, blocks), execute(np, op, graph, box, blocks)
            assert found.dtype == expected.dtype and found.shape == expected.shape and found.flags.c_contiguous
            scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
            tolerance = (2e-5 if dtype == "float32" else 1e-11) * scale
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=op.name)
    return ours


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "more"),
    [
        ("b h", {}),
        ("b h", {"ahead": 0}),
        ("b h", {"ahead": 3, "behind": 4}),
        ("b h", {"block": 5}),
        ("b h", {"groups": 3, "ahead": 0}),
        ("b h", {"groups": 2, "n": 5, "m": 30, "ahead": 25}),
        ("b", {"n": 40, "m": 700, "ahead": 660}),
        ("a b c", {"ahead": 0}),
    ],
)
def test_boxes_are_those_of_our_kernels(
    rows: str, more: dict[str, object], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Causal, sliding and blocked, heads that share keys, one row and three, more keys than queries."""
    graph = step_of(layer(rows, dtype=dtype, **more))
    ours = taken(graph, monkeypatch, dtype=dtype)
    assert "attention_gradients" not in ours
    if "behind" not in more and "block" not in more:  # a part of the queries of which one sees no key is ours
        assert "attention" not in ours


@pytest.mark.parametrize("seed", range(30))
def test_drawn_masks_bands_caps_and_sizes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, _ = case(np.random.default_rng(300 + seed))
    taken(step_of(graph), monkeypatch, seed)


def test_rows_without_keys_are_0() -> None:
    """A query whose every key is masked: PyTorch's own answer is not asked for."""
    g = Builder("masked", "float64")
    q, k, v, m = g.input("q", (2, 2, 4, 8)), *(g.input(n, (2, 2, 6, 8)) for n in "kv"), g.input("m", (4, 6), "bool")
    graph = g.build(attention(g, "y", "b h s d, b h t d, b h t e, s t -> b h s e", q, k, v, m))
    values = random_inputs(graph, 0)
    values["m"] = np.ones((4, 6), dtype=bool)
    values["m"][2] = False
    op = graph.operators[0]
    box = full_box(op.axes)
    blocks = tight(op, graph, box, [values[a.tensor] for a in op.inputs])
    found = library.execute(np, op, graph, box, blocks)
    assert (found[:, :, 2] == 0).all() and np.isfinite(found).all()
    np.testing.assert_allclose(found, execute(np, op, graph, box, blocks), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e12])
def test_gradients_of_any_size_keep_their_digits(scale: float) -> None:
    """What stands for the result of attention has the right sum with g, however small or large g is; also where it is 0."""
    from shardproof.backends.torch.attention import _of_delta

    g = torch.randn(2, 3, 5, 64, generator=torch.Generator().manual_seed(0)) * scale
    g[0, 0, 0] = 0
    delta = (g * torch.randn(2, 3, 5, 64, generator=torch.Generator().manual_seed(1))).sum(-1)
    found = (g.double() * _of_delta(g, delta).double()).sum(-1)
    torch.testing.assert_close(found, delta.double(), rtol=1e-5, atol=1e-6 * scale)
    assert torch.isfinite(_of_delta(g, delta)).all()


# --- log sums ---------------------------------------------------------------------------------------------------------


def sharing(program: Program) -> list[tuple[str, str, int]]:
    """(function, whose, all-reduces) of those that share."""
    steps = [i for i in program.ranks[0] if isinstance(i, Compute) and i.moments is not None]
    return [(program.graph.operators[i.operator].function, str(i.moments), len(i.statistics)) for i in steps]


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("axis", ["b", "h", "s", "t"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_log_sums_are_those_of_attention(ranks: int, axis: str, name: str) -> None:
    """Split by batch, heads, queries and keys, on three ranks unevenly; over keys two all-reduces less."""
    graph = step_of(layer(ahead=2, groups=2))
    table = {op.name: {axis: (ranks,)} for op in graph.operators if axis in {a.name for a in op.axes if a.splittable}}
    program = replace(lower(graph, (ranks,), choose(graph, (ranks,), table)), library=name)
    shared = share_moments(program)
    many = 2 * (axis == "t" and ranks > 1)
    assert sharing(shared) == [("attention", "y", many), ("attention_lse", "y", 0)]
    values = random_inputs(graph, ranks)
    expected, result = run_graph(graph, values), run_virtual(shared, values)
    for out in graph.outputs:
        np.testing.assert_allclose(result.outputs[out], expected[out], rtol=1e-9, atol=1e-9)
    assert all(t.fits for t in result.traffic)


def test_log_sums_on_other_boxes_are_their_own() -> None:
    graph = step_of(layer(ahead=2))
    (lse,) = (op for op in graph.operators if op.function == "attention_lse")
    table = {
        op.name: {"s" if op is lse else "h": (2,)} for op in graph.operators if {"h", "s"} <= {a.name for a in op.axes}
    }
    program = share_moments(lower(graph, (2,), choose(graph, (2,), table)))
    assert sharing(program) == []
    values = random_inputs(graph, 1)
    expected, result = run_graph(graph, values), run_virtual(program, values)
    for out in graph.outputs:
        np.testing.assert_allclose(result.outputs[out], expected[out], rtol=1e-9, atol=1e-9)


def test_log_sums_of_another_scale_are_their_own() -> None:
    graph = step_of(layer())
    (lse,) = (op for op in graph.operators if op.function == "attention_lse")
    other = tuple((k, 0.7 if k == "scale" else v) for k, v in lse.attributes)
    ops = tuple(replace(op, attributes=other) if op is lse else op for op in graph.operators)
    changed = replace(graph, operators=ops)
    assert sharing(share_moments(lower(changed, (1,), choose(changed, (1,), {})))) == []

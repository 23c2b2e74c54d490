"""Named patterns: both sides give the same values, and near misses are left alone."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi, sqrt

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Combine
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.patterns.recognise import PATTERNS, recognise

TEXT = "b s m -> b s m"


def unary(formula: Callable[[Builder, str], str]) -> Graph:
    g = Builder("g")
    return g.build(
        g.map("out", "negate", formula(g, g.map("in", "identity", g.input("x", (2, 3, 4)), text=TEXT)), text=TEXT)
    )


def m(g: Builder, function: str, *inputs: str, **attributes: float) -> str:
    """An elementwise operator with a fresh name."""
    return g.map(f"{function}{len(g.operators)}", function, *inputs, **attributes)


def gelu(g: Builder, x: str) -> str:
    return m(
        g,
        "multiply",
        m(g, "scale", x, scale=0.5),
        m(g, "shift", m(g, "erf", m(g, "scale", x, scale=1 / sqrt(2))), shift=1.0),
    )


def gelu_distributed(g: Builder, x: str) -> str:
    e = m(g, "erf", m(g, "scale", x, scale=0.70710678118))
    return m(g, "scale", m(g, "add", m(g, "multiply", e, x), x), scale=0.5)


def gelu_tanh(g: Builder, x: str, cube: float = 0.044715) -> str:
    inner = m(g, "add", x, m(g, "scale", m(g, "power", x, exponent=3.0), scale=cube))
    return m(
        g,
        "multiply",
        m(g, "scale", x, scale=0.5),
        m(g, "shift", m(g, "tanh", m(g, "scale", inner, scale=sqrt(2 / pi))), shift=1.0),
    )


def picked_matrices(g: Builder, x: str, whole: bool = True) -> str:
    """A matrix for every row of x, picked from five; with `whole` = False a vector, which stays an embedding."""
    ids = g.input("ids", (2, 3), "int64")
    if not whole:
        rows = g.embedding("picked", "v m, b s -> b s m", g.parameter("table", (5, 4)), ids)
        return g.contract("y", "b s m, m n -> b s n", rows, g.parameter("w", (4, 4)))
    picked = g.embedding("picked", "v m n, b s -> b s m n", g.parameter("stack", (5, 4, 4)), ids)
    return g.contract("y", "b s m, b s m n -> b s n", x, picked)


def sigmoid(g: Builder, x: str) -> str:
    return m(g, "reciprocal", m(g, "shift", m(g, "exp", m(g, "negate", x)), shift=1.0))


def softplus(g: Builder, x: str) -> str:
    return m(g, "log", m(g, "shift", m(g, "exp", x), shift=1.0))


def softplus_where(g: Builder, x: str, limit: float = 20.0) -> str:
    return m(g, "where", m(g, "greater", x, value=limit), x, softplus(g, x))


def rms(g: Builder, x: str, gain: bool = False, factor: float = 0.25) -> str:
    mean = g.reduce("mean", "b s m -> b s", m(g, "power", x, exponent=2.0), scale=factor)
    root = g.map("root", "rsqrt", g.map("shifted", "shift", mean, text="b s -> b s", shift=1e-3), text="b s -> b s")
    y = g.map("y", "multiply", x, root, text="b s m, b s -> b s m")
    return g.map("gain", "multiply", g.parameter("w", (4,)), y, text="m, b s m -> b s m") if gain else y


def exclusive(g: Builder, x: str) -> str:
    total = g.normalise("total", "cumulative_sum", TEXT, x, over=("s",))
    return m(g, "subtract", total, x)


def safe_softmax(g: Builder, scores: str) -> str:
    seen = g.map("seen", "logical_not", g.map("lost", "equal", scores, text=TEXT, value=-inf), text=TEXT)
    some = g.operator("some", "max", *_reduced(g, seen), dtype="bool")
    keep = g.map("keep", "logical_not", g.map("none", "logical_not", some, text="b s -> b s"), text="b s -> b s")
    return g.map(
        "safe",
        "mask_fill",
        g.normalise("p", "softmax", TEXT, scores, over=("m",)),
        keep,
        text="b s m, b s -> b s m",
        value=0.0,
    )


def _reduced(g: Builder, x: str):
    from shardproof.models.program.index import Axis, access

    axes = [Axis("b", 2), Axis("s", 3), Axis("m", 4, Combine.MAX)]
    return axes, [access(x, "b", "s", "m")], ["b", "s"]


def scores(g: Builder, x: str) -> str:
    return g.contract("scores", "b s k, k m -> b s m", x, g.parameter("wk", (4, 4)))


def low(g: Builder, x: str, to: str = "bfloat16") -> str:
    return g.map(f"cast{len(g.operators)}", "cast", x, dtype=to)


def narrow(g: Builder, x: str, between: str = "bfloat16") -> str:
    """A function that its program widens and narrows again; its operand stays a 16-bit tensor of the program."""
    return low(g, low(g, m(g, "silu", low(g, low(g, x, between), "float32"))), "float32")


def narrow_norm(g: Builder, x: str) -> str:
    wide = low(g, low(g, x), "float32")
    norm = g.normalise("norm", "rms_norm", TEXT, wide, over=("m",), epsilon=1e-5, dtype="bfloat16")
    return low(g, norm, "float32")


def widened_norm(g: Builder, x: str, function: str = "layer_norm", rounded: bool = False) -> str:
    """A norm in float32 of a copy of a 16-bit tensor, and of its weights; `rounded`: before its gain."""
    x, more = (
        low(g, x),
        [g.parameter(n, (4,), "bfloat16") for n in (("w", "b") if function == "layer_norm" else ("w",))],
    )
    wide, *weights = (
        g.map(f"wide{i}", "cast", t, text="i -> i" if i else TEXT, dtype="float32") for i, t in enumerate([x, *more])
    )
    if function == "layer_norm":
        text = "b s m, m, m -> b s m"
        return low(g, low(g, g.normalise("norm", function, text, wide, *weights, over=("m",), epsilon=1e-5)), "float32")
    mean = g.reduce("mean", "b s m -> b s", m(g, "power", wide, exponent=2.0), scale=0.25)
    root = g.map("root", "rsqrt", g.map("shifted", "shift", mean, text="b s -> b s", shift=1e-3), text="b s -> b s")
    root = g.map("low_root", "cast", root, text="b s -> b s", dtype="bfloat16") if rounded else root
    normal = g.map("normal", "multiply", wide, root, text="b s m, b s -> b s m")
    return low(g, low(g, g.map("scaled", "multiply", normal, *weights, text="b s m, m -> b s m")), "float32")


def rounded_gain(g: Builder, x: str) -> str:
    """Hugging Face's `LlamaRMSNorm`: a norm in float32, rounded, and then its gain."""
    wide = low(g, low(g, x), "float32")
    norm = low(g, g.normalise("norm", "rms_norm", TEXT, wide, over=("m",), epsilon=1e-5))
    scaled = g.map("scaled", "multiply", norm, g.parameter("w", (4,), "bfloat16"), text="b s m, m -> b s m")
    return low(g, scaled, "float32")


CASES: dict[str, tuple[Callable[[Builder, str], str], str, int]] = {
    "gelu-exact": (gelu, "gelu", 3),
    "gelu-exact distributed": (gelu_distributed, "gelu", 3),
    "gelu-tanh": (gelu_tanh, "gelu", 3),
    "silu": (lambda g, x: m(g, "multiply", x, m(g, "sigmoid", x)), "silu", 3),
    "sigmoid": (sigmoid, "sigmoid", 3),
    "softplus": (softplus, "softplus", 3),
    "softplus-where": (softplus_where, "softplus", 3),
    "rms-norm": (rms, "rms_norm", 3),
    "norm-gain": (lambda g, x: rms(g, x, True), "rms_norm", 3),
    "narrow": (narrow, "silu", 5),
    "narrow-norm": (narrow_norm, "rms_norm", 5),
    "widened-norm": (widened_norm, "layer_norm", 5),
    "widened-norm of roots": (lambda g, x: widened_norm(g, x, "rms_norm"), "rms_norm", 5),
    "widened-norm before a gain": (rounded_gain, "rms_norm", 6),
    "exclusive-sum": (exclusive, "cumulative_sum", 3),
    "picked-matrices": (picked_matrices, "grouped_product", 3),
    "safe-softmax": (lambda g, x: safe_softmax(g, scores(g, x)), "softmax", 4),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_both_sides_have_the_same_values(case: str) -> None:
    formula, function, count = CASES[case]
    graph = unary(formula)
    found = recognise(graph)
    assert found.applied and found.applied[-1][0] == case.partition(" ")[0]
    assert len(found.graph.operators) == count and function in {op.function for op in found.graph.operators}
    inputs, exact = random_inputs(graph, 5), not case.startswith("widened-norm")  # where a cast makes float32 of them
    np.testing.assert_allclose(
        run_graph(found.graph, inputs)["out"],
        run_graph(graph, inputs)["out"],
        rtol=1e-8 if exact else 1e-6,
        atol=1e-9 if exact else 1e-7,
    )


@pytest.mark.parametrize("case", [c for c in sorted(CASES) if c.startswith(("narrow", "widened"))])
def test_what_is_stored_in_16_bits_is_the_same_bit_for_bit(case: str) -> None:
    graph = unary(CASES[case][0])
    inputs = {n: v.astype(np.float32) for n, v in random_inputs(graph, 6).items()}
    before, after = (run_graph(g, inputs, stored=True)["out"] for g in (graph, recognise(graph).graph))
    np.testing.assert_array_equal(after, before)


def test_every_pattern_is_tested() -> None:
    assert {c.partition(" ")[0] for c in CASES} == set(PATTERNS)


NEAR_MISSES: dict[str, Callable[[Builder, str], str]] = {
    "another cube": lambda g, x: gelu_tanh(g, x, 0.0447),
    "another argument": lambda g, x: m(g, "multiply", x, m(g, "sigmoid", m(g, "scale", x, scale=1.702))),
    "another value": lambda g, x: m(g, "multiply", m(g, "exp", x), m(g, "sigmoid", x)),
    "vectors of words": lambda g, x: m(g, "add", x, picked_matrices(g, x, whole=False)),
    "a sum, not a mean": lambda g, x: rms(g, x, factor=1.0),
    "a low threshold": lambda g, x: m(g, "where", m(g, "greater", x, value=1.0), x, m(g, "softplus", x)),
    "a total of something else": lambda g, x: m(
        g, "subtract", g.normalise("t", "cumulative_sum", TEXT, m(g, "exp", x), over=("s",)), x
    ),
    "rows that may be all masked": lambda g, x: safe_softmax(
        g,
        g.map(
            "masked", "mask_fill", scores(g, x), g.input("mask", (3, 4), "bool"), text="b s m, s m -> b s m", value=-inf
        ),
    ),
    "scores from outside": safe_softmax,
    "a root that is rounded": lambda g, x: widened_norm(g, x, "rms_norm", True),
    "widened from another type": lambda g, x: narrow(g, x, "float16"),
}


@pytest.mark.parametrize("case", sorted(NEAR_MISSES))
def test_near_misses_are_left_alone(case: str) -> None:
    graph = unary(NEAR_MISSES[case])
    assert recognise(graph).graph == graph


@pytest.mark.parametrize(
    ("mask", "applies"),
    [
        (np.tril(np.ones((3, 4), bool)), True),
        (np.tril(np.ones((3, 4), bool), -1), False),
        (np.ones((3, 4), bool), True),
    ],
)
def test_safe_softmax_needs_a_finite_score_in_every_row(mask: np.ndarray, applies: bool) -> None:
    graph = unary(NEAR_MISSES["rows that may be all masked"])
    found = recognise(graph, {"mask": mask})
    assert (("safe-softmax", "softmax") in found.applied) == applies
    inputs = {**random_inputs(graph, 1), "mask": mask}
    with np.errstate(invalid="ignore"):
        before, after = run_graph(graph, inputs)["out"], run_graph(found.graph, inputs)["out"]
    np.testing.assert_allclose(after, before, rtol=1e-12)


def test_a_value_that_is_read_elsewhere_keeps_the_composition() -> None:
    g = Builder("g")
    x = g.input("x", (4,))
    s = g.map("s", "sigmoid", x)
    graph = g.build(g.map("y", "multiply", x, s), g.map("z", "negate", s))
    assert recognise(graph).graph == graph


def test_a_norm_that_is_read_unrounded_too_keeps_its_casts() -> None:
    g = Builder("g")
    x = low(g, g.input("x", (2, 3, 4)))
    norm = g.normalise("norm", "layer_norm", TEXT, low(g, x, "float32"), over=("m",), epsilon=1e-5)
    graph = g.build(low(g, norm), g.map("z", "negate", norm))
    assert recognise(graph).graph == graph

"""Gradients: every function of the table against central differences, its kernels on parts of a box, ties and corners
by hand.

The loss of an instance is the mean squared error of its only output against a random target; every floating-point
operand is made a parameter.  Differences: fourth order in float64, so that agreement to 1e-6 is far from chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import indexed_cases
import loop_cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import check_split, whole

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.kernels import Block, KernelError, execute, full_box
from shardproof.backends.kernels.elementwise import MAPS
from shardproof.backends.kernels.gradient_maps import GRADIENT_MAPS
from shardproof.backends.kernels.gradients import GRADIENTS
from shardproof.models.program.graph import Graph, GraphError, Role, UnsupportedOperators
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.program.operators import FUNCTIONS, HOST_COPIES, NodeKind
from shardproof.models.sources.building.attention import attention
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.training.maps import MAP_RULES
from shardproof.models.sources.training.rules import CONSTANT, RULES
from shardproof.models.sources.zoo import build

Rng = np.random.Generator


# --- instances: one builder per function, sizes and attributes drawn
# ----------------------------------------------------


def sizes(rng: Rng, n: int, high: int = 5) -> list[int]:
    return [int(x) for x in rng.integers(1, high, n)]


def elementwise(name: str) -> Callable[[Rng], Graph]:
    """Operands with and without some of the axes, in any order."""

    def make(rng: Rng) -> Graph:
        g = Builder("map", "float64")
        a, b = sizes(rng, 2)
        low, high = FUNCTIONS[name].arity
        count = high if name in ("remainder", "fmod") else min(high, 3) if name == "sum_inputs" else low
        letters = [
            ["a b", "b a", "b", "a", ""][int(rng.integers(0, 5)) if j or name == "fill" else int(rng.integers(0, 2))]
            for j in range(count)
        ]
        extent = {"a": a, "b": b}
        mask = {"mask_fill": 1, "where": 0, "mask_clear": 1}.get(name)
        if name == "where":
            letters = letters[1:] + letters[:1]
        inputs = [
            (g.input if j == mask else g.parameter)(
                f"x{j}", [extent[x] for x in l.split()], "bool" if j == mask else None
            )
            for j, l in enumerate(letters)
        ]
        attributes = {
            "scale": {"scale": 0.7},
            "shift": {"shift": 0.3},
            "clip": {"low": -0.5, "high": 0.8},
            "power": {"exponent": float(rng.choice([2.0, 3.0, 0.5, -1.5]))},
            "batch_norm": {"epsilon": 0.3},
            "mask_fill": {"value": -0.4},
            "fill": {"value": 0.5},
            "cast": {"dtype": "float64"},
            "gelu": {"approximate": str(rng.choice(["none", "tanh"]))},
        }.get(name, {})
        return g.build(g.map("y", name, *inputs, text=", ".join(letters) + " -> a b", **attributes))

    return make


def product(rng: Rng) -> Graph:
    text, count = [
        ("m k, k n -> m n", "mkn"),
        ("b s h d, b t h d -> b h s t", "bshdt"),
        ("a b, b c, c a -> b", "abc"),
        ("a, b -> b a", "ab"),
        ("a b c -> c", "abc"),
        ("a b, c -> a", "abc"),
        ("a, a -> ", "a"),
        ("a b, a b -> a b", "ab"),
        ("b s m, m h d -> b s h d", "bsmhd"),
    ][int(rng.integers(0, 9))]
    extent = dict(zip(count, sizes(rng, len(count), 4)))
    g = Builder("einsum", "float64")
    return g.build(
        g.contract(
            "y",
            text,
            *[
                g.parameter(f"x{i}", [extent[a] for a in t.split()])
                for i, t in enumerate(text.split("->")[0].split(","))
            ],
        )
    )


def convolution(rng: Rng) -> Graph:
    g = Builder("conv", "float64")
    lead = [2] if rng.integers(0, 2) else []
    kernel = [int(x) for x in rng.integers(1, 4, 2)]
    stride, dilation, pad, end = (
        [int(x) for x in rng.integers(low, high, 2)] for low, high in ((1, 4), (1, 3), (0, 3), (0, 3))
    )
    extents = [
        max(1, d * (k - 1) + 1 - p - e) + int(rng.integers(0, 4)) for k, d, p, e in zip(kernel, dilation, pad, end)
    ]
    x, w = g.parameter("x", (2, *lead, 2, *extents)), g.parameter("w", (*lead, 3, 2, *kernel))
    y = g.convolution("y", x, w, (stride[0], stride[1]), (pad[0], pad[1]), (dilation[0], dilation[1]), (end[0], end[1]))
    return g.build(y)


def sliced_product(rng: Rng) -> Graph:
    """y[a, n] = sum_k x[a + 1, k] w[k, n]: a contraction that reads a slice."""
    g = Builder("slice", "float64")
    a, k, n = sizes(rng, 3)
    x, w = g.parameter("x", (a + 3, k)), g.parameter("w", (k, n))
    axes = [Axis("a", a), Axis("n", n), Axis("k", k, Combine.SUM)]
    shift = int(rng.integers(0, 3))
    return g.build(
        g.operator(
            "y", "product", axes, [access(x, Affine.axis("a").shift(shift), "k"), access(w, "k", "n")], ["a", "n"]
        )
    )


def placed_product(rng: Rng) -> Graph:
    """Factors read at constants, along slices, in windows that others share, on a diagonal, by merged axes."""
    a, b, c = (int(x) for x in rng.integers(2, 5, 3))
    s, t = (int(x) for x in rng.integers(1, 4, 2))
    axis, at, one = Affine.axis, Affine((), int(rng.integers(0, 3))), Affine((), 0)
    rows, columns = axis("y", s).plus("ky").shift(-1), axis("x", t).shift(int(rng.integers(0, 2)))
    extent = {"a": a, "b": b, "c": c, "y": 3, "x": 2, "ky": 3}
    image = (2 * s + 2, 2 * t + 1)
    factors, out = [
        # unbind of a fused projection, both factors
        ([((a, 3, c), ["a", at, "c"]), ((3, c, b), [at, "c", "b"])], "a b"),
        # 1x1 convolution with strides; the weight keeps its dimensions of extent 1
        ([((a, c, *image), ["a", "c", axis("y", s), columns]), ((b, c, 1, 1), ["b", "c", one, one])], "a b y x"),
        # depthwise convolution of a slice of the channels
        ([((a, b + 2, *image), ["a", axis("b").shift(1), rows, columns]), ((b, 1, 3), ["b", one, "ky"])], "a b y x"),
        # a window of one of three factors, at a constant
        ([((a, 3, image[0]), ["a", at, rows]), ((b, 3), ["b", "ky"]), ((3, b), ["y", "b"])], "a b y"),
        # a window whose axes another factor reads in a window of its own
        ([((a, image[0]), ["a", rows]), ((b, 6), ["b", axis("ky").plus("y").shift(1)])], "a b y"),
        # the diagonal; merged axes
        ([((a, a), ["a", "a"]), ((a * b + 1,), [axis("a", b).plus("b").shift(1)])], "b a"),
        # beyond both ends
        ([((a, 2), ["a", axis("b").shift(-1)]), ((b,), ["b"])], "a b"),
    ][int(rng.integers(0, 7))]
    g = Builder("read", "float64")
    reads = [access(g.parameter(f"x{j}", shape), *index) for j, (shape, index) in enumerate(factors)]
    kept = out.split()
    used = dict.fromkeys([*kept, *(n for r in reads for n in r.axes)])
    axes = [Axis(n, extent[n], None if n in kept else Combine.SUM, n != "ky") for n in used]
    return g.build(g.operator("y", "product", axes, reads, kept))


def reduction(name: str) -> Callable[[Rng], Graph]:
    def make(rng: Rng) -> Graph:
        g = Builder("reduce", "float64")
        combine = {"sum": Combine.SUM, "max": Combine.MAX, "min": Combine.MIN}[name]
        text = ["a b c -> c a", "a b c -> ", "b a c -> a c", "a b c -> a b c"][int(rng.integers(0, 4))]
        return g.build(
            g.reduce(
                "y",
                text,
                g.parameter("x", sizes(rng, 3)),
                combine,
                0.7 if name == "sum" and rng.integers(0, 2) else 1.0,
            )
        )

    return make


def sliced_sum(rng: Rng) -> Graph:
    g = Builder("window-sum", "float64")
    n, k = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    axes = [Axis("a", n - k + 1), Axis("k", k, Combine.SUM)]
    return g.build(g.operator("y", "sum", axes, [access(g.parameter("x", (n,)), Affine.axis("a").plus("k"))], ["a"]))


def normalise(name: str) -> Callable[[Rng], Graph]:
    def make(rng: Rng) -> Graph:
        g = Builder("norm", "float64")
        extent = dict(zip("abc", [2, 3, int(rng.integers(2, 5))]))
        over = [("c",), ("a", "c"), ("b",)][int(rng.integers(0, 3))]
        if name == "cumulative_sum":
            over = over[-1:]
        count = int(rng.integers(1, FUNCTIONS[name].arity[1] + 1))
        scale = ["c", "b", "a b", "c a"][int(rng.integers(0, 4))]
        letters = [["a b c", "b c a"][int(rng.integers(0, 2))], scale, scale][:count]
        tensors = [g.parameter(f"x{j}", [extent[x] for x in l.split()]) for j, l in enumerate(letters)]
        attributes: dict[str, float] = (
            {"exclusive": int(rng.integers(0, 2))}
            if name == "cumulative_sum"
            else {"epsilon": 0.01}
            if "norm" in name
            else {}
        )
        return g.build(g.normalise("y", name, ", ".join(letters) + " -> a b c", *tensors, over=over, **attributes))

    return make


def pool(name: str) -> Callable[[Rng], Graph]:
    def make(rng: Rng) -> Graph:
        g = Builder("pool", "float64")
        kernel, stride, pad, end = (
            [int(x) for x in rng.integers(low, high, 2)] for low, high in ((1, 4), (1, 4), (0, 3), (0, 3))
        )
        pad = [min(p, k - 1) for p, k in zip(pad, kernel)]  # every window meets the image
        end = [min(p, k - 1) for p, k in zip(end, kernel)]
        extents = [k + int(rng.integers(0, 4)) for k in kernel]
        attributes = {"count_include_pad": int(rng.integers(0, 2))} if name == "average_pool" else {}
        x = g.parameter("x", (2, 2, *extents))
        return g.build(
            g.pool(
                "y",
                name,
                x,
                (kernel[0], kernel[1]),
                (stride[0], stride[1]),
                (pad[0], pad[1]),
                (end[0], end[1]),
                **attributes,
            )
        )

    return make


def windows_in_digits(rng: Rng) -> Graph:
    """Pools and convolutions whose result is in digits, in any order; strides 1 and 2."""
    g = Builder("digits", "float64")
    stride, second = int(rng.integers(1, 3)), int(rng.integers(2, 4))
    extents = {"b": 2, "c": 2, "y0": 2, "y1": second, "x0": 3, "x1": 2, "ky": 3, "kx": 2}
    rows = Affine((("y0", stride * second), ("y1", stride), ("ky", 1)), -1)
    columns = Affine((("x0", 2 * stride), ("x1", stride), ("kx", 1)), 0)
    x = access(g.parameter("x", (2, 2, stride * 2 * second, stride * 6 + 1)), "b", "c", rows, columns)
    out = [str(n) for n in rng.permutation(["b", "c", "y0", "y1", "x0", "x1"])]
    name = ["product", "product", "max_pool", "average_pool"][int(rng.integers(0, 4))]
    combine = Combine.MAX if name == "max_pool" else Combine.SUM
    axes = [Axis(n, e, None if n in out else combine, n not in ("ky", "kx")) for n, e in extents.items()]
    w = [access(g.parameter("w", (2, 3, 2)), "c", "ky", "kx")] if name == "product" else []
    return g.build(g.operator("y", name, axes, [x, *w], out))


def local_response(rng: Rng) -> Graph:
    g = Builder("lrn", "float64")
    size, c = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    axes = [Axis("b", 2), Axis("c", c), Axis("y", 2), Axis("t", size, Combine.SUM, False)]
    index = Affine.axis("c").plus("t").shift(-((size - 1) // 2))
    attributes = {"alpha": 0.3, "beta": 0.7, "bias": 2.0, "size": size}
    return g.build(
        g.operator(
            "y",
            "local_response",
            axes,
            [access(g.parameter("x", (2, c, 2)), "b", index, "y")],
            ["b", "c", "y"],
            attributes,
        )
    )


def embedding(rng: Rng) -> Graph:
    g = Builder("embed", "float64")
    v, m, b, s = int(rng.integers(2, 6)), *sizes(rng, 3)
    if rng.integers(0, 2):
        return g.build(
            g.embedding("y", "v m, b s -> b s m", g.parameter("table", (v, m)), g.input("ids", (b, s), "int32"))
        )
    axes = [Axis("b", b), Axis("m", m), Axis("v", v, Combine.SUM), Axis("s", s, Combine.SUM)]  # a bag
    t, i = g.parameter("table", (m, v)), g.input("ids", (b, s), "int32")
    return g.build(
        g.operator("y", "embedding", axes, [access(t, "m", "v"), access(i, "b", "s")], ["b", "m"], {"rows": "v"})
    )


def copy(rng: Rng) -> Graph:
    """Transpose, expand, shift, concatenate, stride, diagonal, constant index, merge, reshape."""
    g = Builder("copy", "float64")
    a, b = int(rng.integers(2, 5)), int(rng.integers(2, 4))
    axis, kind = Affine.axis, int(rng.integers(0, 8))
    axes, out = [Axis("a", a), Axis("b", b)], ["a", "b"]
    if kind == 0:
        inputs = [access(g.parameter("x", (b, a)), "b", "a")]
    elif kind == 1:
        inputs = [access(g.parameter("x", (b,)), "b")]
    elif kind == 2:
        inputs = [
            access(g.parameter("x", (a, b)), axis("a").shift(-1), "b"),
            access(g.parameter("z", (b, a + 2)), "b", axis("a").shift(1)),
        ]
    elif kind == 3:
        inputs = [access(g.parameter("x", (2 * a + 1, b)), axis("a", 2).shift(int(rng.integers(-1, 2))), "b")]
    elif kind == 4:
        inputs = [access(g.parameter("x", (a, a, b)), "a", "a", "b")]
    elif kind == 5:
        inputs = [access(g.parameter("x", (a, 4)), "a", Affine((), int(rng.integers(0, 4))))]
    elif kind == 6:
        inputs = [access(g.parameter("x", (a * b + 1,)), axis("a", b).plus("b").shift(int(rng.integers(0, 2))))]
    else:
        x = g.parameter("x", (2, 6, 4))
        axes, out = [Axis("p", 3, None, False), Axis("b", 2), Axis("q", 8, None, False)], ["p", "b", "q"]
        return g.build(
            g.operator(
                "y", "copy", axes, [access(x, "b", Affine.everything(), Affine.everything())], out, {"reshape": 1}
            )
        )
    return g.build(g.operator("y", "copy", axes, inputs, out))


def update(rng: Rng) -> Graph:
    """A part overwritten, the new value with all, some or none of the axes."""
    g = Builder("update", "float64")
    a, b = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    start = [int(rng.integers(0, n)) for n in (a, b)]
    stop = [int(rng.integers(lo + 1, n + 1)) for lo, n in zip(start, (a, b))]
    letters = ["a b", "b a", "b", ""][int(rng.integers(0, 4))].split()
    at = {"a": 0, "b": 1}
    value = g.parameter("value", [stop[at[x]] - start[at[x]] for x in letters])
    read = access(value, *(Affine.axis(x).shift(-start[at[x]]) for x in letters))
    old = (
        access(g.parameter("old", (b, a)), "b", "a")
        if rng.integers(0, 2)
        else access(g.parameter("old", (a, b)), "a", "b")
    )
    attributes = {"start": tuple(start), "stop": tuple(stop), "positional": ("a", "b")}
    return g.build(g.operator("y", "update", [Axis("a", a), Axis("b", b)], [old, read], ["a", "b"], attributes))


def attention_of_heads(rng: Rng) -> Graph:
    """Grouped queries; bands, caps, masks that are added or select; operands that are slices; any order of results."""
    g = Builder("attention", "float64")
    b, h, p, s, t, d, e = (int(n) for n in rng.integers(1, 4, 7))
    s, t = s + 2, t + 2
    q, k, v = g.parameter("q", (b, h, p, s, d)), g.parameter("k", (b, t, h, d)), g.parameter("v", (b, h, t, e))
    kind, mask, text = int(rng.integers(0, 5)), [], ""
    if kind:
        letters = ["s t", "h s t", "p t", "b s t"][kind - 1]
        extent = {"b": b, "h": h, "p": p, "s": s, "t": t}
        shape = [extent[a] for a in letters.split()]
        mask = [g.input("m", shape, "bool") if kind == 1 else g.parameter("m", shape)]
        text = f", {letters}"
    y = attention(
        g,
        "y",
        f"b h p s d, b t h d, b h t e{text} -> " + str(rng.choice(["b h p s e", "b s h p e", "e p h s b"])),
        *(q, k, v, *mask),
        query="s",
        scale=float(rng.choice([1.0, 0.6])),
        softcap=float(rng.choice([0.7, 2.0])) if rng.integers(0, 2) else None,
        behind=int(rng.integers(0, 3)) if rng.integers(0, 3) == 0 else None,
        ahead=int(rng.integers(0, 3)) if rng.integers(0, 2) else None,
        block=2 if rng.integers(0, 4) == 0 else None,
    )
    if rng.integers(0, 3) == 0:  # k is a part of something longer
        op = g.operators[-1]
        g.tensors["k"] = replace(g.tensors["k"], shape=(b, t + 2, h, d))
        moved = access("k", "b", Affine.axis("t").shift(int(rng.integers(0, 3))), "h", "d")
        g.operators[-1] = replace(op, inputs=(op.inputs[0], moved, *op.inputs[2:]))
    return g.build(y)


SMOOTH = sorted(n for n, rule in MAP_RULES.items() if any(rule)) + ["sum_inputs"]
CASES: dict[str, Callable[[Rng], Graph]] = {
    **{n: elementwise(n) for n in SMOOTH},
    "product": product,
    "convolution": convolution,
    "sliced product": sliced_product,
    "placed product": placed_product,
    **{n: reduction(n) for n in ("sum", "max", "min")},
    "sliced sum": sliced_sum,
    **{n: normalise(n) for n in ("softmax", "log_softmax", "layer_norm", "rms_norm", "cumulative_sum")},
    **{n: pool(n) for n in ("max_pool", "average_pool")},
    "windows in digits": windows_in_digits,
    "local_response": local_response,
    "embedding": embedding,
    "copy": copy,
    "update": update,
    **indexed_cases.CASES,
    "attention": attention_of_heads,
    "scan": loop_cases.trained,
}


def test_every_function_has_a_rule_or_ends_the_pass() -> None:
    """The rest are gradients and updates themselves, which are not differentiated again, and the user's own
    functions.
    """
    ruled = {*MAP_RULES, "sum_inputs", *RULES, *CONSTANT}
    assert ruled <= set(FUNCTIONS)
    assert {n for n in RULES} | set(SMOOTH) <= set(CASES)
    gradients = {n for n in FUNCTIONS if n.endswith(("_gradient", "_update")) or n.startswith("adam_")} - ruled
    others = {
        *HOST_COPIES,
        "product_sum",
        "fused_product",
        "reverse_cumulative_sum",
        "mask_clear",
        "opaque",
        "attention_gradients",
        "attention_lse",
        "clip_factor",
        "momentum",
    }
    assert set(FUNCTIONS) - ruled == gradients | others


def test_every_gradient_function_has_a_kernel() -> None:
    maps = {n for n, f in FUNCTIONS.items() if f.kind is NodeKind.MAP}
    assert maps == set(MAPS) | set(GRADIENT_MAPS) and not set(MAPS) & set(GRADIENT_MAPS)
    assert set(GRADIENTS) == {
        n for n in FUNCTIONS if n not in maps and ("gradient" in n or n in ("product_sum", "reverse_cumulative_sum"))
    }


# --- against central differences
# ----------------------------------------------------------------------------------------


def inputs_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    values = random_inputs(graph, seed)
    return {n: v if v.dtype.kind in "iub" else v.astype(np.float64) for n, v in values.items()}


def difference(
    graph: Graph, loss: str, values: dict[str, np.ndarray], direction: dict[str, np.ndarray], step: float
) -> float:
    """Fourth-order central difference of the loss along a direction."""

    def at(e: float) -> float:
        return float(run_graph(graph, {**values, **{n: values[n] + e * d for n, d in direction.items()}})[loss])

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def check_gradients(graph: Graph, seed: int, step: float = 1e-4, tolerance: float = 1e-6) -> None:
    """Every gradient along two random directions of its parameter alone."""
    made = build_step(graph, "sgd")
    values = inputs_of(made.graph, seed)
    keep = [g for _, g in made.trained]
    found = run_graph(made.graph, values, keep=keep)
    (loss,) = made.graph.outputs
    rng = np.random.default_rng(seed)
    for name, gradient in made.trained:
        assert found[gradient].shape == made.graph.tensor(name).shape == made.graph.tensor(gradient).shape
        for _ in range(2):
            d = rng.standard_normal(values[name].shape)
            expected = difference(made.graph, loss, values, {name: d}, step)
            assert abs(float((found[gradient] * d).sum()) - expected) <= tolerance * (1 + abs(expected)), (
                name,
                gradient,
            )
        np.testing.assert_allclose(
            found[dict(made.graph.state)[name]], values[name] - 0.01 * found[gradient], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("name", sorted(CASES))
def test_gradients_against_differences(name: str) -> None:
    for seed in range(10):
        graph = CASES[name](np.random.default_rng([seed, len(name)]))
        trained = {t.name for t in graph.tensors if t.role is Role.PARAMETER}
        try:
            made = build_step(graph, "sgd")
        except GraphError as error:
            assert "nothing to train" in str(error)
            continue
        constant = {"x3", "x4"} if name == "batch_norm" else {"x1"} if name == "relu_gradient" else set()
        assert {n for n, _ in made.trained} == trained - constant
        check_gradients(graph, seed)


# --- kernels on parts of a box
# ------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.integers(0, 10**6), st.data())
def test_blocks_of_gradient_operators_add_up(name: str, seed: int, data: st.DataObject) -> None:
    """Every operator of a step, split along any axis that may be split, gives the parts of its whole."""
    graph = CASES[name](np.random.default_rng([seed, len(name)]))
    try:
        step = build_step(graph, "adam").graph
    except GraphError:
        return
    made = [
        op
        for op in step.operators
        if op.function in GRADIENTS or op.function in GRADIENT_MAPS or op.attribute("reversed", ())
    ]
    op = data.draw(st.sampled_from(made))
    values = inputs_of(step, seed)
    values = {
        **values,
        **run_graph(step, values, keep=[a.tensor for o in step.operators for a in (*o.inputs, o.output)]),
    }
    splittable = [a for a in op.axes if a.splittable]
    if splittable:
        axis = data.draw(st.sampled_from(splittable))
        check_split(
            op,
            step,
            [values[a.tensor] for a in op.inputs],
            axis,
            data.draw(st.lists(st.integers(0, axis.extent), max_size=3)),
        )


def test_strided_gradients_are_split_along_batch_and_channels_only() -> None:
    g = Builder("conv", "float64")
    graph = g.build(g.convolution("y", g.parameter("x", (2, 4, 7, 7)), g.parameter("w", (3, 4, 3, 3)), (2, 2), (1, 1)))
    op = build_step(graph, "sgd").graph.operator("grad:x")
    assert op.function == "strided_gradient"
    assert [a.name for a in op.axes if a.splittable] == ["b", "c", "o"]
    assert [a.extent for a in op.axes if a.name in ("ky", "kx")] == [
        2,
        2,
    ]  # at most two of three taps meet at one position


def test_stride_one_is_a_convolution_with_reversed_taps() -> None:
    g = Builder("conv", "float64")
    graph = g.build(
        g.convolution("y", g.parameter("x", (2, 4, 7, 7)), g.parameter("w", (3, 4, 3, 3)), (1, 1), (1, 1), (2, 2))
    )
    op = build_step(graph, "sgd").graph.operator("grad:x")
    assert (op.function, op.attribute("reversed", ())) == ("product", ("kx", "ky"))
    assert {a.name for a in op.axes if a.splittable} == {"b", "c", "o", "y", "x"}


# --- corners and messages
# -----------------------------------------------------------------------------------------------


def gradient_of(graph: Graph, values: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Gradient of the sum of the only output."""
    b = dict(build_step(graph, "sgd").trained)
    step = build_step(graph, "sgd").graph
    return run_graph(step, {**inputs_of(step, 0), **values}, keep=[b[name]])[b[name]]


def summed(function: str, x: np.ndarray, *more: np.ndarray, wanted: str = "x", **attributes: float) -> np.ndarray:
    g = Builder("g", "float64")
    tensors = [g.parameter("x", x.shape), *(g.parameter(f"x{j}", m.shape) for j, m in enumerate(more))]
    y = g.map("y", function, *tensors, **attributes)
    graph = g.build(g.reduce("total", "i -> ", y))
    return gradient_of(graph, {"x": x, **{f"x{j}": m for j, m in enumerate(more)}}, wanted)


def test_kinks() -> None:
    at = np.array([-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(summed("relu", at), [0, 0, 1])
    np.testing.assert_array_equal(summed("abs", at), [-1, 0, 1])
    np.testing.assert_array_equal(summed("clip", at, low=0.0, high=1.0), [0, 1, 1])
    np.testing.assert_array_equal(summed("clip", at, low=0.0, high=1.0, tie=0.0), [0, 0, 0])
    np.testing.assert_array_equal(summed("clip", at, low=-1.0, high=2.0, tie=0.0), [0, 1, 1])
    np.testing.assert_array_equal(summed("clip", at, low=0.0, high=1.0, tie=0.5), [0, 0.5, 0.5])
    np.testing.assert_array_equal(summed("clip", at, low=0.0, tie=0.5), [0, 0.5, 1])
    np.testing.assert_array_equal(summed("maximum", at, np.zeros(3)), [0, 0.5, 1])
    np.testing.assert_array_equal(summed("minimum", at, np.zeros(3)), [1, 0.5, 0])
    np.testing.assert_array_equal(summed("maximum", at, np.zeros(3), tie=1.0), [0, 1, 1])
    np.testing.assert_array_equal(summed("minimum", at, np.zeros(3), tie=0.0), [1, 0, 0])
    np.testing.assert_array_equal(summed("maximum", np.zeros(3), at, wanted="x0", tie=1.0), [0, 0, 1])
    np.testing.assert_array_equal(summed("minimum", np.zeros(3), at, wanted="x0", tie=0.0), [1, 1, 0])


@pytest.mark.parametrize("combine", [Combine.MAX, Combine.MIN])
def test_the_first_extreme_of_several_axes(combine: Combine) -> None:
    """Along reduced axes together, row-major; NaN is the extreme where there is one."""
    g = Builder("g", "float64")
    y = g.reduce("y", "a b c -> b", g.parameter("x", (2, 3, 2)), combine)
    graph = g.build(g.reduce("total", "b -> ", y))
    first = replace(graph.operators[0], attributes=(("first", 1),))
    graph = replace(graph, operators=(first, *graph.operators[1:])).check()
    x = np.array([[[1, 2], [np.nan, 1], [2, 2]], [[2, 1], [0, np.nan], [2, 2]]], dtype=np.float64)
    wanted = np.zeros((2, 3, 2))
    for b in range(3):
        column = x[:, b].reshape(-1)
        at = np.argmax(column) if combine is Combine.MAX else np.argmin(column)
        wanted[at // 2, b, at % 2] = 1
    np.testing.assert_array_equal(gradient_of(graph, {"x": x}, "x"), wanted)


def test_extremes_are_shared_by_those_that_attain_them() -> None:
    g = Builder("g", "float64")
    y = g.reduce("y", "a b -> a", g.parameter("x", (2, 3)), Combine.MAX)
    graph = g.build(g.reduce("total", "a -> ", y))
    np.testing.assert_array_equal(
        gradient_of(graph, {"x": np.array([[1.0, 3, 3], [2, 0, 1]])}, "x"), [[0, 0.5, 0.5], [1, 0, 0]]
    )


def test_the_first_of_equal_elements_wins_a_window() -> None:
    g = Builder("g", "float64")
    y = g.pool("y", "max_pool", g.parameter("x", (1, 1, 2, 3)), (2, 2), (1, 1))
    graph = g.build(g.reduce("total", "b c y x -> ", y))
    np.testing.assert_array_equal(gradient_of(graph, {"x": np.ones((1, 1, 2, 3))}, "x"), [[[[1, 1, 0], [0, 0, 0]]]])


def test_repeated_ids_add_up_and_unused_rows_stay_zero() -> None:
    g = Builder("g", "float64")
    y = g.embedding("y", "v m, b -> b m", g.parameter("table", (4, 2)), g.input("ids", (3,), "int32"))
    graph = g.build(g.reduce("total", "b m -> ", y))
    np.testing.assert_array_equal(
        gradient_of(graph, {"ids": np.array([2, 0, 2], dtype=np.int32)}, "table"), [[1, 1], [0, 0], [2, 2], [0, 0]]
    )


def test_the_row_of_padding_has_no_gradient() -> None:
    g = Builder("g", "float64")
    axes = [Axis("b", 3), Axis("m", 2), Axis("v", 4, Combine.SUM)]
    table, ids = access(g.parameter("table", (4, 2)), "v", "m"), access(g.input("ids", (3,), "int32"), "b")
    y = g.operator("y", "embedding", axes, [table, ids], ["b", "m"], {"padding": 2, "rows": "v"})
    graph = g.build(g.reduce("total", "b m -> ", y))
    np.testing.assert_array_equal(
        gradient_of(graph, {"ids": np.array([2, 0, 2], dtype=np.int32)}, "table"), [[1, 1], [0, 0], [0, 0], [0, 0]]
    )


def test_large_logits_do_not_overflow() -> None:
    g = Builder("g", "float64")
    graph = g.build(g.normalise("y", "log_softmax", "b v -> b v", g.parameter("x", (2, 3)), over=("v",)))
    step = build_step(graph, "sgd").graph
    found = run_graph(
        step,
        {"x": np.array([[1e3, 0, -1e3], [5.0, 5, 5]]), "labels": np.array([1, 0], dtype=np.int32)},
        keep=["grad:x"],
    )
    np.testing.assert_allclose(found["grad:x"], [[0.5, -0.5, 0], [-1 / 3, 1 / 6, 1 / 6]], atol=1e-12)


def test_two_uses_add_up_and_equal_reductions_share_one_sum() -> None:
    g = Builder("g", "float64")
    x = g.parameter("x", (2, 3))
    parts = [
        g.contract(f"p{i}", t, x, g.parameter(f"w{i}", (3, 4)))
        for i, t in enumerate(("a k, k n -> a n", "t k, k n -> t n", "a j, j n -> a n"))
    ]
    y = g.map("y", "sum_inputs", *parts)
    step = build_step(g.build(y), "sgd").graph
    (op,) = (o for o in step.operators if o.function == "product_sum")
    assert op.output.tensor == "grad:x" and len(op.inputs) == 6 and [a.name for a in op.axes if a.combine] == ["n"]
    assert step.flops_per_point(op) == 6
    check_gradients(g.build(y), 3)


def test_products_over_different_axes_do_not_share_a_sum() -> None:
    g = Builder("g", "float64")
    x = g.parameter("x", (2, 3))
    a, b = (
        g.contract("p", "a k, k n -> a n", x, g.parameter("w", (3, 4))),
        g.contract("q", "a k, k n -> a n", x, g.parameter("u", (3, 5))),
    )
    y = g.contract("y", "a n, a m -> a", a, b)
    step = build_step(g.build(y), "sgd").graph
    assert not any(o.function == "product_sum" for o in step.operators)
    assert step.operator("grad:x").function == "sum_inputs"
    check_gradients(g.build(y), 4)


def test_parts_side_by_side_are_one_copy() -> None:
    """Slices, single indices and projections of one tensor: no part is written in the shape of the whole."""
    g = Builder("g", "float64")
    x, w = g.parameter("x", (4, 6, 3)), g.parameter("w", (3, 3))
    axes = [Axis("a", 4), Axis("n", 3)]
    index = [
        g.operator(f"i{k}", "copy", axes, [access(x, "a", Affine((), k), "n")], ["a", "n"]) for k in (0, 5)
    ]  # the adjoint of one index has no gradient to read along it
    at = access(x, "a", Affine((), 1), "k")
    index.append(g.operator("p", "product", [*axes, Axis("k", 3, Combine.SUM)], [at, access(w, "k", "n")], ["a", "n"]))
    middle = [Axis("a", 4), Axis("t", 3), Axis("n", 3)]
    part = g.operator("s", "copy", middle, [access(x, "a", Affine.axis("t").shift(2), "n")], ["a", "t", "n"])
    total = g.reduce("r", "a t n -> a n", g.map("e", "exp", part))
    graph = g.build(g.map("y", "sum_inputs", total, *(g.map(f"m{k}", "sin", t) for k, t in enumerate(index))))
    step = build_step(graph, "sgd").graph
    op = step.operator("grad:x")
    assert (op.function, [a.extent for a in op.axes]) == ("copy", [4, 6, 3]) and all(a.splittable for a in op.axes)
    assert sorted(step.tensor(a.tensor).shape for a in op.inputs) == [(4, 1, 3)] * 3 + [(4, 3, 3)]
    assert not any(o.function == "copy_gradient" for o in step.operators)
    check_gradients(graph, 5)


def test_unsupported_operators_are_listed_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "shardproof.models.sources.training.rules.MAP_RULES",
        {n: r for n, r in MAP_RULES.items() if n not in ("tanh", "exp")},
    )
    g = Builder("g", "float64")
    x = g.map("c", "exp", g.map("b", "tanh", g.map("a", "tanh", g.parameter("x", (2,)))))
    with pytest.raises(UnsupportedOperators, match=r"exp \(1: c\).*tanh \(2: a, b\).*no derivative") as info:
        build_step(g.build(x), "sgd")
    assert info.value.missing == {"tanh": ["a", "b"], "exp": ["c"]}


def test_accesses_without_a_gradient_are_named() -> None:
    g = Builder("g", "float64")
    read = access(g.parameter("x", (3, 2)), "a", Affine.everything())
    with pytest.raises(GraphError, match="operator 'y': no gradient of a product that reads 'x' whole"):
        build_step(g.build(g.operator("y", "product", [Axis("a", 3)], [read], ["a"])), "sgd")


def test_a_constant_index_costs_no_more_than_the_slice() -> None:
    """The gradient of one of three fused projections is a product over the slice, and a copy to its place."""
    g = Builder("g", "float64")
    axes = [Axis("b", 4), Axis("n", 5), Axis("k", 6, Combine.SUM)]
    w = access(g.parameter("w", (3, 5, 6)), Affine((), 2), "n", "k")
    graph = g.build(g.operator("y", "product", axes, [access(g.input("x", (4, 6)), "b", "k"), w], ["b", "n"]))
    step = build_step(graph, "sgd").graph
    part, place = step.operator("grad:y/input1"), step.operator("grad:w")
    assert (part.function, [(a.name, a.extent) for a in part.axes]) == (
        "product",
        [("at0", 1), ("n", 5), ("k", 6), ("b", 4)],
    )
    assert (place.function, [a.extent for a in place.axes]) == ("copy", [3, 5, 6])
    assert all(a.splittable for a in place.axes)


def test_taps_must_be_whole() -> None:
    op, step, arrays = _first("max_pool_gradient", "max_pool")
    box = full_box(op.axes)
    with pytest.raises(KernelError, match="must not be split"):
        execute(np, op, step, {**box, "y": (0, 1)}, [Block(x, (0,) * x.ndim) for x in arrays])


def _first(function: str, case: str) -> tuple[object, Graph, list[np.ndarray]]:
    g = Builder("pool", "float64")
    step = build_step(g.build(g.pool("p", case, g.parameter("x", (1, 2, 5, 5)), (2, 2), (2, 2))), "sgd").graph
    op = next(o for o in step.operators if o.function == function)
    values = inputs_of(step, 0)
    values.update(run_graph(step, values, keep=[a.tensor for a in op.inputs]))
    return op, step, [values[a.tensor] for a in op.inputs]


def test_a_malformed_window_is_named() -> None:
    op, step, arrays = _first("average_pool_gradient", "average_pool")
    wrong = replace(op, attributes=tuple((k, "x" if k == "taps" else v) for k, v in op.attributes))
    with pytest.raises(KernelError, match="attribute taps must be a tuple of integers"):
        whole(wrong, step, arrays)


# --- whole models
# -------------------------------------------------------------------------------------------------------

MODELS = {
    "mlp": lambda: build("mlp-unity", batch=4, inputs=7, hidden=6, classes=5, dtype="float64"),
    "bert": lambda: build("bert-tiny", batch=2, sequence=6, layers=2),
    "conv": lambda: build("conv-stack", batch=2, size=13, channels=3, dtype="float64"),
    "transformer": lambda: build(
        "transformer", batch=2, layers=1, sequence=5, width=16, heads=4, hidden=12, vocabulary=11, dtype="float64"
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_whole_models_against_differences(name: str) -> None:
    made = build_step(MODELS[name](), "sgd")
    values = inputs_of(made.graph, 1)
    rng = np.random.default_rng(2)
    direction = {n: rng.standard_normal(values[n].shape) for n, _ in made.trained}
    norm = np.sqrt(sum(float((d**2).sum()) for d in direction.values()))
    direction = {n: d / norm for n, d in direction.items()}
    found = run_graph(made.graph, values, keep=[g for _, g in made.trained])
    slope = sum(float((found[g] * direction[n]).sum()) for n, g in made.trained)
    expected = difference(made.graph, made.graph.outputs[0], values, direction, 1e-4)
    assert abs(expected) > 1e-4 and abs(slope - expected) <= 1e-6 * abs(expected)


def test_batch_norm_in_training_mode_is_a_layer_norm_over_batch_and_image() -> None:
    g = Builder("bn", "float64")
    x, gamma, beta = g.parameter("x", (3, 2, 2, 2)), g.parameter("gamma", (2,)), g.parameter("beta", (2,))
    graph = g.build(
        g.normalise("y", "layer_norm", "b c y x, c, c -> b c y x", x, gamma, beta, over=("b", "y", "x"), epsilon=1e-3)
    )
    values = inputs_of(graph, 0)
    v = values["x"]
    mean, variance = v.mean((0, 2, 3), keepdims=True), v.var((0, 2, 3), keepdims=True)
    expected = (v - mean) / np.sqrt(variance + 1e-3) * values["gamma"][:, None, None] + values["beta"][:, None, None]
    np.testing.assert_allclose(run_graph(graph, values)["y"], expected, rtol=1e-12)
    check_gradients(graph, 0)

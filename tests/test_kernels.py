"""Kernels against independent formulas, a brute-force interpreter over iteration points, and the splitting property.

The interpreter shares nothing with the kernels: it loops over the points of a box and reads one number at a time.
"""

from __future__ import annotations

from itertools import pairwise, product
from math import atan, cos, floor, fmod, inf, log, sin
from math import erf as math_erf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.kernels import Block, KernelError, combine_arrays, execute, full_box
from shardproof.backends.kernels.elementwise import MAPS, erf
from shardproof.backends.kernels.gradient_maps import GRADIENT_MAPS
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.program.operators import FUNCTIONS, HOST_COPIES, NodeKind, Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import build

RNG = np.random.default_rng(7)


# --- oracle -----------------------------------------------------------------------------------------------------------


def element(array: np.ndarray, where: Access, point: dict[str, int]) -> float | None:
    at = tuple(i.offset + sum(c * point[a] for a, c in i.terms) for i in where.index)
    return float(array[at]) if all(0 <= p < n for p, n in zip(at, array.shape)) else None


def interpret(op: Operator, box: dict[str, tuple[int, int]], arrays: list[np.ndarray]) -> np.ndarray:
    """contract, reduce, max_pool, average_pool, copy and embedding by definition."""
    out_axes = op.output.axes
    start = {"max": -inf, "max_pool": -inf, "min": inf}.get(op.function, 0.0)
    out = np.full([max(0, box[a][1] - box[a][0]) for a in out_axes], start)
    counts = np.zeros(out.shape)
    names = [a.name for a in op.axes]
    rows = op.attribute("rows", "")
    for values in product(*(range(*box[n]) for n in names)):
        point = dict(zip(names, values))
        at = tuple(point[a] - box[a][0] for a in out_axes)
        read = [element(x, a, point) for x, a in zip(arrays, op.inputs)]
        zero = [0.0 if r is None else r for r in read]
        counts[at] += read[0] is not None or op.attribute("count_include_pad", 0) != 0
        if op.function == "product":
            out[at] += np.prod(zero)
        elif op.function == "embedding":
            out[at] += zero[0] if zero[1] == point[rows] else 0.0
        elif op.function in ("copy", "sum", "average_pool"):
            out[at] += sum(zero) * float(op.attribute("scale", 1.0))
        elif op.function in ("max", "max_pool"):
            out[at] = max(out[at], -inf if read[0] is None else read[0])
        elif op.function == "min":
            out[at] = min(out[at], inf if read[0] is None else read[0])
        else:
            raise NotImplementedError(op.function)
    return out / np.maximum(counts, 1) if op.function == "average_pool" else out


# --- running parts ----------------------------------------------------------------------------------------------------


def tight(op: Operator, graph: Graph, box: dict[str, tuple[int, int]], arrays: list[np.ndarray]) -> list[Block]:
    """Operand blocks cut to exactly what the box touches: a kernel that reads more fails."""
    blocks = []
    for a, x in zip(op.inputs, arrays):
        spans = [i.interval(box, n) for i, n in zip(a.index, x.shape)]
        blocks.append(Block(x[tuple(slice(*s) for s in spans)].copy(), tuple(s[0] for s in spans)))
    return blocks


class Pause(Exception):
    pass


class Replay:
    """Answers the first all-reduces from `known`; at the next one it records the local value and stops."""

    def __init__(self, known: list[np.ndarray]) -> None:
        self.known, self.calls = known, 0
        self.local: np.ndarray | None = None
        self.combine = Combine.SUM

    def all_reduce_together(self, arrays: list[np.ndarray], combine: Combine) -> list[np.ndarray]:
        return [self.all_reduce(a, combine) for a in arrays]

    def all_reduce(self, array: np.ndarray, combine: Combine) -> np.ndarray:
        assert array.flags.c_contiguous
        self.calls += 1
        if self.calls <= len(self.known):
            return self.known[self.calls - 1]
        self.local, self.combine = array, combine
        raise Pause


def run_parts(
    op: Operator, graph: Graph, boxes: list[dict[str, tuple[int, int]]], arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """All boxes, with statistics combined over them in lock-step."""
    known: list[np.ndarray] = []
    while True:
        results, waiting = [], []
        for box in boxes:
            reducer = Replay(known)
            try:
                results.append(
                    execute(
                        np,
                        op,
                        graph,
                        box,
                        tight(op, graph, box, arrays),
                        reducer if op.kind in (NodeKind.NORMALISE, NodeKind.ATTENTION) else None,
                    )
                )
            except Pause:
                waiting.append(reducer)
        if not waiting:
            return results
        assert len(waiting) == len(boxes)
        total = waiting[0].local
        for r in waiting[1:]:
            total = combine_arrays(np, total, r.local, r.combine)
        known.append(total)


def whole(op: Operator, graph: Graph, arrays: list[np.ndarray]) -> np.ndarray:
    box = full_box(op.axes)
    return execute(np, op, graph, box, tight(op, graph, box, arrays))


def check_split(op: Operator, graph: Graph, arrays: list[np.ndarray], axis: Axis, cuts: list[int]) -> None:
    """Blocks of one axis (empty ones too), combined, equal the whole."""
    edges = [0, *sorted(cuts), axis.extent]
    boxes = [{**full_box(op.axes), axis.name: (a, b) if a < b else (0, 0)} for a, b in pairwise(edges)]
    if (
        op.kind in (NodeKind.NORMALISE, NodeKind.ATTENTION) and axis.name not in op.over
    ):  # every block has statistics of its own
        parts = [run_parts(op, graph, [box], arrays)[0] for box in boxes]
    else:
        parts = run_parts(op, graph, boxes, arrays)
    for box, part in zip(boxes, parts):
        assert part.shape == tuple(box[a][1] - box[a][0] for a in op.output.axes) and part.flags.c_contiguous
    if axis.combine is None:
        joined = np.concatenate(parts, axis=op.output.axes.index(axis.name))
    else:
        joined = parts[0]
        for part in parts[1:]:
            joined = combine_arrays(np, joined, part, axis.combine)
    np.testing.assert_allclose(joined, whole(op, graph, arrays), rtol=1e-12, atol=1e-12)


# --- one graph per kind
# -------------------------------------------------------------------------------------------------


def single(graph: Graph, seed: int = 0) -> tuple[Operator, Graph, list[np.ndarray]]:
    """Its only operator, with random operands."""
    (op,) = graph.operators
    values = random_inputs(graph, seed)
    return op, graph, [values[a.tensor] for a in op.inputs]


def convolution(
    groups: int = 0, size: int = 6, stride: int = 1, pad: int = 1, dilation: int = 1, kernel: int = 3
) -> Graph:
    g = Builder("conv", "float64")
    lead = [groups] if groups else []
    x = g.input("x", (2, *lead, 3, size, size + 1))
    w = g.parameter("w", (*lead, 4, 3, kernel, 2))
    return g.build(g.convolution("y", x, w, (stride, 1), (pad, 0), (dilation, 1)))


def pool(function: str, kernel: int = 3, stride: int = 2, pad: int = 1, **attributes: int) -> Graph:
    g = Builder("pool", "float64")
    return g.build(g.pool("y", function, g.input("x", (2, 3, 7, 6)), (kernel, 2), (stride, 1), (pad, 0), **attributes))


def einsum(text: str, *shapes: tuple[int, ...]) -> Graph:
    g = Builder("einsum", "float64")
    return g.build(g.contract("y", text, *[g.input(f"x{i}", s) for i, s in enumerate(shapes)]))


def reduction(combine: Combine, scale: float = 1.0) -> Graph:
    g = Builder("reduce", "float64")
    return g.build(g.reduce("y", "a b c -> c a", g.input("x", (3, 4, 5)), combine, scale))


def normalise(function: str, over: tuple[str, ...], operands: int = 1) -> Graph:
    g = Builder("norm", "float64")
    tensors = [g.input("x", (3, 4, 5)), g.parameter("gamma", (5,)), g.parameter("beta", (5,))][:operands]
    return g.build(
        g.normalise("y", function, ", ".join(["a b c", "c", "c"][:operands]) + " -> a b c", *tensors, over=over)
    )


def local_response(size: int = 5) -> Graph:
    g = Builder("lrn", "float64")
    x = g.input("x", (2, 7, 3))
    axes = [Axis("b", 2), Axis("c", 7), Axis("y", 3), Axis("t", size, Combine.SUM, False)]
    index = Affine.axis("c").plus("t").shift(-((size - 1) // 2))
    return g.build(
        g.operator(
            "y",
            "local_response",
            axes,
            [access(x, "b", index, "y")],
            ["b", "c", "y"],
            {"alpha": 0.3, "beta": 0.7, "bias": 2.0, "size": size},
        )
    )


def embedding(
    text: str = "v m, b s -> b s m", table: tuple[int, ...] = (11, 4), ids: tuple[int, ...] = (3, 5)
) -> Graph:
    g = Builder("embed", "float64")
    return g.build(g.embedding("y", text, g.parameter("table", table), g.input("ids", ids, "int32")))


def bag() -> Graph:
    g = Builder("bag", "float64")
    t, i = g.parameter("table", (11, 4)), g.input("ids", (3, 5), "int64")
    axes = [Axis("b", 3), Axis("m", 4), Axis("v", 11, Combine.SUM), Axis("s", 5, Combine.SUM)]
    return g.build(
        g.operator("y", "embedding", axes, [access(t, "v", "m"), access(i, "b", "s")], ["b", "m"], {"rows": "v"})
    )


def concat_slice() -> Graph:
    """y = pad(concat(x0, x1[::2], transposed x2)) along `a`."""
    g = Builder("copy", "float64")
    x0, x1, x2 = g.input("x0", (3, 4)), g.input("x1", (7, 4)), g.input("x2", (4, 2))
    a = Affine.axis("a")
    inputs = [
        access(x0, a.shift(-1), "b"),
        access(x1, Affine.axis("a", 2).shift(-8), "b"),
        access(x2, "b", a.shift(-8)),
    ]
    return g.build(g.operator("y", "copy", [Axis("a", 11), Axis("b", 4)], inputs, ["a", "b"]))


def flat_merge() -> Graph:
    """y[a, b] = x[3a + b]: two axes in one dimension, and a constant index."""
    g = Builder("merge", "float64")
    x = g.input("x", (12, 2))
    return g.build(
        g.operator(
            "y",
            "copy",
            [Axis("a", 4), Axis("b", 3)],
            [access(x, Affine.axis("a", 3).plus("b"), Affine((), 1))],
            ["a", "b"],
        )
    )


INTERPRETED = {
    "matmul": lambda: einsum("m k, k n -> m n", (4, 5), (5, 3)),
    "batched": lambda: einsum("b s h d, b t h d -> b h s t", (2, 3, 2, 4), (2, 5, 2, 4)),
    "three": lambda: einsum("a b, b c, c a -> b", (3, 4), (4, 2), (2, 3)),
    "outer": lambda: einsum("a, b -> b a", (3,), (4,)),
    "alone": lambda: einsum("a b c -> c", (3, 4, 2)),
    "one-sided": lambda: einsum("a b, c -> a", (3, 4), (5,)),
    "scalar": lambda: einsum("a, a -> ", (5,), (5,)),
    "diagonal": lambda: einsum("a a -> a", (4, 4)),
    "conv": convolution,
    "conv-stride": lambda: convolution(stride=2, pad=2),
    "conv-dilated": lambda: convolution(dilation=2, pad=2),
    "conv-grouped": lambda: convolution(groups=2),
    "conv-gap": lambda: convolution(kernel=1, stride=3, pad=0),
    "max-pool": lambda: pool("max_pool"),
    "max-pool-edge": lambda: pool("max_pool", kernel=5, stride=3, pad=3),
    "average-pool": lambda: pool("average_pool"),
    "average-pool-pad": lambda: pool("average_pool", count_include_pad=1),
    "sum": lambda: reduction(Combine.SUM, 0.25),
    "max": lambda: reduction(Combine.MAX),
    "min": lambda: reduction(Combine.MIN),
    "embedding": embedding,
    "embedding-tables": lambda: embedding("v q m, b q -> q b m", (5, 3, 2), (4, 3)),
    "bag": bag,
    "concat": concat_slice,
    "merge": flat_merge,
}
OTHERS = {
    "softmax": lambda: normalise("softmax", ("c",)),
    "softmax-two": lambda: normalise("softmax", ("a", "c")),
    "layer-norm": lambda: normalise("layer_norm", ("c",), 3),
    "layer-norm-two": lambda: normalise("layer_norm", ("b", "c"), 2),
    "log-softmax": lambda: normalise("log_softmax", ("b", "c")),
    "rms-norm": lambda: normalise("rms_norm", ("c",), 2),
    "rms-norm-two": lambda: normalise("rms_norm", ("a", "c")),
    "cumulative-sum": lambda: normalise("cumulative_sum", ("b",)),
    "top-k-mask": lambda: normalise("top_k_mask", ("c",)),
    "local-response": local_response,
}


@pytest.mark.parametrize("name", INTERPRETED)
def test_against_the_interpreter(name: str) -> None:
    op, graph, arrays = single(INTERPRETED[name]())
    np.testing.assert_allclose(
        whole(op, graph, arrays), interpret(op, full_box(op.axes), arrays), rtol=1e-12, atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(INTERPRETED)), st.data())
def test_any_box_against_the_interpreter(name: str, data: st.DataObject) -> None:
    op, graph, arrays = single(INTERPRETED[name]())
    box = {}
    for a in op.axes:
        low = data.draw(st.integers(0, a.extent))
        high = data.draw(st.integers(low, a.extent))
        box[a.name] = (low, high) if a.splittable else (0, a.extent)
    result = execute(np, op, graph, box, tight(op, graph, box, arrays))
    np.testing.assert_allclose(result, interpret(op, box, arrays), rtol=1e-12, atol=1e-12)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted({**INTERPRETED, **OTHERS})), st.data())
def test_blocks_of_one_axis_add_up(name: str, data: st.DataObject) -> None:
    op, graph, arrays = single({**INTERPRETED, **OTHERS}[name]())
    axis = data.draw(st.sampled_from([a for a in op.axes if a.splittable]))
    check_split(op, graph, arrays, axis, data.draw(st.lists(st.integers(0, axis.extent), max_size=3)))


# --- independent formulas ---------------------------------------------------------------------------------------------


def test_einsum_agrees_with_numpy() -> None:
    _, graph, (q, k) = single(einsum("b s h d, b t h d -> b h s t", (2, 3, 2, 4), (2, 5, 2, 4)))
    np.testing.assert_allclose(whole(graph.operators[0], graph, [q, k]), np.einsum("bshd,bthd->bhst", q, k), rtol=1e-13)


def test_softmax_and_layer_norm() -> None:
    op, graph, (x,) = single(normalise("softmax", ("a", "c")))
    e = np.exp(x)
    np.testing.assert_allclose(whole(op, graph, [x]), e / e.sum(axis=(0, 2), keepdims=True), rtol=1e-13)
    op, graph, (x, gamma, beta) = single(normalise("layer_norm", ("c",), 3))
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(whole(op, graph, [x, gamma, beta]), expected, rtol=1e-12)


def test_log_softmax_and_rms_norm() -> None:
    op, graph, (x,) = single(normalise("log_softmax", ("a", "c")))
    np.testing.assert_allclose(
        whole(op, graph, [x]), np.log(np.exp(x) / np.exp(x).sum(axis=(0, 2), keepdims=True)), rtol=1e-12
    )
    assert np.isfinite(whole(op, graph, [1e4 * x])).all()
    op, graph, (x, gamma) = single(normalise("rms_norm", ("c",), 2))
    np.testing.assert_allclose(
        whole(op, graph, [x, gamma]), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gamma, rtol=1e-12
    )


def test_softmax_survives_large_values() -> None:
    op, graph, (x,) = single(normalise("softmax", ("c",)))
    np.testing.assert_allclose(whole(op, graph, [x + 1e4]), whole(op, graph, [x]), rtol=1e-9)


def test_part_of_a_softmax_needs_a_reducer() -> None:
    op, graph, arrays = single(normalise("softmax", ("c",)))
    with pytest.raises(KernelError, match="operator 'y': the box holds part of c"):
        execute(np, op, graph, {**full_box(op.axes), "c": (0, 2)}, [Block(arrays[0], (0, 0, 0))])


@pytest.mark.parametrize("size", [1, 4, 5])
def test_local_response(size: int) -> None:
    op, graph, (x,) = single(local_response(size))
    expected = np.empty_like(x)
    for c in range(7):
        first = c - (size - 1) // 2
        near = x[:, max(0, first) : first + size]
        expected[:, c] = x[:, c] / (2.0 + 0.3 / size * (near**2).sum(axis=1)) ** 0.7
    np.testing.assert_allclose(whole(op, graph, [x]), expected, rtol=1e-12)


def test_erf_within_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), [0.0, -0.0, 0.84375, 1.25, 1 / 0.35, 1e-300, -1e-9, inf, -inf]])
    expected = np.array([math_erf(v) for v in x])
    assert np.all(np.abs(erf(np, x) - expected) <= 2 * np.spacing(np.abs(expected)))
    assert np.isnan(erf(np, np.array([np.nan])))[0]
    assert erf(np, x.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(erf(np, x.astype(np.float32)), expected, atol=5e-7)


def test_erf_in_single_precision_within_eight_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-6, 6, 200_001), np.logspace(-37, 1, 5_001), [0.0, -0.0, 4.0, -4.0, inf, -inf]])
    single = x.astype(np.float32)
    expected = np.array([math_erf(float(v)) for v in single])
    found = erf(np, single)
    assert found.dtype == np.float32 and np.abs(found).max() == 1
    assert np.all(np.abs(found - expected) <= 8 * np.spacing(np.abs(expected).astype(np.float32)))
    assert np.isnan(erf(np, np.array([np.nan], dtype=np.float32)))[0]


@pytest.mark.parametrize("text", ["b k, k n -> b n", "b k, k n -> n b", "b p k, n k -> b n p", "n k, b p k -> b n p",
                                  "b p k, n k -> b p n", "k b, n k -> n b", "b q k, n k -> q n b", "g b k, g n k -> g n b"])  # fmt: skip
def test_products_in_every_order_of_their_output(text: str) -> None:
    """Whatever matrix product they become: batch in front, channels before pixels, transposed operands."""
    sizes = {"b": 3, "k": 4, "n": 5, "p": 2, "q": 6, "g": 2}
    left, right = (part.split() for part in text.split(" -> ")[0].split(", "))
    b = Builder("g")
    y = b.contract("y", text, *(b.input(n, tuple(sizes[a] for a in axes)) for n, axes in (("l", left), ("r", right))))
    graph = b.build(y)
    arrays = [RNG.standard_normal([sizes[a] for a in axes]) for axes in (left, right)]
    expected = np.einsum(text.replace(" ", ""), *arrays)
    for factors in (arrays, [np.asfortranarray(a) for a in arrays]):
        blocks = [Block(a, (0,) * a.ndim) for a in factors]
        op = graph.operators[0]
        np.testing.assert_allclose(execute(np, op, graph, full_box(op.axes), blocks), expected, rtol=1e-12)


A, B, C, D, E = (RNG.uniform(0.5, 2.0, (3, 4)) for _ in range(5))
S = A - 1.2
R, T = (RNG.integers(-1, 2, (3, 4)) * 1.0 for _ in range(2))
FORMULAS = {
    "relu": ([S], np.where(S > 0, S, 0)),
    "negate": ([S], -S),
    "identity": ([S], S),
    "stop_gradient": ([S], S),
    "relu_gradient_mask": ([S], (S > 0) * 1.0),
    "tanh": ([S], np.sinh(S) / np.cosh(S)),
    "sigmoid": ([S], 1 / (1 + np.exp(-S))),
    "exp": ([S], np.e**S),
    "erf": ([S], np.vectorize(math_erf)(S)),
    "sqrt": ([A], A**0.5),
    "gelu": ([S], S * 0.5 * (1 + np.vectorize(math_erf)(S / 2**0.5))),
    "add": ([S, B], S + B),
    "subtract": ([S, B], S - B),
    "multiply": ([S, B], S * B),
    "divide": ([S, B], S / B),
    "floor_divide": ([S, B], np.floor(S / B)),
    "maximum": ([S, B - 1], np.where(S > B - 1, S, B - 1)),
    "relu_gradient": ([B, S], B * (S > 0)),
    "where": ([(S > 0).astype(float), B, C], np.where(S > 0, B, C)),
    "fused_scale_shift": ([S, B, C], S * B + C),
    "batch_norm": ([S, B, C, D, E], (S - D) / np.sqrt(E + 0.25) * B + C),
    "sum_inputs": ([A, B, C, D], A + B + C + D),
    "sgd_update": ([A, S], A - 0.125 * S),
    "scale": ([S], 0.375 * S),
    "shift": ([S], S + 0.375),
    "reciprocal": ([A], A**-1.0),
    "abs": ([S], np.sqrt(S * S)),
    "sign": ([S], np.where(S > 0, 1.0, -1.0)),
    "floor": ([S], np.vectorize(floor)(S)),
    "ceil": ([S], -np.vectorize(floor)(-S)),
    "round": ([R / 2], np.vectorize(round)(R / 2)),
    "trunc": ([5 * S], np.vectorize(int)(5 * S)),
    "remainder": ([5 * S, 1 - B], np.vectorize(lambda x, y: x % y)(5 * S, 1 - B)),
    "fmod": ([5 * S, 1 - B], np.vectorize(fmod)(5 * S, 1 - B)),
    "clip": ([S], np.minimum(np.maximum(S, -0.25), 0.5)),
    "cast": ([5 * S], np.trunc(5 * S)),
    "rsqrt": ([A], A**-0.5),
    "log": ([A], np.vectorize(log)(A)),
    "cos": ([S], np.vectorize(cos)(S)),
    "sin": ([S], np.vectorize(sin)(S)),
    "atan": ([5 * S], np.vectorize(atan)(5 * S)),
    "silu": ([S], S / (1 + np.exp(-S))),
    "power": ([A], np.exp(1.5 * np.log(A))),
    "softplus": ([S], np.log(1 + np.exp(S))),
    "minimum": ([S, B - 1], np.where(S > B - 1, B - 1, S)),
    "mask_fill": ([S, (B > 1) * 1.0], np.where(B > 1, S, -7.5)),
    "equal": ([R, T], R - T == 0),
    "not_equal": ([R, T], R - T != 0),
    "less": ([R, T], R - T < 0),
    "less_equal": ([R, T], R - T <= 0),
    "greater": ([R, T], R - T > 0),
    "greater_equal": ([R, T], R - T >= 0),
    "logical_not": ([R], R * R == 0),
    "logical_and": ([R, T], R * T != 0),
    "logical_or": ([R, T], R * R + T * T != 0),
}
ATTRIBUTES = {
    "batch_norm": {"epsilon": 0.25},
    "sgd_update": {"rate": 0.125},
    "scale": {"scale": 0.375},
    "shift": {"shift": 0.375},
    "clip": {"low": -0.25, "high": 0.5},
    "cast": {"dtype": "int32"},
    "power": {"exponent": 1.5},
    "mask_fill": {"value": -7.5},
}


@pytest.mark.parametrize("name", FORMULAS)
def test_elementwise(name: str) -> None:
    operands, expected = FORMULAS[name]
    g = Builder("map", "float64")
    tensors = [g.input(f"x{i}", (3, 4)) for i in range(len(operands))]
    graph = g.build(g.map("y", name, *tensors, **ATTRIBUTES.get(name, {})))
    assert graph.tensor("y").dtype == {"cast": "int32"}.get(name, "bool" if FUNCTIONS[name].logical else "float64")
    arrays = [x.copy() for x in operands]
    result = run_graph(graph, dict(zip(tensors, arrays)))["y"]
    np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-15)
    assert not any(np.shares_memory(result, x) for x in arrays)
    single_precision = run_graph(graph, {t: x.astype(np.float32) for t, x in zip(tensors, arrays)})["y"]
    assert single_precision.dtype == {"cast": np.int32}.get(name, bool if FUNCTIONS[name].logical else np.float32)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("softplus", [-1e3, 0.0, 1e3], [0.0, log(2), 1e3]),
        ("silu", [-1e3, 0.0, 1e3], [0.0, 0.0, 1e3]),
        ("clip", [-inf, 0.1, inf], [-0.25, 0.1, 0.5]),
    ],
)
def test_large_arguments_do_not_overflow(name: str, x: list[float], expected: list[float]) -> None:
    g = Builder("map", "float64")
    graph = g.build(g.map("y", name, g.input("x", (3,)), **ATTRIBUTES.get(name, {})))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        np.testing.assert_allclose(run_graph(graph, {"x": np.array(x)})["y"], expected, atol=1e-300)


def test_comparison_with_an_attribute() -> None:
    g = Builder("map", "float64")
    graph = g.build(g.map("y", "greater", g.input("x", (3,)), value=1.5))
    assert graph.tensor("y").dtype == "bool"
    assert run_graph(graph, {"x": np.array([1.0, 1.5, 2.0])})["y"].tolist() == [False, False, True]


def test_iota_counts_from_the_start_of_the_box() -> None:
    g = Builder("iota", "float64")
    graph = g.build(g.iota("y", (4, 5), 1, start=2.0, step=0.5))
    (op,) = graph.operators
    expected = np.broadcast_to(2 + 0.5 * np.arange(5), (4, 5))
    np.testing.assert_array_equal(run_graph(graph, {})["y"], expected)
    np.testing.assert_array_equal(execute(np, op, graph, {"i0": (1, 3), "i1": (2, 5)}, []), expected[1:3, 2:5])


def routing(function: str, x: np.ndarray, over: str, **attributes: int) -> np.ndarray:
    g = Builder("routing", "float64")
    graph = g.build(g.normalise("y", function, "a b c -> a b c", g.input("x", x.shape), over=(over,), **attributes))
    assert [a.splittable for a in graph.operators[0].axes] == [a != over for a in "abc"]
    return run_graph(graph, {"x": x})["y"]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_k_mask_takes_the_lower_index_of_equal_elements(k: int) -> None:
    x = RNG.integers(0, 3, (5, 4, 6)) * 1.0
    expected = np.zeros(x.shape, dtype=bool)
    for at in np.ndindex(5, 6):
        order = sorted(range(4), key=lambda j: (-x[at[0], j, at[1]], j))
        expected[at[0], order[:k], at[1]] = True
    result = routing("top_k_mask", x, "b", k=k)
    assert result.dtype == bool
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumulative_sum(exclusive: int) -> None:
    x = RNG.standard_normal((3, 4, 5))
    expected = np.einsum("st,atc->asc", np.tril(np.ones((4, 4)), -exclusive), x)
    np.testing.assert_allclose(routing("cumulative_sum", x, "b", exclusive=exclusive), expected, atol=1e-14)


def test_part_of_an_axis_without_statistics_is_refused() -> None:
    g = Builder("routing", "float64")
    graph = g.build(g.normalise("y", "cumulative_sum", "a b -> a b", g.input("x", (3, 4)), over="b"))
    with pytest.raises(KernelError, match="operator 'y': axis 'b' must not be split"):
        execute(np, graph.operators[0], graph, {"a": (0, 3), "b": (1, 4)}, [Block(np.ones((3, 4)), (0, 0))])


def test_every_elementwise_name_has_a_kernel() -> None:
    names = {n for n, f in FUNCTIONS.items() if f.kind is NodeKind.MAP}
    assert set(MAPS) == names - set(GRADIENT_MAPS) == set(FORMULAS) | HOST_COPIES


def test_map_broadcasts_by_letters() -> None:
    g = Builder("bias", "float64")
    graph = g.build(g.map("y", "add", g.input("x", (2, 3, 4)), g.parameter("b", (3,)), text="b c y, c -> y b c"))
    values = random_inputs(graph, 1)
    expected = (values["x"] + values["b"][None, :, None]).transpose(2, 0, 1)
    np.testing.assert_allclose(run_graph(graph, values)["y"], expected)


def test_reduction_axes_without_operand_repeat_the_sum() -> None:
    g = Builder("repeat", "float64")
    x = g.input("x", (3,))
    axes = [Axis("a", 3), Axis("k", 4, Combine.SUM)]
    y = g.operator("y", "product", axes, [access(x, "a")], ["a"])
    graph = g.build(y, g.operator("z", "sum", axes, [access(x, "a")], ["a"]))
    values = random_inputs(graph, 0)
    for result in run_graph(graph, values).values():
        np.testing.assert_allclose(result, 4 * values["x"])


def test_large_windows_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    op, graph, arrays = single(convolution(size=9))
    expected = whole(op, graph, arrays)
    monkeypatch.setattr("shardproof.backends.kernels.contract._LIMIT", 50)
    np.testing.assert_allclose(whole(op, graph, arrays), expected, rtol=1e-13)


# --- layout -----------------------------------------------------------------------------------------------------------


def opaque() -> Graph:
    """x[b, 6, 4] -> y[p, b, q] with p x q = 3 x 8, row-major."""
    g = Builder("view", "float64")
    x = g.input("x", (2, 6, 4))
    axes = [Axis("p", 3), Axis("b", 2), Axis("q", 8)]
    where = [access(x, "b", Affine.everything(), Affine.everything())]
    return g.build(g.operator("y", "copy", axes, where, ["p", "b", "q"], {"reshape": 1}))


def test_opaque_view_is_a_row_major_reshape() -> None:
    op, graph, (x,) = single(opaque())
    expected = x.reshape(2, 3, 8).transpose(1, 0, 2)
    np.testing.assert_array_equal(whole(op, graph, [x]), expected)
    box = {"p": (1, 3), "b": (1, 2), "q": (2, 7)}
    np.testing.assert_array_equal(execute(np, op, graph, box, tight(op, graph, box, [x])), expected[1:3, 1:2, 2:7])


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_short_block_is_named() -> None:
    op, graph, (a, b) = single(einsum("m k, k n -> m n", (4, 5), (5, 3)))
    blocks = [Block(a[:, :3], (0, 0)), Block(b, (0, 0))]
    with pytest.raises(
        KernelError, match=r"operator 'y', input 0: dimension 1 needs \[0, 5\), the block holds \[0, 3\)"
    ):
        execute(np, op, graph, full_box(op.axes), blocks)


def test_a_missing_axis_is_named() -> None:
    op, graph, arrays = single(einsum("m k, k n -> m n", (4, 5), (5, 3)))
    with pytest.raises(KernelError, match="lacks axis 'k'"):
        execute(np, op, graph, {"m": (0, 4), "n": (0, 3)}, [Block(x, (0, 0)) for x in arrays])


# --- reference --------------------------------------------------------------------------------------------------------


def test_reference_of_the_perceptron_and_its_gradient() -> None:
    graph = build("mlp-unity-training", batch=5, inputs=7, hidden=6, classes=3, dtype="float64")
    v = random_inputs(graph, 3)
    out = run_graph(graph, v, keep=["relu1"])
    h = np.maximum(v["x"] @ v["w1"], 0)
    np.testing.assert_allclose(out["relu1"], h)
    np.testing.assert_allclose(out["fc2"], h @ v["w2"])
    np.testing.assert_allclose(out["w1.update"], v["w1"] - 0.01 * v["x"].T @ ((v["dy"] @ v["w2"].T) * (h > 0)))


def test_source_shapes_are_accepted() -> None:
    graph = build("attention", batch=2, tokens=3, width=8, heads=2, dtype="float64")
    values = random_inputs(graph, 0)
    flat = {t.name: values[t.name].reshape(t.source_shape or t.shape) for t in graph.tensors if t.name in values}
    assert any(flat[n].shape != values[n].shape for n in flat)
    for name, expected in run_graph(graph, values).items():
        np.testing.assert_array_equal(run_graph(graph, flat)[name], expected)


def test_attention_equals_the_formula() -> None:
    graph = build("attention", batch=2, tokens=3, width=8, heads=2, dtype="float64")
    v = random_inputs(graph, 0)
    p = {k.split(".", 1)[1]: v[k] for k in v if k != "x"}
    q, k, u = (np.einsum("bsm,mhd->bshd", v["x"], p[f"{n}.weight"]) + p[f"{n}.bias"] for n in ("query", "key", "value"))
    e = np.exp(np.einsum("bshd,bthd->bhst", q, k) / 2)
    mixed = np.einsum("bhst,bthd->bshd", e / e.sum(-1, keepdims=True), u)
    expected = np.einsum("bshd,hdm->bsm", mixed, p["output.weight"]) + p["output.bias"]
    np.testing.assert_allclose(run_graph(graph, v)[graph.outputs[0]], expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["bert-tiny", "conv-stack", "mlp-uneven"])
def test_zoo_models_run_and_are_reproducible(name: str) -> None:
    graph = build(name)
    first, again, other = (run_graph(graph, random_inputs(graph, s)) for s in (1, 1, 2))
    for o in graph.outputs:
        assert np.isfinite(first[o]).all() and first[o].std() > 0.01
        np.testing.assert_array_equal(first[o], again[o])
        assert not np.allclose(first[o], other[o])


def test_inputs_are_checked() -> None:
    graph = einsum("m k, k n -> m n", (4, 5), (5, 3))
    values = random_inputs(graph, 0)
    with pytest.raises(GraphError, match="'x1': no value given"):
        run_graph(graph, {"x0": values["x0"]})
    with pytest.raises(GraphError, match=r"'x0': has shape \(4, 5\), got an array of shape \(5, 4\)"):
        run_graph(graph, {**values, "x0": values["x0"].T})
    with pytest.raises(GraphError, match="'z': is not an input"):
        run_graph(graph, {**values, "z": values["x0"]})
    with pytest.raises(GraphError, match="'q': does not exist"):
        run_graph(graph, values, keep=["q"])

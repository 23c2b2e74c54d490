"""The NumPy tracer: whatever a function computes on arrays, its graph computes too; what cannot be traced is refused
with file and line.

The oracle is the function itself on NumPy arrays.  Aliasing is the hard part: a slice shares the buffer of its array,
so a write through one is seen through the other, also when the slice was taken before the write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import fuzz_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from shardproof.backends.execution.differential import SAMPLES, compare
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.kernels import KernelError
from shardproof.models.program.graph import GraphError, Role, UnsupportedOperators
from shardproof.models.program.index import Affine
from shardproof.models.program.opaque import OpaqueError, register, resolve
from shardproof.models.sources.building.original import Original
from shardproof.models.sources.building.python_file import load_file
from shardproof.models.sources.load import load_model
from shardproof.models.sources.numpy import recorder
from shardproof.models.sources.numpy.opaque import opaque
from shardproof.models.sources.numpy.program import ArraySpec, arguments_of, is_numpy_program, parameter, program
from shardproof.models.sources.numpy.trace import Traced, TraceError, graph_of, trace
from shardproof.models.text import InputError

X, Y = ArraySpec((6, 7)), ArraySpec((7,))
PROGRAMS = Path(__file__).parent / "programs" / "prog.py"


def check(function: Callable[..., object], seed: int = 0, **arguments: ArraySpec | tuple[int, ...]) -> Traced:
    """Trace, run the graph, run the function, compare all results with their shapes."""
    traced = trace(
        function, "program", {n: a if isinstance(a, ArraySpec) else ArraySpec(a) for n, a in arguments.items()}
    )
    drawn = random_inputs(traced.graph, seed, None)
    outputs = run_graph(traced.graph, drawn)
    shapes = {t.name: t.source_shape or t.shape for t in traced.graph.tensors}
    found = function(**{n: drawn[n].reshape(shapes[n]).copy() for n in traced.arguments})
    expected = list(found) if isinstance(found, (tuple, list)) else [found]
    assert len(expected) == len(traced.results)
    for (name, shape), want in zip(traced.results, expected, strict=True):
        assert shape == np.shape(want)
        np.testing.assert_allclose(outputs[name].reshape(shape), want, rtol=1e-12, atol=1e-12)
        assert np.dtype(traced.graph.tensor(name).dtype) == np.asarray(want).dtype
    return traced


# --- functions
# -----------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., object]] = {
    "numbers": lambda x, y: (x + 1, 1 - x, x * 3, x / 4, 2 / (x * x + 1), -x, +x, x**2, 2**x, abs(x), x % 1.0),
    "arrays": lambda x, y: (x + y, x - y, x * y, x / (y * y + 1), np.maximum(x, y), np.minimum(y, x)),
    "elementwise": lambda x, y: (
        np.exp(x),
        np.tanh(x),
        np.sqrt(x * x),
        np.log(x * x + 1),
        np.sin(x),
        np.cos(x),
        np.sign(x),
        np.floor(x),
        np.square(x),
    ),
    "composed": lambda x, y: (
        np.log1p(x * x),
        np.expm1(x),
        np.reciprocal(x * x + 1),
        np.clip(x, -0.5, None),
        np.clip(x, -0.5, 0.25),
        np.maximum(x, 0),
        np.minimum(1, x),
    ),
    "comparisons": lambda x, y: (
        x > 0,
        0 < x,
        x <= y,
        x == y,
        x != y,
        (x > 0) & (x < 1),
        (x > 0) | (y > 0),
        ~(x > 0),
        np.logical_not(x > 1),
    ),
    "choices": lambda x, y: (
        np.where(x > 0, x, 0.5),
        np.where(x > 0, 0.5, x),
        np.where(x > y, x, y),
        np.where(x > 0, 1.0, 0.0),
    ),
    "mixed types": lambda x, y: (
        (x > 0) * x,
        (x > 0) + y,
        x * np.arange(7),
        x.astype("int32") * 3,
        x.astype("float32") + 1,
        (x > 0).sum(axis=0),
    ),
    "sums": lambda x, y: (
        x.sum(),
        x.sum(axis=0),
        np.sum(x, axis=(0, 1), keepdims=True),
        np.add.reduce(x, axis=-1),
        x.mean(axis=1),
        np.mean(x),
    ),
    "extremes": lambda x, y: (
        x.max(),
        np.max(x, axis=0),
        np.minimum.reduce(x, axis=1, keepdims=True),
        np.amin(x),
        (x > 1).any(axis=0),
        np.all(x > -1, axis=1),
    ),
    "spread": lambda x, y: (x.var(axis=0), np.std(x, axis=1, ddof=1), np.cumsum(x, axis=1), np.add.accumulate(y)),
    "contractions": lambda x, y: (
        x @ x.T,
        x @ y,
        y @ x.T,
        np.dot(x, y),
        np.inner(x, x),
        np.outer(y, y),
        np.vdot(x, x),
        np.tensordot(x, x, axes=([0], [0])),
    ),
    "einsum": lambda x, y: (
        np.einsum("ij,j->i", x, y),
        np.einsum("ij,kj", x, x),
        np.einsum("ij->ji", x),
        np.einsum("ij->j", x),
        np.einsum("...j,j->...", x, y),
        np.einsum("ij,kj,lj->ikl", x, x, x),
        np.einsum("ii->i", x[:, :6]),
        np.trace(x[:6, :6]),
        np.einsum("i,i->", y, y),
    ),
    "shapes": lambda x, y: (
        x.T,
        x.transpose(1, 0),
        np.swapaxes(x, 0, 1),
        np.moveaxis(x[None], 0, 2),
        x[:, None],
        np.expand_dims(x, (0, 2)),
        np.squeeze(x[None, :, :]),
        np.broadcast_to(y, (3, 7)),
        x.copy(),
    ),
    "reshapes": lambda x, y: (
        x.reshape(7, 6),
        x.ravel(),
        x.reshape(2, 3, -1).sum(axis=1),
        x.T.reshape(-1),
        x.flatten() * 2,
        np.reshape(x, (6, 1, 7)) + y,
    ),
    "slices": lambda x, y: (
        x[1:4],
        x[::2, 1::3],
        x[-1],
        x[2, 3],
        x[..., -2],
        x[1:, None, :3],
        y[::-1],
        x[:, ::-2],
        x[4:1:-1],
    ),
    "gathers": lambda x, y: (
        x[1, [0, 2, 5]],
        x[[0, 2, 5], 3],
        x[[0, 2, 5]],
        x[:, np.array([[1, -1], [0, 3]])],
        np.take(x, [1, 1], axis=1),
        np.take(y, 3),
        x[np.arange(1, 6, 2)],
    ),
    "joins": lambda x, y: (
        np.concatenate([x, x[:2]]),
        np.concatenate([x[:, 1:3], x], axis=1),
        np.stack([y, y * 2]),
        np.stack([y, y], axis=1),
        np.vstack([y, y]),
        np.hstack([x, x]),
        np.concatenate([x[::2], x[1::2]]),
        np.concatenate([x.T, x.T + 1]),
        np.concatenate([x, x], axis=None),
    ),
    "splits": lambda x, y: (
        *np.split(x, 3),
        *np.split(x, [2, 5], axis=1),
        *np.array_split(x, 4),
        *np.array_split(y, 3),
    ),
    "pads": lambda x, y: (
        np.pad(x, 1),
        np.pad(x, ((0, 2), (1, 0))) + 1,
        np.pad(x[1:3], 1),
        np.pad(np.pad(y, 1), 1),
        np.pad(x, 1)[::2, 1:],
        np.pad(y, 2, mode="wrap"),
        np.pad(x, ((1, 2), (0, 1)), mode="edge"),
        np.max(np.pad(x - 10, 1), axis=0),
        np.concatenate([np.pad(y, 1), y]),
        np.roll(np.pad(y, 1), 2),
    ),
    "rolls": lambda x, y: (
        np.roll(x, 2, axis=0),
        np.roll(x, (1, -1), axis=(0, 1)),
        np.roll(x, 3),
        np.roll(x[1:5], 1, axis=0),
        np.roll(x, 7, axis=1),
    ),
    "windows": lambda x, y: (
        sliding_window_view(x, (3, 2)).sum(axis=(-2, -1)),
        sliding_window_view(x, 3, axis=0)[::2].max(axis=-1),
        np.einsum("yxkl,kl->yx", sliding_window_view(np.pad(x, 1), (3, 3)), np.arange(9.0).reshape(3, 3)),
        sliding_window_view(y, 2) * 2,
        sliding_window_view(sliding_window_view(y, 3), 2, axis=0).sum(axis=-1),
    ),
    "outer ufuncs": lambda x, y: (np.add.outer(x, y), np.multiply.outer(y, y), np.maximum.outer(y, y)),
    "constants": lambda x, y: (
        x + np.eye(6, 7),
        x * np.arange(7.0),
        np.ones(7) + y,
        x[:, [1]] - np.full((6, 1), 2.5),
        np.zeros_like(x) + y,
        np.full_like(y, 3),
    ),
    "segments": lambda x, y: (
        np.add.reduceat(y, [0, 2, 2, 5]),
        np.add.reduceat(x, np.array([0, 3])),
        np.add.reduceat(x, [0, 2, 4]),
        np.add.reduceat(y, [1, 3, 5]),
    ),
    "arguments and repeats": lambda x, y: (x, x, y, x.T, x.T),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_computes_what_the_function_computes(name: str) -> None:
    check(FUNCTIONS[name], x=X, y=Y)


def test_gathers_by_arguments() -> None:
    ids = ArraySpec((3, 4), "int64")
    check(lambda t, i: (t[i], t[:, i[0]], np.take(t, i, axis=1).sum(axis=-1), t[i[1:, ::2]]), t=(9, 9), i=ids)


def test_constants_further_apart_than_integers_reach_are_no_run() -> None:
    """-2**63 after 2**62 is a step that no integer type has."""
    far = np.array([1 << 62, -(1 << 63)])
    for constant in (far, far + 1, np.array([1 << 62, 0])):
        check(lambda i, c=constant: i < c, i=ArraySpec((2,), "int64"))


def test_float32_stays_float32() -> None:
    traced = check(lambda x: (x * 2 + 1, np.maximum(x, 0) / 3, x.mean()), x=ArraySpec((5,), "float32"))
    assert {t.dtype for t in traced.graph.tensors} == {"float32"}


@settings(max_examples=60)
@given(st.data())
def test_any_chain_of_views(data: st.DataObject) -> None:
    """Slices, transposes, new axes, windows, padding and reshapes in any order are one access map or a copy, never
    another value.
    """
    steps = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    draws = [data.draw(st.integers(0, 10**6)) for _ in steps]

    def chain(x):
        for kind, seed in zip(steps, draws, strict=True):
            rng = np.random.default_rng(seed)
            d = int(rng.integers(x.ndim))
            n = x.shape[d]
            if kind == 0:
                start, step = int(rng.integers(n)), int(rng.integers(1, 4))
                x = x[(slice(None),) * d + (slice(start, n, step),)]
            elif kind == 1:
                x = x.transpose([int(k) for k in rng.permutation(x.ndim)])
            elif kind == 2 and x.ndim < 5:
                x = x[(slice(None),) * d + (None,)]
            elif kind == 3 and x.ndim < 5:
                x = sliding_window_view(x, int(rng.integers(1, min(n, 3) + 1)), axis=d)
            elif kind == 4:
                x = np.pad(x, [(int(rng.integers(3)), int(rng.integers(2))) for _ in range(x.ndim)])
            elif kind == 5:
                x = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
            elif kind == 6:
                x = np.roll(x, int(rng.integers(-2, 3)), axis=d)
        return x * 2 + 1, x.sum(axis=0)

    check(chain, x=(4, 5))


# --- writes
# ----------------------------------------------------------------------------------------------------------------


def whole_updates(x, y):
    x = x.copy()
    x += y
    x *= 2
    np.subtract(x, 1, out=x)
    return x


def parts(x, y):
    x = x.copy()
    x[1:3, 2:] = y[2:]
    x[0] = 0.5
    x[:, 6] += 1
    x[4, 4] = y[0]
    x[5:, :1] = x[:1, :1]
    return x


def aliases(x, y):
    x = x.copy()
    before, turned, row = x[1:4], x.T, x[2]
    x[2] = y
    turned[0] = 7
    row *= 2
    kept = x.copy()
    before -= 1
    return x, before, turned, row, kept


def reshaped(x, y):
    x = x.copy()
    flat = x.reshape(-1)
    x[0] = y
    return flat, flat[:7] + 1


def swapped(x, y):
    a, b = x.copy(), x * 2
    a[0], b[0] = b[0], a[0].copy()
    a[1:3] = a[2:4]
    return a, b


def filled(x, y):
    z = np.empty_like(x)
    z[...] = 1
    z[:, 1:] = x[:, :-1]
    w = np.zeros_like(x, shape=(3, 7))
    w[1] = y
    np.copyto(z, x, "same_kind") if False else None
    return z, w


@pytest.mark.parametrize("function", [whole_updates, parts, aliases, reshaped, swapped, filled])
def test_writes(function: Callable[..., object]) -> None:
    check(function, x=X, y=Y)


@settings(max_examples=60)
@given(st.integers(0, 10**9))
def test_any_writes_through_any_views(seed: int) -> None:
    """A pool of arrays that share buffers in every way NumPy allows; writes through any of them are seen through
    all of them.
    """

    def play(x, y):
        rng = np.random.default_rng(seed)
        pool = [x.copy(), y.copy()]
        for _ in range(8):
            a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            d = int(rng.integers(a.ndim)) if a.ndim else 0
            lead = (slice(None),) * d
            n = a.shape[d] if a.ndim else 1
            low = int(rng.integers(n))
            kind = int(rng.integers(9)) if a.ndim else 8
            if kind == 0:
                pool.append(a[(*lead, slice(low, n))])
            elif kind == 1:
                pool.append(a[(*lead, low)])
            elif kind == 2:
                pool.append(a.T)
            elif kind == 3 and a.ndim < 4:
                pool.append(a[(*lead, None)])
            elif kind == 4:
                a[(*lead, slice(low, n))] = float(rng.integers(5))
            elif kind == 5:
                a[(*lead, low)] = a[(*lead, n - 1)] * 2
            elif kind == 6:
                a += b.sum() * 0.1
            elif kind == 7:
                np.multiply(a, 0.5, out=a)
            else:
                pool.append(a.copy() + 1)
        return pool

    check(play, x=(3, 4), y=(5,))


def test_a_write_reads_only_what_it_needs() -> None:
    """Both ends of an update are exact: a rank below the written rows needs nothing of the value."""
    traced = trace(lambda x, v: _written(x, v), "p", {"x": ArraySpec((8,)), "v": ArraySpec((3,))})
    update = next(op for op in traced.graph.operators if op.function == "update")
    value = update.inputs[1].index[0]
    assert value == Affine((("i0", 1),), -2)
    assert value.interval({"i0": (0, 2)}, 3) == (0, 0) and value.interval({"i0": (3, 8)}, 3) == (1, 3)


def _written(x, v):
    x = x.copy()
    x[2:5] = v
    return x


def test_regular_positions_are_affine() -> None:
    """Equal segments and positions at equal steps need no gather, so that a rank reads exactly its part."""
    traced = trace(lambda x: (np.add.reduceat(x, [0, 2, 4]), x[[1, 3, 5]] + 1), "p", {"x": ArraySpec((6,))})
    segments, picked = traced.graph.operators
    assert segments.inputs[0].index[0] == Affine((("i0", 2), ("bag", 1))) and segments.function == "sum"
    assert picked.inputs[0].index[0] == Affine((("i0", 2),), 1)


# --- names, arguments, files
# ---------------------------------------------------------------------------------------------------


def test_operators_are_called_like_variables() -> None:
    def named(x, w):
        hidden = x @ w
        total = np.exp(hidden).sum()
        for _ in range(2):
            total = total + 1
        return total

    traced = trace(named, "named", {"x": X, "w": ArraySpec((7, 3))})
    assert [op.name for op in traced.graph.operators] == ["hidden", "exp", "total", "total_2", "total_3"]
    assert [a.name for a in traced.graph.operators[0].axes] == ["m", "n", "k"]


def test_what_no_result_needs_is_left_out() -> None:
    traced = trace(lambda x: (np.exp(x), x + 1)[1], "p", {"x": X})
    assert [op.function for op in traced.graph.operators] == ["shift"]


def test_arguments() -> None:
    @program("float32", x=(2, 3), w=parameter(3, 4), ids=ArraySpec((5,), "int32"))
    def f(x, w, ids, scale=2.0):
        return x @ w * scale

    specs = arguments_of(f)
    assert [(n, s.shape, s.dtype, s.role) for n, s in specs.items()] == [
        ("x", (2, 3), "float32", Role.INPUT),
        ("w", (3, 4), "float64", Role.PARAMETER),
        ("ids", (5,), "int32", Role.INPUT),
    ]
    assert f(np.ones((2, 3)), np.ones((3, 4)), None)[0, 0] == 6.0
    assert is_numpy_program(f) and not is_numpy_program(check) and not is_numpy_program(3)
    with pytest.raises(GraphError, match=r"has no argument 'z'"):
        arguments_of(program(z=(2,))(lambda x: x))
    with pytest.raises(GraphError, match=r"argument 'x' has no shape"):
        arguments_of(lambda x: x)
    with pytest.raises(GraphError, match=r"extent must be an integer of at least 1"):
        trace(lambda x: x + 1, "p", {"x": ArraySpec((0, 2))})
    with pytest.raises(GraphError, match=r"unknown element type 'complex64'"):
        trace(lambda x: x + 1, "p", {"x": ArraySpec((2,), "complex64")})


def test_programs_of_a_file() -> None:
    assert load_model(f"{PROGRAMS}:matmul").operators[0].name == "matmul"
    assert [op.function for op in load_model(f"{PROGRAMS}:softmax").operators] == [
        "max",
        "subtract",
        "exp",
        "sum",
        "divide",
    ]
    assert {t.dtype for t in load_model(f"{PROGRAMS}:mlp").tensors} == {"float32"}
    with pytest.raises(InputError, match=r"prog.py has no 'nothing'; it has: .*matmul"):
        load_model(f"{PROGRAMS}:nothing")
    with pytest.raises(InputError, match=r"no such file"):
        load_model("missing.py:f")
    with pytest.raises(ValueError, match=r"prog.py:plain"):
        load_model(f"{PROGRAMS}:plain")


# --- refusals
# ----------------------------------------------------------------------------------------------------------------


def test_every_unsupported_function_is_listed_with_its_lines() -> None:
    with pytest.raises(UnsupportedOperators) as error:
        load_model(f"{PROGRAMS}:unsupported")
    lines = PROGRAMS.read_text().splitlines()
    sort, norm = (next(n for n, line in enumerate(lines, 1) if name in line) for name in ("np.sort", "np.linalg.norm"))
    assert error.value.missing == {
        "np.sort": [f"prog.py:{sort}"],
        "np.linalg.norm": [f"prog.py:{norm}"],
        "np.hypot": [f"prog.py:{norm}"],
    }


def into_numpy(x):
    z = np.zeros((6, 7))
    z[:] = x
    return z


def through_a_reshape(x):
    x = x.copy()
    x.reshape(-1)[3] = 1
    return x


def with_a_step(x):
    x = x.copy()
    x[::2] = 1
    return x


REFUSED: dict[str, tuple[Callable[..., object], str]] = {
    "condition": (lambda x: x if x[0, 0] > 0 else -x, "a condition depends on the data"),
    "number": (lambda x: x * float(x[0, 0]), r"float\(\) depends on the data"),
    "length": (lambda x: x[: x[0, 0]], "depends on the data"),
    "mask": (lambda x: x[x > 0], "selection by a condition has a data-dependent shape"),
    "one-sided where": (lambda x: np.where(x > 0), "data-dependent shape"),
    "into a NumPy array": (into_numpy, "goes into a NumPy array"),
    "write through a reshape": (through_a_reshape, "write through a reshaped array"),
    "write with a step": (with_a_step, "a write with a step"),
    "empty slice": (lambda x: x[3:3] + 1, "is empty"),
    "index out of bounds": (lambda x: x[6], "out of bounds"),
    "gather out of bounds": (lambda x: x[[0, 6]], "out of bounds"),
    "shapes": (lambda x: x + x.T, "cannot be broadcast"),
    "matmul shapes": (lambda x: x @ x, "do not fit"),
    "einsum extents": (lambda x: np.einsum("ij,ik->jk", x, x.T), "extents"),
    "einsum rank": (lambda x: np.einsum("i->", x), "does not fit"),
    "reshape": (lambda x: x.reshape(5, -1), "cannot reshape"),
    "argument": (lambda x: np.sum(x, where=x > 0), "not supported"),
    "method": (lambda x: x.argsort(), "array.argsort is not supported"),
    "attribute of random": (lambda x: x.real, "not supported"),
    "array and integer apart": (lambda x: x[None][0, :, [0, 2]], "with a slice between"),
    "fraction into integers": (
        lambda x: np.add(x.astype("int64"), 0.5, out=x.astype("int64")),
        "cannot write float64 into an array of int64",
    ),
    "two index arrays": (lambda x: x[[0, 1], [1, 2]], "more than one index array"),
    "large constant": (lambda x: x.sum() + np.random.default_rng(0).random(70000), "make it an argument"),
    "complex": (lambda x: x * 1j, "not supported"),
    "no array": (lambda x: 3, "is not an array"),
    "integer power": (lambda x: x.astype("int64") ** 3, "exponent 2 only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_place(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises((TraceError, UnsupportedOperators), match=message) as error:
        trace(function, "p", {"x": X})
    assert name == "no array" or "test_numpy_trace.py:" in str(error.value)


# --- opaque kernels
# ------------------------------------------------------------------------------------------------------------


def rows(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_an_opaque_kernel_is_split_where_its_reference_needs_no_communication() -> None:
    fast = opaque(reference=rows)(lambda x: rows(x))
    (op,) = trace(lambda x: fast(x), "p", {"x": ArraySpec((4, 5, 6))}).graph.operators
    assert op.function == "opaque" and [(a.name, a.splittable) for a in op.axes] == [
        ("i0", True),
        ("i1", True),
        ("i2", False),
    ]
    assert [i.whole for i in op.inputs[0].index] == [False, False, True]


@pytest.mark.parametrize(
    ("reference", "shapes", "free"),
    [
        (lambda a, b: a @ b, ((4, 5), (5, 6)), "mnk"),  # one contraction keeps its summed axis
        (lambda a, b: np.tanh(a @ b), ((4, 5), (5, 6)), "01"),
        (lambda a: a + a.T, ((4, 4),), ""),  # one class twice in one operator
        (lambda a: np.cumsum(a, axis=0), ((4, 5),), "1"),
        (lambda a: a[1:] - a[:-1], ((4, 5),), "1"),
        (lambda a: np.concatenate([a, a]), ((4, 5),), "1"),
        (lambda a: a - a.mean(axis=0), ((4, 5),), "1"),
        (lambda a, b: a * b, ((4, 5), (5,)), "01"),
        (lambda a: a + np.arange(5.0), ((4, 5),), "0"),  # positions inside the reference
        (lambda a: sliding_window_view(a, 3, axis=0).sum(axis=-1), ((6, 5),), "1"),
    ],
)
def test_schedule_consistency(reference: Callable[..., object], shapes: tuple[tuple[int, ...], ...], free: str) -> None:
    """Split axes of the opaque operator are exactly those along which the reference needs nothing from elsewhere:
    running the reference on slices gives the slices of its result."""
    call = opaque(reference=reference)(lambda *a: reference(*a))
    names = "xyz"[: len(shapes)]
    function = {1: lambda x: call(x), 2: lambda x, y: call(x, y)}[len(shapes)]
    traced = check(function, **dict(zip(names, shapes, strict=True)))
    (op,) = traced.graph.operators
    assert "".join(a.name[-1] for a in op.axes if a.splittable) == free
    values = random_inputs(traced.graph, 3)
    whole = run_graph(traced.graph, values)[op.output.tensor]
    for axis in op.axes:
        if not axis.splittable:
            continue
        parts = []
        for low, high in ((0, 2), (2, axis.extent)):
            box = {a.name: (low, high) if a.name == axis.name else (0, a.extent) for a in op.axes}
            cut = [
                values[a.tensor][
                    tuple(slice(*i.interval(box, n)) for i, n in zip(a.index, values[a.tensor].shape, strict=True))
                ]
                for a in op.inputs
            ]
            parts.append(reference(*cut))
        joined = sum(parts) if axis.combine else np.concatenate(parts, axis=op.output.axes.index(axis.name))
        np.testing.assert_allclose(joined, whole, rtol=1e-12)


def test_an_opaque_kernel_that_is_not_registered_is_refused_politely() -> None:
    with pytest.raises(OpaqueError, match=r"'no_such_module:f' .* run --allow-kernel no_such_module:f"):
        resolve("no_such_module:f")
    call = opaque(reference=rows)(lambda x: rows(x))
    traced = trace(lambda x: call(x), "p", {"x": X})
    name = str(traced.graph.operators[0].attribute("kernel", ""))
    register(name, lambda x: x[:1])
    with pytest.raises(KernelError, match=r"returned an array of shape \(1, 7\), its reference one of shape \(6, 7\)"):
        run_graph(traced.graph, random_inputs(traced.graph, 0))


def test_digits_leave_opaque_operands_alone() -> None:
    """A reshape beside an opaque kernel must not cut the axes that the user's function sees."""
    seen = []

    @opaque(reference=rows)
    def kernel(x):
        seen.append(x.shape)
        return rows(x)

    check(lambda x: kernel(x).reshape(2, 3, 7).sum(axis=1), x=X)
    check(lambda x: kernel(x.reshape(3, 14)), x=X)
    assert set(seen) == {(6, 7), (3, 14)}


def test_modules_with_an_odd_path_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ModuleType("odd")
    odd.__path__ = object()  # type: ignore[assignment]  # as that of torch.classes
    monkeypatch.setitem(sys.modules, "odd", odd)
    (tmp_path / "odd_neighbour.py").write_text("def twice(x):\n    return x + x\n")
    assert load_file(tmp_path / "odd_neighbour.py").twice(2) == 4


def test_a_loop_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`for i in range(2**100)` recorded operators until the memory was full."""
    monkeypatch.setattr(recorder, "MOST_OPERATORS", 50)

    def endless(a):  # type: ignore[no-untyped-def]
        while True:
            a = np.maximum(a * 2.0, 0.5)

    with pytest.raises(TraceError, match="more than 50 operators; loops are recorded iteration by iteration"):
        trace(program(a=(2, 3))(endless))


# --- found by the fuzzer (`fuzz_numpy`)
# ----------------------------------------------------------------------------------------------------------------

FOUND: dict[str, tuple[Callable[..., object], dict[str, ArraySpec]]] = {
    "indices that count from the end": (
        lambda x, i: (x[i], x[..., i], np.take(x, i, axis=0)),
        {"x": ArraySpec((6, 6)), "i": ArraySpec((4,), "int8")},
    ),
    "NaN passed over by fmax": (lambda x, y: (np.fmax(x, y), np.fmin(x, 0.5)), {"x": X, "y": Y}),
    "remainders of multiples": (lambda x: (x % 49.0, x % 0.1, x % np.inf), {"x": X}),
    "sums in another type": (lambda x: (x.sum(dtype="int32"), np.add.reduce(x, dtype="float32")), {"x": X}),
    "running sums of integers": (lambda i: (np.cumsum(i), np.trace(i), np.add.reduceat(i, [0, 1])), {"i": ArraySpec((3, 3), "int8")}),
    "one to any power": (lambda x: 1.0**x, {"x": X}),
    "small differences": (lambda x: (np.expm1(x * 1e-3), x.std()), {"x": X}),
    "minus zero": (lambda x: (1 / np.full_like(x, -0.0), 1 / np.roll(x * -0.0, 1), 1 / np.pad(x * -0.0, 1)), {"x": X}),
    "NaN everywhere": (lambda x: np.where(x > 0, x, np.full(x.shape, np.nan)), {"x": X}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found_by_the_fuzzer(name: str) -> None:
    function, arguments = FOUND[name]
    taken: list[Original] = []
    graph = graph_of(function, "found", arguments, taken.append)
    assert compare(graph, taken[0]).samples >= len(SAMPLES) - 1  # outside raises in NumPy


@pytest.mark.parametrize(
    ("function", "dtype", "told"),
    [
        (lambda x: np.reciprocal(x), "int32", "np.reciprocal of integers"),
        (lambda x: x**2, "bool", "powers of truth values"),
        (lambda x: np.inf**x, "float64", "needs a number on one side"),
        (lambda x: np.trace(x[:2]), "float64", r"np.trace of an array of shape \(2, 3\)"),
    ],
)
def test_what_the_fuzzer_found_and_is_refused(function: Callable[..., object], dtype: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        trace(function, "refused", {"x": ArraySpec((3, 3), dtype)})


def test_a_part_of_the_fuzzer() -> None:
    found = fuzz_numpy.Found()
    fuzz_numpy.fuzz(range(1000), found)
    assert found.wrong == [] and found.broken == [] and found.accepted > 500

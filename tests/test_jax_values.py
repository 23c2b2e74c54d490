"""JAX programs compute what JAX computes, also where an index, a region or a type decides: every fault that was found
has its name here, and a part of the fuzzer runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import fuzz_jax
import jax.numpy as jnp
from jax import lax
from jax._src.lax.lax import lt_to_p

from shardproof.backends.execution.differential import compare
from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, GraphError, UnsupportedOperators
from shardproof.models.sources.building.original import Comparison, Differs, Original
from shardproof.models.sources.jax import handlers, original
from shardproof.models.sources.jax.importer import graph_of

F32, I32, BOOL = "float32", "int32", "bool"


def of(function: Callable[..., object], *arguments: object) -> tuple[Graph, Comparison]:
    """The graph, compared with JAX."""
    taken: list[Original] = []
    shapes = [jax.ShapeDtypeStruct(*a) if isinstance(a, tuple) else a for a in arguments]
    graph = graph_of("here", "program", function, shapes, original=taken.append)
    return graph, compare(graph, taken[0], trained=True)


TABLE, IDS, ROW = ((4, 2), F32), ((3,), I32), ((2, 4), F32)

I8 = "int8"
RIGHT: dict[str, tuple[Callable[..., object], ...]] = {
    "products of bytes summed in a wider type": (
        lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type="int32"),
        ((3, 40), I8),
        ((40, 2), I8),
    ),
    "windows of bytes summed in a wider type": (
        lambda x, w: lax.conv(x, w, (1, 1), "SAME", preferred_element_type="int32"),
        ((1, 3, 5, 5), I8),
        ((2, 3, 3, 3), I8),
    ),
    "products of bytes": (lambda a, b: a @ b, ((3, 4), I8), ((4, 2), I8)),
    "take clipped": (lambda w, i: jnp.take(w, i, axis=0, mode="clip"), TABLE, IDS),
    "take wrapped": (lambda w, i: jnp.take(w, i, axis=1, mode="fill"), TABLE, IDS),
    "take filled": (lambda w, i: w.at[i].get(mode="fill", fill_value=7), TABLE, IDS),
    "indexed": (lambda w, i: w[i], TABLE, IDS),
    "indexed behind": (lambda w, i: w[:, i], TABLE, IDS),
    "along axis": (lambda w, i: jnp.take_along_axis(w, i[None, :1] * jnp.ones((4, 1), int), 1), TABLE, IDS),
    "masked take": (
        lambda w, i, m: jnp.nansum(jnp.where(m > 0, jnp.take(w, i), jnp.nan)), ((6,), F32), ((4,), I32), ((4,), F32),
    ),
    "clamped indices": (lambda w, i: w[jnp.clip(i, 0, 3)], TABLE, IDS),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=1), ROW),
    "finite": (lambda x: (jnp.isfinite(x), jnp.isnan(x), jnp.isinf(x)), ROW),
    "top k": (lambda x: lax.top_k(x * x, 2), ROW),
    "gates": (lambda x: lax.top_k(jax.nn.softmax(x), 3), ROW),
    "running maximum": (lambda x: lax.cummax(x, 1), ROW),
    "running minimum": (lambda x: lax.cummin(x, 1), ROW),
    "whole minimum": (lambda i: lax.cummin(i, 0), IDS),
    "integers from reals": (lambda x: (x.astype(I32), x.astype("int8"), x.astype("uint8")), ROW),
    "written outside": (lambda x: x.at[9].set(1.0), TABLE),
    "written outside, clipped": (lambda x: x.at[9].set(1.0, mode="clip"), TABLE),
    "written at a listed place": (lambda x: x.at[jnp.array([2])].set(3.0), TABLE),
    "part clamped": (lambda x: lax.dynamic_slice(x, (3, -1), (2, 2)), TABLE),
    "update clamped": (lambda x: lax.dynamic_update_slice(x, jnp.ones((2, 1)), (3, 1)), TABLE),
    "exclusive or": (lambda a, b: (a ^ b, ~a, a | b), ((5,), BOOL), ((5,), BOOL)),
    "bits of constants": (lambda x: x * (jnp.arange(4) & 2), ROW),
    "nan everywhere": (lambda x: jnp.where(x > 0, x, jnp.full(4, jnp.nan)), ROW),
    "minus zero": (lambda x: 1 / jnp.where(x > 0, x, -0.0), ROW),
    "counters from one half": (lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.where((i > 1) & (i < 3), y + i, y), x), ROW),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_values_are_those_of_jax(name: str) -> None:
    function, *arguments = RIGHT[name]
    _, found = of(function, *arguments)
    assert found.samples + found.undefined == 6 and found.samples >= 4 and not found.left_out


REFUSED: dict[str, tuple[str, Callable[..., object], tuple[tuple[int, ...], str]]] = {
    "logsumexp runs": (r"windows combined by a region of stablehlo.maximum, stablehlo.subtract", lambda x: lax.cumlogsumexp(x, 1), ROW),
    "window of two": (
        r"windows combined by a region of stablehlo.add, stablehlo.constant, stablehlo.add",
        lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b + 1, (1, 2), (1, 1), "VALID"), ROW,
    ),
    "window of one twice": (
        "windows combined by a region of stablehlo.add;",
        lambda x: lax.reduce_window(x, 0.0, lambda a, b: lax.add(a, a), (1, 2), (1, 1), "VALID"), ROW,
    ),
    "window from one": (
        "windows that start from something else than nothing",
        lambda x: lax.reduce_window(x, 1.0, lax.add, (1, 2), (1, 1), "VALID"), ROW,
    ),
    "window of a dilated input": (
        "windows over a dilated input",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "VALID", base_dilation=(1, 2)), ROW,
    ),
    "window of a cut input": (
        "negative padding",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), ((0, 0), (-1, 0))), ROW,
    ),
    "reduction of two": ("by a region of stablehlo.abs", lambda x: lax.reduce(x, 0.0, lambda a, b: abs(a) + abs(b), (1,)), ROW),
    "second one": ("by a region of nothing", lambda x: lax.reduce(x, 0.0, lambda a, b: b, (1,)), ROW),
    "positions of maxima": ("reduces 2 operands by a region", lambda x: jnp.argmax(x, 1), ROW),
    "integers from five": ("starts from something else than nothing", lambda i: lax.reduce(i, np.int32(5), lax.max, (0,)), IDS),
    "bits": ("bits of whole numbers", lambda i: i & 3, IDS),
    "bits reduced": ("of the bits of int32", lambda i: lax.reduce(i, np.int32(-1), lax.bitwise_and, (0,)), IDS),
    "unsigned": ("element type 'uint32' is not supported", lambda i: i.astype("uint32") + 1, IDS),
    "scatter that adds": ("combines by a region of stablehlo.add", lambda x: x.at[1].add(2.0), TABLE),
    "clamped truth": ("a clamp of truth values", lambda m: lax.clamp(True, m, False), ((5,), BOOL)),
    "total order": ("total order", lambda x: lt_to_p.bind(x, x + 1), ROW),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_whole_is_refused(name: str) -> None:
    told, function, argument = REFUSED[name]
    with pytest.raises((GraphError, UnsupportedOperators), match=told):
        of(function, argument)


def test_the_values_of_the_public_files() -> None:
    graph, _ = of(lambda w, i: jnp.take(w, i, axis=0, mode="clip"), TABLE, IDS)
    given = {"w": np.arange(8.0).reshape(4, 2), "i": np.array([1, 9, -3])}
    assert run_graph(graph, given)[graph.outputs[0]].tolist() == [[2, 3], [6, 7], [0, 1]]
    graph, _ = of(lambda w, i: jnp.take(w, i, axis=0), TABLE, IDS)
    filled = run_graph(graph, given)[graph.outputs[0]]  # -3 counts from the end
    np.testing.assert_equal(filled, [[2, 3], [np.nan, np.nan], [2, 3]])
    function, *arguments = RIGHT["masked take"]
    graph, _ = of(function, *arguments)
    drawn = {"w": np.arange(6.0), "i": np.array([1, 2, 3, 5]), "m": np.array([1.0, 0, 1, 0])}
    assert run_graph(graph, drawn)[graph.outputs[0]] == 4


def test_the_order_of_nan_is_open() -> None:
    """Its sign says where XLA puts it, and the hardware chooses that: sets of numbers that show it are passed over."""
    _, found = of(lambda x: lax.top_k(jax.nn.softmax(x), 2), ((32, 16), F32))
    assert found.undefined == 1 and found.samples == 5


def test_indices_that_lie_inside_are_not_pushed() -> None:
    functions = [op.function for op in of(*RIGHT["clamped indices"])[0].operators]
    assert functions.count("clip") <= 1
    assert "clip" not in [op.function for op in of(*RIGHT["gates"])[0].operators]


def test_a_wrong_import_is_found_with_its_first_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**handlers.HANDLERS, "stablehlo.sine": handlers.HANDLERS["stablehlo.cosine"]}
    monkeypatch.setattr(handlers, "HANDLERS", wrong)
    with pytest.raises(
        Differs, match=r"generic numbers.*it appears first in equation 1 \(sin\) at test_jax_values.py:\d+"
    ):
        of(lambda x: jnp.tanh(jnp.sin(x * 2)) + 1, ROW)
    with pytest.raises(Differs, match=r"it appears first in equation 1 \(sin\) at"):  # inside of a function of its own
        of(
            lambda p, x: jax.jit(lambda y: (jnp.sin(p["w"] * y), jax.nn.relu(y)))(x),
            {"w": jax.ShapeDtypeStruct(*ROW)},
            ROW,
        )


def test_an_xla_without_our_options_compares_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original, "PLAIN", {"xla_disable_hlo_passes": "algsimp", "xla_option_of_tomorrow": 1})
    found = of(lambda w, x: jnp.tanh(x @ w), ((4, 3), F32), ((2, 4), F32))[1]
    assert (found.samples, found.gradients) == (6, 1)


def test_gradients_that_jax_stops_are_refused() -> None:
    """StableHLO says nothing of stop_gradient, so a step would have a gradient that JAX's has not."""
    with pytest.raises(Differs, match="its gradients are not those of JAX"):
        of(lambda w, x: x @ lax.stop_gradient(w) + jnp.tanh(x @ w), ((4, 3), F32), ((2, 4), F32))


def test_convolutions_are_compared_on_infinities_too() -> None:
    """XLA skips the zeros of padding and makes groups with zeros, so 0 times infinity is NaN in one of the two only."""
    edges = (lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"), ((2, 2, 4), F32), ((2, 2, 3), F32))
    groups = (
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2),
        ((1, 2, 3), "float64"),
        ((2, 1, 2), "float64"),
    )
    for function, *arguments in (edges, groups):
        with jax.enable_x64(True):
            assert of(function, *arguments)[1].samples == 6


def test_a_part_of_the_fuzzer() -> None:
    found = fuzz_jax.Found()
    with jax.enable_x64(True):
        fuzz_jax.fuzz(range(50), found)
    assert found.wrong == [] and found.broken == [] and found.accepted > 20


@pytest.mark.slow
def test_the_fuzzer_draws_every_operator_that_is_read() -> None:
    """What it never draws is read unseen."""
    found = fuzz_jax.Found()
    with jax.enable_x64(True):
        for first in range(0, 3000, 50):
            fuzz_jax.fuzz(range(first, first + 50), found)
    assert found.wrong == [] and found.broken == []
    assert {*handlers.HANDLERS} - {*found.operators} <= {"stablehlo.logistic"}  # JAX of today writes it out


@pytest.mark.slow
def test_the_fuzzer_goes_on_behind_a_program_that_kills_xla() -> None:
    """XLA divides integers by zero while it folds constants."""
    found = fuzz_jax.Found()
    fuzz_jax.fuzz_apart(range(84_594, 84_597), found, 300.0, 3)
    assert found.programs == 3 and not found.wrong
    assert [(seed, told.partition(":")[0]) for seed, told in found.died] == [(84_595, "SIGFPE")]


def test_a_process_that_xla_ends_leaves_a_line() -> None:
    program = "import os, signal\nfrom shardproof.models.sources.jax.original import explain_death\nwith explain_death('net'):\n    {}\n"

    def told(line: str) -> tuple[int, str]:
        words = [sys.executable, "-c", program.format(line)]
        ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
        return ran.returncode, ran.stderr

    code, text = told("os.kill(os.getpid(), signal.SIGFPE)")
    assert code == -signal.SIGFPE
    assert text.startswith("shardproof: the process ended while JAX compiled or ran 'net'") and "--no-compare" in text
    assert told("pass") == (0, "")
    code, text = told("raise ValueError('of the program')")
    assert code == 1 and "the process ended" not in text

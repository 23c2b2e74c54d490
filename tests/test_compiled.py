"""`--backend numba`: compiled loops are the kernels of ours on the same boxes, and programs on ranks those of one process.

Texts are mostly run by Python itself, with NumPy's functions in the place of compiled ones: that is what numba compiles,
and costs a hundredth; some programs, and every function, are compiled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from array_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_run import choose, draw_choices

from shardproof import dace
from shardproof.__main__ import run
from shardproof.backends.compiled import recipes, scalar
from shardproof.backends.compiled.kernel import function_of
from shardproof.backends.compiled.nest import BLOCK
from shardproof.backends.compiled.texts import ROWS, text_of
from shardproof.backends.execution.interpreter import RankError, run_rank
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.kernels.library import OURS
from shardproof.backends.lowering.program import Compute, Fused, Program
from shardproof.backends.transport.virtual import Hub, VirtualTransport
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY, build

ARITY = {"fused_scale_shift": 3, "sum_inputs": 3}
TWO = {
    "relu_gradient",
    "tanh_gradient",
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "squared_difference",
}
ATTRIBUTES: dict[str, dict[str, float | str]] = {
    "scale": {"scale": 0.3},
    "shift": {"shift": -1.5},
    "clip": {"low": -0.5, "high": 0.25},
    "power": {"exponent": 2.0},
    "gelu": {"approximate": "tanh"},
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-30, -1e-30, 3.5, -20.0, 20.0]


def by_python(text: str, real: str) -> object:
    """The function of a text, not compiled."""
    room = {
        "math": math,
        "np": np,
        "real": getattr(np, real),
        "add_freely": lambda x, y: x + y,
        "exp": np.exp,
        "tanh": np.tanh,
        "largest": np.maximum,
        "smallest": np.minimum,
    }
    exec(text, room)  # noqa: S102
    return room["kernel"]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    texts: list[str] = []
    monkeypatch.setattr(recipes, "function_of", lambda text, real: (texts.append(text), by_python(text, real))[1])
    return texts


def operator(name: str) -> tuple[Operator, Graph]:
    many = ARITY.get(name, 2 if name in TWO else 1)
    g = Builder("map", "float64")
    graph = g.build(g.map("y", name, *(g.input(f"x{i}", (6, 24)) for i in range(many)), **ATTRIBUTES.get(name, {})))
    return graph.operators[0], graph


# --- functions --------------------------------------------------------------------------------------------------------


def units(found: np.ndarray, exact: np.ndarray) -> float:
    """Greatest error in units of the last place."""
    return float((np.abs(found - exact) / np.spacing(np.abs(exact))).max())


def test_exp_and_tanh_are_right_to_the_last_places() -> None:
    rng = np.random.default_rng(3)
    wide = np.concatenate(
        [rng.uniform(-708, 709, 100_000), rng.standard_normal(100_000), np.geomspace(1e-300, 1, 1000)]
    )
    exp, tanh = (np.array([f(x) for x in wide]) for f in (scalar.exp, scalar.tanh))
    assert units(exp, np.exp(wide)) <= 2 and units(tanh, np.tanh(wide)) <= 4
    ends = [inf, -inf, 1e4, -1e4, 709.7, -745.0]
    assert [scalar.exp(x) for x in ends] == pytest.approx(np.exp(ends), rel=1e-13)
    assert [scalar.tanh(x) for x in ends] == [1, -1, 1, -1, 1, -1]
    assert math.isnan(scalar.exp(nan)) and math.isnan(scalar.tanh(nan))
    assert math.copysign(1, scalar.tanh(-0.0)) == -1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_are_the_rows_of_our_table(dtype: str) -> None:
    """Every function of the table in one text: drawn numbers, and every pair of special ones."""
    ops = [operator(name)[0] for name in ROWS]
    names = [f"x{k}[i]" for k in range(3)]
    lines = [f"        y[{n}, i] = {text_of(op, names[: len(op.inputs)])}" for n, op in enumerate(ops)]
    text = "def kernel(y, x0, x1, x2):\n    for i in range(x0.size):\n" + "\n".join(lines) + "\n"
    pairs = np.array([(a, b, 0.5) for a in SPECIAL for b in SPECIAL])
    rng = np.random.default_rng(5)
    for given_numbers in (rng.standard_normal((200, 3)), pairs):
        arrays = [np.ascontiguousarray(given_numbers[:, k], dtype) for k in range(3)]
        found = np.empty((len(ops), len(arrays[0])), dtype)
        function_of(text, dtype)(found, *arrays)
        for op, mine in zip(ops, found):
            with np.errstate(all="ignore"):
                expected = OURS.functions[op.function](np, arrays[: len(op.inputs)], op)
            rtol, atol = (4e-6, 1e-6) if dtype == "float32" else (1e-13, 1e-15)
            np.testing.assert_allclose(mine, expected, rtol=rtol, atol=atol, err_msg=op.function)


# --- chains -----------------------------------------------------------------------------------------------------------


def program_of(graph: Graph, ranks: int = 1, seed: int | None = None) -> Program:
    hierarchy = (ranks,)
    rng = np.random.default_rng(seed)
    choices = choose(graph, hierarchy, {}) if seed is None else draw_choices(graph, hierarchy, rng)
    return build_program(graph, hierarchy, choices, Options(backend="numba"))


def check(graph: Graph, program: Program, seed: int = 0) -> None:
    values = random_inputs(graph, seed)
    expected = run_graph(graph, values)
    found = run_virtual(program, values).outputs
    for name, want in expected.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-11, atol=1e-11, err_msg=name)


def chains(program: Program) -> list[list[str]]:
    graph = program.graph
    return [
        [graph.operators[m.operator].function for m in step.members]
        for step in program.ranks[0]
        if isinstance(step, Fused)
    ]


@dace
def _softmax(x: dace.float64[6, 7, 9]):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


@dace
def _norm(x: dace.float64[5, 70]):
    return (x - np.mean(x, axis=-1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)


@dace
def _pairs(x: dace.float64[8, 5]):
    return np.sqrt(np.add.reduce((x[:, None, :] - x[None, :, :]) ** 2, axis=-1) + 1.0)


@dace
def _turned(a: dace.float64[40, 40], b: dace.float64[40]):
    c = np.empty([40, 40])
    for i, j in dace.map[40, 40]:
        c[i, j] = a[i, j] + a[j, i] + b[i] * b[j]
    return c


@dace
def _sweep(u: dace.float64[11, 13]):
    for _ in range(2):
        v = np.zeros([11, 13])
        for i, j in dace.map[1:10, 1:12]:
            v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
        u = v + u
    return u


PROGRAMS = {"softmax": _softmax, "norm": _norm, "pairs": _pairs, "turned": _turned, "sweep": _sweep}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_compiled_as_one_pass(name: str) -> None:
    graph = trace(PROGRAMS[name]).graph
    program = program_of(graph)
    left = [i for i in program.ranks[0] if isinstance(i, Compute) and graph.operators[i.operator].function != "update"]
    if name in ("softmax", "norm", "pairs"):
        assert len(chains(program)) == 1 and not left, "a row from its first reduction to its last map"
    check(graph, program)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_ranks(name: str, ranks: int, uncompiled: list[str]) -> None:
    graph = trace(PROGRAMS[name]).graph
    for seed in range(4):
        check(graph, program_of(graph, ranks, seed), seed)
    assert uncompiled


@pytest.mark.parametrize("name", CASES)
def test_array_programs_are_those_of_one_process(name: str, uncompiled: list[str]) -> None:
    graph = CASES[name].traced().graph
    check(graph, program_of(graph, 2, 1), 5)


@pytest.mark.parametrize("model", ["bert-tiny", "llama", "vit"])
def test_training_steps_are_those_of_one_process(model: str, uncompiled: list[str]) -> None:
    graph = build_step(build(model, **TINY[model]), "adam").graph
    check(graph, program_of(graph, 2, 3))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Maps and reductions of one another on a box and its rows: operands shifted, turned and broadcast."""
    n, m = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 70]))
    g = Builder("chain", "float64")
    shapes = {"x": (n, m), "y": (n, m), "turned": (m, n), "row": (m,), "column": (n,)}
    for name, shape in shapes.items():
        g.input(name, shape)
    axes, index = [Axis("i0", n), Axis("i1", m)], ("i0", "i1")
    full, rows = ["x", "y"], ["column"]
    for k in range(draw(st.integers(2, 8))):
        kind = draw(st.sampled_from(["map", "two", "shift", "turn", "row", "column", "reduce", "reduce", "rows"]))
        a, b, r = draw(st.sampled_from(full)), draw(st.sampled_from(full)), draw(st.sampled_from(rows))
        f = draw(st.sampled_from(["add", "subtract", "multiply", "maximum"]))
        name = f"v{k}"
        match kind:
            case "map":
                full.append(g.map(name, draw(st.sampled_from(["tanh", "relu", "negate", "sigmoid"])), a))
            case "two":
                full.append(g.map(name, f, a, b))
            case "reduce":
                combine = draw(st.sampled_from(list(Combine)))
                rows.append(g.reduce(name, "i j -> i", a, combine, 0.5 if combine is Combine.SUM else 1.0))
            case "rows":
                rows.append(g.map(name, f, r, draw(st.sampled_from(rows))))
            case _:
                up, left = draw(st.integers(-2, 2)), draw(st.integers(-2, 2))
                other = {
                    "shift": access(a, Affine.axis("i0").shift(up), Affine.axis("i1").shift(left)),
                    "turn": access("turned", "i1", "i0"),
                    "row": access("row", "i1"),
                    "column": access(r, "i0"),
                }[kind]
                full.append(g.operator(name, f, axes, [access(b, *index), other], index))
    made = dict.fromkeys([full[-1], rows[-1], draw(st.sampled_from(full))])
    kept = [t for t in made if t not in shapes]
    return g.build(*(kept or [g.map("last", "negate", "x")]))


@settings(max_examples=150, deadline=None)
@given(graph=graphs(), ranks=st.sampled_from([1, 1, 2, 4]), seed=st.integers(0, 99))
def test_drawn_chains(graph: Graph, ranks: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "function_of", by_python)
        check(graph, program_of(graph, ranks, seed), seed)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(graph=graphs(), ranks=st.sampled_from([1, 2]), seed=st.integers(0, 99))
def test_drawn_chains_compiled(graph: Graph, ranks: int, seed: int) -> None:
    check(graph, program_of(graph, ranks, seed), seed)


# --- what is not taken ------------------------------------------------------------------------------------------------


def test_a_block_that_is_too_small_is_refused(uncompiled: list[str]) -> None:
    """Compiled loops check no index: what a box reads is compared with the block before."""
    g = Builder("g", "float64")
    program = program_of(g.build(g.map("y", "tanh", g.input("x", (4, 6)))))
    short = {"x": np.ones((4, 5))}
    with pytest.raises(RankError, match=r"dimension 1 needs \[0, 6\), the block holds \[0, 5\)"):
        run_rank(program, 0, VirtualTransport(Hub(5.0), 0, (1,), np), lambda name, box: short[name], np)
    assert not uncompiled


def test_operands_without_a_common_type_are_left_to_our_kernels(uncompiled: list[str]) -> None:
    graph = trace(_softmax).graph
    program = program_of(graph)
    x = random_inputs(graph, 3)["x"]
    whole = {"x": (8 * x).astype("int32")}
    (found,) = run_rank(program, 0, VirtualTransport(Hub(5.0), 0, (1,), np), lambda name, box: whole[name], np).values()
    np.testing.assert_allclose(found, _softmax(whole["x"]), rtol=1e-12)
    assert not uncompiled


def test_memory_that_nobody_reads_again_takes_the_result(uncompiled: list[str]) -> None:
    """A map behind a product writes over it; a row that is read again behind its reduction is not written over."""
    g = Builder("g", "float64")
    product = g.contract("p", "i k, k j -> i j", g.input("a", (4, 3)), g.input("b", (3, 5)))
    rows = g.reduce("s", "i j -> i", g.map("t", "tanh", product))
    program = program_of(g.build(g.map("y", "divide", "t", rows, text="i j, i -> i j")))
    assert [s.reuse for s in program.ranks[0] if isinstance(s, Fused)] == [None]
    check(program.graph, program)
    plain = Builder("g", "float64")
    product = plain.contract("p", "i k, k j -> i j", plain.input("a", (4, 3)), plain.input("b", (3, 5)))
    program = program_of(plain.build(plain.map("y", "tanh", product)))
    assert [s.reuse for s in program.ranks[0] if isinstance(s, Fused)] == ["y[0]"]
    check(program.graph, program)


def test_blocks_of_rows_and_columns_cover_the_box(uncompiled: list[str]) -> None:
    """A transposed operand, more rows and columns than a block has; as many in the last block, and fewer."""
    rows, columns = BLOCK
    for shape in ((rows + 1, columns + 1), (2 * rows, columns), (rows - 1, 7)):
        g = Builder("g", "float64")
        x, turned = g.input("x", shape), g.input("t", shape[::-1])
        graph = g.build(g.map("y", "subtract", x, turned, text="i j, j i -> i j"))
        check(graph, program_of(graph))
    assert "range(top, bottom)" in uncompiled[0] and len(set(uncompiled)) == 1


def test_memory_with_two_names_is_loaded_once(uncompiled: list[str]) -> None:
    """x (x + y) - z where both reads of x have a slot of their own, and where others are the same memory, too."""
    g = Builder("g", "float64")
    x, y, z = (g.input(name, (4, 6)) for name in "xyz")
    program = program_of(g.build(g.map("out", "subtract", g.map("p", "multiply", x, g.map("s", "add", x, y)), z)))
    (step,) = (s for s in program.ranks[0] if isinstance(s, Fused))
    assert len({slot for m in step.members for slot, _ in m.operands}) == 6, "two names of x, y, z and two results"
    memory = np.random.default_rng(1).standard_normal((12, 6))
    first, second, third = memory[:4], memory[4:8], memory[8:]
    for given_arrays, loads in (
        ((first, second, third), 3),
        ((first, first, second), 2),  # as many arrays of these shapes as below, and others of them are one
        ((first, second, second), 2),
        ((first, second, first), 2),
        ((first, first, first), 1),
    ):
        values = dict(zip("xyz", given_arrays, strict=True))
        transport = VirtualTransport(Hub(5.0), 0, (1,), np)
        (found,) = run_rank(program, 0, transport, lambda n, box, held=values: held[n], np).values()
        a, b, c = given_arrays
        np.testing.assert_array_equal(found, a * (a + b) - c)
        assert uncompiled[-1].count(" = x") == loads


def test_a_text_serves_every_size(uncompiled: list[str]) -> None:
    for shape in ((3, 100), (5, 200)):
        g = Builder("g", "float64")
        x = g.input("x", shape)
        graph = g.build(g.map("y", "subtract", x, g.reduce("m", "i j -> i", x, Combine.MAX), text="i j, i -> i j"))
        check(graph, program_of(graph))
    assert len(uncompiled) == 2 and len(set(uncompiled)) == 1


def test_what_has_no_chains_to_compile_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["plan", "mlp-unity:batch=8", "--train", "sgd", "--machine", "localhost:2"]
    assert run([*line, "--overlap", "--work-limit", "2M", "-o", "o.spz"]) in (0, 5)
    assert run([*line, "-o", "p.spz"]) == 0
    capsys.readouterr()
    for words in (["o.spz"], ["p.spz", "--no-fuse"], ["p.spz", "--dtype", "own"]):
        assert run(["run", *words, "-n", "2", "--virtual", "--backend", "numba"]) == 0
        assert "operators run on NumPy" in capsys.readouterr().err, words
    assert run(["run", "p.spz", "-n", "2", "--virtual", "--backend", "numba"]) == 0
    assert "operators run on NumPy" not in capsys.readouterr().err

"""Operators of the user's own: from a specification to a checked plan that runs on ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardproof
from shardproof.__main__ import run
from shardproof.backends.execution.reference import run_graph
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Affine
from shardproof.models.program.specified import Placed, Specified
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import graph_of
from shardproof.models.sources.precision import mixed_precision, parse_precision
from shardproof.models.sources.specified import known
from shardproof.models.sources.specified.gradient import check_gradients, evaluate
from shardproof.models.sources.specified.known import SpecifiedOperator, read_specification
from shardproof.models.sources.specified.specification import (
    Specification,
    SpecificationError,
    specification,
)
from shardproof.verify.budget import Budget
from shardproof.verify.specified.uses import specified_result

MIX: dict[str, object] = {
    "name": "local_mix",
    "formula": "y[b, i, d] = sum j: x[b, i + j - 1, d] * w[j, d]",
    "outside": "zero",
    "operands": {"x": ["b", "t", "d"], "w": ["j", "d"]},
    "sizes": {"i": "t"},
}
DILATE: dict[str, object] = {
    "name": "dilate",
    "formula": "y[b, i] = max j: x[b, 2*i + j] - 0.5 * h[j]",
    "operands": {"x": ["b", "t"], "h": ["j"]},
    "sizes": {"i": "(t - j) // 2 + 1"},
}
SOFT: dict[str, object] = {
    "name": "soft",
    "formula": "y[b, i, o] = sum j, c: exp(0.25 * x[b, i + j - 1, c] - 1) * w[j, c, o] + 2 * x[b, i, c] + 3",
    "outside": "zero",
    "operands": {"x": ["b", "t", "c"], "w": ["j", "c", "o"]},
    "sizes": {"i": "t"},
}
LEAST: dict[str, object] = {
    "name": "least",
    "formula": "y[b, i] = min j: x[b, i + j - 2]",
    "outside": "zero",
    "operands": {"x": ["b", "t"]},
    "sizes": {"i": "t", "j": 5},
}
RATIO: dict[str, object] = {
    "name": "ratio",
    "formula": "y[b, i] = x[b, i] / sqrt(abs(z[i]) + 1) - tanh(maximum(x[b, i], z[i])) / 4 + 1 / (2 + relu(z[i]))",
    "operands": {"x": ["b", "i"], "z": ["i"]},
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "local_mix": {"x": (4, 8, 4), "w": (3, 4)},
    "dilate": {"x": (4, 17), "h": (3,)},
    "soft": {"x": (4, 8, 4), "w": (3, 4, 4)},
    "least": {"x": (4, 8)},
    "ratio": {"x": (4, 8), "z": (8,)},
}
ALL = (MIX, DILATE, SOFT, LEAST, RATIO)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    known.forget()
    yield
    known.forget()


def toml(data: dict[str, object]) -> str:
    """A specification as a file."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in data.items() if not isinstance(v, dict)]
    for name, table in data.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def traced(s: Specification, shapes: dict[str, tuple[int, ...]]) -> Graph:
    """The graph of one call."""
    call = SpecifiedOperator(known.know(s))
    names = ", ".join(shapes)
    scope: dict[str, Callable[..., object]] = {"call": call}
    exec(f"def program({names}): return call({names})", scope)  # noqa: S102
    return graph_of(scope["program"], "program", {n: ArraySpec(shape) for n, shape in shapes.items()})


def arrays(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def test_no_option_of_a_step_drops_the_formula_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another precision keeps it, and overlap; micro-batches read rows of its tensors, and it is said."""
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(
        'name = "own"\nformula = "y[b, i] = sum j: x[b, i + j - 1] * w[j]"\noutside = "zero"\n'
        '[operands]\nx = ["b", "t"]\nw = ["j"]\n[sizes]\ni = "t"\n'
    )
    Path("model.py").write_text(
        "import shardproof\nfrom shardproof import float32, parameter\nown = shardproof.operator('own.toml')\n"
        "def f(x: float32[8, 16], w: parameter(3, dtype='float32'), v: parameter(16, 4, dtype='float32')):\n"
        "    return own(x, w) @ v\n"
    )
    line = ["plan", "model.py:f", "--machine", "localhost:2", "--train", "sgd", "--work-limit", "1M", "-o", "p.spz"]
    for more in (["--precision", "bf16-mixed"], ["--precision", "bf16-master"], ["--overlap"]):
        assert run([*line, "--force", *more]) in (0, 5)
        assert "not compared" not in capsys.readouterr().out
        assert run(["check", "p.spz"]) == 0
        assert "Specified    proved" in capsys.readouterr().out, more
    assert run([*line, "--force", "--micro-batch", "2"]) in (0, 5)
    assert "note: own: its formula is not compared in a step of micro-batches" in capsys.readouterr().out


@pytest.mark.parametrize("data", ALL, ids=lambda d: str(d["name"]))
def test_from_a_specification_to_a_checked_plan_on_ranks(
    data: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = str(data["name"])
    Path("own.toml").write_text(toml(data))
    shapes = ", ".join(f"{n}: float64{list(shape)}" for n, shape in SHAPES[name].items())
    Path("model.py").write_text(
        "from pathlib import Path\nimport shardproof\nfrom shardproof import float64\n"
        "own = shardproof.operator(Path(__file__).with_name('own.toml'))\n"
        f"def f({shapes}): return own({', '.join(SHAPES[name])})\n"
    )
    for ranks in (2, 4):
        assert run(["plan", "model.py:f", "--machine", f"localhost:{ranks}", "--operator", "own.toml", "-o", "p.spz",
                    "--force"]) == 0  # fmt: skip
        said = capsys.readouterr().out
        assert f"note: {name}: b: splits the output" in said and "compared with NumPy" in said
        assert run(["check", "p.spz"]) == 0
        assert "Specified    proved" in capsys.readouterr().out
        assert run(["run", "p.spz", "-n", str(ranks), "--virtual", "--seed", "1"]) == 0
        assert "equal" in capsys.readouterr().out


def test_halos_and_parts_of_sums_on_mpi_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Split along the window: neighbours send what a window reads of them."""
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(toml(MIX))
    Path("model.py").write_text(
        "from pathlib import Path\nimport shardproof\nfrom shardproof import float64\n"
        "own = shardproof.operator(Path(__file__).with_name('own.toml'))\n"
        "def f(x: float64[4, 8, 4], w: float64[3, 4]): return own(own(x, w), w)\n"
    )
    Path("split.json").write_text(json.dumps({"*": {"i": {"ranks": 2}}}))
    line = ["plan", "model.py:f", "--machine", "localhost:2", "--strategy", "split.json", "-o", "p.spz"]
    assert run(line) in (0, 5)
    assert run(["check", "p.spz"]) in (0, 5)
    capsys.readouterr()
    assert run(["run", "p.spz", "-n", "2"]) == 0
    said = capsys.readouterr().out
    assert "equal" in said and "collectives per rank: none" not in said


@pytest.mark.parametrize("data", ALL, ids=lambda d: str(d["name"]))
def test_graph_computes_what_the_formula_says(data: dict[str, object]) -> None:
    s = specification(data, "own")
    shapes = SHAPES[s.name]
    graph, values = traced(s, shapes), arrays(shapes)
    (found,) = run_graph(graph, values).values()
    wanted = SpecifiedOperator(s)(*values.values())
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert judged(graph) is Verdict.PROVED


def judged(graph: Graph) -> Verdict:
    result = specified_result(graph, Budget.with_large())
    assert result is not None
    return result.verdict


def test_a_graph_file_keeps_what_was_specified() -> None:
    graph = traced(specification(MIX, "own"), SHAPES["local_mix"])
    assert Graph.from_json(graph.to_json()) == graph
    assert graph.specified[0].formula == MIX["formula"]


# --- wrong specifications

WRONG: list[tuple[dict[str, object], str]] = [
    ({"formula": "y[b, i, d] = sum j: x[b, i + k - 1, d] * w[j, d]"}, "index 'k' is unbound"),
    ({"formula": "y[b, i, d] = sum j: x[b, i + j - 1, d] * v[j, d]"}, "'v' is no operand"),
    ({"formula": "y[b, i, d] = sum j: x[b, i + j - 1] * w[j, d]"}, "is read at 2 indices"),
    ({"formula": "y[b, i, d] = sum j: x[b, i - j + 1, d] * w[j, d]"}, "is read backwards along 'j'"),
    ({"formula": "y[b, i, d] = sum j, j: x[b, i + j - 1, d] * w[j, d]"}, "axis 'j' is bound twice"),
    ({"formula": "y[b, i, d] = sum j: x[b, i + j - 1, d] * x[b, j, d]"}, "does not read operand 'w'"),
    ({"formula": "y[b, i, d] = sum j: x[b, i + j - 1, d] * "}, "column 42"),
    ({"formula": "y[b, i, d] = sum j: x[b, i * j, d] * w[j, d]"}, "needs an integer"),
    ({"formula": "y[b, i, d] = sum j: sum(x[b, i, d]) * w[j, d]"}, "sum stands once, in front"),
    ({"formula": "y[b, i, d] = sum j: gelu(x[b, i, d]) * w[j, d]"}, "'gelu' is no function of formulas"),
    ({"formula": "y[b, i, d] = sum j: maximum(x[b, i, d]) * w[j, d]"}, "maximum takes 2 values"),
    ({"sizes": {}}, "axis 'i' has no extent"),
    ({"sizes": {"i": "t", "b": "3"}}, "axis 'b' has the size that its operand has"),
    ({"sizes": {"i": "t", "q": "3"}}, "'q' is no axis of the formula"),
    ({"sizes": {"i": "s"}}, "uses 's', which is no axis of an operand"),
    ({"sizes": {"i": "t // 0"}}, "divided by a positive integer"),
    ({"outside": "wrap"}, "outside = 'wrap'"),
    ({"flops": 3}, "flops = 3, the formula has 2"),
    ({"fomula": "y"}, "did you mean 'formula'?"),
    ({"operands": {"x": ["b", "t", "t"], "w": ["j", "d"]}}, "has an axis twice"),
    ({"operands": {}}, "needs every operand and its axes"),
    ({"name": ""}, "needs name"),
    ({"name": "a; b"}, "letters, digits and underscores"),
    ({"gradient": {"u": "du[j] = x[j]"}}, "'u' is no operand"),
    ({"gradient": {"w": "dw[j, d] = sum b, i: grad[b, i, d] * x[b, i + j, d]"}}, "correct it, or leave it out"),
    ({"gradient": {"w": "dw[d, j] = sum b, i: grad[b, i, d] * x[b, i + j - 1, d]"}}, "is a formula over d, j"),
    ({"gradient": {"w": "dw[j, d] = sum b, i: grad[b, i, d] *"}}, "gradient of w, column"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_a_wrong_specification_is_refused_at_its_place(
    change: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(toml(MIX | change))
    with pytest.raises(SpecificationError, match=r"own\.toml") as found:
        read_specification(path)
    assert message in str(found.value)
    assert run(["import", "mlp-unity", "--operator", str(path)]) == 3
    assert "own.toml" in capsys.readouterr().err


def test_right_gradients_are_taken() -> None:
    gradients = {
        "x": "dx[b, t, d] = sum j: grad[b, t - j + 1, d] * w[j, d]",
        "w": "dw[j, d] = sum b, i: grad[b, i, d] * x[b, i + j - 1, d]",
    }
    check_gradients(specification(MIX | {"gradient": gradients}, "own"), "own")
    tanh = {
        "name": "t",
        "formula": "y[i] = tanh(x[i])",
        "operands": {"x": ["i"]},
        "gradient": {"x": "dx[i] = grad[i] * (1 - y[i] * y[i])"},
    }
    check_gradients(specification(tanh, "own"), "own")


def test_a_window_that_leaves_its_operand_is_refused_with_sizes() -> None:
    s = specification({k: v for k, v in MIX.items() if k != "outside"}, "own")
    with pytest.raises(SpecificationError, match=r"from -1 to 8, which has 0 to 7; state outside = \"zero\""):
        traced(s, SHAPES["local_mix"])


def test_operands_that_do_not_fit() -> None:
    s = specification(MIX, "own")
    with pytest.raises(SpecificationError, match="axis 'd' is 4 long, and 5 in operand 'w'"):
        traced(s, {"x": (4, 8, 4), "w": (3, 5)})
    with pytest.raises(SpecificationError, match="takes x, w, and is given 1 arrays"):
        SpecifiedOperator(s)(np.zeros(3))


def test_an_operator_that_no_model_calls_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(toml(MIX))
    assert run(["import", "mlp-unity", "--operator", str(tmp_path / "own.toml")]) == 3
    assert "local_mix: is specified, and the model does not call it; leave out --operator" in capsys.readouterr().err


def test_two_operators_of_one_name_are_refused() -> None:
    known.know(specification(MIX, "own"))
    known.know(specification(MIX, "own"))
    with pytest.raises(SpecificationError, match="specified twice, and not alike"):
        known.know(specification(DILATE | {"name": "local_mix"}, "own"))


# --- the checker

Mutation = Callable[[Specified], Specified]


def formula(old: str, new: str) -> Mutation:
    return lambda use: replace(use, formula=use.formula.replace(old, new, 1))


def operand(k: int, **change: object) -> Mutation:
    def mutate(use: Specified) -> Specified:
        operands = list(use.operands)
        name, axes, placed = operands[k]
        operands[k] = (str(change.get("name", name)), change.get("axes", axes), change.get("placed", placed))  # type: ignore[assignment]
        return replace(use, operands=tuple(operands))

    return mutate


MUTATIONS: dict[str, Mutation] = {
    "offset": formula("- 1", "- 2"),
    "stride": formula("i + j", "2*i + j"),
    "factor twice": formula("* w[j, d]", "* w[j, d] * w[j, d]"),
    "another sign": formula("sum j:", "sum j: -"),
    "a constant": formula("w[j, d]", "w[j, d] + 1"),
    "a number": formula("sum j:", "sum j: 1.5 *"),
    "a function": formula("x[b, i + j - 1, d]", "relu(x[b, i + j - 1, d])"),
    "greatest": formula("sum j", "max j"),
    "unknown function": formula("x[b, i + j - 1, d]", "erfc(x[b, i + j - 1, d])"),
    "unknown operand": formula("w[", "v["),
    "unbound axis": formula("w[j,", "w[k,"),
    "no formula": formula("*", "* *"),
    "more behind": lambda use: replace(use, formula=use.formula + " )"),
    "not affine": formula("i + j", "i * j"),
    "axis bound twice": formula("sum j:", "sum j, d:"),
    "two many brackets": lambda use: replace(use, formula="y[b, i, d] = sum j: " + "(" * 80 + "w[j, d]" + ")" * 80),
    "too long": lambda use: replace(use, formula=use.formula + " " * 5000 + "+ 0"),
    "wrong axes": operand(0, axes=("t", "b", "d")),
    "places exchanged": operand(0, placed=Placed("x", ((1,), (0,), (2,)))),
    "another tensor": operand(0, placed=Placed.plain("local_mix", 3)),
    "size": lambda use: replace(use, sizes=(("i", "t - 1"),)),
    "size of an operand": lambda use: replace(use, sizes=(("i", "t"), ("d", "b"))),
    "size of nothing": lambda use: replace(use, sizes=(("i", "u"),)),
    "size divided by nothing": lambda use: replace(use, sizes=(("i", "t // 0"),)),
    "no size": lambda use: replace(use, sizes=()),
    "nothing outside": lambda use: replace(use, outside=False),
    "result": lambda use: replace(use, result=Placed("local_mix", ((1,), (0,), (2,)))),
    "result is an operand": lambda use: replace(use, result=Placed.plain("x", 3)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_specification_that_the_graph_does_not_compute_is_refuted(name: str) -> None:
    graph = traced(specification(MIX, "own"), SHAPES["local_mix"])
    use = MUTATIONS[name](graph.specified[0])
    assert use != graph.specified[0]
    mutant = replace(graph, specified=(use,))
    assert judged(graph) is Verdict.PROVED
    assert judged(mutant.check()) is Verdict.REFUTED


@pytest.mark.parametrize("k", range(3))
def test_another_window_in_the_graph_is_refuted(k: int) -> None:
    graph = traced(specification(MIX, "own"), SHAPES["local_mix"])
    (op,) = graph.operators
    read = op.inputs[0]
    index = [read.index[0], (Affine.axis("i").plus("j"), Affine.axis("i", 2).plus("j").shift(-1),
                             Affine.axis("i").plus("j", 2).shift(-1))[k], read.index[2]]  # fmt: skip
    changed = replace(op, inputs=(replace(read, index=tuple(index)), op.inputs[1]))
    assert judged(replace(graph, operators=(changed,)).check()) is Verdict.REFUTED


def test_what_lies_between_may_read_nothing_else() -> None:
    graph = traced(specification(MIX, "own"), SHAPES["local_mix"])
    use = replace(graph.specified[0], operands=graph.specified[0].operands[:1])
    assert judged(replace(graph, specified=(use,))) is Verdict.REFUTED


def test_what_the_checker_cannot_follow_is_undecided() -> None:
    """Running sums from the end lie between: nothing is known of them, so nothing is claimed."""
    g = Builder("program")
    x = g.input("x", (4, 8))
    graph = g.build(g.normalise("y", "reverse_cumulative_sum", "b i -> b i", x, over=("i",)))
    result = graph.outputs[0]
    use = Specified("own", "y[b, i] = relu(x[b, i])", (("x", ("b", "i"), Placed.plain("x", 2)),), (), False,
                    Placed.plain(result, 2))  # fmt: skip
    assert judged(replace(graph, specified=(use,)).check()) is Verdict.UNDECIDED


def test_sixteen_bits_round_and_compute_the_same() -> None:
    """Casts on the way are none over the real numbers; casts to integers are."""
    graph = traced(specification(MIX, "own"), SHAPES["local_mix"])
    half = mixed_precision(replace(graph, tensors=tuple(replace(t, dtype="float32") for t in graph.tensors)),
                           parse_precision("bf16-mixed"))  # fmt: skip
    assert any(op.function == "cast" for op in half.operators) and half.specified
    assert judged(half) is Verdict.PROVED
    g = Builder("program")
    x = g.input("x", (4, 8))
    whole = g.map("y", "cast", g.map("n", "cast", x, dtype="int32"), dtype="float32")
    use = Specified("own", "y[b, i] = x[b, i]", (("x", ("b", "i"), Placed.plain("x", 2)),), (), False,
                    Placed.plain(whole, 2))  # fmt: skip
    assert judged(replace(g.build(whole), specified=(use,)).check()) is Verdict.UNDECIDED


def test_places_of_a_graph_file_are_looked_at() -> None:
    graph = traced(specification(MIX, "own"), SHAPES["local_mix"])
    use = graph.specified[0]
    for wrong in (
        replace(use, result=Placed.plain("nothing", 3)),
        replace(use, result=Placed("local_mix", ((0,), (0,), (2,)))),
        replace(use, operands=(use.operands[0], ("w", ("j",), use.operands[1][2]))),
        replace(use, operands=(use.operands[0], use.operands[0])),
    ):
        with pytest.raises(GraphError, match="operator 'local_mix' of the user"):
            replace(graph, specified=(wrong,)).check()


# --- random formulas


@st.composite
def formulas(draw: st.DrawFn) -> dict[str, object]:
    """A specification of two operands with a window, or without."""
    window = draw(st.sampled_from(["i", "i + j", "i + j - 1", "2*i + j - 1", "i + 2*j - 2"]))
    reads = [f"x[b, {window}]", "w[j]", "x[b, i]", "0.5", "3"]

    def expression(depth: int) -> str:
        if depth == 0 or draw(st.booleans()):
            return draw(st.sampled_from(reads))
        kind = draw(st.sampled_from(["+", "-", "*", "relu", "tanh", "maximum"]))
        if kind in "+-*":
            return f"({expression(depth - 1)} {kind} {expression(depth - 1)})"
        return f"{kind}({', '.join(f'{draw(st.sampled_from(reads[:3]))}' for _ in range(1 + (kind == 'maximum')))})"

    how = draw(st.sampled_from(["sum", "max", "min"]))
    body = f"{expression(2)} + x[b, {window}] * w[j]"
    return {
        "name": "drawn",
        "formula": f"y[b, i] = {how} j: {body}",
        "outside": "zero",
        "operands": {"x": ["b", "t"], "w": ["j"]},
        "sizes": {"i": draw(st.sampled_from(["t", "t - 1", "(t + 1) // 2"]))},
    }


@settings(max_examples=60, deadline=None)
@given(formulas(), st.integers(0, 1 << 16))
def test_drawn_formulas(data: dict[str, object], seed: int) -> None:
    known.forget()
    s = specification(data, "own")
    shapes = {"x": (2, 6), "w": (3,)}
    values = arrays(shapes, seed)
    graph = traced(s, shapes)
    (found,) = run_graph(graph, values).values()
    wanted = evaluate(s.formula, values, s.extents(shapes))
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
    assert judged(graph) in (Verdict.PROVED, Verdict.UNDECIDED)


def test_public_name() -> None:
    assert "operator" in shardproof.__all__ and callable(shardproof.operator)


# --- PyTorch

TORCH = """
import torch
from torch import Tensor, nn

@torch.library.custom_op("mine::local_mix", mutates_args=())
def local_mix(x: Tensor, w: Tensor) -> Tensor:
    padded = nn.functional.pad(x, (0, 0, 1, 1))
    return sum(padded[:, j : j + x.shape[1]] * w[j] for j in range(3))

@local_mix.register_fake
def _(x, w):
    return torch.empty_like(x)

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 16))
        self.q = nn.Linear(16, 16)

    def forward(self, x):
        h = torch.ops.mine.local_mix(self.q(x), self.w).view(4, 8, 4, 4).transpose(1, 2)
        return torch.softmax(h @ h.transpose(-1, -2), -1) @ h

def heads():
    return Heads(), (torch.randn(4, 8, 16),)
"""


@pytest.mark.torch
def test_a_custom_operator_of_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its axes are cut into heads behind it, and the formula is compared all the same."""
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(toml(MIX | {"name": "mine::local_mix"}))
    Path("other.toml").write_text(
        toml(MIX | {"name": "mine::local_mix", "formula": str(MIX["formula"]).replace("- 1", "- 2")})
    )
    Path("model.py").write_text(TORCH)
    line = ["plan", "model.py:heads", "--machine", "localhost:2", "-o", "p.spz"]
    assert run(line) == 3
    assert "--operator FILE" in capsys.readouterr().err
    assert run([*line, "--operator", "own.toml"]) == 0
    assert "compared with PyTorch" in capsys.readouterr().out
    assert run(["check", "p.spz"]) == 0
    assert "Specified    proved" in capsys.readouterr().out
    assert run(["run", "p.spz", "-n", "2", "--virtual"]) == 0
    capsys.readouterr()
    assert run([*line, "--operator", "own.toml", "--train", "sgd", "--force"]) == 0
    assert "gradients are not: " in capsys.readouterr().out  # PyTorch has none of it, and it is said
    assert run(["check", "p.spz"]) == 0
    assert run(["run", "p.spz", "-n", "2", "--virtual"]) == 0
    known.forget()
    assert run([*line, "--operator", "other.toml", "--force"]) == 3  # not what the module computes


@pytest.mark.torch
def test_audits_fits_and_sweeps_know_operators_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(toml(MIX | {"name": "mine::local_mix"}))
    Path("model.py").write_text(TORCH)
    Path("all.json").write_text("{}")
    audit = ["audit", "model.py:heads", "--strategy", "all.json", "--machine", "localhost:2"]
    fits = ["fits", "model.py:heads", "--machine", "localhost:2", "--memory", "1GiB"]
    for line in (audit, fits):
        assert run(line) == 3
        assert "--operator FILE" in capsys.readouterr().err
        assert run([*line, "--operator", "own.toml", "--json"]) == 0
        assert "splits the output" in capsys.readouterr().out
        known.forget()
    Path("choices.json").write_text("[0]")
    assert run(["audit", "three.json", "--strategy", "choices.json", "--operator", "own.toml"]) == 3
    assert "--operator" in capsys.readouterr().err
    Path("jobs.toml").write_text(
        '[every]\nmodel = "model.py:heads"\noperator = "own.toml"\n[each]\nmachine = ["localhost:1", "localhost:2"]\n'
    )
    assert run(["sweep", "jobs.toml", "-o", "plans", "--json"]) == 0
    assert [row["exit"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0, 0]

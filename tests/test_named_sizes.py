"""Sizes with names, `float64["N", 8]`: the graph of their numbers, whoever gives them, and refusals by name."""

from pathlib import Path

import numpy as np
import pytest

import shardproof
from shardproof import float64, parameter
from shardproof.__main__ import run
from shardproof.models.program.graph import GraphError
from shardproof.models.sources.load import load_model
from shardproof.models.sources.numpy.program import arguments_of
from shardproof.models.sources.numpy.trace import graph_of

TEXT = """
import numpy as np
from shardproof import float64, parameter
def layer(x: float64["N", 6], w: parameter(6, "H"), v: parameter("H", 6)): return np.maximum(x @ w, 0) @ v
def plain(x: float64[8, 6], w: parameter(6, 4), v: parameter(4, 6)): return np.maximum(x @ w, 0) @ v
"""


def layer(x: float64["N", 6], w: parameter(6, "H"), v: parameter("H", 6)):  # noqa: F821
    return np.maximum(x @ w, 0) @ v


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "sized.py").write_text(TEXT)
    return str(tmp_path / "sized.py")


def test_the_graph_is_that_of_the_numbers(file: str) -> None:
    named, plain = load_model(f"{file}:layer:N=8,H=4"), load_model(f"{file}:plain")
    assert named.operators == plain.operators and named.tensors == plain.tensors


def test_example_arrays_give_the_numbers() -> None:
    arrays = {"x": np.ones((8, 6)), "w": shardproof.parameter(6, 4), "v": shardproof.parameter(4, 6)}
    plan = shardproof.plan(layer, "localhost:2", inputs=arrays, compare=False)
    assert plan.graph.tensor("x").shape == (8, 6) and plan.check().verdict.value == "proved"


def test_one_name_is_one_number() -> None:
    assert arguments_of(layer, {"w": (6, 4)}, {"N": 8})["v"].shape == (4, 6)


@pytest.mark.parametrize(
    ("other", "sizes", "words"),
    [
        (None, {"N": 8}, "argument 'w': size 'H' has no number"),
        (None, {"N": 8, "H": 4, "K": 1}, "has no size 'K'; its sizes: H, N"),
        ({"x": (8, 7)}, {"H": 4}, r"argument 'x': has shape \(8, 7\), and 6 is 6"),
        ({"w": (6, 4), "v": (5, 6)}, {"N": 8}, r"argument 'v': has shape \(5, 6\), and H is 4"),
        ({"x": (8,)}, {"H": 4}, "the program says 2 dimensions"),
        ({"x": (8, 6)}, {"N": 9, "H": 4}, "and N is 9"),
    ],
)
def test_refused_by_name(other, sizes, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        graph_of(layer, "layer", other, sizes=sizes)


def test_names_are_names() -> None:
    with pytest.raises(GraphError, match="'2N' is no name of a size"):
        float64["2N", 4]


@pytest.mark.parametrize("sizes", ["N", "N=", "N=0", "N=-3", "N=8,N=9", "N=1.5", "=4", "N=8;H=4", f"N={1 << 31}"])
def test_numbers_are_numbers(file: str, sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", f"{file}:layer:{sizes}", "-o", f"{file}.json"]) == 3
    assert "is not a size" in capsys.readouterr().err


def test_another_size_is_not_the_plan_s(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, arrays = str(tmp_path / "p.spz"), str(tmp_path / "in.npz")
    assert run(["plan", f"{file}:layer:N=8,H=4", "--machine", "localhost:2", "-o", plan]) == 0
    np.savez(arrays, x=np.ones((16, 6)), w=np.ones((6, 4)), v=np.ones((4, 6)))
    assert run(["run", plan, "-n", "2", "--virtual", "--inputs", arrays]) == 3
    assert "'x'" in capsys.readouterr().err
    assert run(["plan", f"{file}:layer:N=16,H=4", "--machine", "localhost:2", "-o", plan, "--force"]) == 0
    assert run(["run", plan, "-n", "2", "--virtual", "--inputs", arrays]) == 0

"""A reader that is wrong is named: the first operator of the program where the graph computes something else, with its
line, for every frontend, on the command line with exit status 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shardproof.__main__ import run
from shardproof.backends.execution.differential import compare
from shardproof.backends.execution.reference import run_graph
from shardproof.models.sources.building.original import Differs, Original
from shardproof.models.sources.numpy import array as numpy_array
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import graph_of
from shardproof.models.sources.onnx import importer as onnx_importer

NUMPY = """
import numpy as np
from shardproof.models.sources.numpy.program import program

def wave(x, times=2):
    y = np.sin(x) * times
    return y

@program(x=(4, 3), w=(3, 5))
def layer(x, w):
    h = np.tanh(x @ w)
    for k in range(2):
        h += np.maximum(wave(h), 0) / (k + 1)
    return h.T
"""


def test_numpy(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "layer.py"
    file.write_text(NUMPY)
    assert run(["import", f"{file}:layer"]) == 0
    right = numpy_array.UFUNC[0]

    def wrong(recorder: Any, function: Any, *rest: Any) -> object:
        return right(recorder, np.cos if function is np.sin else function, *rest)

    monkeypatch.setattr(numpy_array, "UFUNC", [wrong])
    assert run(["import", f"{file}:layer"]) == 3
    told = capsys.readouterr().err
    assert "(generic numbers)" in told and "it appears first in np.sin(x) at layer.py:6" in told


def _imported(function: Callable[..., object], **arguments: tuple[int, ...]) -> Original:
    taken: list[Original] = []
    graph_of(function, "program", {n: ArraySpec(a) for n, a in arguments.items()}, taken.append)
    return taken[0]


def test_every_expression_of_a_numpy_program_is_seen() -> None:
    """Calls, operators, slices, what is written in place, functions of the same file and variables around them."""
    scale = 3

    def inner(x: Any, *, k: int = 2) -> Any:
        return -x * k

    def program(x: Any, w: Any) -> Any:
        h = np.zeros_like(x @ w)
        h[1:3] = (x @ w)[:2]
        h += np.stack([inner(h, k=scale), inner(h)]).sum(0)
        return [np.where(h > 0, h, 1.0)[0], h.T]

    original = _imported(program, x=(4, 3), w=(3, 5))
    assert original.parts is not None
    parts = original.parts()
    words = [place.rpartition(" at ")[0] for place in parts.places.values()]
    assert {"x @ w", "h", "inner(h, k=scale)", "np.where(h > 0, h, 1.0)[0]"} <= {*words}
    assert words.count("x @ w") == 2 and len(words) >= 10
    given = {"x": np.arange(12.0).reshape(4, 3) - 5, "w": np.ones((3, 5))}
    theirs, ours = parts.run(given), run_graph(parts.graph, given)
    assert all(
        np.array_equal(y.reshape(-1), ours[n].reshape(-1)) for n, y in zip(parts.graph.outputs, theirs, strict=True)
    )


def test_where_operators_cannot_be_had_that_is_said() -> None:
    graph, taken = None, list[Original]()
    graph = graph_of(lambda x: np.sin(x), "program", {"x": ArraySpec((3,))}, taken.append)
    wrong = replace(taken[0], run=lambda values: (np.cos(values["x"]),))
    with pytest.raises(
        Differs, match="operators one by one cannot be had .Undefined: .* is no function that is written"
    ):
        compare(graph, wrong)


def test_what_only_a_pattern_does_is_said() -> None:
    """Every operator is right, and what the whole returns is not."""

    def program(x: Any) -> Any:
        return np.sin(x) + 1

    taken: list[Original] = []
    graph = graph_of(program, "program", {"x": ArraySpec((3,))}, taken.append)
    with pytest.raises(Differs, match="its operators one by one compute the same"):
        compare(graph, replace(taken[0], run=lambda values: (np.cos(values["x"]) + 1,)))


def _model(folder: Path) -> Path:
    """y = relu(tanh(x w)), reshaped and back."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Tanh", ["product"], ["wave"], name="the_wave"),
        helper.make_node("Reshape", ["wave", "flat"], ["long"]),
        helper.make_node("Relu", ["long"], ["positive"]),
        helper.make_node("Identity", ["positive"], ["same"]),
        helper.make_node("Reshape", ["same", "back"], ["y"]),
    ]
    stored = {"flat": np.array([20]), "back": np.array([4, 5]), "w": np.ones((3, 5), np.float32)}
    graph = helper.make_graph(
        nodes,
        "waves",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 5])],
        [onnx.numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "waves.onnx")
    )
    return folder / "waves.onnx"


def test_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = _model(tmp_path)
    assert run(["import", str(file)]) == 0
    assert "compared with ONNX" in capsys.readouterr().out
    right = onnx_importer.HANDLERS["Sigmoid"]
    wrong = {"Tanh": lambda c, node: right(c, replace(node, kind="Sigmoid"))}
    monkeypatch.setattr(onnx_importer, "HANDLERS", {**onnx_importer.HANDLERS, **wrong})
    planned = ["plan", str(file), "--machine", "localhost:2", "-o", str(tmp_path / "p.spz")]
    for words in (["import", str(file)], planned):
        assert run(words) == 3
        told = capsys.readouterr().err
        assert "waves: is not what ONNX" in told
        assert "it appears first in node 1 Tanh (the_wave), value 'wave'" in told
    assert not (tmp_path / "p.spz").exists()
    assert run(["import", str(file), "--no-compare"]) == 0

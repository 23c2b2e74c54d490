"""JAX functions are read from the StableHLO that JAX makes of them: outputs and gradients are JAX's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax_programs

from shardproof.__main__ import run
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, GraphError, Role, UnsupportedOperators
from shardproof.models.sources.jax.importer import _dotted
from shardproof.models.sources.load import load_model
from shardproof.models.sources.training import build_step

FILE = Path(__file__).parent / "jax_programs.py"


def of(name: str, batch: int | None = None) -> Graph:
    return load_model(f"{FILE}:{name}", batch)


def given(
    graph: Graph, function: object, arguments: tuple[object, ...], values: Mapping[str, np.ndarray]
) -> list[object]:
    """The arguments of the JAX function, filled with the values of the graph's inputs."""
    names = list(inspect.signature(function).parameters)  # type: ignore[arg-type]

    def filled(k: int, argument: object) -> object:
        return jax.tree_util.tree_map_with_path(
            lambda p, leaf: values[_dotted(names[k], jax.tree_util.keystr(p))].reshape(leaf.shape), argument
        )

    return [filled(k, a) for k, a in enumerate(arguments)]


@pytest.mark.parametrize("name", ["mlp", "transformer", "longer", "convolutions", "recurrent", "pieces"])
def test_outputs_are_those_of_jax(name: str) -> None:
    graph = of(name)
    function, *arguments = getattr(jax_programs, name)()
    values = random_inputs(graph, 0, None)
    wanted = jax.tree_util.tree_leaves(function(*given(graph, function, tuple(arguments), values)))
    got = run_graph(graph, values)
    assert len(wanted) == len(graph.outputs)
    for o, w in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(got[o].reshape(w.shape), w, rtol=2e-5, atol=2e-5)
    assert Graph.from_json(graph.to_json()) == graph


def test_gradients_are_those_of_jax() -> None:
    graph = of("transformer")
    function, *arguments = jax_programs.transformer()
    step = build_step(graph, "sgd:rate=1").graph
    values = random_inputs(step, 1, None)
    filled = given(graph, function, tuple(arguments), values)
    wanted = jax.grad(lambda *a: function(*a)["loss"])(*filled)
    after = run_graph(step, values)
    for name, gradient in wanted.items():
        found = (values[f"params.{name}"] - after[dict(step.state)[f"params.{name}"]]).reshape(gradient.shape)
        np.testing.assert_allclose(found, gradient, rtol=1e-3, atol=3e-6 * np.abs(gradient).max() + 1e-6, err_msg=name)


def test_what_jax_composes_is_one_operator() -> None:
    layer = of("longer")
    functions = [op.function for op in layer.operators]
    (attention,) = (op for op in layer.operators if op.function == "attention")
    assert attention.attribute("ahead", None) == 0 and len(attention.inputs) == 3  # the causal mask is its band
    assert functions.count("gelu") == 1 and functions.count("log_softmax") == 1 and "erf" not in functions
    assert layer.outputs == ("loss",)
    assert [op.function for op in of("convolutions").operators].count("gelu") == 1
    roles = {t.name: t.role for t in of("mlp").tensors}
    assert roles["params.layers.0.w"] is Role.PARAMETER and roles["x"] is Role.INPUT
    assert of("mlp", batch=32).tensor("x").shape == (32, 12)


def test_what_is_refused() -> None:
    with pytest.raises(
        UnsupportedOperators, match=r"erf_inv \(1: at jax_programs.py.*; stablehlo.sort \(1: at jax_prog"
    ):
        of("sorted_rows")
    for name, told in (
        ("until", "number of iterations depends on data"),
        ("half", "bf16 is not supported"),
        ("needy", "takes the argument 'width'"),
        ("nothing", "returns no function"),
    ):
        with pytest.raises(GraphError, match=told):
            of(name)
    with pytest.raises(GraphError, match="--batch needs a factory"):
        of("recurrent", batch=2)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    assert run(["import", f"{FILE}:transformer", "--train", "adam", "-o", str(out)]) == 0
    assert "operators" in capsys.readouterr().out and Graph.from_json(out.read_text()).state
    plan = str(tmp_path / "p.spz")
    assert run(["plan", f"{FILE}:mlp", "--machine", "localhost:2", "-o", plan]) == 0
    assert run(["run", plan, "-n", "2", "--virtual"]) == 0
    assert "equal" in capsys.readouterr().out

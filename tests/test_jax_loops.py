"""`lax.scan` and `fori_loop` come in as one loop: values and gradients are JAX's, sizes do not grow with the turns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax_loops
from test_jax_import import given

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.load import load_model
from shardproof.models.sources.training import build_step

FILE = Path(__file__).parent / "jax_loops.py"


def of(name: str, batch: int | None = None) -> Graph:
    return load_model(f"{FILE}:{name}", batch)


def loops(graph: Graph) -> int:
    return [op.function for op in graph.operators].count("scan")


LOOPS = {
    "cell": 1,
    "cell_loss": 1,
    "cell_gradient": 2,
    "backwards": 1,
    "space": 2,
    "sums": 1,
    "counted": 1,
    "delayed": 1,
    "reshaped": 1,
}
"""Program -> its loops."""

UNROLLED = ("by_turn", "clamped", "mixed", "read_back", "scattered", "two_orders", "unfilled")
"""Programs whose turns are not alike, or whose results no loop has."""


@pytest.mark.parametrize("name", [*LOOPS, *UNROLLED, "nested"])
def test_values_are_those_of_jax(name: str) -> None:
    graph = of(name)
    function, *arguments = getattr(jax_loops, name)()
    values = random_inputs(graph, 0, None)
    filled = jax.tree_util.tree_map(jax.numpy.asarray, given(graph, function, tuple(arguments), values))
    wanted = jax.tree_util.tree_leaves(function(*filled))
    got = run_graph(graph, values)
    assert len(wanted) == len(graph.outputs)
    for o, w in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(got[o].reshape(w.shape), w, rtol=2e-5, atol=2e-5 * np.abs(w).max())
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_operators_do_not_grow_with_turns(name: str) -> None:
    graph = of(name)
    assert loops(graph) == LOOPS[name]
    assert len(of(name, batch=40).operators) == len(graph.operators)


def test_what_differs_from_turn_to_turn_stays_unrolled() -> None:
    for name in UNROLLED:
        assert loops(of(name)) == 0
    assert loops(of("nested")) == 4  # the inner loop, in every turn of the outer one


def test_a_loop_of_thousands_of_turns_is_read_once() -> None:
    assert loops(of("cell", batch=100_000)) == 1


def test_our_gradient_of_a_loop_is_that_of_jax() -> None:
    graph = of("cell_loss")
    function, *arguments = jax_loops.cell_loss()
    step = build_step(graph, "sgd:rate=1").graph
    values = random_inputs(step, 1, None)
    wanted = jax.grad(function)(*given(graph, function, tuple(arguments), values))
    after = run_graph(step, values)
    for name, gradient in wanted.items():
        found = (values[f"params.{name}"] - after[dict(step.state)[f"params.{name}"]]).reshape(gradient.shape)
        np.testing.assert_allclose(found, gradient, rtol=1e-3, atol=3e-6 * np.abs(gradient).max() + 1e-6, err_msg=name)

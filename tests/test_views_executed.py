"""Ranks outside of an operator's view: their box is empty along every axis, whatever must stay whole."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import shardproof
from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.kernels import Block, execute, full_box
from shardproof.models.program.graph import Graph
from shardproof.models.program.tensor import GraphError
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY, build

SAME = {"bert-large"}
"""Models whose functions another one has, and that take longer."""


def empty_boxes(graph: Graph, seen: set[str]) -> None:
    """Every operator of a function that was not seen yet, on a box without anything."""
    values = dict(random_inputs(graph, 0, "float64"))
    for op in graph.operators:
        operands = [Block(values[a.tensor], (0,) * values[a.tensor].ndim) for a in op.inputs]
        values[op.output.tensor] = whole = execute(np, op, graph, full_box(op.axes), operands)
        if op.function in seen and op.function.endswith(("_gradient", "_update")):
            continue
        seen.add(op.function)
        nothing = [Block(values[a.tensor][(slice(0, 0),) * len(a.index)], (0,) * len(a.index)) for a in op.inputs]
        result = execute(np, op, graph, dict.fromkeys((a.name for a in op.axes), (0, 0)), nothing)
        assert (result.shape, result.dtype) == ((0,) * whole.ndim, whole.dtype), op.function


@pytest.mark.parametrize("name", sorted(set(TINY) - SAME))
def test_an_empty_box_gives_an_empty_result(name: str) -> None:
    """Of the shape of the box and the element type of other ranks; a number has the neutral element."""
    empty_boxes(build(name, **TINY[name]), set())


@pytest.mark.slow
def test_an_empty_box_gives_an_empty_result_in_training() -> None:
    """Gradients and updates of all models, by function; windows that are read whole among them."""
    seen = set[str]()
    for name in sorted(set(TINY) - SAME):
        with contextlib.suppress(GraphError):
            empty_boxes(build_step(build(name, **TINY[name]), "adam").graph, seen)
    assert {"max_pool_gradient", "average_pool_gradient", "strided_gradient", "adam_update"} <= seen, sorted(seen)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_inception_wins_on_views_and_runs(ranks: int) -> None:
    """The published sizes, one image: cheaper than every plan on the whole machine, and the same numbers on ranks."""
    model, machine = "inception-v3:batch=1", f"cloud-a100:1x{ranks}"
    whole = shardproof.plan(model, machine, space_name="complete", threads=1)
    made = shardproof.plan(model, machine, space_name="complete", views=True, threads=1)
    assert whole.lower_bound_s is not None and made.cost_s == made.lower_bound_s < whole.lower_bound_s
    assert len({view for view in made.views.values() if view is not None}) == ranks
    ran = made.run()
    assert ran.equal and ran.difference < 1e-12 and not ran.mismatched

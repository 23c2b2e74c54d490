"""Models of published sizes: how many parameters they have, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Role
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.load import load_model
from shardproof.models.sources.training import build_step, parse_optimizer
from shardproof.models.sources.zoo import PUBLISHED, ZOO, ZooError, build, default_batch
from shardproof.models.sources.zoo.gpt import gpt
from shardproof.models.text import InputError


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_those_of_the_paper(name: str) -> None:
    graph = build(name)
    assert graph.name == name and name not in ZOO
    found = sum(t.elements for t in graph.tensors if t.role is Role.PARAMETER)
    assert found == PUBLISHED[name].parameters
    kinds = {op.kind for op in graph.operators}
    assert (NodeKind.ATTENTION in kinds) and not any(
        op.function == "softmax" and "attention" in op.name for op in graph.operators
    )
    if PUBLISHED[name].train:
        parse_optimizer(PUBLISHED[name].train)
    words = next(t for t in graph.tensors if t.role is Role.INPUT)
    assert words.shape[0] == default_batch(name) == PUBLISHED[name].sizes["batch"]


def test_gpt_2_has_its_parameters() -> None:
    assert sum(t.elements for t in gpt().tensors if t.role is Role.PARAMETER) == 124_439_808


def test_options_and_batch_replace_what_is_published() -> None:
    graph = build("llama-3-70b", batch=2, layers=1, vocabulary=64)
    assert next(t for t in graph.tensors if t.role is Role.INPUT).shape == (2, 8192)
    assert load_model("vit-l", batch=1).name == "vit-l"
    with pytest.raises(ZooError, match="of published sizes: gpt-3-175b, llama-3-405b, llama-3-70b"):
        build("gpt-4")
    with pytest.raises(InputError, match="did you mean 'llama-3-70b'"):
        load_model("llama-3-70")


def test_gpt_is_causal_and_trains() -> None:
    """A later word changes nothing before it; the table of words gets the gradients of both its uses."""
    graph = gpt(batch=1, depth=2, sequence=6, width=16, heads=2, vocabulary=11, dtype="float64")
    values = random_inputs(graph, 0)
    changed = {**values, "words": values["words"].copy()}
    changed["words"][0, 4] = (changed["words"][0, 4] + 1) % 11
    one, two = (run_graph(graph, v)["logits"] for v in (values, changed))
    np.testing.assert_allclose(one[0, :4], two[0, :4], rtol=1e-12)
    assert np.abs(one[0, 4:] - two[0, 4:]).max() > 1e-3
    step = build_step(graph, "sgd")
    parts = {op.function for op in step.graph.operators if op.output.tensor.startswith("grad:embedding.table")}
    assert "sum_inputs" in parts and "embedding_gradient" in parts

"""Which loss a training step takes, and which weights it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.training.loss import with_loss

WORDS, WIDTH = 11, 4


def language(outputs: int = WORDS, bias: bool = False, cast: bool = False) -> Builder:
    """Token ids, a table, a hidden layer, and `outputs` numbers per token."""
    g = Builder("lm", "float64")
    ids = g.input("ids", (2, 3), "int64")
    x = g.embedding("embed", "w m, b s -> b s m", g.parameter("table", (WORDS, WIDTH)), ids)
    h = g.map("h", "tanh", g.contract("hidden", "b s m, m n -> b s n", x, g.parameter("w1", (WIDTH, WIDTH))))
    y = g.contract("head", "b s n, n o -> b s o", h, g.parameter("w2", (WIDTH, outputs)))
    if bias:
        y = g.map("biased", "add", y, g.parameter("bias", (outputs,)), text="b s o, o -> b s o")
    if cast:
        y = g.map("wide", "cast", y, dtype="float64")
    return g


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"bias": True, "cast": True}])
def test_logits_over_the_tokens_get_their_cross_entropy(options: dict[str, bool]) -> None:
    g = language(**options)
    last = list(g.tensors)[-1]
    step = build_step(g.build(last), "sgd")
    assert step.loss == f"the loss is the mean cross entropy of {last!r} against the integer input 'labels'"
    assert step.graph.tensor("labels").shape == (2, 3)
    values = random_inputs(step.graph, 0)
    got = run_graph(step.graph, values, keep=[last])
    p = np.exp(got[last]) / np.exp(got[last]).sum(-1, keepdims=True)
    picked = np.take_along_axis(p, values["labels"][..., None].astype(np.int64), -1)
    np.testing.assert_allclose(got["loss"], -np.log(picked).mean(), rtol=1e-12)


def test_logits_over_something_else_are_asked_about(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    g = language(outputs=5, bias=True)
    graph = g.build("biased")
    with pytest.raises(GraphError, match="output 'biased': holds 5 numbers per token.*--loss cross-entropy"):
        build_step(graph, "sgd")
    assert "cross entropy of 'biased'" in build_step(graph, "sgd", "cross-entropy").loss
    assert "squared error of 'biased'" in build_step(graph, "sgd", "squared-error").loss
    path = tmp_path / "g.json"
    path.write_text(graph.to_json())
    assert run(["import", str(path), "--train", "adam"]) == 3
    assert "--loss squared-error" in capsys.readouterr().err
    assert run(["import", str(path), "--train", "adam", "--loss", "squared-error"]) == 0
    assert "the loss is the mean squared error of 'biased'" in capsys.readouterr().out


def test_hidden_values_of_tokens_keep_the_squared_error() -> None:
    assert "squared error of 'h'" in build_step(language().build("h"), "sgd").loss


def test_of_several_outputs_the_logits_or_the_one_named() -> None:
    graph = language().build("h", "head")
    assert "cross entropy of 'head'" in with_loss(graph)[2]
    assert "squared error of 'h'" in with_loss(graph, "squared-error:h")[2]
    with pytest.raises(GraphError, match="has 2 outputs; name the one.*squared-error:h"):
        with_loss(language().build("h", "hidden"))
    with pytest.raises(GraphError, match="output 'nobody': is not computed"):
        with_loss(graph, "squared-error:nobody")


def scalars(*names: str) -> Graph:
    g = language()
    for name in names:
        g.reduce(name, "b s o -> ", "head")
    return g.build("head", *names)


def test_the_scalar_called_loss_or_the_only_one() -> None:
    assert with_loss(scalars("penalty", "loss"))[1:] == ("loss", "the loss is the output 'loss', one of 3")
    assert with_loss(scalars("total"))[1:] == ("total", "the loss is the output 'total', one of 2")
    with pytest.raises(GraphError, match="returns 2 scalars, none called 'loss': a, b; name the one"):
        with_loss(scalars("a", "b"))
    assert with_loss(scalars("a", "b"), "b")[1] == "b"


def frozen(graph: Graph, *names: str) -> Graph:
    return replace(graph, tensors=tuple(replace(t, frozen=t.name in names) for t in graph.tensors))


def test_frozen_weights_have_no_gradient_and_no_moments() -> None:
    graph = frozen(language().build("head"), "table", "w1").check()
    assert Graph.from_json(graph.to_json()) == graph != language().build("head")
    step = build_step(graph, "adam")
    assert step.trained == (("w2", "grad:w2"),)
    assert set(step.constant) == {"table", "w1"}
    assert not any("table" in op.name or "w1" in op.name or "hidden" in op.name for op in step.graph.operators[3:])
    every = build_step(frozen(graph), "adam").graph
    values = random_inputs(every, 1)
    whole = run_graph(every, values)
    known = {t.name for t in step.graph.tensors}
    part = run_graph(step.graph, {k: v for k, v in values.items() if k in known})
    np.testing.assert_allclose(part["w2.next"], whole["w2.next"], rtol=1e-12)
    with pytest.raises(GraphError, match="no floating-point parameter"):
        build_step(frozen(graph, "table", "w1", "w2"), "adam")


def test_only_parameters_are_frozen() -> None:
    data = json.loads(language().build("head").to_json())
    for t in data["tensors"]:
        if t["role"] == "input":
            t["frozen"] = True
    with pytest.raises(GraphError, match="tensor 'ids': is frozen, and no parameter"):
        Graph.from_json(json.dumps(data))

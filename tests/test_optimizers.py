"""Optimizers of `--train`: their texts, the operators that they add, and plans of them that run like one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.layout.classes import operator_key
from shardproof.models.program.graph import GraphError
from shardproof.models.sources.training import OPTIMIZERS, Settings, build_step, parse_optimizer, training_step
from shardproof.models.sources.training.derived import derived_keys
from shardproof.models.sources.zoo import build


def model():
    return build("mlp-unity", batch=8, inputs=4, hidden=8, classes=4, dtype="float64")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "shampoo",
            "'shampoo' is not one of 'sgd', 'adam', 'adamw', 'rmsprop', 'adagrad', 'lion', 'muon', 'adafactor'",
        ),
        ("", "is not one of"),
        ("sgd:beta1=0.9", "sgd has no 'beta1'; it has: rate, momentum, nesterov, decay, bits, clip, step"),
        ("adam:momentum=0.9", "adam has no 'momentum'"),
        ("sgd:rate", "give rate=NUMBER once"),
        ("sgd:rate=1,rate=2", "give rate=NUMBER once"),
        ("sgd:rate=nan", "give rate=NUMBER once"),
        ("sgd:rate=-1", "give rate=NUMBER once"),
        ("sgd:rate=1e99", "out of range"),
        ("sgd:momentum=2", "out of range"),
        ("sgd:clip=0", "out of range"),
        ("adam:step=0", "out of range"),
        ("adam:step=1.5", "out of range"),
        ("sgd:nesterov=0.5", "out of range"),
        ("adam:bits=24", "out of range"),
        ("muon:iterations=2.5", "out of range"),
        (
            "muon:beta1=0.9",
            "muon has no 'beta1'; it has: rate, momentum, nesterov, decay, epsilon, iterations, match_rms",
        ),
        ("adafactor:d=0.5", "out of range"),
    ],
)
def test_texts_that_are_refused(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        parse_optimizer(text)
    assert run(["import", "mlp-unity", "--train", text]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    with pytest.raises(GraphError, match="--train"):
        build_step(model(), text)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_defaults_are_the_same_step_whichever_way_they_are_given(name: str) -> None:
    assert parse_optimizer(name) == (name, Settings())
    by_text, by_settings = (
        training_step(model(), f"{name}:rate=0.25"),
        training_step(model(), name, settings=Settings(rate=0.25)),
    )
    assert by_text.operators == by_settings.operators
    assert by_text.name == f"mlp-unity+{name}:rate=0.25"


def test_what_clipping_adds_belongs_to_the_step_and_to_no_layer() -> None:
    graph = training_step(model(), "sgd:clip=0.5")
    added = {op.name for op in graph.operators if op.name.startswith(("norm:", "clipped:"))}
    assert added == {
        "norm:fc1.weight", "norm:fc2.weight", "norm:all", "norm:factor", "clipped:fc1.weight", "clipped:fc2.weight",
    }  # fmt: skip
    assert {operator_key(n) for n in added} <= derived_keys(graph)
    assert operator_key("fc1") not in derived_keys(graph)


@pytest.mark.parametrize("most", [1e-3, 1e3])
def test_the_norm_of_clipped_gradients(most: float) -> None:
    step, plain = build_step(model(), f"sgd:rate=1,clip={most}"), build_step(model(), "sgd:rate=1")
    values = random_inputs(plain.graph, 3)
    free, got = run_graph(plain.graph, values), run_graph(step.graph, values)
    moved = {w: (values[w] - free[f"{w}.next"], values[w] - got[f"{w}.next"]) for w, _ in step.trained}
    norm = np.sqrt(sum((g**2).sum() for g, _ in moved.values()))
    assert 1e-3 < norm < 1e3
    factor = min(1.0, most / (norm + 1e-6))
    for g, c in moved.values():
        np.testing.assert_allclose(c, factor * g, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "text", ["sgd:momentum=0.9,decay=0.1", "adamw:clip=0.5", "lion:decay=0.1", "muon", "adafactor"]
)
def test_plans_are_proved_and_run_like_one_process(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "p.spz")
    assert run(["plan", "mlp-unity", "--batch", "8", "--train", text, "--machine", "localhost:4", "-o", path]) == 0
    assert run(["check", path, "--model", "mlp-unity", "--batch", "8", "--train", text]) == 0
    assert run(["check", path, "--model", "mlp-unity", "--batch", "8", "--train", "sgd"]) == 10
    assert run(["run", path, "-n", "4", "--virtual"]) == 0
    capsys.readouterr()
    assert run(["explain", path, "--state", "--json"]) == 0
    rows = {row["parameter"]: row for row in json.loads(capsys.readouterr().out)["stored_state"]}
    assert set(rows) == {"fc1.weight", "fc2.weight"}
    sizes = {t.name: t for t in build("mlp-unity", batch=8).tensors}
    for weight, row in rows.items():  # whole, or in two or four parts
        whole = sizes[weight].elements * sizes[weight].element_bytes
        moments = 2 if text.startswith("adamw") or (text, weight) == ("muon", "fc2.weight") else 1
        kept = moments * whole
        if text == "adafactor":  # a number for every row and one for every column
            kept = sum(sizes[weight].shape) * sizes[weight].element_bytes
            assert row["state_bytes"] <= kept
        else:
            assert row["state_bytes"] in {kept // parts for parts in (1, 2, 4)}
        assert row["gradient_bytes"] in {whole // parts for parts in (1, 2, 4)}

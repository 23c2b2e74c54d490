"""Results that rounding decides are told from wrong ones: what one process does not determine is not asked of ranks, and
everything else is.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.conditioning import compare, other_digits
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder


def normalised() -> Graph:
    """`sign`: differences that are zero but for rounding, divided by a size like theirs; `there`: what everybody agrees
    on.
    """
    g = Builder("normalised", "float64")
    x, w = g.input("x", (32, 200)), g.input("w", (200,))
    there = g.contract("there", "r i, i -> r", x, w)
    thrice = g.contract("thrice", "r i, i -> r", x, g.map("w3", "scale", w, scale=3.0))
    nothing = g.map("nothing", "subtract", g.map("there3", "scale", there, scale=3.0), thrice)
    return g.build(g.map("sign", "scale", nothing, scale=1e15), there)


def test_what_rounding_decides_is_not_asked_of_ranks() -> None:
    graph = normalised()
    inputs = random_inputs(graph, 0, "float64")
    expected = run_graph(graph, inputs)
    other = run_graph(graph, other_digits(inputs))
    assert float(np.max(np.abs(expected["sign"] - other["sign"]))) > 1, (
        "this case is no case: one process agrees with itself"
    )
    found = compare(graph, inputs, {"sign": -expected["sign"], "there": expected["there"]}, expected, 1e-10)
    assert found.equal and found.worst == 0 and [name for name, _, _ in found.undetermined] == ["sign"]
    assert "but for 1 results that rounding decides" in found.lines()[1]


@pytest.mark.parametrize("wrong", [1e-9, 1.0, np.nan, np.inf])
def test_what_is_determined_is_asked_of_ranks(wrong: float) -> None:
    """Whatever stands beside it, and however far off it is."""
    graph = normalised()
    inputs = random_inputs(graph, 0, "float64")
    expected = run_graph(graph, inputs)
    got = {"sign": -expected["sign"], "there": expected["there"] + wrong * (1 + abs(expected["there"]))}
    found = compare(graph, inputs, got, expected, 1e-10)
    assert not found.equal and found.at == "there" and "DIFFERENT, at there" in found.lines()[0]
    far = {"sign": expected["sign"] + 1e6, "there": expected["there"]}
    assert not compare(graph, inputs, far, expected, 1e-10).equal


def test_a_step_whose_gradients_are_zero_but_for_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bias of keys: softmax does not see it, so Adafactor divides a rounding error by its own size."""
    plan = tmp_path / "p.spz"
    asked = ["--machine", "localhost:4", "--train", "adafactor", "--batch", "8", "--space", "one-per-level"]
    assert run(["plan", "bert-tiny:layers=1", *asked, "--work-limit", "60M", "--gap", "50%", "-o", str(plan)]) in (0, 5)
    capsys.readouterr()
    code = run(["run", str(plan), "-n", "4", "--virtual", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 0 and said["equal"] and said["difference"] <= 1e-10
    assert said["undetermined"] and all("key.bias" in name for name in said["undetermined"])

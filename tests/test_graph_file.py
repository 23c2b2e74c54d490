"""Graphs as files: what is written reads back, equal, and is written again as the same bytes."""

from __future__ import annotations

import json
from math import inf, isnan, nan

import numpy as np
import pytest

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.sources.building.builder import Builder


def masked(value: float | str, function: str = "mask_fill") -> Graph:
    g = Builder("g")
    x = g.input("x", (2, 3))
    if function == "mask_fill":
        return g.build(g.map("y", function, x, g.input("m", (2, 3), "bool"), value=value))
    return g.build(g.map("y", function, x, low=-inf, high=inf, note=value))


@pytest.mark.parametrize("value", [inf, -inf, nan, 0.0, -0.0, 1e308, 5e-324])
@pytest.mark.parametrize("function", ["mask_fill", "clip"])
def test_every_number_reads_back(value: float, function: str) -> None:
    graph = masked(value, function)
    text = graph.to_json()
    again = Graph.from_json(text)
    assert again == graph
    assert again.to_json() == text
    found = again.operators[0].attribute("note" if function == "clip" else "value", "")
    assert isinstance(found, float)
    assert isnan(found) == isnan(value)
    json.loads(text, parse_constant=pytest.fail)  # plain JSON, which other readers take


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_a_text_stays_a_text(text: str) -> None:
    graph = masked(text, "clip")
    assert Graph.from_json(graph.to_json()).operators[0].attribute("note", 0) == text


@pytest.mark.parametrize(
    "spelling",
    [
        "-Infinity",
        "NaN",
        "1e999",
        '{"float":"Infinity"}',
        '{"float":"1"}',
        '{"float":1}',
        '{"float":"inf","x":1}',
        "{}",
    ],
)
def test_other_spellings_are_refused(spelling: str) -> None:
    text = masked(-inf).to_json()
    assert text.count('{"float":"-inf"}') == 1
    with pytest.raises(GraphError, match="graph file"):
        Graph.from_json(text.replace('{"float":"-inf"}', spelling))


def test_what_was_read_computes_the_same() -> None:
    graph = Graph.from_json(masked(-inf).to_json())
    x, m = np.ones((2, 3)), np.array([[1, 0, 1], [0, 0, 1]], bool)
    np.testing.assert_array_equal(run_graph(graph, {"x": x, "m": m})["y"], np.where(m, 1.0, -np.inf))

"""Parallel computation graphs: back to the placements they were made of, steps that lead where they say, equal prices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.formal.explain.parallel_graph import picture, priced_graph, render_parallel
from shardproof.models.communication.parallel_graph import Parallel, ParallelTensor, Step, apply_steps, steps_between
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo

GRAPHS = {
    "mlp": lambda: zoo("mlp-unity"),
    "step": lambda: build_step(zoo("mlp-unity", batch=8, inputs=12, hidden=16, classes=4), "sgd").graph,
    "convolutions": lambda: zoo("conv-stack"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_there_and_back(name: str) -> None:
    graph: Graph = GRAPHS[name]()
    planning = build(graph, load_machine("cloud-a100:2x2"), space("complete"))
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(6):
        x = tuple(int(rng.integers(v.cost.size)) for v in planning.problem.vertices)
        found = priced_graph(planning, x)
        assert found.of.choices() == planning.choices(x)
        assert found.cost == planning.problem.cost_of(x)
        for c in found.of.changes:
            assert apply_steps(c.source, c.steps) == c.target
            parts = [*c.target.dimensions, c.target.replicas, c.target.sums]
            assert [int(np.prod([p[j] for p in parts])) for j in range(2)] == [2, 2]
            kinds |= {s.kind for s in c.steps}
    assert {Parallel.PARTITION, Parallel.COMBINE, Parallel.REPLICATE} <= kinds
    assert name == "convolutions" or Parallel.REDUCE in kinds


def test_steps() -> None:
    rows = ParallelTensor("t", ((4,), (1,)), (1,), (1,))
    columns = ParallelTensor("t", ((1,), (4,)), (1,), (1,))
    steps = steps_between(rows, columns, False)
    assert steps == (Step(Parallel.COMBINE, 0, 4, 0), Step(Parallel.PARTITION, 0, 4, 1))
    assert apply_steps(rows, steps) == columns
    terms = ParallelTensor("t", ((1,), (1,)), (1,), (4,))
    assert [s.kind for s in steps_between(terms, rows, False)] == [Parallel.REDUCE, Parallel.PARTITION]
    assert steps_between(rows, rows, False) == (Step(Parallel.REARRANGE),) and steps_between(rows, rows, True) == ()
    with pytest.raises(ValueError, match="partition by 2 at level 0: only 1"):
        apply_steps(rows, [Step(Parallel.PARTITION, 0, 2, 1)])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "mlp-unity", "--machine", "localhost:2", "-o", "p.spz", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert run(["explain", "p.spz", "--pcg", "--json", "--svg", "p.svg"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cost"] == cost and {o["name"] for o in said["operators"]} == {"fc1", "relu1", "fc2"}
    assert Path("p.svg").read_text().startswith("<svg")
    assert run(["explain", "p.spz", "--pcg"]) == 0
    assert any(line.startswith("fc1: ") for line in capsys.readouterr().out.splitlines())
    assert run(["explain", "p.spz", "--svg", "q.svg"]) == 3 and run(["explain", "p.spz", "--pcg", "--cost"]) == 2


def test_drawing_and_text_name_everything() -> None:
    planning = build(GRAPHS["step"](), load_machine("cloud-a100:2x2"), space("complete"))
    x = tuple(v.cost.size - 1 for v in planning.problem.vertices)
    found = priced_graph(planning, x)
    text, drawn = render_parallel(found), picture(found, "a & b")
    for name, _ in found.of.operators:
        assert f"{name}: " in text and f"{name}: " in drawn
    assert "a &amp; b" in drawn and "replicate(2 over" in text

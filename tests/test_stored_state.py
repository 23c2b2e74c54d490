"""How training plans store what they train: the stories that come out of the search, and the words `explain` has
for them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from budgets import limited

from shardproof.__main__ import run
from shardproof.formal.explain.stored_state import StoredState, render_stored_state, stored_state
from shardproof.formal.plans.plan import Planned, plan_graph
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status
from shardproof.models.sources.training import training_step
from shardproof.models.sources.zoo import build as zoo

LOOSE = 1 << 40


@cache
def planned(model: str, limit: int, options: tuple[tuple[str, int | str], ...]) -> Planned:
    found = plan_graph(
        training_step(zoo(model, **dict(options)), "adam"),
        load_machine("cloud-a100:1x8"),
        memory_limit=limit,
        limit=limited(60),
    )
    assert found.answer.status is Status.OPTIMAL
    return found


def state(model: str, limit: int, **options: int | str) -> dict[str, StoredState]:
    found = planned(model, limit, tuple(options.items()))
    assert found.answer.solution is not None
    return {s.parameter: s for s in stored_state(found.planning, found.answer.solution)}


def peak(model: str, limit: int, **options: int | str) -> int:
    found = planned(model, limit, tuple(options.items()))
    assert found.answer.solution is not None
    return found.planning.problem.peak_of(found.answer.solution)[0]


MLP = {"batch": 8192, "width": 512, "layers": 3}


def test_small_weights_and_a_loose_limit_are_data_parallel() -> None:
    """Weights whole on every device, the batch split; gradients scattered, so the optimizer works on shares
    (nothing is dearer for it).
    """
    found = state("mlp-8192", LOOSE, **MLP)
    assert {s.scheme for s in found.values()} == {"data parallel, ZeRO-2"}
    for s in found.values():
        assert (s.weight, s.synchronised, s.gathered, s.renewed) == (
            "replicated",
            "reduce-scatter",
            "none",
            "all-gather",
        )
        assert (
            s.weight_bytes == 512 * 512 * 4
            and s.gradient_bytes == s.weight_bytes // 8
            and s.state_bytes == 2 * s.gradient_bytes
        )
    p = planned("mlp-8192", LOOSE, tuple(MLP.items()))
    assert p.answer.solution is not None
    choices = dict(p.planning.choices(p.answer.solution).operators)
    for name in ("fc1", "relu1", "fc2", "fc3", "grad:relu1"):
        placement = choices[name]
        assert placement.matrix[placement.axes.index("b")] == (1, 8)


def test_a_tight_limit_makes_it_zero_3_and_dearer() -> None:
    loose = peak("mlp-8192", LOOSE, **MLP)
    limit = loose * 62 // 100
    found = state("mlp-8192", limit, **MLP)
    sharded = [s for s in found.values() if s.scheme == "data parallel, ZeRO-3"]
    assert sharded and all(
        s.weight != "replicated" and "all-gather" in s.gathered and s.weight_bytes == 512 * 512 * 4 // 8
        for s in sharded
    )
    assert peak("mlp-8192", limit, **MLP) <= limit < loose
    tight, free = planned("mlp-8192", limit, tuple(MLP.items())), planned("mlp-8192", LOOSE, tuple(MLP.items()))
    assert tight.answer.cost is not None and free.answer.cost is not None and tight.answer.cost > free.answer.cost


def test_weights_that_outweigh_the_batch_are_tensor_parallel() -> None:
    found = state("mlp-8192", LOOSE, batch=64, width=1024, layers=3)
    for s in found.values():
        assert (s.scheme, s.synchronised, s.gathered, s.renewed) == ("tensor parallel", "none", "none", "none")
        assert s.weight_bytes == 1024 * 1024 * 4 // 8


def test_tables_are_split_while_perceptrons_stay_data_parallel() -> None:
    """DLRM as it comes: 8 tables of a million rows, 16384 examples."""
    found = state("dlrm", LOOSE)
    tables = [s for name, s in found.items() if name.startswith("table")]
    dense = [s for name, s in found.items() if not name.startswith("table")]
    assert len(tables) == 8 and len(dense) == 7
    assert {s.scheme for s in tables} == {"tensor parallel"} and {s.weight_bytes for s in tables} == {
        1_000_000 * 64 * 4 // 8
    }
    assert {(s.scheme, s.weight, s.synchronised) for s in dense} == {
        ("data parallel, ZeRO-2", "replicated", "reduce-scatter")
    }


def test_the_table_groups_and_adds_up() -> None:
    found = planned("dlrm", LOOSE, ())
    assert found.answer.solution is not None
    text = render_stored_state(stored_state(found.planning, found.answer.solution))
    assert "table{0..7}.rows  x8  tensor parallel" in text
    assert (
        "tensor parallel: 8 parameters, per device 256 MB of weights, 256 MB of gradients, 512 MB of optimizer state"
        in text
    )
    assert render_stored_state(()) == ""


@pytest.mark.parametrize(
    ("devices", "scheme", "sync"),
    [("cloud-a100:1x1", "replicated, no sync", "none"), ("cloud-a100:1x8", "data parallel", "reduce")],
)
def test_sgd_has_no_moments(devices: str, scheme: str, sync: str) -> None:
    graph = training_step(zoo("mlp-8192", **MLP), "sgd")
    found = plan_graph(graph, load_machine(devices))
    assert found.answer.solution is not None
    for s in stored_state(found.planning, found.answer.solution):
        assert s.state == "none" and s.state_bytes == 0 and s.scheme.startswith(scheme) and sync in s.synchronised
    forward = plan_graph(zoo("mlp-8192", **MLP), load_machine(devices))
    assert forward.answer.solution is not None and stored_state(forward.planning, forward.answer.solution) == ()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "p.spz")
    assert run(["plan", "mlp-unity", "--batch", "8", "--train", "adam", "--machine", "localhost:4", "-o", plan]) == 0
    capsys.readouterr()
    assert run(["explain", plan, "--state", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stored_state"]
    assert [s["parameter"] for s in found] == ["fc1.weight", "fc2.weight"]
    assert run(["explain", plan]) == 0
    assert "stored state" in capsys.readouterr().out
    assert run(["run", plan, "-n", "4", "--virtual"]) == 0
    said = capsys.readouterr().out
    assert "loss " in said and "6 renewed parameters and moments" in said
    assert run(["explain", plan, "--state", "--cost"]) == 2
    assert run(["plan", "mlp-unity", "--batch", "8", "--machine", "localhost:4", "-o", plan]) == 0
    capsys.readouterr()
    assert run(["explain", plan, "--state"]) == 3
    assert "trains nothing" in capsys.readouterr().err

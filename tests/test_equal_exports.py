"""Verb `equal`: a plan's exported DTensor file trains as one process does: loss and weights after a step of Adam, proved."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from export_cases import MACHINE

import shardproof

pytestmark = pytest.mark.torch
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(16, 32, generator=G), torch.randn(16, 32, generator=G)
NUMBERS = {"lr": 1e-2, "eps": 1e-3, "foreach": False}


def perceptron() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 32))


def step(model: Any, optimizer: Any, scale: float = 1.0) -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (model(x) - y).square().mean()
        (loss * scale).backward()
        optimizer.step()
        return {"loss": loss, **dict(model.named_parameters())}

    return f


def test_an_exported_perceptron_trains_as_one_process_does(tmp_path: Path) -> None:
    machine, file = tmp_path / "machine.toml", tmp_path / "layout_of_perceptron.py"
    machine.write_text(MACHINE.format(nodes=1, rate="0.2"))
    plan = shardproof.plan(perceptron(), str(machine), inputs=(X,), train="adam", work_limit=120_000_000)
    file.write_text(plan.export("dtensor"))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    layout = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = layout
    spec.loader.exec_module(layout)

    def single() -> Any:
        model = perceptron()
        return step(model, torch.optim.Adam(model.parameters(), **NUMBERS)), (X, Y)

    def job(rank: int, ranks: int, scale: float = 1.0) -> Any:
        mesh = layout.make_mesh("cpu")
        model = layout.parallelize(perceptron(), mesh)
        return step(model, layout.make_optimizer(model, mesh, torch.optim.Adam, **NUMBERS), scale), (X, Y)

    found = shardproof.equal(single, job, ranks=2)
    assert found, str(found)
    assert any("of dimension" in str(row["is"]) for row in found.inputs), "nothing is split"
    wrong = shardproof.equal(single, lambda rank, ranks: job(rank, ranks, 2.0), ranks=2)
    assert wrong.answer == "different" and wrong.output.startswith("output.")

"""Ten models, forward and one step of Adam on 2 and 4 gloo ranks, from exported files: one process's numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from export_cases import MACHINE

import shardproof

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
MODELS = HERE / "torch_models" / "ten.py"

WHOLE = {"embedding_bag", "__getitem__", "topk", "sort", "_grouped_mm", "scaled_dot_product_attention"}
"""Functions that may run on whole tensors: DTensor has no rule for them, or they are read cut through the sequence."""


def _names() -> list[str]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    sys.path.insert(0, str(MODELS.parent))
    try:
        import ten
    finally:
        sys.path.remove(str(MODELS.parent))
    return [factory.__name__ for factory in ten.TEN]


@pytest.fixture(scope="module", params=[1, 2])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder with the exported files of all models for so many nodes of two devices."""
    import torch

    names = _names()
    import ten

    folder, machine = tmp_path_factory.mktemp(f"ten{request.param}"), MACHINE.format(nodes=request.param, rate="0.2")
    (folder / "machine.toml").write_text(machine)
    for name in names:
        torch.manual_seed(0)
        module, inputs = getattr(ten, name)()
        plan = shardproof.plan(
            module, str(folder / "machine.toml"), inputs=inputs, train="adam", work_limit=120_000_000
        )
        (folder / f"{name}.py").write_text(plan.export("dtensor"))
    return folder, 2 * request.param


@pytest.mark.parametrize("steps", ["planned", "plain"])
def test_ten_models_equal_one_process(exported: tuple[Path, int], steps: str) -> None:
    """`planned`: the optimizer of the exported file; `plain`: `torch.optim.Adam` on what `parallelize` returns."""
    folder, ranks = exported
    names = _names()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "dtensor_models_job.py"), str(folder), str(MODELS), str(ranks)]
        + names,
        capture_output=True,
        check=False,
        text=True,
        timeout=800,
        env={**os.environ, "OMP_NUM_THREADS": "1", "STEPS": steps, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        told = json.loads(line)
        found[told.pop("model")] = told
    assert list(found) == names
    for name, told in found.items():
        assert "error" not in told, (name, told)
        assert told["loss"] < 1e-5 and told["gradient"] < 1e-5 and told["weights"] < 2e-5, (name, told)
        assert told["collectives"] and told["cut"], (name, "nothing is split", told)
        assert set(told["whole"]) <= WHOLE, (name, told["whole"])

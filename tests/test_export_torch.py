"""Exported files, run by torch alone on gloo ranks: loss, gradients and three Adam steps equal one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from export_cases import MACHINE, MODELS

from shardproof.__main__ import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("dtensor_job.py")


def _job(model: str, nodes: int, rate: str, folder: Path) -> dict[str, object]:
    (folder / "model.py").write_text(MODELS[model])
    (folder / "machine.toml").write_text(MACHINE.format(nodes=nodes, rate=rate))
    plan, exported = folder / "plan.spz", folder / "exported.py"
    spec = ["plan", f"{folder / 'model.py'}:net", "--train", "adam", "--attention", "matrices"]  # as it is written
    assert run([*spec, "--machine", str(folder / "machine.toml"), "--work-limit", "60M", "-o", str(plan)]) in (0, 5)
    assert run(["export", str(plan), "--to", "dtensor", "-o", str(exported)]) == 0
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(JOB),
            str(exported),
            str(folder / "model.py"),
            str(2 * nodes),
            str(folder / "s"),
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=500,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("model", "nodes"), [("mlp", 1), ("mlp", 2), ("attention", 2), ("convolutions", 2)])
def test_a_job_equals_one_process(model: str, nodes: int, tmp_path: Path) -> None:
    found = _job(model, nodes, "0.2", tmp_path)
    assert found["loss"] < 1e-5 and found["gradient"] < 1e-5 and found["weights"] < 1e-4, found
    assert sum(found["collectives"].values()) > 0, "the plan splits something"
    assert any("Shard" in p for p in found["placements"].values()), found["placements"]

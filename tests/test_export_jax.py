"""Exported PartitionSpecs, run by JAX alone on eight host devices: outputs and gradients of one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from export_cases import MACHINE
from jax_functions import SIZES, WEIGHTS, text

import shardproof

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed"),
]

HERE = Path(__file__).parent
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}


def program(name: str) -> str:
    """A file as a user writes it: results are called by the variables that they are given to."""
    sizes = ", ".join(
        f"{k}=parameter(*{n}, dtype='float32')" if k in WEIGHTS else f"{k}={n}" for k, n in SIZES[name].items()
    )
    head = "import numpy as np\n\nfrom shardproof import parameter, program\n\n\n"
    return f"{head}@program('float32', {sizes})\n{text(name, False)}"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, shardproof.Plan]]:
    folder = tmp_path_factory.mktemp("jax")
    (folder / "machine.toml").write_text(MACHINE.format(nodes=4, rate="0.2"))
    plans = {}
    for name in SIZES:
        (folder / f"source_{name}.py").write_text(program(name))
        model, machine = f"{folder / f'source_{name}.py'}:{name}", str(folder / "machine.toml")
        plans[name] = shardproof.plan(model, machine, space_name="complete,jax")
        (folder / f"{name}.py").write_text(plans[name].export("jax"))
    return folder, plans


def test_five_functions_equal_one_device(exported: tuple[Path, dict[str, shardproof.Plan]]) -> None:
    folder, plans = exported
    done = subprocess.run(
        [sys.executable, str(HERE / "jax_job.py"), str(folder), *SIZES],
        capture_output=True,
        check=False,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = {t["function"]: t for t in map(json.loads, done.stdout.splitlines())}
    assert list(told) == list(SIZES)
    for name, found in told.items():
        plan = plans[name]
        assert found["output"] < 1e-5 and found["gradient"] < 1e-5, found
        assert set(found["kept"]) <= set(plan.layouts), "every constraint names a tensor of the plan"
        assert found["devices"] == plan.machine.devices == 8
        assert any(any(s.splits) for s in plan.layouts.values()), "the plan splits something"
        moved = {m.collective for m in plan.bundle.communication if m.loads[-1]}
        assert set(found["collectives"]) <= COLLECTIVES
        assert bool(found["collectives"]) == bool(moved), (name, moved, found["collectives"])

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
from jax_functions import SIZES, STRATEGIES, WEIGHTS, text

import shardproof
from shardproof.__main__ import run
from shardproof.backends.export.hlo import compare_traffic

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


@pytest.fixture(scope="module", params=["planned", "by strategy"])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, shardproof.Plan]]:
    """The best plans, which move nothing, and plans by strategies that move something in every function."""
    folder = tmp_path_factory.mktemp("jax")
    (folder / "machine.toml").write_text(MACHINE.format(nodes=4, rate="0.2"))
    plans = {}
    for name in SIZES:
        (folder / f"source_{name}.py").write_text(program(name))
        model, machine = f"{folder / f'source_{name}.py'}:{name}", str(folder / "machine.toml")
        if request.param == "planned":
            plans[name] = shardproof.plan(model, machine, space_name="complete,jax")
            plans[name].save(folder / f"{name}.spz")
        else:
            (folder / "s.json").write_text(json.dumps(STRATEGIES[name]))
            words = ["plan", model, "--machine", machine, "--vocabulary", "jax", "--strategy", str(folder / "s.json")]
            assert run([*words, "-o", str(folder / f"{name}.spz")]) in (0, 5)
            plans[name] = shardproof.load(folder / f"{name}.spz")
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
        traffic = compare_traffic(plan.bundle, (folder / f"{name}.hlo").read_text())
        left = {(r.verdict, r.place.rpartition("/")[2], r.collectives) for r in traffic.differences}
        assert left == (DIFFERENCES.get(name, set()) if moved else set()), (name, traffic.rows)
        assert sum(found["collectives"].values()) == sum(len(r.collectives) for r in traffic.rows)


def test_the_verb_compiles_and_reads(exported: tuple[Path, dict[str, shardproof.Plan]]) -> None:
    """In a process of its own: JAX is told the number of devices before it is imported."""
    folder, plans = exported
    (folder / "job.py").write_text(JOB.format(here=str(HERE)))
    done = subprocess.run(
        [sys.executable, "-m", "shardproof", "verify-job", "perceptron.spz", "job.py:perceptron", "--json"],
        capture_output=True,
        check=False,
        text=True,
        timeout=200,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    moved = sum(m.loads[-1] for m in plans["perceptron"].bundle.communication) * 4
    assert told["received"] == told["planned"] == moved


JOB = """
import sys
sys.path.insert(0, {here!r})
import jax, jax.numpy as jnp
from jax_functions import SIZES, text
import perceptron as exported

def perceptron():
    mesh = exported.make_mesh()
    names = {{"np": jnp, "keep": lambda name, x: exported.constrain(name, x, mesh)}}
    exec(text("perceptron", True), names)
    return jax.jit(names["perceptron"]), exported.place({{k: jnp.ones(n) for k, n in SIZES["perceptron"].items()}}, mesh)
"""

DIFFERENCES = {
    "experts": {("job only", "div", ("all-gather",))},
    "table": {
        ("plan only", "ab -> y", ()),
        ("job only", "dot_general", ("collective-permute",)),
        ("job only", "dot_general", ("all-gather",)),
    },
}
"""By name.  experts: XLA divides in the layout that the quotient is read in, and gathers the sums for it.  table: it
makes the product where it is read, from inputs that it moves, instead of moving the product.
"""

"""Verb `equal` on JAX: `shard_map` and `jit` with shardings, right ones proved, wrong ones different, others refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed"),
]

EVERY = """
import contextlib, io, json, os, sys
sys.path.insert(0, {here!r})
import {module} as pairs
from shardproof.__main__ import run

def told(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words])
    return [code, out.getvalue(), err.getvalue()]

rows = []
for single, right, wrong, ranks in pairs.{families}:
    for name in (*right, *wrong):
        words = [f"{{pairs.__file__}}:{{single}}", f"{{pairs.__file__}}:{{name}}", "--ranks", str(ranks)]
        file = f"{folder}/{{name}}_{{ranks}}.spz"
        rows.append([name, name in right, told("equal", *words, "--json", "-o", file)])
        if name in right:
            rows[-1].append(told("check", file)[0])
for name, words in getattr(pairs, "REFUSED", ()):
    call = ["equal", f"{{pairs.__file__}}:perceptron", f"{{pairs.__file__}}:{{name}}", "--ranks", "4"]
    rows.append([name, words, told(*call)])
print(json.dumps(rows))
"""


def _every(folder: Path, module: str = "jax_pairs", families: str = "FAMILIES") -> str:
    return EVERY.format(here=str(HERE), folder=str(folder), module=module, families=families)


def _in_a_process(text: str, ranks: int = 4) -> Any:
    """JAX is told the number of devices before it is imported."""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={ranks}"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        check=False,
        text=True,
        timeout=250,
        env={**os.environ, **flags, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("jax")
    return {row[0]: row[1:] for row in _in_a_process(_every(folder))}


def test_right_ones_are_equal_and_their_proofs_are_checked(told: dict[str, Any]) -> None:
    right = {name: row for name, row in told.items() if row[0] is True}
    assert len(right) == 13
    for name, (_, (code, out, err), checked) in right.items():
        assert (code, checked) == (0, 0), (name, out, err)
        assert json.loads(out)["verdict"] == "equal", name


def test_wrong_ones_are_different_with_their_line(told: dict[str, Any]) -> None:
    wrong = {name: row for name, row in told.items() if row[0] is False}
    assert len(wrong) == 11
    for name, (_, (code, out, err)) in wrong.items():
        assert code == 10, (name, out, err)
        found = json.loads(out)
        assert found["verdict"] == "different" and found["line"].startswith("jax_pairs.py:"), (name, found)
        assert found["numbers"][0] != found["numbers"][1], name


def test_what_is_not_read_is_refused_by_name(told: dict[str, Any]) -> None:
    refused = {name: row for name, row in told.items() if isinstance(row[0], str)}
    assert len(refused) == 6
    for name, (words, (code, _, err)) in refused.items():
        assert code == 3 and words in err, (name, err)


MISREAD = """
import json, sys
sys.path.insert(0, {here!r})
import jax_pairs as pairs
from shardproof.models.sources.partitioned import operators, collectives, indexed, machine
from shardproof.models.text import InputError
import shardproof

def with_wrong(table, name, wrong, single, distributed):
    before = table[name]
    table[name] = wrong
    try:
        return shardproof.equal(single, distributed, ranks=4).answer
    except InputError as error:
        return str(error)
    finally:
        table[name] = before

def lost(place, w, op, given):
    return given

def first(w, op, given):
    return [given[0]]

def early(w, op, given):
    return [w.step("tanh", (given[0],), {{}}, w.shape(given[0]), w.dtype(given[0]))]

rows = {{
    "all_reduce": with_wrong(machine.COLLECTIVES, "stablehlo.all_reduce", lost, pairs.perceptron, pairs.perceptron_right),
    "permute": with_wrong(machine.COLLECTIVES, "stablehlo.collective_permute", lost, pairs.ring, pairs.ring_right),
    "add": with_wrong(machine.HANDLERS, "stablehlo.add", first, pairs.perceptron, pairs.perceptron_right),
    "rsqrt": with_wrong(machine.HANDLERS, "stablehlo.rsqrt", early, pairs.norm, pairs.norm_right),
}}
print(json.dumps(rows))
"""


def test_an_operator_that_is_read_wrongly_is_refused() -> None:
    """What is written down is compared with what the devices have, so neither verdict is given."""
    for name, words in _in_a_process(MISREAD.format(here=str(HERE))).items():
        assert "give another 'output' than the run itself" in words, (name, words)


def test_devices_are_asked_for_where_jax_has_fewer() -> None:
    text = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import jax_pairs, shardproof
from shardproof.models.text import InputError
try:
    shardproof.equal(jax_pairs.perceptron, jax_pairs.perceptron_right, ranks=4)
except InputError as error:
    print(json.dumps(str(error)))
"""
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=4" in _in_a_process(text, ranks=2)


def test_gradients_are_the_users_own() -> None:
    text = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import jax_pairs, shardproof
from shardproof.models.text import InputError
try:
    shardproof.equal(jax_pairs.perceptron, jax_pairs.perceptron_right, ranks=4, grad=True)
except InputError as error:
    print(json.dumps(str(error)))
"""
    assert "jax.value_and_grad" in _in_a_process(text)


def _judged(rows: list[list[Any]]) -> None:
    for name, right, (code, out, err), *checked in rows:
        assert (code, checked) == ((0, [0]) if right else (10, [])), (name, out, err)
        assert json.loads(out)["verdict"] == ("equal" if right else "different"), name


def test_words_in_parts_and_heads_that_ranks_share(tmp_path: Path) -> None:
    """`logsumexp` asks whether the greatest is finite; which head a rank has is its number by 2."""
    rows = _in_a_process(_every(tmp_path, families="LATE"))[:4]
    assert [row[1] for row in rows] == [True, False, True, False]
    _judged(rows)


def test_steps_of_training_by_shard_map(tmp_path: Path) -> None:
    """Data parallelism with Adam, and parameters in shards that are gathered, with gradients that are scattered."""
    rows = _in_a_process(_every(tmp_path, "jax_training"))
    assert [row[1] for row in rows] == [True, False, True, False, False, False]
    _judged(rows)


@pytest.mark.slow
def test_steps_of_a_transformer_by_shard_map(tmp_path: Path) -> None:
    """With one sample a rank, whose words are rows of a table, and on a mesh of data and tensor parallelism."""
    rows = _in_a_process(_every(tmp_path, "jax_training", "DEAR"))
    assert [row[1] for row in rows] == [True, True, True, False, True]
    _judged(rows)


@pytest.mark.slow
def test_a_scan_over_layers_by_jit_with_shardings(tmp_path: Path) -> None:
    """What `scan` keeps for gradients is read as what was written; masks of -1e30 do not make all places alike."""
    rows = _in_a_process(_every(tmp_path, "jax_scanned"))
    assert [row[1] for row in rows] == [True, False]
    _judged(rows)

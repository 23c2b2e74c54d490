"""The examples run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def output(name: str, *words: str, code: int = 0, timeout: float = 280) -> str:
    """What an example prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLES / name), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout


def test_numpy() -> None:
    assert "bytes as priced" in output("numpy_attention.py")


def test_an_audit_in_ci() -> None:
    import json

    assert output("ci/audit.py").startswith("optimal (proved)")
    workflow = (EXAMPLES / "ci" / "audit.yml").read_text(encoding="utf-8")
    assert "python examples/ci/audit.py" in workflow and json.loads((EXAMPLES / "ci" / "strategy.json").read_text())


@pytest.mark.torch
def test_jax() -> None:
    pytest.importorskip("jax")
    assert "on 4 devices: largest difference" in output("jax_perceptron.py")


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_script() -> None:
    pytest.importorskip("torch")
    text = output("train_gpt.py", "--ranks", "2", "--steps", "3")
    assert "places send what is planned" in text and text.count("in one process") == 3


EQUAL = [("dtensor", 4, True), ("fsdp2", 2, False), ("megatron", 4, True), ("pipeline", 2, False)]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "ranks", "grad"), [*EQUAL, ("jax_shard_map", 4, False)])
def test_parallel_code_beside_the_one_device(name: str, ranks: int, grad: bool) -> None:
    """Each in a process of its own: JAX is told the number of devices before it is imported."""
    pytest.importorskip("jax" if name.startswith("jax") else "torch")
    file = f"examples/equal/{name}.py"
    for job, code in (("parallel", 0), ("wrong", 10)):
        words = ["-m", "shardproof", "equal", f"{file}:single", f"{file}:{job}", "--ranks", str(ranks)]
        done = subprocess.run(
            [sys.executable, *words, *(["--grad"] if grad else [])],
            cwd=EXAMPLES.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == code, (job, done.stdout[-2000:], done.stderr[-2000:])
    command = f"{file}:single {file}:parallel --ranks {ranks}{' --grad' if grad else ''}"
    assert f"shardproof equal {command}" in (EXAMPLES / "equal" / f"{name}.py").read_text(encoding="utf-8")


def test_equal_in_ci() -> None:
    """The workflow calls files that are there."""
    workflow = (EXAMPLES / "ci" / "equal.yml").read_text(encoding="utf-8")
    files = set(re.findall(r"examples/[\w/]+\.py", workflow))
    assert files and all((EXAMPLES.parent / f).exists() for f in files)


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(p.name in page or p.is_dir() for p in EXAMPLES.iterdir() if p.name != "README.md")


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_shows_what_its_file_holds(path: Path) -> None:
    """Identities depend on the versions that took part, and are left out."""
    stored, now = (re.sub(r"\b[0-9a-f]{12,64}\b", "#", text) for text in (path.read_text("utf-8"), run_again(path)))
    assert now == stored, "run: python tests/notebooks.py write"
    assert now.count('"outputs": [\n') >= 3, "cells show something"


def run_again(path: Path) -> str:
    return notebooks.text(notebooks.executed(path))


def test_a_cell_of_a_notebook(tmp_path: Path) -> None:
    source = ["print(1)\n", "!echo two && false\n", "1 + 2"]
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
    (tmp_path / "x.ipynb").write_text(notebooks.text({"cells": [cell]}))
    stream, result = notebooks.executed(tmp_path / "x.ipynb")["cells"][0]["outputs"]
    assert "".join(stream["text"]) == "1\ntwo\nexit status 1\n" and result["data"] == {"text/plain": ["3"]}

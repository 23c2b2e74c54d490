"""Tutorial and examples run on a fresh clone, in a path with a space, with nothing but what is committed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_tutorial_and_examples_on_a_fresh_clone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    home = tmp_path / "a clone"
    home.mkdir()
    clone = ["git", "clone", "--quiet", str(ROOT), "shardproof"]
    if subprocess.run(clone, cwd=home, capture_output=True, check=False).returncode:
        pytest.skip("no git here, or no repository")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "tests/test_readme.py",
            "tests/test_examples.py",
            "-k",
            "tutorial or test_examples",
        ],
        cwd=home / "shardproof",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(home), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "failed" not in done.stdout

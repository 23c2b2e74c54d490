"""A kernel of the user's own, by what the package exports alone: imported, planned, and run only where it is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.models.program import opaque as registry

KERNEL = """
import numpy as np
from shardproof import opaque, parameter, program

def reference(x): return np.maximum(x, 0) * 2.0

@opaque(reference=reference)
def fast(x): return reference(x)

@program(x=(8, 16), w=parameter(16, 16))
def layer(x, w): return fast(x @ w)
"""


def test_from_a_file_to_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "opaque" in shardproof.__all__
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("kernel_of_mine.py").write_text(KERNEL)
    assert run(["import", "kernel_of_mine.py:layer", "-o", "g.json"]) == 0
    assert "1 opaque" in capsys.readouterr().out
    assert run(["plan", "g.json", "--machine", "localhost:2", "-o", "p.spz"]) == 0
    monkeypatch.setattr(registry, "_REGISTRY", {})  # a process that never saw the file
    assert run(["run", "p.spz", "-n", "2", "--virtual"]) == 3
    assert "--allow-kernel kernel_of_mine:fast" in capsys.readouterr().err
    assert run(["run", "p.spz", "-n", "2", "--virtual", "--allow-kernel", "kernel_of_mine:fast"]) == 0
    assert "equal" in capsys.readouterr().out
    assert run(["check", "p.spz"]) == 0
    assert "kernels of the user's own, which no claim covers: 'kernel_of_mine:fast'" in capsys.readouterr().out

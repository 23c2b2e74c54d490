"""The verb `doctor` says what is there and what is missing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.verbs import doctor


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "program", lambda name: None)
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    verbs = {v["verb"]: v for v in told["verbs"]}
    assert verbs["check, rules check"] == {
        "verb": "check, rules check", "there": {"numpy": np.__version__}, "missing": [], "how": "pip install shardproof"
    }  # fmt: skip
    assert "mpiexec" in verbs["run -n N, machine calibrate on ranks"]["missing"] and told["mpi"] == "none"
    assert run(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "missing" in text and "pip install 'shardproof[mpi]'" in text and f"numpy {np.__version__}" in text


def test_programs_that_do_not_answer() -> None:
    assert doctor.version_line(["/no/such/program"]) == "does not answer: FileNotFoundError"
    assert doctor.version_line(["/bin/sh", "-c", "exit 3"]) == "exits with code 3"
    assert doctor.version_line(["/bin/sh", "-c", "echo one; echo two"]) == "one"


def test_what_it_names_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {d.split(">=")[0].split("[")[0] for d in wanted}
    assert {p for need in (*doctor.NEEDS, *doctor.EXPORTS) for p in need.packages} <= names

"""The verb `schedule`: what it prints, writes and returns, and that its files are checked like every other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardproof.__main__ import run

FOUR = ["schedule", "--stages", "4", "--micro-batches", "8", "--times", "1,1,1"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = run([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_best_schedule_is_proved_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, svg = tmp_path / "s.spz", tmp_path / "s.svg"
    code, found = answer(capsys, *FOUR, "--memory", "4", "-o", str(file), "--svg", str(svg))
    assert code == 0
    assert {k: found[k] for k in ("status", "makespan", "lower_bound", "kind", "peak_memory")} == {
        "status": "optimal",
        "makespan": 27,
        "lower_bound": 27,
        "kind": "best",
        "peak_memory": [4, 4, 4, 4],
    }
    assert svg.read_text().startswith("<svg")
    code, checked = answer(capsys, "check", str(file))
    assert code == 0 and checked["claims"][0]["lower_bound"] == 27
    assert run(["check", str(file)]) == 0
    assert "makespan 27; 4 stages, 8 micro-batches, 4 activations" in capsys.readouterr().out


def test_published_kinds_are_beaten_or_proved(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, *FOUR, "--kind", "1f1b")
    assert (code, found["status"], found["makespan"], found["better"]) == (10, "refuted", 33, 27)
    code, found = answer(capsys, *FOUR, "--kind", "zb-v")
    assert (code, found["status"], found["makespan"], found["lower_bound"]) == (0, "optimal", 25.5, 25.5)
    code, found = answer(capsys, *FOUR, "--memory", "4", "--kind", "gpipe")
    assert (code, found["status"], found["needs"]) == (20, "infeasible", 8)


def test_text_shows_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FOUR, "--kind", "zb-h1"]) == 0
    out = capsys.readouterr().out
    assert out.count("|") == 8 and "makespan 27, proved: none is shorter" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["schedule"], 2, "--stages is missing"),
        (["schedule", "--stages", "2", "--micro-batches", "2", "--times", "1,1"], 3, "three integers"),
        (["schedule", "--stages", "3", "--micro-batches", "2", "--times", "1,1,1;2,2,2"], 3, "2 triples for 3 stages"),
        ([*FOUR, "--kind", "best-of-all"], 3, "is not known"),
        ([*FOUR, "--memory", "0"], 2, "not between 1"),
        (["schedule", "--stages", "2", "--micro-batches", "2", "--times", "0,0,0"], 3, "not all zero"),
    ],
)
def test_bad_command_lines(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    assert message in capsys.readouterr().err

"""`plan` says on one screen what its plan is: parallelism, what the step is spent on, what fills memory."""

from __future__ import annotations

import json
import re
import shlex
from math import prod
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.explain.summary import memory_parts, next_commands, short_flags, time_line
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo

COMMAND = ["plan", "bert-tiny", "--train", "adam", "--machine", "dgx-a100:1x2", "--space", "one-per-level"]


def test_the_summary_fits_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "p.spz")
    assert run([*COMMAND, "--memory", "1GiB", "-o", out]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) <= 20
    begins = [line.split(" ", 1)[0] for line in said]
    for word in ("parallelism", "time:", "memory:", "next:"):
        assert begins.count(word) == 1, word
    assert said[-1] == next_commands(out)


def test_what_a_limit_that_is_over_leaves_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TimeLimit, "is_over", lambda clock: True)
    assert run([*COMMAND, "-o", str(tmp_path / "p.spz")]) in (0, 5)
    said = capsys.readouterr().out
    assert "parallelism and remarks are left out" in said and "\nparallelism (" not in said


def test_the_commands_named_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "mlp-unity", "--batch", "8", "--machine", "localhost:2", "-o", "p.spz"]) == 0
    for words in next_commands("p.spz").removeprefix("next: ").split("; "):
        assert run(shlex.split(words)[1:]) == 0


def test_shares_of_the_step_add_up() -> None:
    step = build_step(zoo("bert-tiny"), "sgd")
    planning = build(step.graph, load_machine("dgx-a100:1x2"), space("one-per-level"), 1 << 30)
    for x in ([0] * len(planning.decisions), [v.cost.size - 1 for v in planning.problem.vertices]):
        said = time_line(planning, x).split(";")[0]
        assert sum(map(float, re.findall(r"([\d.]+) %", said))) == pytest.approx(100, abs=2)


def test_parts_of_memory_are_the_peak() -> None:
    step = build_step(zoo("bert-tiny"), "adam")
    planning = build(step.graph, load_machine("dgx-a100:1x2"), space("one-per-level"), 1 << 30)
    x = (0,) * len(planning.decisions)
    parts = memory_parts(planning, x, step)
    assert sum(parts.values()) == planning.problem.peak_of(x)[0]
    assert {"weights", "optimizer states", "gradients", "activations"} <= set(parts)
    moments = sum(
        2 * prod(t.shape) * t.element_bytes for t in step.graph.tensors if t.name in {w for w, _ in step.trained}
    )
    assert parts["optimizer states"] >= moments // 2


def test_json_has_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--memory", "1GiB", "--json", "-o", str(tmp_path / "p.spz")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sum(said["peak_parts"].values()) == said["peak_bytes"] and said["assumptions"]


def test_flags_are_counted_not_listed() -> None:
    assert short_flags(["a", "b(3: x y z)", "links(nodes)"]) == "a, b(3), links(nodes)"

"""docs/joint.md says what is so: its rules are those that are tried, its figures are found again, its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from budgets import work

from shardproof.__main__ import run
from shardproof.formal.rewriting.joint.saturate import RULES
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.models.joint.rules import AGAIN, DEFINE, EQUAL, OFFLOAD, STATEMENTS
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.joint.forms import FORMS
from shardproof.verify.joint.plan import check_any_plan

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "joint.md").read_text(encoding="utf-8")
FIGURES = re.findall(
    r"^\| (\d+), (\dx\d), ([a-z-]+)(?:, batch (\d+))? \| ([\d.]+) ms \| ([\d.]+) ms \| proved", PAGE, re.MULTILINE
)


def test_rules_are_those_that_are_tried() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (.*) \|$", PAGE.split("<!-- rules -->")[1].split("<!-- /rules -->")[0], re.MULTILINE
    )
    assert rows == [(name, STATEMENTS[name]) for name in (*RULES, AGAIN, OFFLOAD)]
    assert set(STATEMENTS) == {DEFINE, EQUAL, AGAIN, OFFLOAD, *FORMS} == {DEFINE, AGAIN, OFFLOAD, *RULES}


def test_the_page_has_the_figures() -> None:
    assert len(FIGURES) == 5


FAST = [r for r in FIGURES if r[0] == "2"]


@pytest.mark.parametrize("row", [*FAST, *(pytest.param(r, marks=pytest.mark.slow) for r in FIGURES if r not in FAST)])
def test_figures_are_found_again(row: tuple[str, ...]) -> None:
    layers, machine, where, batch, plain, joint = row
    graph = build_step(zoo("mlp-8192", batch=int(batch or 8192), layers=int(layers)), "sgd").graph
    found = plan_jointly(graph, load_machine(f"cloud-a100:{machine}"), space(where), clock=work(120))
    assert found.answer.status is Status.OPTIMAL is found.plain.status
    assert [f"{(c or 0) / 10**9:.6f}" for c in (found.plain.cost, found.answer.cost)] == [plain, joint]
    plan = joint_plan(found)
    assert plan is not None and check_any_plan(write_plan(None, plan)).verdict is Verdict.PROVED


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The console block, with what it prints: every line is printed, `...` stands for the rest of one."""
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    for part in block[1].strip().split("$ ")[1:]:
        command, *lines = part.strip().split("\n")
        assert run(shlex.split(command)[1:]) == 0
        out = capsys.readouterr().out
        for line in lines:
            assert line.removesuffix("...").strip() in out, line

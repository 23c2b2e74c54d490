"""A proof that takes more to check than the format allows is cut, and the answer is written with the bound that is left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from budgets import work

from shardproof.__main__ import run
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.cut import cut_below, split_depth
from shardproof.models.problem.pseudo_boolean import from_opb
from shardproof.models.terminal.console import Exit
from shardproof.proofs.container.effort import WORK
from shardproof.verify.budget import Budget
from shardproof.verify.selection.certificate import check_selection


def knapsacks(variables: int = 26, rows: int = 5) -> str:
    """A program of 0 and 1 with dense rows, whose tree is deep."""
    draw = np.random.default_rng(5)
    goal = " ".join(f"-{int(n)} x{v + 1}" for v, n in enumerate(draw.integers(10, 99, variables)))
    text = f"min: {goal} ;\n"
    for _ in range(rows):
        weights = draw.integers(5, 60, variables)
        terms = " ".join(f"-{int(n)} x{v + 1}" for v, n in enumerate(weights))
        text += f"{terms} >= -{int(weights.sum()) // 2} ;\n"
    return text


def test_a_cut_proof_proves_less_and_nothing_false() -> None:
    problem = from_opb(knapsacks().encode())
    answer = solve(problem, clock=work(20.0))
    assert answer.certificate is not None and answer.cost is not None
    depth, last = split_depth(answer.certificate.proof), None
    assert depth >= 3
    for k in range(depth, 0, -1):
        claim = answer.certificate.claim
        result = check_selection(
            problem, type(answer.certificate)(problem.sha256(), claim, cut_below(answer.certificate.proof, k))
        )
        assert result.lower_bound is not None and result.lower_bound <= answer.cost
        assert last is None or result.lower_bound <= last
        last = result.lower_bound


def test_the_answer_is_written_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mk.opb").write_text(knapsacks())
    assert run(["solve", "mk.opb", "--work-limit", "20M", "-o", "whole.spz", "--json"]) == Exit.DONE
    whole = json.loads(capsys.readouterr().out)
    spent: list[Budget] = []

    def recorded(numbers: int, whole: Budget | None = None) -> Budget:
        spent.append(Budget(WORK, whole=whole))
        return spent[-1]

    monkeypatch.setattr(Budget, "of", staticmethod(recorded))
    assert run(["check", "whole.spz", "mk.opb"]) == Exit.DONE
    needed = WORK - spent[-1].work
    monkeypatch.setattr(Budget, "of", staticmethod(lambda numbers, whole=None: Budget(needed * 2 // 3, whole=whole)))
    capsys.readouterr()
    assert run(["solve", "mk.opb", "--work-limit", "20M", "-o", "cut.spz", "--json"]) == Exit.UNDECIDED
    said = capsys.readouterr()
    cut = json.loads(said.out)
    assert "it is cut" in said.err
    assert cut["cost"] == whole["cost"] and cut["lower_bound"] < whole["lower_bound"]
    assert run(["check", "cut.spz", "mk.opb"]) == Exit.DONE

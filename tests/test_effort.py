"""`--effort`, and `effort` in Python: what counts where limit, gap and space are not given, and nothing else."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.api import ModelJob
from shardproof.formal.plans.effort import EFFORTS, EffortName
from shardproof.limits import SearchLimits
from shardproof.models.text import InputError

MODEL, MACHINE = "mlp-unity", "cloud-a100:2x4"


@pytest.mark.parametrize("effort", get_args(EffortName))
def test_python_and_the_command_line_mean_the_same(
    effort: EffortName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = shardproof.plan(MODEL, MACHINE, effort=effort, work_limit=3_000_000)
    target = str(tmp_path / "p.spz")
    assert (
        run(
            ["plan", MODEL, "--machine", MACHINE, "--effort", effort, "--work-limit", "3000000", "-o", target, "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["identity"] == made.identity
    assert made.bundle.space == (EFFORTS[effort].space or "complete")


@pytest.mark.parametrize("effort", get_args(EffortName))
def test_what_is_given_counts_more_than_the_effort(effort: EffortName) -> None:
    known = EFFORTS[effort]
    gap, limit = SearchLimits(effort=effort).enough()
    assert (gap, limit.limit_s) == (known.gap, known.seconds)
    gap, limit = SearchLimits(effort=effort, gap=Fraction(1, 4), time_limit_s=7.0).enough()
    assert (gap, limit.limit_s) == (Fraction(1, 4), 7.0)
    assert SearchLimits(effort=effort, gap=Fraction(0)).enough()[0] == 0
    assert SearchLimits(effort=effort, work_limit=5).enough()[1].limit_s is None  # work alone
    assert SearchLimits(effort=effort, time_limit_s=None).enough()[1].limit_s is None
    assert ModelJob(MODEL, MACHINE, effort=effort).usual_space == known.space
    assert ModelJob(MODEL, MACHINE, effort=effort, space_name="two-per-level").usual_space == "two-per-level"


def test_other_words_are_refused() -> None:
    for call in (
        lambda: shardproof.plan(MODEL, MACHINE, effort="quik"),  # type: ignore[call-overload]
        lambda: shardproof.pipeline(MODEL, MACHINE, "sgd", effort="quik"),  # type: ignore[arg-type]
        lambda: shardproof.audit(MODEL, MACHINE, {"*": {}}, effort="quik"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match="choose quick, normal, thorough"):
            call()

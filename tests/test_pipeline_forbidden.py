"""Pipelined steps that go without an ingredient: plan and bound have none of its placements, and the checker sees to it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from budgets import work
from test_pipeline_attacks import reasons

from shardproof.__main__ import run
from shardproof.formal.plans.pipelines.case import Case
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.models.cost.selection import build as problem_of
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.forbidden import without
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.pipelines.file import decode_pipeline, encode_pipeline
from shardproof.verify.pipelines.forbidden import forbid
from shardproof.verify.pipelines.leaves import Units

WORDS = ("tensor", "data", "sharding")


def job(*words: str) -> Job:
    step = build_step(build("mlp-8192", batch=16, width=1024, layers=3), "adam")
    machine = load_machine("cloud-a100:1x4")
    return Job(step.graph, divide(step.graph, step.passes), machine, space("complete"), None, words)


@pytest.mark.parametrize("words", [("tensor",), ("data",), ("sharding",), ("tensor", "sharding")])
def test_search_and_checker_forbid_the_same(words: tuple[str, ...]) -> None:
    subject = job()
    case = Case(subject, 2, 4)
    planning = problem_of(case.graph, case.machine, subject.where, 1 << 50)
    found = without(planning, subject.division, words)
    units = Units(planning, subject.division)
    assert forbid(units, words) == ""
    taken = 0
    for a, b, before in zip(
        found.problem.vertices, units.planning.problem.vertices, planning.problem.vertices, strict=True
    ):
        assert np.array_equal(a.cost, b.cost) and (a.cost < FORBIDDEN).any()
        taken += int((a.cost != before.cost).sum())
    assert taken > 10
    assert without(planning, subject.division, ()) is planning
    # equal leaves still are: their arrays are shared
    assert len({id(v.cost) for v in found.problem.vertices}) < len(found.problem.vertices)
    assert len({id(v.cost) for v in units.planning.problem.vertices}) < len(found.problem.vertices)


def test_a_plan_without_an_ingredient_is_proved_and_one_with_it_refused() -> None:
    free = search_pairs(job(), [(2, 4)], work(20.0), Fraction(1, 10)).certificate()
    assert reasons(free) == ""
    for word in WORDS:
        found = search_pairs(job(word), [(2, 4)], work(20.0), Fraction(1, 10)).certificate()
        assert found.forbidden == (word,) and reasons(found) == ""
        assert decode_pipeline(encode_pipeline(found)).forbidden == (word,)
        assert found.step >= free.lower_bound
        if found.lower_bound > free.lower_bound:
            assert reasons(replace(found, forbidden=()))  # its bound is about fewer placements
    assert "one of those that are forbidden" in reasons(replace(free, forbidden=WORDS))
    for words in (("data", "tensor"), ("tensor", "tensor"), ("pipeline",)):
        assert "must be some of" in reasons(replace(free, forbidden=words))


def test_the_command_forbids_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "p.spz")
    plan = ["plan", "mlp-8192", "--batch", "16", "--train", "sgd", "--machine", "cloud-a100:1x4"]
    assert run([*plan, "--without", "data", "-o", out]) == 2
    assert "--without needs --pipeline" in capsys.readouterr().err
    piped = [*plan, "--pipeline", "2:4", "--work-limit", "20M", "--gap", "0.1", "-o", out]
    assert run([*piped, "--without", "sharding", "--without", "data"]) in (0, 4)
    capsys.readouterr()
    assert run(["check", out]) == 0
    said = capsys.readouterr().out
    assert "no-data" in said and "no-sharding" in said and "no-tensor" not in said

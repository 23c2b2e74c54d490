"""`explain` of a pipelined plan says of every stage what its certificate holds."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from budgets import work

from shardproof.__main__ import run
from shardproof.formal.plans.pipelines.explain import explain_pipeline
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.scheduled import Scheduled
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.work import PER_SECOND
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import write_pipeline


@pytest.fixture(scope="module")
def made() -> tuple[Scheduled, PipelineCertificate]:
    step = build_step(build("bert-tiny", batch=8, layers=1), "adam")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x2"), space("complete"), 1 << 24)
    found = search_pairs(job, [(2, 4)], work(60.0), Fraction(1, 10))
    assert found.best is not None
    return found.best, found.certificate()


def test_stages_are_explained_as_planned(made: tuple[Scheduled, PipelineCertificate]) -> None:
    best, c = made
    report = explain_pipeline(c)
    scale = best.case.pieces.planning.problem.scale
    assert [r.devices for r in report.stages] == [(0, 1), (2, 3)]
    assert [r.peak for r in report.stages] == best.memory and [r.kept for r in report.stages] == list(best.kept)
    assert sum(r.units for r in report.stages) == c.division.units
    assert sum(r.operators for r in report.stages) == len(c.graph.operators)
    pipe = c.schedule.subject
    assert isinstance(pipe, Pipeline)
    for r, plan, times in zip(report.stages, best.stages, pipe.times, strict=True):
        assert (r.forward, r.backward) == (
            Fraction(plan.seconds.forward, scale),
            Fraction(plan.seconds.backward, scale),
        )
        assert abs(r.forward * PER_SECOND - times[0] * c.quantum) <= c.quantum
        assert r.busy * c.step == (4 * (r.forward + r.backward) + r.update) * PER_SECOND
        assert 0 < r.busy <= 1 and 0 <= r.moving < 1
        assert r.activation is None if r.kept == 1 else r.activation is not None and r.activation >= 0
        assert r.levels and all(sum(share for _, share in level.shares) == 1 for level in r.levels)
    assert len(report.drawing) == 2 and all("0" in row and "a" in row for row in report.drawing)


def test_the_verb_prints_draws_and_refuses(
    made: tuple[Scheduled, PipelineCertificate], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, svg = tmp_path / "p.spz", tmp_path / "p.svg"
    write_pipeline(file, made[1])
    assert run(["explain", str(file), "--svg", str(svg)]) == 0
    out = capsys.readouterr().out
    assert "2 stages, 4 micro-batches" in out and "parallelism of stage" in out and out.count("|\n") == 2
    assert svg.read_text().count('class="t"') == 24  # two stages, four micro-batches, three tasks
    assert run(["explain", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["units"] for s in found["stages"]] == [s.end - s.first for s in made[1].stages]
    assert run(["explain", str(file), "--cost"]) == 3
    assert "explained as a whole" in capsys.readouterr().err

"""`audit --train` and `plan --pipeline --strategy` of published pipelined configurations: the bound of a configuration
against completions of it, plans that the checker proves, and what is refused by name.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from budgets import work

import shardproof
from shardproof.__main__ import run
from shardproof.formal.explain.audit import Outcome
from shardproof.formal.plans.frameworks import pipelined_settings
from shardproof.formal.plans.pipelines.audit import PipelineAudit
from shardproof.formal.plans.pipelines.given import (
    Configured,
    complete_configuration,
    layer_starts,
    micro_batches,
    one_f_one_b,
)
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.plans.strategy import StrategyError, resolve
from shardproof.formal.verbs.audit_pipelined import is_confirmed
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.certificate import check_pipeline
from shardproof.verify.selection.certificate import check_selection

SMALL = "llama:layers=4,width=512,heads=8,kv_heads=4,hidden=1024,vocabulary=2048,sequence=128"
MEGATRON = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8"


@cache
def job() -> Job:
    sizes = {"width": 512, "heads": 8, "kv_heads": 4, "hidden": 1024, "vocabulary": 2048, "sequence": 128}
    step = build_step(build("llama", batch=8, layers=4, **sizes), "adam")
    return Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x4"), space("complete"), None)


@cache
def given(tp: int = 2) -> Configured:
    return complete_configuration(job(), Flags("Megatron", tp=tp, pp=2), 4, work(60.0))


def test_stages_have_equal_layers_and_the_placements_of_the_configuration() -> None:
    found = given()
    assert found.best is not None and [s.first for s in found.best.stages] == list(found.starts)
    names = [op.name for op in job().graph.operators]
    units = dict(zip(names, job().division.unit, strict=True))
    for layer, stage in ((0, 0), (1, 0), (2, 1), (3, 1)):
        mine = [u for name, u in units.items() if name.startswith(f"layer{layer}.") and name in names and u >= 0]
        first, end = found.best.stages[stage].first, found.best.stages[stage].end
        assert mine and all(first <= u < end for u in mine)
    case = found.case
    planning = case.pieces.planning
    allowed = resolve(case.strategy, planning).allowed  # type: ignore[attr-defined]
    decided = 0
    for stage in found.best.stages:
        for v, choice in stage.choices.items():
            if v in allowed:
                decided += 1
                assert (choice,) == allowed[v]
    assert decided > 50


def test_no_completion_is_below_the_bound() -> None:
    """Whatever the solver leaves open is drawn at random, and the step is the makespan of its schedule."""
    found, rng = given(), random.Random(3)
    assert found.best is not None
    case = found.case
    planning = case.pieces.planning
    allowed = resolve(case.strategy, planning).allowed  # type: ignore[attr-defined]
    assert found.bound <= found.best.step
    assert found.bound > 0.75 * found.best.step
    for _ in range(10):
        stages = []
        for stage in found.best.stages:
            fixed = set(case.pieces.crossing(stage.first, stage.end))
            choices = {
                v: c
                if v in allowed or planning.decisions[v].name in fixed or rng.random() < 0.7
                else rng.randrange(planning.problem.domain_size(v))
                for v, c in stage.choices.items()
            }
            seconds = case.pieces.seconds(stage.first, stage.end, choices)
            stages.append(replace(stage, choices=choices, seconds=seconds))
        made = one_f_one_b(case, stages, work(5.0))
        assert made is not None and made.step >= found.bound


def test_the_proof_of_the_bound_is_about_the_problem_with_the_configurations_choices() -> None:
    proofs = given().proofs
    assert len(proofs) == 6  # two stages: a micro-batch, with updates, the whole step
    assert all(check_selection(problem, leaf.certificate).verdict is Verdict.PROVED for leaf, problem in proofs)
    other = given(4).proofs
    assert any(
        check_selection(problem, leaf.certificate).verdict is not Verdict.PROVED
        for (leaf, _), (_, problem) in zip(proofs, other, strict=True)
    )


@pytest.mark.slow
def test_the_configuration_is_a_plan_that_the_checker_proves_and_the_search_is_no_worse() -> None:
    found = search_pairs(job(), [(2, 4)], work(60.0), Fraction(1, 20))
    assert found.best is not None and given().best is not None
    assert found.best.step <= given().best.step  # type: ignore[union-attr]
    c: PipelineCertificate = replace(found, best=given().best).certificate()
    results = check_pipeline(c, "seed", 100, CELLS)
    assert all(r.verdict is Verdict.PROVED for r in results), [r.reason for r in results]


def test_what_is_no_configuration_of_this_model_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="4 layers are no 3 equal stages"):
        layer_starts(job(), 3)
    with pytest.raises(InputError, match="no micro-batch size"):
        micro_batches(Flags("Megatron", tp=2, pp=2), 8, 8, None)
    with pytest.raises(InputError, match="a global batch of 16, the model has 8"):
        micro_batches(Flags("Megatron", pp=2, micro_batch=1, global_batch=16), 8, 8, None)
    with pytest.raises(InputError, match="2 copies of micro-batches of 3 do not divide a batch of 8"):
        micro_batches(Flags("Megatron", tp=2, pp=2, micro_batch=3), 8, 8, None)
    with pytest.raises(InputError, match="micro-batches of 1 in a batch of 8 are not 8 micro-batches"):
        micro_batches(Flags("Megatron", tp=2, pp=2, micro_batch=1), 8, 8, 8)  # --pipeline 2:8
    assert micro_batches(Flags("Megatron", tp=2, pp=2, micro_batch=1), 8, 8, 4) == 4
    with pytest.raises(InputError, match="several such rounds"):
        micro_batches(Flags("torchtitan", pp=2, micro_batch=1, passing=1), 8, 8, None)
    with pytest.raises(InputError, match="3 stages are no equal parts"):
        complete_configuration(job(), Flags("Megatron", pp=3), 4, work(5.0))


LINE = [
    "llama:layers=2,width=256,heads=4,kv_heads=2,hidden=512,vocabulary=512,sequence=64",
    "--train",
    "adam",
    "--machine",
    "cloud-a100:2x4",
    "--batch",
    "8",
    "--strategy",
    "m.txt",
    "--work-limit",
    "6M",
]


def test_the_command_line_audits_and_plans_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.txt").write_text(MEGATRON)
    assert run(["audit", *LINE, "-o", "b.spz", "--json"]) == 10
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "refuted" and said["micro_batches"] == 4 and said["enumerated"] == [[2, 4]]
    assert said["best_cost"] < said["strategy_lower_bound"] <= said["strategy_cost"]
    assert said["lower_bound"] <= said["best_cost"]
    ran = said["configuration"]
    assert sum(ran["terms"].values()) == pytest.approx(ran["seconds"]) and 0 < ran["mfu"] < 1
    assert ran["memory_bytes"] == sum(v for name, v in ran["memory"].items() if name != "stage") > 0
    assert "Tflop/s of bfloat16" in ran["peak"]


def test_what_it_cannot_audit_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.txt").write_text(MEGATRON)
    assert run(["audit", *LINE[:1], *LINE[3:]]) == 3
    assert "audit --train adam" in capsys.readouterr().err
    Path("m.txt").write_text(f"{MEGATRON} --num-layers-per-virtual-pipeline-stage 1")
    assert run(["audit", *LINE]) == 3
    assert "stages of several parts are not audited" in capsys.readouterr().err
    Path("m.txt").write_text('{"*": null}')
    assert run(["audit", *LINE]) == 3
    assert "--train needs a file of a framework's settings" in capsys.readouterr().err
    assert run(["plan", *LINE, "--pipeline", "2:4", "-o", "d.spz"]) == 3
    assert "no settings of a framework" in capsys.readouterr().err


TITAN = "--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 8 --training.global_batch_size 8"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{TITAN} --parallelism.pipeline_parallel_schedule Interleaved1F1B", "stages of several parts"),
        (f"{TITAN} --parallelism.pipeline_parallel_schedule=ZBVZeroBubble", "stages of several parts"),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'LoopedBFS'", "of several parts"),
        ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "GPipe"', "schedule GPipe"),
        (f"{TITAN} --parallelism.pipeline_parallel_schedule_csv other.csv", "schedules in files"),
        (f"{TITAN} --parallelism.pipeline_parallel_schedule 1F1B --parallelism.pipeline_parallel_layers_per_stage 1", "equally many layers"),
        (f"{MEGATRON} --decoder-first-pipeline-num-layers 1", "equally many layers"),
        (f"{MEGATRON} --account-for-loss-in-pipeline-split", "equally many layers"),
    ],
)  # fmt: skip
def test_stages_and_schedules_of_another_kind_are_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    """Judged as equal stages under 1F1B, they would be refuted, or proved optimal, for what they are not."""
    (tmp_path / "settings").write_text(text)
    with pytest.raises(StrategyError, match=reason):
        pipelined_settings(tmp_path / "settings")


def test_torchtitan_cuts_its_local_batch_into_micro_batches_of_one(tmp_path: Path) -> None:
    (tmp_path / "settings").write_text(f"{TITAN} --parallelism.pipeline_parallel_schedule 1F1B")
    assert micro_batches(pipelined_settings(tmp_path / "settings").flags, 2, 8, None) == 8
    (tmp_path / "settings").write_text(f"{TITAN} --parallelism.pipeline_parallel_microbatch_size 2")
    assert micro_batches(pipelined_settings(tmp_path / "settings").flags, 2, 8, None) == 4


@dataclass
class Judging:
    """A publisher whose checker says the same of everything."""

    verdict: Verdict
    asked: int = 0

    def publish(self, path: Path | None, data: bytes, about: object = None, notify: object = None) -> Judging:
        assert path is None and isinstance(decode_pipeline(read_container(data)), PipelineCertificate)
        self.asked += 1
        return self


@pytest.mark.parametrize("verdict", [Verdict.PROVED, Verdict.REFUTED])
def test_a_configuration_near_the_bound_is_checked_where_another_plan_is_written(verdict: Verdict) -> None:
    """The gap is between the configuration's own step and the bound: the better plan proves half of it."""
    own = given()
    assert own.best is not None
    better = replace(own.best, step=own.best.step - 1)
    found = SearchOutcome(job(), better, [own.case], own.best.step - 2)
    report = PipelineAudit(own, found, Outcome.WITHIN_GAP, Fraction(1, 10))
    judge = Judging(verdict)
    assert report.plan is found
    assert is_confirmed(judge, report) == (verdict is Verdict.PROVED) and judge.asked == 1  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_configuration_is_planned_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.txt").write_text(MEGATRON)
    model = [
        SMALL,
        "--train",
        "adam",
        "--machine",
        "cloud-a100:2x4",
        "--batch",
        "8",
        "--strategy",
        "m.txt",
        "--work-limit",
        "60M",
    ]
    assert run(["plan", *model, "--pipeline", "2:4", "-o", "c.spz", "--json"]) in (0, 5)
    plan = json.loads(capsys.readouterr().out)
    assert plan["cost"] == given().best.step  # type: ignore[union-attr]
    assert plan["verdict"] == "proved" and plan["stages"] == 2
    assert run(["check", "c.spz"]) == 0


@pytest.mark.slow
def test_python_plans_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "flags.txt").write_text(MEGATRON)
    made = shardproof.pipeline(
        SMALL, "cloud-a100:2x4", "adam", stages="2:4", strategy=tmp_path / "flags.txt", batch=8, work_limit=60_000_000
    )
    assert len(made.stages) == 2 and made.micro_batches == 4
    assert 0 < made.lower_bound_s <= made.step_s

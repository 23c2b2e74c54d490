"""All pairs of options of all verbs: honoured or refused, none dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from option_pairs import Start, Tried, commands, options_of, recorded, table_of

MODEL = "llama:layers=2,sequence=16,width=32,heads=4,kv_heads=2,hidden=64,vocabulary=64,dtype=float32"
PLAIN = "mlp-8192:layers=3,width=64,batch=16"
LINE = (MODEL, "--machine", "localhost:2", "-o", "p.spz")

PLAN: Mapping[str, tuple[str, ...]] = {
    "train": ("--train", "adam"),
    "loss": ("--loss", "squared-error"),
    "recompute": ("--recompute", "all"),
    "batch": ("--batch", "8"),
    "precision": ("--precision", "bf16-mixed"),
    "micro_batch": ("--micro-batch", "2"),
    "attention": ("--attention", "operator"),
    "memory": ("--memory", "1GiB"),
    "space_name": ("--space", "one-per-level"),
    "vocabulary": ("--vocabulary", "dtensor"),
    "engine": ("--engine", "ilp"),
    "time_limit": ("--time-limit", "50"),
    "gap": ("--gap", "7%"),
    "threads": ("--threads", "1"),
    "strategy": ("--strategy", "strategy.json"),
    "pipeline": ("--pipeline", "2:2"),
    "interleave": ("--interleave", "2"),
    "without": ("--without", "tensor"),
    "overlap": ("--overlap",),
    "views": ("--views",),
    "joint": ("--joint",),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("strategy.json").write_text(json.dumps({"*.wq": {"n": {"ranks": 2}}}))
    Path("settings.json").write_text(json.dumps({"train_batch_size": 32, "zero_optimization": {"stage": 1}}))
    return tmp_path


@pytest.fixture
def planners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planners that say what they were asked."""
    import shardproof.formal.verbs.plan as verb
    from shardproof.formal.joint import request as joint
    from shardproof.formal.pipelines import request as pipelines
    from shardproof.formal.planning import request as planning
    from shardproof.formal.verbs import pipelined
    from shardproof.formal.views import request as views
    from shardproof.models.sources import compared

    load = cache(compared.load_model)
    monkeypatch.setattr(
        compared, "load_model", lambda spec, batch, _, attention, *__: load(spec, batch, None, attention)
    )
    monkeypatch.setattr(verb, "training_of", cache(verb.training_of))
    monkeypatch.setattr(planning, "build_step", cache(planning.build_step))
    monkeypatch.setattr(planning, "plan_graph", recorded("plan_graph"))
    monkeypatch.setattr(planning, "plan_strategy", recorded("plan_strategy"))
    monkeypatch.setattr(joint, "plan_jointly", recorded("plan_jointly"))
    monkeypatch.setattr(views, "plan_views", recorded("plan_views"))
    monkeypatch.setattr(verb, "plan_overlap", recorded("plan_overlap", 0))
    monkeypatch.setattr(pipelines, "planned", recorded("planned"))
    monkeypatch.setattr(pipelined, "audit_pipeline", recorded("audit_pipeline"))


def test_every_option_is_in_the_table_of_its_verb() -> None:
    """A new option without an entry fails here, at the verb's door (`Combinations.refusal`) it would be a gap."""
    for verb, command in commands():
        table = table_of(command)
        assert table.verb == " ".join(verb) and set(table.options) == set(options_of(command)), verb


STARTS = {
    "of a model": ((), ()),
    "of a step": (("--train", "sgd"), ("train",)),
    "of a step that must fit": (("--train", "sgd", "--memory", "1GiB"), ("train", "memory")),
    "recomputed": (("--train", "sgd", "--memory", "1GiB", "--recompute", "auto"), ("train", "memory", "recompute")),
    "cut": (("--train", "sgd", "--memory", "1GiB", "--micro-batch", "auto"), ("train", "memory", "micro_batch")),
    "pipelined": (("--train", "sgd", "--pipeline", "2:2"), ("train", "pipeline")),
    "searched": (("--train", "sgd", "--pipeline", "auto"), ("train", "pipeline")),
    "interleaved": (("--train", "sgd", "--pipeline", "2:2:2"), ("train", "pipeline")),
    "configured": (("--train", "sgd", "--pipeline", "2:2", "--strategy", "settings.json"), ("train", "pipeline", "strategy")),
    "overlapped": (("--train", "sgd", "--overlap"), ("train", "overlap")),
    "with views": (("--train", "sgd", "--views"), ("train", "views")),
    "joint": (("--train", "sgd", "--joint"), ("train", "joint")),
}  # fmt: skip


@pytest.mark.usefixtures("planners")
@pytest.mark.parametrize("start", STARTS)
def test_plan(start: str, folder: Path) -> None:
    more, given = STARTS[start]
    probes = {k: v for k, v in PLAN.items() if k not in given}
    assert not list(Tried(Start(("plan",), (*LINE, *more), probes), folder).faults())

"""The Python way in does what the command line does, through the same functions."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.models.files.output import OutputError
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import GraphError
from shardproof.models.text import InputError
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.publishing.publisher import RefutedPlan


@pytest.fixture(scope="module")
def plan() -> shardproof.Plan:
    return shardproof.plan("mlp-unity", "localhost:4", batch=64, train="adam")


def test_a_plan_is_the_command_lines(plan: shardproof.Plan, tmp_path: Path) -> None:
    """Byte for byte: what is saved is what `plan` writes."""
    plan.save(tmp_path / "api.spz")
    out = tmp_path / "cli.spz"
    words = ["plan", "mlp-unity", "--machine", "localhost:4", "--batch", "64", "--train", "adam", "-o", str(out)]
    assert run(words) == 0
    assert (tmp_path / "api.spz").read_bytes() == out.read_bytes()
    again = shardproof.load(out)
    assert again.identity == plan.identity and again.cost_s == plan.cost_s
    assert plan.status == "optimal" and plan.cost_s == plan.lower_bound_s and isinstance(plan.cost_s, Fraction)
    assert "optimal" in repr(plan) and plan.identity[:12] in repr(plan)


def test_what_a_plan_says(plan: shardproof.Plan) -> None:
    assert plan.check().verdict is Verdict.PROVED
    assert set(plan.placements) == {op.name for op in plan.graph.operators}
    assert set(plan.layouts) >= {"fc1.weight", "fc1.weight.adam_m", "loss"}
    assert plan.explain().cost == plan.cost_s * plan.explain().planning.problem.scale
    assert plan.diff(plan).difference == 0 and plan.diff(plan).rows == ()
    assert "make_mesh" in plan.export("dtensor") and "PartitionSpec" in plan.export("jax")
    assert "class-order" in plan.assumptions and plan.space == "complete"


def test_models_of_all_kinds(tmp_path: Path) -> None:
    @shardproof.program(x=(64, 32), w=shardproof.parameter(32, 16))
    def layer(x, w):
        return np.tanh(x @ w)

    made = shardproof.plan(layer, shardproof.load_machine("localhost:2"))
    assert shardproof.plan(made.graph, "localhost:2").identity == made.identity
    for wrong, message in ((object(), "is no model"), (len, "is no model")):
        with pytest.raises(InputError, match=message):
            shardproof.plan(wrong, "localhost:2")
    with pytest.raises(InputError, match="batch applies to"):
        shardproof.plan(layer, "localhost:2", batch=3)


def test_what_is_refused(plan: shardproof.Plan, tmp_path: Path) -> None:
    with pytest.raises(shardproof.NoPlan, match="proved that no plan fits 4096 bytes") as caught:
        shardproof.plan("mlp-unity", "localhost:4", batch=64, memory="4096 B")
    assert caught.value.infeasible
    (tmp_path / "bad.spz").write_bytes(b"PK nothing")
    with pytest.raises(ContainerError):
        shardproof.load(tmp_path / "bad.spz")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputError):
        plan.save(tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    with pytest.raises(InputError, match="nothing to compare"):
        plan.diff(shardproof.plan("mlp-unity", "localhost:4", batch=32))
    with pytest.raises(InputError, match="no export to"):
        plan.export("csv")


def test_a_refuted_file_is_not_loaded(plan: shardproof.Plan, tmp_path: Path) -> None:
    from dataclasses import replace

    from shardproof.proofs.plan.bundle import write_plan

    first, *rest = plan.bundle.communication
    moved = replace(first, loads=tuple(n + 1 for n in first.loads))
    (tmp_path / "lie.spz").write_bytes(write_plan(None, replace(plan.bundle, communication=(moved, *rest))))
    with pytest.raises(RefutedPlan):
        shardproof.load(tmp_path / "lie.spz")


def test_an_audit(tmp_path: Path) -> None:
    """Data parallelism by hand is beaten, and the report is the command line's."""
    strategy = tmp_path / "strategy.json"
    strategy.write_text(json.dumps({"fc*": {"b": {"ranks": 4}}, "relu1": {"b": {"ranks": 4}}}))
    report = shardproof.audit("mlp-unity", "localhost:4", strategy, batch=64)
    assert report.outcome.value in ("optimal", "refuted")
    code = run(["audit", "mlp-unity", "--batch", "64", "--machine", "localhost:4", "--strategy", str(strategy)])
    assert code == report.exit_code


def test_the_three_jobs_in_fifteen_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of docs/python.md: what the README's jobs do, from Python."""
    page = (Path(__file__).parent.parent / "docs" / "python.md").read_text(encoding="utf-8")
    script = page.split("```python", 1)[1].split("```", 1)[0]
    lines = [line for line in script.splitlines() if line.strip()]
    assert len(lines) <= 15
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(Path(__file__).parent.parent / "examples")
    names: dict[str, object] = {}
    exec(script, names)  # noqa: S102
    assert all(word in script for word in ("audit(", "rules(", "plan(", ".check()", ".explain(", ".run()"))


CELL = """
import numpy as np, shardproof
def layer(x, w):
    return np.tanh(x @ w)
made = shardproof.plan(layer, "localhost:2", inputs=(np.ones((64, 32)), shardproof.parameter(32, 16)))
"""


def test_a_function_of_a_notebook_cell() -> None:
    """No file holds it; shapes are those of example arrays; the cell's value is a piece of HTML."""
    names: dict[str, object] = {}
    exec(compile(CELL, "<ipython-input-1-0a1b2c>", "exec"), names)  # noqa: S102
    made = names["made"]
    assert made.status == "optimal" and made.graph.tensor("w").shape == (32, 16)
    view = made._repr_html_()
    assert "<svg" in view and "matmul" in view and "<script" not in view and "http" not in view
    assert "<pre>" in made.explain()._repr_html_() and "cost" in str(made.explain())
    for inputs, message in (((1, 2, 3), "takes 2 arguments"), ({"x": [1]}, "is a list"), ((np.ones(3),), "no shape")):
        with pytest.raises(GraphError, match=message):
            shardproof.plan(names["layer"], "localhost:2", inputs=inputs)


def test_what_else_a_plan_tells(plan: shardproof.Plan, tmp_path: Path) -> None:
    """The objects behind `explain --instead`, `--cost`, `--state`, `--symbolic`, `sensitivity` and `report`."""
    op = plan.graph.operators[0].name
    assert plan.instead(op, "replicated").price >= 0
    assert len(plan.costs()) == len(plan.graph.operators) and plan.state() and plan.ranks(op).operands
    page = plan.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page and plan.identity in page
    assert shardproof.machine("4x8").devices == 32 and shardproof.machine(plan.machine) is plan.machine


def test_strategies_as_objects(plan: shardproof.Plan) -> None:
    ours = {"fc*": {"b": {"ranks": 4}}, "relu1": {"b": {"ranks": 4}}}
    report = shardproof.audit("mlp-unity:batch=64", "localhost:4", ours)
    assert report.outcome.value in ("optimal", "refuted") and "costs" in str(report)
    given = shardproof.plan("mlp-unity", "localhost:4", batch=64, strategy=ours)
    assert given.cost_s >= shardproof.plan("mlp-unity", "localhost:4", batch=64).cost_s
    assert given.placements["fc1"].matrix[0] == (4,)  # axis b over the four ranks


def test_with_views(tmp_path: Path) -> None:
    """The same file as `plan --views` writes; what views do not have is refused."""
    model = "candle-uno:batch=16,tower=2,layers=1,width=512"
    made = shardproof.plan(model, "cloud-a100:2x2", views=True)
    assert made.status == "optimal" and made.cost_s == made.lower_bound_s
    assert made.cost_s < shardproof.plan(model, "cloud-a100:2x2").cost_s
    assert len(set(made.views.values())) > 2 and set(made.views) == set(made.placements)
    assert any(a.startswith("views(1 regions") for a in made.assumptions)
    ran = made.run()
    assert ran.equal and not ran.mismatched
    ours, theirs = tmp_path / "ours.spz", tmp_path / "theirs.spz"
    made.save(ours)
    assert run(["plan", model, "--machine", "cloud-a100:2x2", "--views", "-o", str(theirs)]) == 0
    assert ours.read_bytes() == theirs.read_bytes() and "2 submeshes in use" in repr(made)
    given: dict[str, Any] = {"views": True}
    for more, reason in (
        ({"micro_batch": 2}, "micro_batch needs train"),
        ({"vocabulary": "dtensor"}, "views and vocabulary do not go together"),
    ):
        with pytest.raises(InputError, match=reason):
            shardproof.plan(model, "cloud-a100:2x2", **given, **more)
    limited = shardproof.plan(model, "cloud-a100:2x2", memory="1GiB", **given)
    assert len(set(limited.views.values())) == 3 and "no-memory-limit" not in limited.assumptions  # it fits
    step = shardproof.plan(model, "cloud-a100:2x2", train="sgd", views=True)
    assert step.status == "optimal" and any("tied-backward" in a for a in step.assumptions)


def test_joint_and_pipelined(tmp_path: Path) -> None:
    """The same files as `plan --joint` and `plan --pipeline` write."""
    joint = shardproof.plan("mlp-unity", "localhost:2", batch=16, joint=True)
    assert joint.status == "optimal" and joint.cost_s == joint.lower_bound_s and joint.check().verdict is Verdict.PROVED
    tight = shardproof.plan("mlp-unity", "localhost:2", batch=16, joint=True, memory="1GiB")
    assert tight.cost_s == joint.cost_s and any(a.startswith("rows-of-open-programs") for a in tight.assumptions)
    with pytest.raises(InputError, match="recompute auto needs memory"):
        shardproof.plan("mlp-unity", "localhost:2", joint=True, recompute="auto", train="sgd")
    pipe = shardproof.pipeline("mlp-8192:layers=4,width=64", "localhost:2", "sgd", stages="2:2", batch=16)
    assert (
        len(pipe.stages) == 2
        and pipe.micro_batches == 2
        and len(pipe.placements) == sum(map(len, pipe.stages))
        and pipe.lower_bound_s <= pipe.step_s
    )
    pipe.save(tmp_path / "pipe.spz")
    assert run(["check", str(tmp_path / "pipe.spz")]) == 0 and "2 stages" in repr(pipe)

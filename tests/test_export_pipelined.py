"""Pipelined plans in torch's words: stages, placements, schedule; run by torch alone, equal to one process."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from export_cases import MACHINE, TRANSFORMER, plan_data
from test_pipeline_run import plan_of

import shardproof
from shardproof.__main__ import run
from shardproof.backends.export.pipelined import export_pipeline
from shardproof.backends.lowering.stages import staged_program
from shardproof.backends.verbs.export_pipelined import schedule_csv
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import write_pipeline

JOB = Path(__file__).with_name("pipelined_job.py")
HERE = Path(__file__).parent


@cache
def names_of(machine: str) -> tuple[PipelineCertificate, dict[str, Any], str]:
    c = plan_of(machine)
    text = export_pipeline(c, "f" * 64).text
    return c, plan_data(text), text


@pytest.mark.parametrize("machine", ["2x2", "4x1"])
def test_the_file_says_the_plan(machine: str) -> None:
    c, plan, text = names_of(machine)
    assert plan["identity"] == "f" * 64 and plan["micro_batches"] == c.micro and len(plan["stages"]) == len(c.stages)
    weights = [name for name, _ in c.graph.state if not name.endswith((".adam_m", ".adam_v"))]
    held = [name for stage in plan["stages"] for name in (*stage["parameters"], *stage["whole"])]
    assert sorted(held) == sorted(set(held)) and set(weights) <= set(held), "every parameter is in one stage"
    for s, stage in enumerate(plan["stages"]):
        left = None if s == 0 else c.division.cuts[c.stages[s].first - 1][0]
        assert (stage["receives"] is None) == (left is None)
        if left is not None:
            assert stage["receives"]["place"].startswith(left + " ->")
            assert stage["receives"] == plan["stages"][s - 1]["sends"], "both sides mean the same blocks"
        assert all(name.rpartition(".")[0] in stage["modules"] for name in stage["parameters"])
    order = [[a for a in row.split() if "_" not in a and "SHARD" not in a] for row in plan["actions"]]
    planned = [[f"{s}{phase}{i}" for s, phase, i in row] for row in staged_program(c).order]
    assert order == planned == list(csv.reader(schedule_csv(c).decode().splitlines()))
    compile(text, "exported.py", "exec")
    assert "shardproof" not in {word for line in text.splitlines() if "import" in line for word in line.split()}


def test_names_write_no_code() -> None:
    c, _, plain = names_of("2x2")
    evil = replace(c, graph=replace(c.graph, name='x"""\nimport os\n'), machine=replace(c.machine, name='"""\nraise'))
    made = export_pipeline(evil, "f" * 64).text
    ours, theirs = (compile(t, "exported.py", "exec").co_names for t in (plain, made))
    assert ours == theirs


def test_the_schedule_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chunks of a view are stages of torch: four of them on two rows.  The file of stages is refused by name."""
    plan, out = tmp_path / "p.spz", tmp_path / "s.csv"
    c = plan_of("2x2 interleaved")
    write_pipeline(plan, c)
    assert run(["export", str(plan), "--to", "actions", "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["stages"], told["chunks"], told["micro_batches"]) == (2, 2, 4)
    rows = list(csv.reader(out.read_text().splitlines()))
    assert [sorted({int(a[0]) for a in row}) for row in rows] == [[0, 2], [1, 3]]
    assert rows == [[f"{s}{phase}{i}" for s, phase, i in row] for row in staged_program(c).order]
    assert run(["export", str(plan), "--to", "actions", "-o", str(out), "--force"]) == 0
    assert "2 stages of 2 chunks, 4 micro-batches" in capsys.readouterr().out
    assert run(["export", str(plan), "--to", "dtensor", "-o", str(tmp_path / "y")]) == 3
    assert "2 chunks of the model on every stage" in capsys.readouterr().err and not (tmp_path / "y").exists()
    assert run(["export", str(plan), "--to", "actions", "-o", str(tmp_path / "y"), "--csv", str(tmp_path / "z")]) == 2
    capsys.readouterr()
    shardproof.plan("mlp-unity", "localhost:2", batch=8).save(tmp_path / "m.spz")
    assert run(["export", str(tmp_path / "m.spz"), "--to", "actions", "-o", str(tmp_path / "y")]) == 3
    assert "have no schedule" in capsys.readouterr().err


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = tmp_path / "p.spz", tmp_path / "x.py"
    write_pipeline(plan, plan_of("2x2"))
    assert (
        run(["export", str(plan), "--to", "dtensor", "-o", str(out), "--csv", str(tmp_path / "s.csv"), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["stages"] == 2 and told["said"] > 0 and told["identity"][:16] in out.read_text()
    assert shardproof.load(plan).export("dtensor") == out.read_text(), "one way for both"
    assert (tmp_path / "s.csv").read_bytes() == schedule_csv(plan_of("2x2"))
    assert run(["export", str(plan), "--to", "dtensor", "-o", str(out), "--force"]) == 0
    assert "cut behind" in capsys.readouterr().out
    assert run(["export", str(plan), "--to", "jax", "-o", str(tmp_path / "y")]) == 3
    assert "--to jax do not go together" in capsys.readouterr().err and not (tmp_path / "y").exists()
    assert run(["export", str(plan), "--to", "dtensor", "--resolve", "-o", str(tmp_path / "y")]) == 3
    assert "without a search" in capsys.readouterr().err
    shardproof.plan("mlp-unity", "localhost:2", batch=8).save(tmp_path / "m.spz")
    line = [
        "export",
        str(tmp_path / "m.spz"),
        "--to",
        "dtensor",
        "-o",
        str(tmp_path / "y"),
        "--csv",
        str(tmp_path / "z"),
    ]
    assert run(line) == 3 and "have no schedule" in capsys.readouterr().err
    refuted = write_pipeline(None, replace(plan_of("2x2"), lower_bound=plan_of("2x2").step))
    (tmp_path / "bad.spz").write_bytes(refuted)
    assert run(["export", str(tmp_path / "bad.spz"), "--to", "dtensor", "-o", str(tmp_path / "y")]) == 10
    assert not (tmp_path / "y").exists()


@pytest.mark.torch
def test_stages_make_the_module() -> None:
    """A mask, sizes that cross a cut, a second input that a later stage reads: stage after stage is the module."""
    torch = pytest.importorskip("torch")
    from shardproof.backends.export.pipelined_runtime import cut_module

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
            self.scale = torch.nn.Parameter(torch.ones(4))
            self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]))

        def forward(self, x: Any, y: Any, z: Any = None) -> Any:
            n, _ = x.shape
            steady = self.mask * 2
            x = torch.relu(self.a(x)) * steady
            x = x + torch.tanh(self.b(x)) + y
            return (self.c(x * self.scale) * steady).view(n, 2, 2)

    def stage(names: list[str], early: bool = False, digits: tuple[int, ...] = (2, 4)) -> dict[str, Any]:
        return {"parameters": names, "whole": [], "early": early, "receives": {"digits": digits, "place": "x"}}

    def linear(*which: str) -> list[str]:
        return [f"{w}.{k}" for w in which for k in ("weight", "bias")]

    torch.manual_seed(0)
    model = Model()
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    for early, calls in ((True, "a"), (False, "mul")):
        three = [linear("a"), linear("b"), ["scale", *linear("c")]]
        plan = {"micro_batches": 2, "stages": [stage(three[0]), stage(three[1], early), stage(three[2])]}
        cut = cut_module(plan, model, (x, y))
        made = [cut.stage(s) for s in range(3)]
        value = made[0](x, y)
        assert next(n for n in cut.stages[0].nodes if n.op == "output").args[0].name.startswith(calls)
        value = made[2](made[1](value, y))
        assert torch.equal(value, model(x, y)) and cut.results[0].shape == (2, 2, 2)
        assert [sorted(n for n, _ in s.named_parameters()) for s in made] == [sorted(names) for names in three]
    with pytest.raises(ValueError, match="no parameter 'q.weight'"):
        cut_module({"micro_batches": 2, "stages": [stage(["q.weight"])]}, model, (x, y))
    with pytest.raises(ValueError, match="leaves one tensor of 99 elements alone"):
        cut_module({"micro_batches": 2, "stages": [stage(three[0]), stage(three[2], digits=(99,))]}, model, (x, y))
    with pytest.raises(ValueError, match="of a later stage before"):
        cut_module({"micro_batches": 2, "stages": [stage(three[2]), stage(three[0])]}, model, (x, y))
    block = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(4, 2, 4, batch_first=True))
    inner = {"micro_batches": 1, "stages": [stage(["0.linear1.weight"]), stage(["0.linear2.weight"])]}
    with pytest.raises(ValueError, match="cuts inside '0'"):
        cut_module(inner, block, (x[None],))


@pytest.mark.torch
def test_tables_are_computed_by_the_stages_that_read_them() -> None:
    """What a module makes of numbers alone is made anew, in the precision of the run; a buffer is read by name, in every
    stage that reads it.  A module that branches or writes on such a table is cut as torch.fx traces it.
    """
    torch = pytest.importorskip("torch")
    from shardproof.backends.export.pipelined_runtime import cut_module

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.register_buffer("rate", torch.tensor([1.0, 3.0, 7.0, 9.0]))

        def forward(self, x: Any) -> Any:
            at = torch.arange(x.shape[0], device=x.device)
            table = (at[:, None] / self.rate).cos() + torch.ones(4) / 3
            if self.kind == "branch" and float(torch.ones(2).sum()) > 1:
                table = table * 2
            if self.kind == "write":
                mask = torch.zeros(4)
                mask[0] = 1
                table = table + mask
            return self.b(self.a(x) * table) * table

    def names(*which: str) -> list[str]:
        return [f"{w}.{k}" for w in which for k in ("weight", "bias")]

    whole = {"early": False, "receives": {"digits": (3, 4), "place": "x"}}
    stages = [{"parameters": [*names(w), "rate"], "whole": [], **whole} for w in "ab"]
    for kind, calls in (("plain", 1), ("branch", 0), ("write", 0)):
        model, x = Model(kind), torch.randn(3, 4)
        cut = cut_module({"micro_batches": 1, "stages": stages}, model, (x,))
        both = [cut.stage(s) for s in range(2)]
        assert torch.equal(both[1](both[0](x)), model(x))
        for stage in both:
            made = [n for n in stage.graph.nodes if n.target is torch.ones]
            read = [n for n in stage.graph.nodes if n.op == "get_attr" and n.target == "rate"]
            assert (len(made), len(read)) == (calls, 1), kind
            assert any(n.target is torch.arange for n in stage.graph.nodes), "its size is an input's"
            held = [a for n in stage.graph.nodes for a in n.kwargs.values()]
            assert not any(isinstance(a, torch.device) for a in held), "a job runs elsewhere than its example"
        if calls:
            first, last = (s.double() for s in both)
            assert torch.equal(last(first(x.double())), model.double()(x.double())), "no table kept in float32"


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["method", "view", "out", "function", "size", "buffer", "input", "bernoulli", "rand"])
def test_what_changes_is_made_once(kind: str) -> None:
    """A table that is written in place is what it is in the end, in every stage; what is of an input's sizes, a buffer or
    at random, and read in two stages, is refused: another call would give something else.
    """
    torch = pytest.importorskip("torch")
    from shardproof.backends.export.pipelined_runtime import cut_module

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.register_buffer("count", torch.ones(4))

        def table(self, x: Any, scale: Any) -> Any:
            made = torch.zeros(x.shape[1] if kind == "size" else 4)
            if kind == "view":
                made.view(2, 2)[:].add_(2)
            elif kind == "out":
                torch.add(torch.ones(4), 1, out=made)
            elif kind == "function":
                made = made - 2
                torch.nn.functional.relu(made, inplace=True)
            elif kind == "buffer":
                made = self.count
                self.count.add_(1)
            elif kind == "input":
                made = made + scale * 2
            elif kind == "bernoulli":
                made = torch.bernoulli(made + 0.5)
            elif kind == "rand":
                made = torch.rand(4)
            else:
                made.fill_(2)
            return made

        def forward(self, x: Any, scale: Any) -> Any:
            table = self.table(x, scale)
            return self.b(self.a(x) * table) * table

    at = {"early": False, "receives": {"digits": (3, 4), "place": "x"}, "whole": []}
    stages = [{"parameters": [f"{w}.weight", f"{w}.bias"], **at} for w in "ab"]
    model, x = Model(), torch.randn(3, 4)
    refused = {"bernoulli": "draws random", "rand": "draws random", "size": "zeros", "buffer": "count", "input": "add"}
    if kind in refused:
        with pytest.raises(ValueError, match=refused[kind]):
            cut_module({"micro_batches": 1, "stages": stages}, model, (x, 3.0))
        return
    cut = cut_module({"micro_batches": 1, "stages": stages}, model, (x, 3.0))
    assert torch.equal(cut.stage(1)(cut.stage(0)(x, 3.0)), model(x, 3.0))


@pytest.mark.torch
def test_a_weight_that_is_a_buffer_here_is_another_model() -> None:
    torch = pytest.importorskip("torch")
    from shardproof.backends.export.pipelined_runtime import cut_module

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    stage = {"parameters": ["0.weight", "1.running_mean"], "whole": []}
    for weights, fits in (["0.weight"], True), (["0.weight", "1.running_mean"], False):
        plan = {"micro_batches": 1, "stages": [{**stage, "optimizer": {"groups": [{"weights": weights}]}}]}
        if fits:
            assert len(cut_module(plan, model, (torch.randn(3, 4),)).stages) == 1
            continue
        with pytest.raises(ValueError, match=r"no parameter '1\.running_mean'"):
            cut_module(plan, model, (torch.randn(3, 4),))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("batch", "pair", "from_csv"), [(8, "2:4", False), (4, "2:4", False), (8, "4:4", True)])
def test_torch_runs_the_stages(batch: int, pair: str, from_csv: bool, tmp_path: Path) -> None:
    """A transformer of four layers on four gloo ranks: copies, tensor parallel and alone inside the stages."""
    (tmp_path / "model.py").write_text(TRANSFORMER.format(batch=batch))
    (tmp_path / "machine.toml").write_text(MACHINE.format(nodes=2, rate="0.2"))
    plan, exported, actions = tmp_path / "p.spz", tmp_path / "exported.py", tmp_path / "s.csv"
    line = ["plan", f"{tmp_path / 'model.py'}:net", "--train", "adam", "--pipeline", pair, "--gap", "0.2"]
    assert run([*line, "--machine", str(tmp_path / "machine.toml"), "--work-limit", "60M", "-o", str(plan)]) in (0, 5)
    assert run(["export", str(plan), "--to", "dtensor", "-o", str(exported), "--csv", str(actions)]) == 0
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(JOB), str(exported), str(tmp_path / "model.py"), "4", str(tmp_path / "s")]
        + ([str(actions)] if from_csv else []),
        capture_output=True,
        check=False,
        text=True,
        timeout=800,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for told in found:
        assert told["loss"] < 1e-6 and told["gradient"] < 1e-6 and told["weights"] < 1e-4, told
    held = {told["stage"]: told["parameters"] for told in found}
    assert sorted(name for names in held.values() for name in names) == found[0]["all"]
    if batch == 4:
        assert any("Shard" in p for told in found for p in told["cut"]), "one example is split by tensors"

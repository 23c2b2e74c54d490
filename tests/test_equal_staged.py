"""Verb `equal` of plans with stages: the exported file's stages, under torch's own runtime of the plan's schedule, take
the step that one device takes, all ranks or the corners of every stage; a file that was changed does not, and what
cannot be run so is refused by name.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from shardproof.__main__ import run as command

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)), (torch.zeros(16, 16),)

def shapeless(rank, ranks):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    layer = nn.Linear(16, 16)
    stage = PipelineStage(layer, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda x, y: (x - y).square().mean())
    x = torch.randn(4, 16)
    def f(x):
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x} if rank + 1 == ranks else {}))
        return layer.weight.grad
    return f, (x,)

def one():
    return lambda x: x, (torch.randn(4, 16),)

class Turned(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.kept, self.norm, self.q, self.k, self.o = kept, nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in range(3))
        if kept:
            self.register_buffer("cos", self.table().cos())
    def table(self):
        return torch.arange(2)[:, None] / 10.0 ** (torch.arange(8) / 8)
    def forward(self, x):
        cos = self.cos if self.kept else self.table().cos()
        y = self.norm(x)
        return x + self.o(torch.softmax((self.q(y) * cos) @ (self.k(y) * cos).transpose(1, 2), -1) @ y)

def tables(kept=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), Turned(kept), Turned(kept), nn.Linear(8, 4)), (torch.zeros(8, 2, 4),)

def buffers():
    return tables(True)
"""


@pytest.fixture(scope="module", params=[("localhost:2", "sgd"), ("localhost:4", "adam")], ids=["2", "4"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its plan of two stages and two micro-batches, and the exported file."""
    machine, optimizer = request.param
    folder = tmp_path_factory.mktemp("staged")
    (folder / "model.py").write_text(MODEL)
    (folder / "each.json").write_text(str(int(machine.rpartition(":")[2]) // 2))
    words = ["plan", f"{folder / 'model.py'}:net", "--machine", machine, "--train", optimizer, "--pipeline", "2:2"]
    limit = ["--loss", "squared-error", "--work-limit", "3M"]
    assert command([*words, *limit, "-o", str(folder / "plan.spz")]) in (0, 5)
    assert command(["export", str(folder / "plan.spz"), "--to", "dtensor", "-o", str(folder / "layout.py")]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


def test_stages_take_the_step_of_one_device(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net, proof = f"{made / 'model.py'}:net", str(tmp_path / "c.spz")
    code, found = said(capsys, "equal", net, str(made / "plan.spz"), "-o", proof)
    assert (code, found["verdict"]) == (0, "equal"), found["reason"]
    rows = found["outputs"]
    assert isinstance(rows, list)
    names = {row["tensor"] for row in rows}
    assert {"output.loss", "output.0.weight", "output.4.bias"} <= names
    first = {row["tensor"] for row in rows if row["rank"] == 0}
    assert "output.0.weight" in first and not {"output.loss", "output.4.weight"} & first, "each stage has its own"
    assert said(capsys, "check", proof)[1]["verdict"] == "proved"


def test_corners_of_every_stage_stand_for_its_ranks(
    made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net, plan, proof = f"{made / 'model.py'}:net", str(made / "plan.spz"), str(tmp_path / "c.spz")
    each = json.loads((made / "each.json").read_text())
    code, found = said(capsys, "equal", net, plan, "--alike", str(each), "-o", proof)
    assert (code, found["verdict"], found["ranks"]) == (0, "equal", 2 * each), found["reason"]
    assert said(capsys, "check", proof)[1]["verdict"] == "proved"
    text = (made / "layout.py").read_text()
    line = "loss_fn=loss, **options)"
    (tmp_path / "wrong.py").write_text(text.replace(line, f"loss_fn=loss, scale_grads=False, {line[14:]}"))
    code, found = said(capsys, "equal", net, str(tmp_path / "wrong.py"), "--alike", str(each))
    assert (code, found["verdict"]) == (10, "different")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("loss_fn=loss, **options)", "loss_fn=loss, scale_grads=False, **options)"),
        ("result.redistribute(self.mesh, placements)", "(2 * result).redistribute(self.mesh, placements)"),
    ],
    ids=["not scaled", "another block"],
)
def test_a_file_whose_step_is_another_is_different(
    made: Path, line: str, wrong: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (made / "layout.py").read_text()
    assert text.count(line) == 1
    (tmp_path / "wrong.py").write_text(text.replace(line, wrong))
    code, found = said(capsys, "equal", f"{made / 'model.py'}:net", str(tmp_path / "wrong.py"))
    alone = "2 *" in wrong and found["ranks"] == 2  # a stage of one rank sends what it has
    assert (code, found["verdict"]) == ((0, "equal") if alone else (10, "different"))


def test_what_does_not_fit_is_refused(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net, plan = f"{made / 'model.py'}:net", str(made / "plan.spz")
    layouts = ["export", plan, "--to", "dtensor", "--layouts-only", "-o", str(tmp_path / "layouts.py")]
    assert command(layouts) == 0
    for words, words_said in (
        ([net, plan, "--grad"], "leave --grad out"),
        ([net, plan, "--ranks", "3"], "leave --ranks out"),
        ([net, plan, "--alike", "7"], "for 2 stages of"),
        ([net, str(tmp_path / "layouts.py")], "--layouts-only"),
        ([net, "--plan", plan], "--without stages"),
        ([f"{made / 'model.py'}:one", f"{made / 'model.py'}:shapeless", "--ranks", "2"], "input_args"),
    ):
        assert command(["equal", *words]) == 3, words
        assert words_said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tables", "buffers"])
def test_tables_and_buffers_of_stages(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Stages compute tables as the module does, and hold buffers; rows of a micro-batch lie on the ranks of a stage."""
    (tmp_path / "model.py").write_text(MODEL)
    net, plan = f"{tmp_path / 'model.py'}:{name}", str(tmp_path / "p.spz")
    words = ["plan", net, "--machine", "localhost:4", "--train", "adam", "--pipeline", "2:2", "--work-limit", "3M"]
    assert command([*words, "--loss", "squared-error", "-o", plan]) in (0, 5)
    code, found = said(capsys, "equal", net, plan)
    assert (code, found["verdict"]) == (0, "equal"), found["reason"]

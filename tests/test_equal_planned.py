"""Verb `equal` of a model and a plan of ours: the exported job computes what the module does, forward, gradients, and the
step of its optimizer; a file that was changed does not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from export_cases import MACHINE

import shardproof
from shardproof.__main__ import run as command
from shardproof.models.text import InputError

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

def net():
    return Attends(), (torch.zeros(4, 8, 16),)

def nothing():
    return 3
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its plan, and the plan's exported file."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "model.py").write_text(MODEL)
    (folder / "machine.toml").write_text(MACHINE.format(nodes=1, rate="0.02"))
    words = ["plan", f"{folder / 'model.py'}:net", "--machine", str(folder / "machine.toml"), "--train", "adam"]
    assert command([*words, "-o", str(folder / "plan.spz")]) == 0
    assert command(["export", str(folder / "plan.spz"), "--to", "dtensor", "-o", str(folder / "layout.py")]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


@pytest.mark.parametrize("job", ["plan.spz", "layout.py"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_plan_and_its_file_compute_what_the_model_does(
    made: Path, job: str, grad: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [f"{made / 'model.py'}:net", str(made / job), "-o", str(tmp_path / "c.spz")]
    code, found = said(capsys, "equal", *words, *(["--grad"] if grad else []))
    assert (code, found["verdict"], found["ranks"]) == (0, "equal", 2), found["reason"]
    rows = found["outputs"]
    assert isinstance(rows, list) and any("of dimension" in row["is"] for row in rows), "nothing is split"
    names = {row["tensor"] for row in rows}
    assert ("grad qkv.weight" in names) == grad and ("output.qkv.weight" in names) != grad
    assert said(capsys, "check", str(tmp_path / "c.spz"))[1]["verdict"] == "proved"


def test_a_file_whose_step_is_another_is_different(
    made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (made / "layout.py").read_text()
    line = "(value * w * (share if n is None else 1.0)).backward()"
    assert text.count(line) == 1
    (tmp_path / "wrong.py").write_text(text.replace(line, line.replace("value *", "0.5 * value *")))
    code, found = said(capsys, "equal", f"{made / 'model.py'}:net", str(tmp_path / "wrong.py"))
    assert (code, found["verdict"]) == (10, "different") and str(found["output"]).startswith("output.")


def test_what_does_not_fit_is_refused(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net, plan = f"{made / 'model.py'}:net", str(made / "plan.spz")
    (tmp_path / "empty.py").write_text("PLAN = {}\n")
    for words, code, words_said in (
        ([net, plan, "--ranks", "4"], 3, "--ranks 4: the plan of"),
        ([f"{made / 'model.py'}:nothing", plan], 3, "returns (module, example inputs)"),
        ([net, str(tmp_path / "empty.py")], 3, "has no 'make_mesh'"),
        ([net, str(tmp_path / "absent.spz")], 3, "absent.spz"),
        ([net, f"{made / 'model.py'}:net"], 2, "--ranks"),
        (["mlp-unity", plan], 3, "write FILE.py:NAME"),
    ):
        assert command(["equal", *words]) == code
        assert words_said in capsys.readouterr().err


def test_plans_in_python(made: Path) -> None:
    import runpy

    net = runpy.run_path(str(made / "model.py"))["net"]
    assert shardproof.equal(net, str(made / "plan.spz"))
    with pytest.raises(InputError, match="ranks"):
        shardproof.equal(net, made / "layout.py", ranks=3)
    with pytest.raises(InputError, match="ranks"):
        shardproof.equal(net, lambda rank, ranks: net())

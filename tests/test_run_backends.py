"""`run` of every combination of parts that a plan may have, on virtual and MPI ranks, computed by NumPy, by compiled loops and by PyTorch: one
step and several, equal to one process, and the same steps whoever computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from itertools import product
from pathlib import Path
from zipfile import ZipFile

import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.launch import mpi_available
from shardproof.front_door import FrontDoor
from shardproof.proofs.publishing.kind import plan_kind

MODEL = "candle-uno:batch=16,tower=2,layers=1,width=64,features_percent=2"
LINE = ("plan", MODEL, "--train", "sgd", "--machine", "cloud-a100:2x2", "--work-limit", "500k", "--force")
FLAGS = {
    "stages": ("--pipeline", "2:2"),
    "overlap": ("--overlap",),
    "rewrites": ("--joint",),
    "submeshes": ("--views",),
}
COMBINATIONS = [tuple(n for n, on in zip(FLAGS, bits) if on) for bits in product((0, 1), repeat=len(FLAGS))]
MORE = {
    "recompute": ("--recompute", "all"),
    "offload": ("--recompute", "tensors", "--memory", "166KiB", "--offload", "25GB/s"),
    "collectives": ("--collectives", "synthesised"),
    "vocabulary": ("--vocabulary", "dtensor"),
    "precision": ("--precision", "bf16-mixed"),
    "micro": ("--micro-batch", "2"),
    "uneven": ("--space", "complete,uneven"),
}
APART = {
    *(("rewrites", "vocabulary"), ("submeshes", "collectives"), ("submeshes", "vocabulary"), ("stages", "micro")),
    *((part, "offload") for part in FLAGS),
}
"""What `plan` refuses together, or has nothing of (`tests/test_option_pairs.py`)."""
CELLS = [(n,) for n in MORE] + [(part, n) for part in FLAGS for n in MORE if (part, n) not in APART]
KINDS = {
    (): "plan",
    ("stages",): "pipelined",
    ("overlap",): "overlapped",
    ("rewrites",): "joint",
    ("submeshes",): "views",
}
"""What the file of a part alone is; of several, the best of their plans."""
TORCH = pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.skipif(not find_spec("torch"), reason="no torch")])
MPI = pytest.param(
    "mpi", marks=[pytest.mark.mpi, pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")]
)
Planned = Callable[[tuple[str, ...]], Path]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder, made = tmp_path_factory.mktemp("backends"), dict[tuple[str, ...], Path]()

    def plan(names: tuple[str, ...]) -> Path:
        if names not in made:
            path = folder / f"{'-'.join(names) or 'plain'}.spz"
            assert run([*LINE, *(word for n in names for word in {**FLAGS, **MORE}[n]), "-o", str(path)]) in (0, 5), (
                names
            )
            made[names] = path
        return made[names]

    return plan


def said(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    """The JSON objects that a command line prints."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0, words
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(scope="module")
def plain_losses(planned: Planned) -> tuple[object, ...]:
    """Losses of two steps of the plan without parts, on virtual ranks by NumPy."""
    line = ["run", str(planned(())), "-n", "4", "--virtual", "--backend", "numpy", "--steps", "2", "--json"]
    with redirect_stdout(StringIO()) as out:
        assert run(line) == 0
    return tuple(json.loads(row)["loss"] for row in out.getvalue().splitlines())


@pytest.mark.parametrize("backend", ["numpy", pytest.param("numba", marks=pytest.mark.slow), TORCH])
@pytest.mark.parametrize("ranks", ["virtual", MPI])
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            n, id="-".join(n) or "plain", marks=() if n in ((), ("stages",), ("overlap",)) else pytest.mark.slow
        )
        for n in COMBINATIONS
    ],
)
def test_every_combination_of_parts_runs(
    names: tuple[str, ...],
    ranks: str,
    backend: str,
    planned: Planned,
    plain_losses: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = planned(names)
    assert plan_kind(path) == KINDS.get(names, plan_kind(path))
    if len(names) > 1:
        assert len(FrontDoor().open(path).published.among) > 1, "a file of several plans"
    line = ("run", str(path), "-n", "4", "--backend", backend, *(["--virtual"] if ranks == "virtual" else []))
    (once,) = said(capsys, *line)
    assert once["equal"] and once["difference"] <= 1e-10  # type: ignore[operator]
    assert once["transport"] == "virtual" if ranks == "virtual" else "mpi" in str(once["transport"])
    many = said(capsys, *line, "--steps", "2")
    assert [s["step"] for s in many] == [1, 2] and many[-1]["equal"]
    for mine, first in zip(many, plain_losses):
        assert mine["loss"] == pytest.approx(first, rel=1e-9), "the same steps under every plan and library"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "numba", TORCH])
@pytest.mark.parametrize("ranks", ["virtual", MPI])
@pytest.mark.parametrize("names", [pytest.param(n, id="-".join(n)) for n in CELLS])
def test_every_other_part_runs_alone_and_beside_each(
    names: tuple[str, ...], ranks: str, backend: str, planned: Planned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recomputation, offloading, collective programs, vocabularies, precisions, micro-batches and uneven parts."""
    line = ("run", str(planned(names)), "-n", "4", "--backend", backend, *(["--virtual"] if ranks == "virtual" else []))
    if "offload" in names:
        with ZipFile(planned(names)) as file:
            assert b"to_host" in file.read("graph.json"), "the limit is so low that tensors lie on hosts"
    (once,) = said(capsys, *line)
    assert once["equal"] and once["difference"] <= (1e-5 if "precision" in names else 1e-10)  # type: ignore[operator]
    many = said(capsys, *line, "--steps", "2")
    assert [s["step"] for s in many] == [1, 2] and many[-1]["equal"]


@pytest.mark.torch
def test_a_state_goes_on_whoever_computes(planned: Planned, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Saved by PyTorch on stages, taken up by NumPy on other placements, and the other way round."""
    pytest.importorskip("torch")
    first, other = str(planned(("stages",))), str(planned(()))
    whole = said(capsys, "run", other, "-n", "4", "--virtual", "--steps", "4")
    for k, (one, two) in enumerate((("torch", "numpy"), ("numpy", "torch"))):
        folder = str(tmp_path / str(k))
        said(capsys, "run", first, "-n", "4", "--virtual", "--backend", one, "--steps", "2", "--save", folder)
        rest = said(capsys, "run", other, "-n", "4", "--virtual", "--backend", two, "--steps", "2", "--resume", folder)
        assert [s["step"] for s in rest] == [3, 4]
        assert [s["loss"] for s in rest] == pytest.approx([s["loss"] for s in whole[2:]], rel=1e-9)


@pytest.mark.torch
def test_the_same_run_has_the_same_bits(planned: Planned, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    files = [tmp_path / f"{k}.npz" for k in range(2)]
    for file in files:
        line = ("run", str(planned(("overlap",))), "-n", "4", "--virtual", "--backend", "torch", "--dtype", "float32")
        assert run([*line, "-o", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_without_pytorch_the_way_to_it_is_said(
    planned: Planned, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardproof.backends.execution import libraries

    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    for names in ((), ("stages",)):
        for more in ((), ("--steps", "1")):
            line = ("run", str(planned(names)), "-n", "4", "--virtual", "--backend", "torch", *more)
            assert run(line) == 3
            assert "pip install 'shardproof[torch]'" in capsys.readouterr().err

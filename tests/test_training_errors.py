"""What a training step cannot be made of: clear errors through the command line, naming the place and the next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import training_step
from shardproof.models.sources.zoo import build as zoo


def mlp() -> str:
    return zoo("mlp-unity", batch=8).to_json()


def integers() -> str:
    g = Builder("ints", "int32")
    return g.build(g.map("y", "add", g.input("x", (8, 4)), g.parameter("w", (8, 4), "int32"))).to_json()


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, *options: str) -> tuple[int, str]:
    """(exit code, what stands on stderr)."""
    code = run(["plan", model, "--machine", "cloud-a100:1x2", *options, "-o", str(tmp_path / "p.spz")])
    said = capsys.readouterr()
    assert not said.out and not (tmp_path / "p.spz").exists() and "Traceback" not in said.err
    return code, said.err


@pytest.mark.parametrize(
    ("text", "options", "code", "words"),
    [
        (integers, ["--train", "sgd"], 3, ["output 'y'", "not a floating-point tensor", "--loss"]),
        (
            lambda: training_step(zoo("mlp-unity", batch=8), "sgd").to_json(),
            ["--train", "adam"],
            3,
            ["'mlp-unity+sgd'", "already", "leave out --train"],
        ),
        (mlp, ["--train", "sgd", "--loss", "nobody"], 3, ["loss 'nobody'", "leave --loss out"]),
        (mlp, ["--train", "sgd", "--loss", "fc2"], 3, ["loss 'fc2'", "not a computed scalar"]),
        (mlp, ["--loss", "fc2"], 2, ["--loss needs --train"]),
        (mlp, ["--train", "lamb"], 2, ["'lamb' is not one of 'sgd', 'adam'"]),
        (
            lambda: mlp().replace("784", "3000000000"),
            ["--train", "adam"],
            3,
            ["tensor 'x'", "axis of 3000000000", "int32", "reshape"],
        ),
        (lambda: mlp().replace("784", "0"), ["--train", "adam"], 3, ["tensor 'x'", "size 0", "at least 1"]),
    ],
)
def test_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: object, options: list[str], code: int, words: list[str]
) -> None:
    assert callable(text)
    model = tmp_path / "m.json"
    model.write_text(text())
    found, said = refused(tmp_path, capsys, str(model), *options)
    assert found == code and all(w in said for w in words), said


@pytest.mark.parametrize("batch", ["0", "-3", "3000000000"])
def test_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: str) -> None:
    code, said = refused(tmp_path, capsys, "mlp-unity", "--train", "adam", "--batch", batch)
    assert code == 2 and f"'--batch': {batch} is not between 1 and 2147483647" in said


def test_an_element_type_without_a_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        (Path(__file__).resolve().parent.parent / "models" / "machine" / "builtin" / "cloud-a100.toml")
        .read_text()
        .splitlines()
    )
    machine = tmp_path / "m.toml"
    machine.write_text("\n".join(x for x in lines if not x.startswith("float32 =") and 'peaks.float32"' not in x))
    model = tmp_path / "m.json"
    model.write_text(mlp())
    code = run(["plan", str(model), "--train", "adam", "--machine", str(machine), "-o", str(tmp_path / "p.spz")])
    said = capsys.readouterr().err
    assert code == 3 and "float32" in said and "a100" in said and "peaks" in said


def test_a_data_dependent_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "prog.py"
    program.write_text("import shardproof\n\n\n@shardproof.program(x=(64, 8))\ndef f(x):\n    return x[x > 0]\n")
    code, said = refused(tmp_path, capsys, f"{program}:f", "--train", "sgd")
    assert code == 3 and "prog.py:6" in said and "data-dependent shape" in said and "np.where" in said


def test_a_budget_that_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The conflicting tensors, and a limit that does work: with it there is a plan."""
    options = [
        "mlp-unity",
        "--batch",
        "64",
        "--train",
        "adam",
        "--machine",
        "cloud-a100:1x4",
        "-o",
        str(tmp_path / "p.spz"),
    ]
    assert run(["plan", *options, "--memory", "100KiB"]) == 20
    said = capsys.readouterr().out
    assert (
        "proved infeasible" in said
        and "fc1.weight.adam_m (401408)" in said
        and "the limit is 102400" in said
        and "(fc1" in said
    )
    assert run(["plan", *options, "--memory", "100KiB", "--json"]) == 20
    document = json.loads(capsys.readouterr().out)["conflict"]
    least = document["least_known_limit"]
    assert document["rows"] and f"the least limit for which a solution is known is {least}" in said
    assert run(["plan", *options, "--memory", str(least)]) == 0
    assert "memory: " in capsys.readouterr().out

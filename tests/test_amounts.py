"""Quantities that people type: every spelling means what it says, asks back, or is refused with the spelling."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.backends.execution.launch import environment
from shardproof.models.machine.quantities import QuantityError, parse
from shardproof.models.text import InputError, parse_bytes, parse_fraction, parse_memory


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(
    ("unit", "factor"), [("g", 10**9), ("gb", 10**9), ("gib", 1 << 30), ("mb", 10**6), ("mib", 1 << 20), ("t", 10**12)]
)
def test_units_in_any_case(unit: str, factor: int, space: str) -> None:
    for text in {unit, unit.upper(), unit.capitalize() if not unit.endswith("b") else unit}:
        assert parse_bytes(f"80{space}{text}") == parse_memory(f"80{space}{text}") == 80 * factor


@pytest.mark.parametrize(("text", "spelling"), [("80Gb", "80GB"), ("80Gib", "80GiB"), ("1.5Mb", "1.5MB")])
def test_bits_are_refused_with_the_spelling(text: str, spelling: str) -> None:
    with pytest.raises(InputError, match=f"read as bits; write {spelling} for bytes"):
        parse_memory(text)


@pytest.mark.parametrize("memory", ["80", "80.5", "1048575", "1e3"])
def test_a_bare_number_asks_back(memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "mlp-unity", "--machine", "localhost:2", "--memory", memory, "-o", str(tmp_path / "p.spz")]
    assert run(line) == 2
    assert f"{memory}GiB" in capsys.readouterr().err and not (tmp_path / "p.spz").exists()
    assert parse_memory(f"{memory} B") == int(Fraction(memory))


@pytest.mark.parametrize(
    "given", [{"memory": 80}, {"memory": "80"}, {"memory": 80.5}, {"gap": 3}, {"time_limit_s": -1.0}]
)
def test_python_asks_back_too(given: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"80GiB|80\.5GiB|write '3%'|time_limit_s"):
        shardproof.plan("mlp-unity", "localhost:2", **given)  # type: ignore[call-overload]


def test_shares_and_factors(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_fraction("3 %", "gap") == parse_fraction("0.03", "gap") == Fraction(3, 100)
    assert run(["plan", "mlp-unity", "--machine", "localhost:2", "--gap", "3", "-o", "p.spz"]) == 2
    assert "write 3%" in capsys.readouterr().err
    for pace in ("nan", "inf", "0", "-1"):
        assert run(["run", "absent.spz", "-n", "2", "--pace", pace]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(("text", "what"), [("400", "rate"), ("80", "bytes"), ("312", "flops"), ("5", "time")])
def test_constants_of_machines_name_their_unit(text: str, what: str) -> None:
    with pytest.raises(QuantityError, match="without a unit"):
        parse(text, what)  # type: ignore[arg-type]
    with pytest.raises(QuantityError, match="50 GB/s"):
        parse("400 Gb/s", "rate")


NOISY = """
import os
import shardproof
print("from Python")
os.write(1, b"from C\\n")
os.system("echo from a child")

@shardproof.program(x=(8, 16), w=shardproof.parameter(16, 16))
def f(x, w):
    print("while it is read")
    return x @ w
"""


@pytest.mark.parametrize(
    "line",
    [
        ("place", "--hierarchy", "2x2", "--axes", "2,2", "--engine", "ilp"),
        ("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0", "--engine", "ilp"),
        ("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0", "--engine", "smt"),
        ("import", "noisy.py:f"),
        ("schedule", "--stages", "2", "--micro-batches", "2", "--times", "1,1,1", "--engine", "ilp"),
    ],
)
def test_stdout_is_one_json_object(line: tuple[str, ...], tmp_path: Path) -> None:
    """In a process of its own: what C writes goes round `sys.stdout`."""
    import json

    (tmp_path / "noisy.py").write_text(NOISY)
    done = subprocess.run(
        [sys.executable, "-m", "shardproof", *line, "--json"],
        cwd=tmp_path,
        env=environment(1),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 5), done.stderr.decode()
    assert isinstance(json.loads(done.stdout), dict) and done.stdout.count(b"\n") == 1
    assert line[0] != "import" or done.stderr.count(b"from ") == 3

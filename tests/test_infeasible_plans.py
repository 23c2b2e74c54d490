"""A memory limit that nothing fits: the proof is a file, every verb answers it, and a forged one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.models.terminal.console import Exit
from shardproof.proofs.plan.bundle import read_plan, write_plan

LIMIT = 2 << 20
PLAN = ("plan", "mlp-unity:batch=64", "--train", "adam", "--machine", "localhost:4", "--memory", str(LIMIT))


@dataclass(frozen=True)
class Said:
    """What a command line ended with."""

    code: int
    out: str
    err: str


Call = Callable[..., Said]


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that `plan` writes."""
    path = tmp_path_factory.mktemp("infeasible") / "proof.spz"
    assert run([*PLAN, "-o", str(path)]) == Exit.INFEASIBLE
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Carries out a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def made(*arguments: str) -> Said:
        code = run([*arguments])
        seen = capsys.readouterr()
        return Said(code, seen.out, seen.err)

    return made


def test_plan_says_what_it_wrote(call: Call) -> None:
    said = call(*PLAN, "-o", "proof.spz")
    assert said.code == Exit.INFEASIBLE and "confirm it: shardproof check proof.spz" in said.out


def test_its_check_says_that_nothing_fits(proof: Path, call: Call) -> None:
    said = call("check", str(proof))
    assert said.code == 0 and "Infeasible   proved" in said.out


def test_explain_names_the_step(proof: Path, call: Call) -> None:
    said = call("explain", str(proof), "--json")
    document = json.loads(said.out)
    assert document["status"] == "infeasible" and document["conflict"]["limit"] == LIMIT
    assert document["conflict"]["rows"][0]["least_use"] > LIMIT


@pytest.mark.parametrize(
    "verb",
    [
        ("report", "FILE", "-o", "page.html"),
        ("run", "FILE", "-n", "4", "--virtual"),
        ("export", "FILE", "--to", "dtensor", "-o", "job.py"),
        ("export", "FILE", "--to", "torchtitan", "-o", "job.toml"),
        ("sensitivity", "FILE"),
        ("diff", "FILE", "FILE"),
    ],
)
def test_what_needs_choices_says_that_there_are_none(proof: Path, verb: tuple[str, ...], call: Call) -> None:
    said = call(*(str(proof) if word == "FILE" else word for word in verb))
    assert said.code == Exit.BAD_INPUT and "has no choices" in said.err


@pytest.mark.parametrize("limit", [LIMIT - 1, LIMIT + 1, 2825220, 1 << 40, None])
def test_a_proof_about_another_limit_is_refuted(proof: Path, limit: int | None, call: Call) -> None:
    other = Path("other.spz")
    other.write_bytes(write_plan(None, replace(read_plan(proof)[0], memory_limit=limit)))
    said = call("check", str(other))
    assert said.code == Exit.REFUTED, said

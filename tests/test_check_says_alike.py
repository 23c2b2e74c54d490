"""What `check` prints is made in one place: every kind of file says the same of its machine, its kernels and its
rounding, and refuses by name the options that it has nothing for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardproof.__main__ import run
from shardproof.models.machine.machine import load_machine
from shardproof.proofs.collective_programs.file import decode_reduction, write_reduction
from shardproof.proofs.container.archive import Member, read_container
from shardproof.proofs.overlap.file import decode_overlap, write_overlap
from shardproof.proofs.pipelines.file import decode_pipeline, write_pipeline
from shardproof.proofs.plan.bundle import decode_plan, write_plan
from shardproof.proofs.views.file import decode_submesh_plan, write_submesh_plan
from shardproof.verify.verbs import subject

PROVED = Path(__file__).parent / "conformance" / "proved"
PROBLEMS = PROVED.parent / "problems"

KINDS: Mapping[str, tuple[str, Callable[[Mapping[str, Member]], Any], Callable[[Path, Any], object]]] = {
    "plan": ("plan-moving.spz", decode_plan, write_plan),
    "joint plan": ("joint-layer.spz", decode_plan, write_plan),
    "pipelined step": ("pipeline-two.spz", decode_pipeline, write_pipeline),
    "overlapped plan": ("overlap-sums.spz", decode_overlap, write_overlap),
    "plan with submeshes": ("views-beside.spz", decode_submesh_plan, write_submesh_plan),
}
"""Kind -> a proved file, how it is read and written."""

WITHOUT = {
    "placement-two.spz": "a list of placements",
    "program-impossible.spz": "a file of reduction programs",
    "schedule-path.spz": "a schedule",
    "rules-proved.spz": "a rule library",
    "selection-dual.spz": "a certificate of a selection problem",
    "extraction-cut.spz": "an extraction",
}
"""Files that hold no program, and what they are called."""


def words(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["check", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_constant_of_the_machine_is_shown(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(PROVED / KINDS[kind][0])
    machine = KINDS[kind][1](read_container(Path(file))).machine
    code, plain, _ = words(capsys, file)
    assert code == 0 and "memory bandwidth" not in plain and f"machine {machine.name} " in plain
    code, shown, _ = words(capsys, file, "--show-machine")
    assert code == 0 and "memory bandwidth" in shown and all(level.name in shown for level in machine.levels)
    code, text, _ = words(capsys, file, "--show-machine", "--json")
    (about,) = json.loads(text)["plans"]
    assert about["machine"]["constants"] == json.loads(machine.to_json())
    assert "constants" not in json.loads(words(capsys, file, "--json")[1])["plans"][0]["machine"]


def test_a_borrowed_name_is_said(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the verdict: a machine that is called as a built-in one and is another."""
    file, decode, write = KINDS[kind]
    certificate = decode(read_container(PROVED / file))
    path = tmp_path / "borrowed.spz"
    levels = [level.name for level in certificate.machine.levels]
    write(path, replace(certificate, machine=replace(certificate.machine, name="cloud-a100")))
    _, said, _ = words(capsys, str(path))
    assert "note: the machine is named cloud-a100, but" in said, levels
    document = json.loads(words(capsys, str(path), "--json")[1])
    assert document["plans"][0]["machine"]["notice"].startswith("named cloud-a100, but")
    assert "note:" not in words(capsys, str(PROVED / file))[1]


def test_kernels_of_the_users_own_are_named(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subject, "kernels_of", lambda graph: ("mine:fast",))
    file = str(PROVED / KINDS[kind][0])
    assert "kernels of the user's own, which no claim covers: 'mine:fast'" in words(capsys, file)[1]
    assert json.loads(words(capsys, file, "--json")[1])["kernels"] == ["mine:fast"]


def test_rounding_is_said(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(PROVED / KINDS[kind][0])
    assert "every time is rounded up once to 1 ps" in words(capsys, file)[1]
    for row in json.loads(words(capsys, file, "--json")[1])["rounding"]:
        assert row["scale"] == 10**12 and row["rounding_bound"] > 0 and row["file"] == file


def test_all_entries_say_what_they_are_about(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (about,) = json.loads(words(capsys, str(PROVED / KINDS[kind][0]), "--json")[1])["plans"]
    assert {"file", "identity", "model", "machine", "memory_limit", "space", "assumptions"} <= set(about)
    assert about["model"]["tensors"] > 0 and about["assumptions"]


def test_a_machine_that_is_meant_is_compared(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = words(capsys, str(PROVED / KINDS[kind][0]), "--machine", "localhost:7")
    assert code == 10 and "Machine      refuted" in said


def test_reduction_programs_show_the_machines_of_their_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = PROVED / "program-cheapest.spz"
    code, said, _ = words(capsys, str(file), "--show-machine")
    assert code == 0 and "machine " in said and "per phase" in said
    (about,) = json.loads(words(capsys, str(file), "--show-machine", "--json")[1])["machines"]
    assert about["constants"] and "plans" not in about
    certificate = decode_reduction(read_container(file))
    fast = load_machine("cloud-a100").resized(certificate.costs[0].machine.hierarchy[:2] or (1, 1))
    fast = replace(fast, levels=tuple(replace(x, latency=9 * x.latency) for x in fast.levels))
    write_reduction(tmp_path / "r.spz", replace(certificate, costs=(replace(certificate.costs[0], machine=fast),)))
    assert "note: the machine is named cloud-a100, but" in words(capsys, str(tmp_path / "r.spz"))[1]


def beside(file: str) -> list[str]:
    """The problem that a certificate needs."""
    expected = json.loads((PROVED.parent / "expected.json").read_text(encoding="utf-8"))
    (entry,) = (e for e in expected if e["file"] == f"proved/{file}")
    return [str(PROVED / file), *(str(PROVED.parent / name) for name in entry["with"])]


@pytest.mark.parametrize("file", WITHOUT)
@pytest.mark.parametrize(
    ("option", "lacks"),
    [
        (["--show-machine"], "machine"),
        (["--machine", "localhost:2"], "model"),
        (["--model", "mlp-unity"], "model"),
        (["--second-opinion"], "entries of tables"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_an_option_that_a_file_has_nothing_for_is_refused_by_name(
    file: str, option: list[str], lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words(capsys, *beside(file))[0] == 0
    code, said, error = words(capsys, *beside(file), *option)
    assert code == 3 and "proved" not in said
    assert file in error and f"{WITHOUT[file]} holds no {lacks}" in error and option[0] in error


@pytest.mark.parametrize("file", [*(file for file, _, _ in KINDS.values()), *WITHOUT, "program-cheapest.spz"])
def test_large_reaches_every_kind(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing to spend every kind ends, and names the option; with it, it is proved."""
    from shardproof.verify import budget

    monkeypatch.setattr(budget, "UNASKED", 1)
    code, said, error = words(capsys, *beside(file))
    assert code == 3 and "'shardproof check --large' takes its time" in error and "proved" not in said
    assert words(capsys, *beside(file), "--large")[0] == 0

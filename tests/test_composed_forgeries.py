"""Forgeries of small composed plans of every kind: what is accepted is true, and no checker fails on what it is given."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from budgets import some_or_all
from composed_files import compared, said
from composed_forgeries import PROBLEMS, File, accepted, files, lies, tally
from composed_problems import BATCH
from forgeries import head_of

from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import MANIFEST, read_container, write_container
from shardproof.proofs.container.canonical import canonical
from shardproof.proofs.portfolio.file import write_portfolio
from shardproof.verify.verbs.kinds import Effort, require_known


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[File]:
    return files(tmp_path_factory.mktemp("forgeries"))


@pytest.mark.parametrize("number", some_or_all(75, 6000))
def test_no_forgery_is_accepted(made: list[File], number: int) -> None:
    counts = tally(made, number, 5)
    assert counts.examples == []
    assert sum(counts.rejected.values()) > number / 2
    assert (
        sum(counts.true.values()) > number / 20
    )  # what is true is let through: the checker does not refuse everything


def test_a_plan_that_is_refuted_early_refutes_the_file(made: list[File]) -> None:
    """It was an internal error: what is refuted before there is a problem has no units of time."""
    file = next(f for f in made if f.plans and "views" in f.name)
    i, members = next(
        (i, dict(inner)) for i, inner in enumerate(map(read_container, file.plans)) if "views.json" in inner
    )
    del members[MANIFEST]
    head = head_of(members, "views.json")
    forged = write_container(None, {**members, "views.json": canonical({**head, "space": "complete,dtensor"})})
    plans = [*file.plans[:i], forged, *file.plans[i + 1 :]]
    for chosen in range(len(plans)):
        held = read_container(write_portfolio(None, plans, chosen))
        found = require_known(held, "test").judge(held, Effort(), {})
        assert found.verdict is Verdict.REFUTED
        assert any("vocabularies are for plans of the whole machine" in r.reason for r in found.results)


@pytest.mark.parametrize("lie", ["bound", "cost", "memory"])
def test_the_evaluation_says_what_is_not_true(lie: str, tmp_path: Path) -> None:
    """A bound above the best, a cost that is not the plan's, a limit below what it holds."""
    problem = next(p for p in PROBLEMS if p.memory is not None and "overlap" in p.flags)
    path = tmp_path / "plan.spz"
    _, answer = said([*problem.line(tmp_path), "--work-limit", "500k", "-o", str(path)])
    scale, cost, bound = (int(str(answer[k])) for k in ("scale", "cost", "lower_bound"))
    members = read_container(path)
    good = compared(members, scale, cost, bound, BATCH)
    assert good.wrong() == [] and accepted(path.read_bytes()) is not None
    assert good.optimum is not None
    wrong = {
        "bound": compared(members, scale, cost, int(good.optimum * scale) + 1, BATCH),
        "cost": compared(members, scale, cost - 1, bound, BATCH),
        "memory": replace(good, limit=good.held - 1),
    }[lie]
    assert wrong.wrong() != []


def test_every_kind_of_composed_file_is_forged(made: list[File]) -> None:
    heads = {name for f in made for name in f.members if name.count("/") == 0 and name.endswith(".json")}
    assert {"overlap.json", "views.json", "pipeline.json", "portfolio.json", "schedule.json", "least.json"} <= heads


@pytest.mark.parametrize("level", [0, 1])
def test_a_latency_beyond_int64_of_what_never_moves(made: list[File], level: int) -> None:
    """It was an OverflowError of the checker: nothing moves on a machine of one device, and yet its time was counted."""
    file = next(f for f in made if f.name == "products3 1x2 --pipeline 2:2")
    members = dict(file.members)
    machine = head_of(members, "machine.json")
    machine["level"][level]["latency"] = str(10**30)
    members["machine.json"] = canonical(machine)
    data = members["machine.json"]
    assert isinstance(data, bytes)
    head = {**head_of(members, "pipeline.json"), "machine_sha256": hashlib.sha256(data).hexdigest()}
    forged = write_container(None, {**members, "pipeline.json": canonical(head)})
    found = accepted(forged)
    assert (found is None) == (level == 1)  # both stages are on one node
    assert found is None or lies(forged, found) == []


def _refused(file: File, head: dict[str, object]) -> str:
    """What is said of a pipelined plan with another `pipeline.json`."""
    held = read_container(write_container(None, {**file.members, "pipeline.json": canonical(head)}))
    found = require_known(held, "test").judge(held, Effort(), {})
    return " ".join(r.reason for r in found.results if r.verdict is Verdict.REFUTED)


def test_what_crosses_a_cut_lies_alike_on_both_sides(made: list[File]) -> None:
    """The other even layout of the tensor behind the cut."""
    file = next(f for f in made if f.name == "products3 1x4 --pipeline 2:2 15000")
    head = head_of(dict(file.members), "pipeline.json")
    tensor = head["cuts"][head["stages"][1][0] - 1][0]
    row = next(r for r in head["stages"][1][3] if r[0] == tensor)
    row[2][0], row[2][1] = row[2][1], row[2][0]
    assert f"{tensor!r} has another layout than on the stage before" in _refused(file, head)


def test_chunks_that_no_step_has_are_not_enumerated(made: list[File]) -> None:
    file = next(f for f in made if f.name == "scales6 1x2 --pipeline 2:2:2")
    head = head_of(dict(file.members), "pipeline.json")
    head["interleaved"].append([2, 2, 9, [1] * (2 * 10**2)])
    assert "2 times 9 chunks of" in _refused(file, head)
